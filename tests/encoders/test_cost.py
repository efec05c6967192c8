"""What the layers of an encoder cost, measured and counted."""

from __future__ import annotations

from typing import Any

import pytest
import transformers as hf

from daamctl.config import ExtractConfig
from daamctl.encoders.cost import outline_shares, parameter_shares, time_shares
from daamctl.encoders.load import open_encoder
from tests.encoders.test_cut import TEXT, WHISPER


@pytest.mark.parametrize(
    ("name", "modality"), [("wavlm-micro", "speech"), ("llama-micro", "text"), ("beit-micro", "image")]
)
def test_shares_grow_from_the_front_end_to_the_whole(name: str, modality: Any) -> None:
    opened = open_encoder(
        ExtractConfig(encoder=name), modality=modality, max_duration_s=5.0, device="cpu", precision="float32"
    )

    def hooks() -> int:
        return sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in opened.encoder.pooler.layers)

    before = hooks()
    for shares in (parameter_shares(opened.encoder), time_shares(opened.encoder)):
        assert len(shares) == max(opened.encoder.layers) + 1
        assert shares == sorted(shares)
        assert shares[0] >= 0
        assert shares[-1] == 1
    assert hooks() == before


def test_parameters_of_a_cut_encoder_are_the_share_of_its_highest_layer() -> None:
    usual: dict[str, Any] = {"modality": "speech", "max_duration_s": 5.0, "device": "cpu", "precision": "float32"}
    whole, cut = (open_encoder(ExtractConfig(encoder="wavlm-micro"), highest_layer=k, **usual) for k in (None, 7))
    sizes = [sum(value.numel() for value in one.encoder.model.parameters()) for one in (cut, whole)]
    assert parameter_shares(whole.encoder)[7] == pytest.approx(sizes[0] / sizes[1])


def test_outline_counts_the_encoder_alone() -> None:
    whole = hf.WhisperModel(hf.WhisperConfig(**WHISPER)).get_encoder()
    sizes = [sum(value.numel() for value in part.parameters()) for part in (whole, whole.layers)]
    shares = outline_shares(hf.WhisperConfig(**WHISPER))
    assert shares is not None
    assert shares == pytest.approx([1 - sizes[1] / sizes[0] * (3 - k) / 3 for k in range(4)])


def test_an_outline_that_cannot_be_built() -> None:
    assert outline_shares(hf.BertConfig(**{**TEXT, "num_attention_heads": 5})) is None
