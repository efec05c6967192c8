"""Audio encoders of Qwen2-Audio, Audio Flamingo 3 and Voxtral: the layers are those of the whole models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from daamctl.adapters import build_finetune
from daamctl.config import ExtractConfig
from daamctl.encoders.encoder_size import encoder_size_of, shape_of
from daamctl.encoders.load import open_encoder
from daamctl.encoders.speech import SpeechEncoder
from daamctl.errors import EncoderError
from daamctl.models.onnx import Graph
from tests.fixtures.recordings import clips
from tests.fixtures.tiny_models import TEXT

MAX_FRAMES = 100
"""Two seconds; the published models take 30."""
TOWER = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_mel_bins": 8,
    "max_source_positions": MAX_FRAMES,
}
LENGTHS = (16000, 5600, 2801, 300)
WHOLE: dict[str, tuple[type, type]] = {
    "qwen2_audio": (hf.Qwen2AudioConfig, hf.Qwen2AudioForConditionalGeneration),
    "audioflamingo3": (hf.AudioFlamingo3Config, hf.AudioFlamingo3ForConditionalGeneration),
    "voxtral": (hf.VoxtralConfig, hf.VoxtralForConditionalGeneration),
}


@pytest.fixture(scope="module", params=[*WHOLE])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    config, model = WHOLE[request.param]
    torch.manual_seed(0)
    language = {**TEXT, "num_key_value_heads": 2, "head_dim": 8, "model_type": "qwen2"}
    tower = {**TOWER, "model_type": f"{request.param}_encoder"}
    whole = model(config(audio_config=tower, text_config=language, audio_token_id=5))
    with torch.no_grad():  # new models have norms of one and biases of zero, which hide mistakes
        for p in whole.parameters():
            p.add_(0.05 * torch.randn(p.shape))
    whole.save_pretrained(path)
    hf.WhisperFeatureExtractor(feature_size=8, chunk_length=2).save_pretrained(path)
    return path


def opened(folder: Path, **options: Any) -> SpeechEncoder:
    config = ExtractConfig(encoder=str(folder), **options)
    encoder = open_encoder(config, modality="speech", max_duration_s=1.0, device="cpu", precision="float32").encoder
    assert isinstance(encoder, SpeechEncoder)
    return encoder


@torch.inference_mode()
def states(folder: Path, clip: torch.Tensor, seconds: int = 2) -> torch.Tensor:
    """(3, T, D): input of the first layer and what the layers give within the whole model, all frames of some seconds.

    The final norm is applied to the last.
    """
    kind = json.loads((folder / "config.json").read_text())["model_type"]
    whole = WHOLE[kind][1].from_pretrained(folder).eval()
    tower = whole.model.audio_tower
    if seconds != 2:
        tower.config.max_source_positions = tower.max_source_positions = 50 * seconds
        tower.embed_positions.weight.data = tower.embed_positions.weight.data[: 50 * seconds]
    found = hf.WhisperFeatureExtractor(feature_size=8, chunk_length=seconds)(
        clip.numpy(), sampling_rate=16000, return_tensors="pt", return_attention_mask=True
    )
    mel, inside = found["input_features"], found["attention_mask"]
    caught = []
    tower.layers[0].register_forward_pre_hook(lambda _m, args: caught.append(args[0]))
    for layer in tower.layers:
        layer.register_forward_hook(lambda _m, _i, out: caught.append(out[0] if isinstance(out, tuple) else out))
    if kind == "qwen2_audio":
        words = torch.tensor([[3, whole.config.audio_token_id, 4]])
        whole(words, input_features=mel, feature_attention_mask=inside, attention_mask=torch.ones_like(words))
    elif kind == "audioflamingo3":
        whole.get_audio_features(mel, input_features_mask=inside)
    else:
        whole.get_audio_features(mel)
    caught[-1] = tower.layer_norm(caught[-1])
    return torch.stack([state[0] for state in caught])


def test_vectors_are_means_over_the_frames_of_a_clip_in_the_whole_model(folder: Path) -> None:
    encoder = opened(folder, layer_00=True)
    pooled, frames = encoder.pool(clips(*LENGTHS))
    assert (encoder.layers, encoder.has_final_norm) == ((0, 1, 2), True)
    assert frames.tolist() == [50, 18, 9, 1]
    for row, clip in enumerate(clips(*LENGTHS)):
        expected = states(folder, clip)[:, : int(frames[row])].mean(1)
        torch.testing.assert_close(pooled[row], expected, atol=2e-5, rtol=1e-4)


def test_a_window_takes_the_first_positions(folder: Path) -> None:
    encoder = opened(folder, layer_00=True, window_s=1)
    assert (encoder.positions(1), encoder.padded(1), encoder.facts()["window_s"]) == (50, 16000, 1)
    pooled, frames = encoder.pool(clips(*LENGTHS))
    assert frames.tolist() == [50, 18, 9, 1]
    for row, clip in enumerate(clips(*LENGTHS)):
        expected = states(folder, clip, seconds=1)[:, : int(frames[row])].mean(1)
        torch.testing.assert_close(pooled[row], expected, atol=2e-5, rtol=1e-4)
    with pytest.raises(EncoderError, match=r"a clip of 1.00006 s is longer than the 1 s that"):
        encoder.pool(clips(16001))
    with pytest.raises(EncoderError, match=r"reads 2 s, extract.window_s is 3"):
        opened(folder, window_s=3)


def test_other_encoders_have_no_window() -> None:
    config = ExtractConfig(encoder="wavlm-micro", window_s=3)
    with pytest.raises(EncoderError, match=r"has no fixed input, so extract.window_s has no effect"):
        open_encoder(config, modality="speech", max_duration_s=1.0, device="cpu", precision="float32")


def test_size_is_that_of_the_audio_encoder_alone(folder: Path) -> None:
    config = ExtractConfig(encoder=str(folder))
    size = encoder_size_of(config, "speech")
    assert size is not None
    assert shape_of(config, "speech") == (size.num_layers, size.embed_dim) == (2, 32)
    assert size.num_parameters == sum(p.numel() for p in opened(folder).model.parameters())


def test_an_onnx_graph_has_no_mask(folder: Path) -> None:
    encoder = opened(folder)
    if json.loads((folder / "config.json").read_text())["model_type"] == "voxtral":
        assert Graph(encoder, [], encoder.layers, "float32").places == [0, 1]
        return
    with pytest.raises(EncoderError, match="its attention mask cannot be part of an ONNX graph"):
        Graph(encoder, [], encoder.layers, "float32")


def test_cut_tower_gives_the_lower_layers(folder: Path) -> None:
    config = ExtractConfig(encoder=str(folder))
    whole, _ = opened(folder).pool(clips(*LENGTHS))
    found = open_encoder(
        config, modality="speech", max_duration_s=1.0, device="cpu", precision="float32", highest_layer=1
    )
    torch.testing.assert_close(found.encoder.pool(clips(*LENGTHS))[0], whole[:, :1])


def test_added_layers_see_the_frames_of_a_clip_alone(folder: Path) -> None:
    encoder = opened(folder)
    model = build_finetune("base-plus-1", encoder, num_classes=3, seed=1).eval()
    items = clips(*LENGTHS)
    with torch.no_grad():
        for value in model.trained().values():
            value.add_(0.05 * torch.randn(value.shape))
        alone = torch.cat([model(*encoder.collate([item])) for item in items])
        torch.testing.assert_close(model(*encoder.collate(items)), alone, atol=1e-4, rtol=1e-4)
