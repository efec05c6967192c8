"""Batches of waveforms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import WavLMConfig, WavLMModel

from daamctl.config import ExtractConfig
from daamctl.encoders.waveform import WaveformEncoder
from daamctl.errors import EncoderError
from tests.fixtures.recordings import clips
from tests.fixtures.tiny_models import LARGE, SPEECH

LENGTHS = (3000, 2301, 777, 3100)


@pytest.fixture
def encoder() -> WaveformEncoder:
    return wavlm()


def wavlm(pad_to_s: float = 5.0, rate: Any = 8000, **options: Any) -> WaveformEncoder:
    torch.manual_seed(0)
    model = WavLMModel(WavLMConfig(**SPEECH, **LARGE)).eval()
    reader = SimpleNamespace(sampling_rate=rate)
    usual: dict[str, Any] = {"device": "cpu", "precision": "float32", "pad_to_s": pad_to_s}
    return WaveformEncoder("wavlm", model, reader, **usual, options=ExtractConfig(**options))


def test_the_longest_input_of_a_number_of_frames(encoder: WaveformEncoder) -> None:
    for number in (1, 8, 13):
        assert encoder.num_frames(encoder.most_samples(number)) == number
        assert encoder.num_frames(encoder.most_samples(number) + 1) == number + 1


@pytest.mark.parametrize("rate", [None, "", float("nan"), float("inf")])
def test_a_rate_that_is_no_number_is_told(rate: Any) -> None:
    with pytest.raises(EncoderError, match="the settings in the files of encoder 'wavlm' are not usable: "):
        wavlm(rate=rate)


def test_a_batch_can_have_a_multiple_of_eight_frames(encoder: WaveformEncoder) -> None:
    plain, _ = encoder.collate_cpu(clips(*LENGTHS))
    assert plain["input_values"].shape[1] == max(LENGTHS)
    encoder = wavlm(pad_frames_to=8)
    widths = set()
    for longest in range(2001, 3100, 7):
        inputs, mask = encoder.collate_cpu(clips(longest))
        width = inputs["input_values"].shape[1]
        assert width == encoder.padded(longest)
        assert mask.shape[1] == encoder.num_frames(width) == encoder.positions(longest)
        assert mask.shape[1] % 8 == 0
        assert mask.shape[1] - 8 < mask.sum() == encoder.num_frames(longest)
        widths.add(width)
    frames = encoder.num_frames(3100) - encoder.num_frames(2001)
    assert len(widths) <= frames // 8 + 2


def test_that_padding_changes_vectors_by_rounding_alone(encoder: WaveformEncoder) -> None:
    plain, plain_frames = encoder.pool(clips(*LENGTHS))
    rounded = wavlm(pad_frames_to=8)
    assert rounded.collate_cpu(clips(*LENGTHS))[1].shape[1] > int(plain_frames.max())
    vectors, frames = rounded.pool(clips(*LENGTHS))
    assert torch.equal(frames, plain_frames)
    torch.testing.assert_close(vectors, plain, atol=1e-5, rtol=1e-5)


def test_published_pooling_pads_as_published_whatever_the_multiple() -> None:
    encoder = wavlm(pooling="all-frames", pad_to_s=0.5, pad_frames_to=8)
    inputs, _ = encoder.collate_cpu(clips(800))
    assert inputs["input_values"].shape == (1, 4000)
    assert encoder.padded(800) == 4000
    assert encoder.positions(800) == encoder.num_frames(4000)


def test_vectors_are_equal_up_to_a_share_of_their_length() -> None:
    encoder, theirs = wavlm(), torch.full((1, 2, 4), 100.0)
    assert encoder.is_close(theirs + 0.05, theirs)  # 0.5 thousandths
    assert not encoder.is_close(theirs + torch.tensor([[0.0], [0.2]]), theirs)
