"""LoRA and its kin: what they compute, where they start, and at which rates they learn."""

from __future__ import annotations

import math

import pytest
import torch

from daamctl.adapters import build_finetune, lora
from tests.adapters.test_base import make
from tests.fixtures.tiny_models import tiny


@pytest.mark.parametrize(
    ("name", "rank", "scale"),
    [
        ("lora-r4", 4, 4.0),
        ("lora-r8", 8, 2.0),
        ("lora-plus-r4", 4, 4.0),
        ("lora-plus-r8", 8, 2.0),
        ("rslora-r8", 8, 16 / math.sqrt(8)),
    ],
)
@pytest.mark.parametrize("architecture", ["wavlm", "gpt2"])
def test_update_is_the_formula(name: str, rank: int, scale: float, architecture: str) -> None:
    encoder = tiny(architecture)
    model = build_finetune(name, encoder, num_classes=3, seed=1)
    layer = encoder.model.get_submodule(model.adapted[0])
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    inputs = 32
    assert a.shape == (rank, inputs)
    assert not b.any()
    bound = 1 / math.sqrt(inputs)  # Kaiming uniform with a = sqrt(5)
    assert bound * 0.8 < a.abs().max() <= bound
    x = torch.randn(2, inputs)
    with torch.no_grad():
        before = layer(x)
        b.normal_()
        assert torch.allclose(layer(x), before + scale * x @ a.T @ b.T, atol=1e-4)


def test_dora_learns_direction_and_length_apart() -> None:
    encoder = tiny("vit")
    model = build_finetune("dora-r8", encoder, num_classes=3, seed=1)
    layer = encoder.model.get_submodule(model.adapted[0])
    weight, bias = layer.base_layer.weight, layer.base_layer.bias
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    length = layer.lora_magnitude_vector["default"].weight
    x = torch.randn(2, 32)
    with torch.no_grad():
        assert torch.allclose(length, weight.norm(dim=1), atol=1e-6)
        b.normal_()
        length.uniform_(0.5, 2)
        moved = weight + 2.0 * b @ a
        expected = x @ (length[:, None] * moved / moved.norm(dim=1, keepdim=True)).T + bias
        assert torch.allclose(layer(x), expected, atol=1e-4)


@pytest.mark.parametrize(("name", "ratio"), [("lora-r8", 1.0), ("lora-plus-r8", 16.0)])
def test_only_b_learns_faster(name: str, ratio: float) -> None:
    model, _, _ = make(name, "bert")
    names = {id(value): key for key, value in model.trained().items()}
    rates = {names[id(value)]: group["lr"] for group in model.parameter_groups(1e-4, 0.0) for value in group["params"]}
    assert rates == {key: pytest.approx(1e-4 * (ratio if "lora_B" in key else 1)) for key in names.values()}
    assert rates["head.classifier.bias"] == 1e-4  # peft's own optimiser for LoRA+ gives vectors the rate of B
    assert ratio in (1.0, lora.PLUS_RATIO)


def test_query_and_value_of_every_layer_are_adapted() -> None:
    model, _, _ = make("lora-r8", "wavlm")
    expected = {f"encoder.layers.{layer}.attention.{role}_proj" for layer in (0, 1) for role in ("q", "v")}
    assert set(model.adapted) == expected
    assert [note for note in model.notes if "D2" in note] == list(model.notes)
    text = make("lora-r8-qk", "wavlm")[0]  # D17
    assert set(text.adapted) == {name.replace("v_proj", "k_proj") for name in expected}
    sizes = [sum(value.numel() for value in one.trained().values()) for one in (model, text)]
    assert sizes[0] == sizes[1]
    assert make("lora-r8", "hubert")[0].notes == ()
    assert "one map" in make("lora-r8", "gpt2")[0].notes[0]
