"""w2v-BERT 2.0 and Parakeet: means of hidden states, whatever stands beside a clip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    SeamlessM4TFeatureExtractor,
    Wav2Vec2BertConfig,
    Wav2Vec2BertModel,
)

from daamctl.config import ExtractConfig
from daamctl.encoders.filterbank import MIN_SAMPLES
from daamctl.encoders.load import open_encoder
from daamctl.encoders.speech import SpeechEncoder
from daamctl.errors import EncoderError
from daamctl.models.onnx import Graph
from tests.fixtures.recordings import clips
from tests.fixtures.tiny_models import SMALL

LENGTHS = (16000, 5600, 2801, 9999)  # the second has an odd number of mel frames


@pytest.fixture(params=[False, True], ids=["pretrained", "with an adapter"], scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    further = {"add_adapter": True, "use_intermediate_ffn_before_adapter": True} if request.param else {}
    Wav2Vec2BertModel(Wav2Vec2BertConfig(**SMALL, **further)).save_pretrained(path)
    SeamlessM4TFeatureExtractor(padding_value=1.0).save_pretrained(path)  # as in the published checkpoint
    return str(path)


def opened(folder: str, **options: Any) -> SpeechEncoder:
    config = ExtractConfig(encoder=folder, **options)
    encoder = open_encoder(config, modality="speech", max_duration_s=5.0, device="cpu", precision="float32").encoder
    assert isinstance(encoder, SpeechEncoder)
    return encoder


@torch.inference_mode()
def test_vectors_are_means_of_hidden_states_whatever_stands_beside(folder: str) -> None:
    encoder = opened(folder, layer_00=True)
    pooled, frames = encoder.pool(clips(*LENGTHS))
    assert (pooled.shape[1], encoder.layers) == (3, (0, 1, 2))
    for row, clip in enumerate(clips(*LENGTHS)):
        inputs, mask = encoder.collate([clip])
        assert mask.shape[1] == encoder.positions(len(clip))
        states = encoder.model(**inputs, output_hidden_states=True).hidden_states
        expected = torch.stack([state[0, mask[0]].mean(0) for state in states])
        torch.testing.assert_close(pooled[row], expected, atol=2e-5, rtol=1e-4)
        assert frames[row] == mask.sum()


def test_clips_shorter_than_a_frame_have_one(folder: str) -> None:
    pooled, frames = opened(folder).pool(clips(3, MIN_SAMPLES - 1, 8000))
    assert frames[:2].tolist() == [1, 1]
    assert bool(pooled.isfinite().all())


def test_what_filterbanks_cannot_do_is_refused(folder: str) -> None:
    with pytest.raises(EncoderError, match="cannot pool by all-frames"):
        opened(folder, pooling="all-frames")


@pytest.fixture(scope="module")
def parakeet(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("parakeet")
    torch.manual_seed(0)
    encoder = {**SMALL, "num_mel_bins": 16, "subsampling_conv_channels": 8}
    model = ParakeetForCTC(ParakeetCTCConfig(vocab_size=20, pad_token_id=19, encoder_config=encoder))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape))
    model.save_pretrained(path)
    ParakeetFeatureExtractor(feature_size=16).save_pretrained(path)
    return str(path)


@torch.inference_mode()
def test_parakeet_is_read_without_its_decoder(parakeet: str) -> None:
    encoder = opened(parakeet, layer_00=True)
    whole = ParakeetForCTC.from_pretrained(parakeet).eval()
    reader = ParakeetFeatureExtractor.from_pretrained(parakeet)
    pooled, frames = encoder.pool(clips(*LENGTHS))
    assert (encoder.layers, frames.tolist()) == ((0, 1, 2), [13, 5, 3, 8])  # of 80 ms
    for row, clip in enumerate(clips(*LENGTHS)):
        inputs = reader(clip.numpy(), sampling_rate=16000, return_tensors="pt")
        states = whole.encoder(**inputs, output_hidden_states=True).hidden_states
        assert encoder.positions(len(clip)) == frames[row]
        expected = torch.stack([state[0, : frames[row]].mean(0) for state in states])
        torch.testing.assert_close(pooled[row], expected, atol=2e-5, rtol=1e-4)


def test_mel_spectrograms_are_not_part_of_an_onnx_graph(parakeet: str, folder: str) -> None:
    for encoder in (opened(parakeet), opened(folder)):
        with pytest.raises(EncoderError, match="its mel spectrogram cannot be part of an ONNX graph"):
            Graph(encoder, [], encoder.layers, "float32")


def test_parakeet_takes_clips_shorter_than_a_mel_frame(parakeet: str) -> None:
    pooled, frames = opened(parakeet).pool(clips(3, 319, 8000))
    assert frames.tolist() == [1, 1, 7]
    assert bool(pooled.isfinite().all())
