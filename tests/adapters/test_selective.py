"""BitFit, tuning of layer norms, and full fine-tuning: which of the encoder's tensors are free."""

from __future__ import annotations

import pytest
import torch

from daamctl.adapters import build_finetune
from daamctl.errors import MethodError
from tests.adapters.test_base import make
from tests.fixtures.tiny_models import tiny


def within(name: str, architecture: str) -> set[str]:
    return {key.removeprefix("model.") for key in make(name, architecture)[0].trained() if key.startswith("model.")}


def test_bitfit_trains_all_biases_and_nothing_else() -> None:
    every = dict(tiny("bert").model.named_parameters())
    biases = {key for key in every if key.endswith("bias") and not key.startswith("pooler")}
    assert within("bitfit", "bert") == biases
    assert all(every[key].dim() == 1 for key in biases)
    assert len(biases) == 17


def test_norms_are_those_of_the_family() -> None:
    assert within("ln-tuning", "llama") == {
        "norm.weight",
        *(f"layers.{n}.{kind}_layernorm.weight" for n in (0, 1) for kind in ("input", "post_attention")),
    }
    beit = within("ln-tuning", "beit")
    assert len(beit) == 8
    assert not any("pooler" in key for key in beit)
    assert "encoder.layer_norm.weight" in within("ln-tuning", "wavlm")


def test_full_finetuning_leaves_out_what_cannot_act() -> None:
    every = {key for key, _ in tiny("bert").model.named_parameters()}
    assert every - within("full-finetune", "bert") == {"pooler.dense.weight", "pooler.dense.bias"}
    assert {key for key, _ in tiny("wavlm").model.named_parameters()} - within("full-finetune", "wavlm") == {
        "masked_spec_embed"
    }


def test_what_extraction_has_cached_can_be_trained_on() -> None:
    encoder = tiny("beit")
    pixels = torch.randn(1, 3, 16, 48)  # a size that nothing else caches
    with torch.inference_mode():
        encoder.hidden({"pixel_values": pixels})
    build_finetune("full-finetune", encoder, num_classes=3, seed=1)
    encoder.hidden({"pixel_values": pixels}).sum().backward()
    assert encoder.model.layers[0].relative_position_bias.relative_position_bias_table.grad.any()


@pytest.mark.parametrize("name", ["bitfit", "ln-tuning", "full-finetune"])
def test_half_precision_weights_are_not_trained(name: str) -> None:
    with pytest.raises(MethodError, match=f"{name}: the encoder's own weights are held in bfloat16") as refused:
        build_finetune(name, tiny("bert", dtype=torch.bfloat16), num_classes=3, seed=1)
    assert "weights_dtype=float32" in str(refused.value)
