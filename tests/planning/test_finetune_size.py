"""What is counted on the meta device is what building an encoder and adapting it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import ResNetConfig

from daamctl.adapters import build_finetune
from daamctl.artifacts.utterances import Modality
from daamctl.config import Config
from daamctl.encoders.load import open_encoder
from daamctl.errors import MethodError
from daamctl.planning.finetune_size import finetune_size

MICRO: dict[Modality, str] = {"speech": "wavlm-micro", "text": "llama-micro", "image": "beit-micro"}


def extract(modality: Modality) -> Any:
    return Config.model_validate({"extract": {"encoder": MICRO[modality], "device": "cpu"}}).extract


@pytest.mark.parametrize("modality", ["speech", "text", "image"])
@pytest.mark.parametrize("name", ["linear-probe", "lora-r4", "lora-plus-r4-published", "full-finetune"])
def test_counted_without_weights_as_with_them(modality: Modality, name: str) -> None:
    settings: dict[str, Any] = {"max_duration_s": 1.0, "device": "cpu", "precision": "float32"}
    encoder = open_encoder(extract(modality), modality=modality, **settings).encoder
    built = build_finetune(name, encoder, num_classes=3, seed=0)
    found = finetune_size(name, extract(modality), modality, 3)
    assert found is not None
    assert found.num_trained == sum(value.numel() for value in built.trained().values())
    assert found.num_kept == sum(value.numel() for value in built.trainable_state().values())
    assert found.held_bytes == pytest.approx(sum(value.nbytes for value in built.parameters()), rel=0.01)


def test_weights_in_half_precision_are_trained_in_full() -> None:
    whole = finetune_size("lora-r4", extract("text"), "text", 3)
    half = finetune_size("lora-r4", extract("text").model_copy(update={"weights_dtype": "bfloat16"}), "text", 3)
    assert whole is not None
    assert half is not None
    assert half.num_trained == whole.num_trained
    assert half.held_bytes == (whole.held_bytes + 4 * whole.num_trained) / 2


def test_what_cannot_be_tuned_says_so() -> None:
    with pytest.raises(MethodError, match="bitfit: LlamaModel has no biases"):
        finetune_size("bitfit", extract("text"), "text", 3)


def test_shape_that_nothing_here_tells() -> None:
    config = Config.model_validate({"extract": {"encoder": "someone/unknown-model"}}).extract
    assert finetune_size("lora-r4", config, "text", 3) is None


def test_a_hierarchical_encoder_has_no_single_width(tmp_path: Path) -> None:
    ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]).save_pretrained(tmp_path)
    config = Config.model_validate({"extract": {"encoder": str(tmp_path)}}).extract
    assert finetune_size("full-finetune", config, "image", 3) is None
