"""The Audio Spectrogram Transformer: means over the patches of a clip, whatever stands beside it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torchaudio.compliance.kaldi import fbank
from transformers import ASTConfig, ASTFeatureExtractor, ASTForAudioClassification

from daamctl.adapters import module_lookup
from daamctl.config import ExtractConfig
from daamctl.encoders.load import open_encoder
from daamctl.encoders.spectrogram import SpectrogramEncoder
from daamctl.errors import EncoderError
from tests.fixtures.recordings import clips
from tests.fixtures.tiny_models import SMALL

FRAMES, BANDS, COLUMNS = 104, 4, 9  # a second; patches of 16 every 10 frames, and every 10 of 48 mel bands
LENGTHS = (16000, 5600, 9999, 300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ast")
    torch.manual_seed(0)
    model = ASTForAudioClassification(ASTConfig(**SMALL, num_mel_bins=48, max_length=FRAMES))
    with torch.no_grad():  # a new model has zeros as positions and tokens
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape))
    model.save_pretrained(path)
    ASTFeatureExtractor(num_mel_bins=48, max_length=FRAMES).save_pretrained(path)
    return str(path)


def opened(folder: str, **options: Any) -> SpectrogramEncoder:
    config = ExtractConfig(encoder=folder, **options)
    encoder = open_encoder(config, modality="speech", max_duration_s=1.0, device="cpu", precision="float32").encoder
    assert isinstance(encoder, SpectrogramEncoder)
    return encoder


@torch.inference_mode()
def states(folder: str, clip: torch.Tensor) -> list[torch.Tensor]:
    """Hidden states (bands, columns, D) of the patches of a clip, by the model and a spectrogram made by hand."""
    mel = fbank(clip[None], window_type="hanning", num_mel_bins=48)
    mel = torch.nn.functional.pad(mel, (0, 0, 0, FRAMES - len(mel)))
    model = ASTForAudioClassification.from_pretrained(folder).audio_spectrogram_transformer
    output = model(((mel + 4.2677393) / (2 * 4.5689974))[None], output_hidden_states=True)
    found = [*output.hidden_states[:-1], output.last_hidden_state]
    return [state[0, 2:].reshape(BANDS, COLUMNS, -1) for state in found]


def test_vectors_are_means_over_the_patches_of_a_clip(folder: str) -> None:
    encoder = opened(folder, layer_00=True)
    pooled, patches = encoder.pool(clips(*LENGTHS))
    assert (encoder.layers, encoder.positions(1), encoder.padded(1)) == ((0, 1, 2), 2 + BANDS * COLUMNS, 16880)
    columns = [9, 2, 5, 1]  # 98, 33, 60 and no mel frames; the last is padded to one
    assert patches.tolist() == [BANDS * number for number in columns]
    for row, (clip, number) in enumerate(zip(clips(*LENGTHS)[:3], columns, strict=False)):
        expected = torch.stack([state[:, :number].mean((0, 1)) for state in states(folder, clip)])
        torch.testing.assert_close(pooled[row], expected, atol=2e-5, rtol=1e-4)
    assert bool(pooled.isfinite().all())


def test_published_pooling_takes_the_patches_of_a_whole_clip(folder: str) -> None:
    encoder = opened(folder, pooling="all-frames")
    pooled, patches = encoder.pool(clips(*LENGTHS))
    assert patches.tolist() == [BANDS * 9] * 4
    expected = torch.stack([state[:, :9].mean((0, 1)) for state in states(folder, clips(*LENGTHS)[1])[1:]])
    torch.testing.assert_close(pooled[1], expected, atol=2e-5, rtol=1e-4)


def test_only_setting_always_normalises_the_waveform(folder: str) -> None:
    (clip,) = clips(8000)
    louder = [3 * clip + 0.5]
    own, _ = opened(folder).pool([clip])
    assert not torch.allclose(opened(folder).pool(louder)[0], own, atol=1e-3)
    always = opened(folder, normalize="always")
    torch.testing.assert_close(always.pool(louder)[0], always.pool([clip])[0], atol=1e-4, rtol=1e-4)


def test_settings_of_the_feature_extractor_are_facts(folder: str, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    usual = opened(folder).facts()
    assert opened(str(copy)).facts() == usual
    ASTFeatureExtractor(num_mel_bins=48, max_length=FRAMES, mean=-8.0).save_pretrained(copy)
    changed = opened(str(copy)).facts()
    assert {name for name in usual if usual[name] != changed[name]} == {"features"}


def test_clip_longer_than_the_positions_is_refused(folder: str) -> None:
    encoder = opened(folder)
    encoder.pool(clips(FRAMES * 160))
    with pytest.raises(EncoderError, match=r"a clip of 1\.04006 s is longer than the 1\.04 s that encoder"):
        encoder.pool(clips(FRAMES * 160 + 1))


def test_adapters_find_attention_and_feed_forward_part(folder: str) -> None:
    model = opened(folder).model
    layers = [f"layers.{number}" for number in range(2)]
    expected = {f"{layer}.attention.{role}_proj" for layer in layers for role in "qv"}
    assert set(module_lookup.projections(model, ("query", "value"))) == expected
    assert module_lookup.feed_forward_outputs(model) == tuple(f"{layer}.mlp.fc2" for layer in layers)
