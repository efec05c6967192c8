"""Whether a method does anything of its own: what is constant, what training reaches, what only starts alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from daamctl.methods import build, rebuild
from daamctl.methods.activity_check import constant_weight, gradient_sizes, logits_after_steps

SIZES = {"num_layers": 6, "embed_dim": 16, "num_classes": 3}
Y = torch.arange(8) % 3


def inputs(num_layers: int = 6) -> torch.Tensor:
    return torch.randn(8, num_layers, 16, generator=torch.Generator().manual_seed(0))


def after(method: str, **settings: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return logits_after_steps(rebuild(method, **SIZES, **settings), inputs(), Y)


@pytest.mark.parametrize(
    ("method", "settings", "gate", "expected"),
    [
        ("daam-v1", {}, False, None),
        ("daam-v1", {"num_heads": 6}, False, 1.0),
        ("mixture-daam", {"num_heads": 6, "variance": "biased"}, False, 1.0),
        ("weighted-sum", {}, False, None),  # the same for every input by design
        ("weighted-sum", {}, True, 1 / 6),
        ("attentive", {}, True, None),
        ("concat", {}, True, None),  # it has no weights
    ],
)
def test_constant_weight(method: str, settings: dict[str, Any], gate: bool, expected: float | None) -> None:
    found = constant_weight(rebuild(method, **SIZES, **settings), inputs(), gate=gate)
    assert found == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("method", ["daam-v2", "weighted-sum", "attentive"])
def test_over_one_layer_every_weight_is_constant(method: str) -> None:
    model = build(method, **{**SIZES, "num_layers": 1})
    assert constant_weight(model, inputs(1)) == pytest.approx(1.0)


def test_gradient_sizes_find_what_is_not_used() -> None:
    model = build("weighted-sum", **SIZES)
    model.fusion.unused = nn.Parameter(torch.zeros(3))
    sizes = gradient_sizes(model, inputs(), Y)
    assert [name for name, size in sizes.items() if not size > 0] == ["fusion.unused"]
    assert set(sizes) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize(
    ("first", "second"), [("mean", "weighted-sum"), ("daam-frozen", "daam-v1"), ("gct-b0", "gct-b1"), ("lct", "none")]
)
def test_methods_that_start_alike_part_ways(first: str, second: str) -> None:
    assert not torch.allclose(after(first), after(second), rtol=1e-5, atol=1e-6)


def test_a_density_with_one_layer_a_head_does_nothing() -> None:
    assert torch.equal(after("daam-v1", num_heads=6), after("none"))
    assert torch.equal(after("daam-v1", num_heads=1), after("daam-v2"))
    assert not torch.equal(after("daam-v1"), after("none"))
