"""Building by name: every method, and every way to ask for one that cannot be built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import daamctl.methods
from daamctl.errors import MethodError, UnknownNameError
from daamctl.methods import METHODS, FusionClassifier, build
from daamctl.methods.base import check_divides

SIZES = {"num_layers": 8, "embed_dim": 16, "num_classes": 4}
NAMES = list(METHODS)


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        build("daam-v3", **SIZES)
    assert str(caught.value) == (
        "unknown method 'daam-v3'\n  did you mean 'daam-v2'? known: daam-v1, daam-v2, mha, none, weighted-sum"
    )


@pytest.mark.parametrize("method", NAMES)
@pytest.mark.parametrize(("size", "value", "least"), [("num_layers", 0, 1), ("embed_dim", 0, 1), ("num_classes", 1, 2)])
def test_sizes_too_small(method: str, size: str, value: int, least: int) -> None:
    with pytest.raises(MethodError, match=f"^{method}: {size} must be at least {least}, met {value}$"):
        build(method, **{**SIZES, size: value})


@pytest.mark.parametrize(
    ("method", "known"),
    [
        ("none", "hidden_channels"),
        ("weighted-sum", "hidden_dim"),
        ("mha", "hidden_channels, num_heads"),
        ("daam-v1", "hidden_channels, num_heads, variance"),
        ("daam-v2", "hidden_channels, variance"),
    ],
)
def test_unknown_setting_lists_the_known(method: str, known: str) -> None:
    with pytest.raises(MethodError) as caught:
        build(method, **SIZES, zzz=3)
    assert str(caught.value) == f"{method}: unknown setting 'zzz'\n  known: {known}"


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(
        MethodError, match=r"^mha: unknown setting 'n_heads'\n  did you mean 'num_heads'\? known: hidden"
    ):
        build("mha", **SIZES, n_heads=3)


@pytest.mark.parametrize(
    ("method", "heads", "whole"),
    [
        ("daam-v1", 3, r"the number of layers \(8\); possible: 1, 2, 4, 8"),
        ("mha", 5, r"the layer width \(16\); possible: 1, 2, 4, 8, 16"),
    ],
)
def test_heads_that_do_not_divide_name_the_divisors(method: str, heads: int, whole: str) -> None:
    with pytest.raises(MethodError, match=rf"^num_heads \({heads}\) must divide {whole}$"):
        build(method, **SIZES, num_heads=heads)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("daam-v1", {"num_heads": "8"}),
        ("daam-v1", {"num_heads": 0}),
        ("mha", {"num_heads": -4}),
        ("daam-v1", {"variance": "one-pass"}),
        ("daam-v2", {"variance": None}),
        ("mha", {"num_heads": None}),
        ("none", {"hidden_channels": -1}),
        ("none", {"hidden_channels": 0}),
        ("weighted-sum", {"hidden_dim": 2.5}),
    ],
)
def test_setting_with_a_wrong_value_is_refused_at_once(method: str, settings: dict[str, Any]) -> None:
    with pytest.raises(MethodError, match=next(iter(settings))):
        build(method, **SIZES, **settings)


def test_check_divides_accepts_every_divisor() -> None:
    for parts in (1, 2, 3, 4, 6, 12):
        check_divides("parts", parts, 12, "the whole")


def test_density_of_a_method_that_has_none() -> None:
    model = build("mha", **SIZES)
    with pytest.raises(MethodError, match=r"^LayerSelfAttention has no density$"):
        model(torch.zeros(1, 8, 16), return_density=True)


def test_classifier_passes_the_density_through() -> None:
    class Fusion(nn.Module):
        def forward(self, x: torch.Tensor, *, return_density: bool = False) -> Any:
            return (x + 1, x * 2) if return_density else x + 1

    model = FusionClassifier(Fusion(), nn.Flatten(), has_density=True)
    x = torch.arange(6.0).view(1, 2, 3)
    logits, density = model(x, return_density=True)
    assert torch.equal(logits, model(x))
    assert torch.equal(logits, (x + 1).flatten(1))
    assert torch.equal(density, x * 2)


def test_public_names_are_importable_and_no_others() -> None:
    for name in daamctl.methods.__all__:
        assert getattr(daamctl.methods, name) is not None
    with pytest.raises(AttributeError, match=r"^module 'daamctl.methods' has no attribute 'Nothing'$"):
        daamctl.methods.Nothing  # noqa: B018
