"""Sigmoid gates over standardised layers, against an independent NumPy form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daamctl.errors import MethodError
from daamctl.methods import build, rebuild

SIZES: dict[str, Any] = {"num_layers": 6, "embed_dim": 8, "num_classes": 3}
X = np.random.default_rng(0).normal(0.4, 1, (3, 6, 8))


def make(**settings: Any) -> Any:
    model = rebuild("lct", **SIZES, **settings).double()  # also one layer a group
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.fusion.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def weights(values: np.ndarray, slope: np.ndarray, bias: np.ndarray, groups: int) -> np.ndarray:
    """sigmoid(a z + b) of values (B, L, K), each group of layers standardised by itself."""
    z = []
    for part in np.split(values, groups, axis=1):
        m = np.mean(part, axis=1, keepdims=True)
        z.append((part - m) / np.sqrt(np.mean((part - m) ** 2, axis=1, keepdims=True) + 1e-5))
    return 1 / (1 + np.exp(-(slope * np.concatenate(z, axis=1) + bias)))


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_feature_form_equals_numpy(groups: int) -> None:
    fusion = make(num_groups=groups).fusion
    slope, bias = fusion.gate.slope.detach().numpy(), fusion.gate.bias.detach().numpy()
    assert slope.shape == bias.shape == (8,)
    expected = weights(X, slope, bias, groups)
    output, density = fusion(torch.from_numpy(X), return_density=True)
    np.testing.assert_allclose(density.detach().numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(output.detach().numpy(), X * expected, rtol=1e-9)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_layer_form_equals_numpy(groups: int) -> None:
    fusion = make(form="layer", num_groups=groups).fusion
    slope, bias = fusion.gate.slope.detach().numpy(), fusion.gate.bias.detach().numpy()
    assert slope.size == bias.size == 6
    expected = weights(X.mean(-1, keepdims=True), slope.reshape(6, 1), bias.reshape(6, 1), groups)
    np.testing.assert_allclose(fusion.layer_weights(torch.from_numpy(X)).detach().numpy(), expected[..., 0], rtol=1e-9)
    np.testing.assert_allclose(fusion(torch.from_numpy(X)).detach().numpy(), X * expected, rtol=1e-9)


@pytest.mark.parametrize("form", ["feature", "layer"])
def test_starts_as_a_constant(form: str) -> None:
    """a = 0, b = 1: every weight is sigmoid(1), whatever the layers are."""
    model = build("lct", **SIZES, form=form)
    density = model(torch.from_numpy(X).float(), return_density=True)[1]
    torch.testing.assert_close(density, torch.full((3, 6, 8), 0.7310586))


def test_labels_say_form_and_start() -> None:
    text = "start a=0, b=1 from ports that disagree"
    assert build("lct", **SIZES).traits.reconstructed == f"adaptation (a), {text}"
    assert build("lct", **SIZES, form="layer").traits.reconstructed == f"adaptation (b), {text}"


def test_groups_must_divide_the_layers() -> None:
    with pytest.raises(
        MethodError, match=r"^num_groups \(4\) must divide the number of layers \(6\); possible: 1, 2, 3$"
    ):
        build("lct", **SIZES, num_groups=4)
