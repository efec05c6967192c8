"""Gaussian gates over standardised layers: the formula in both adaptations to layers, starts, bounds and numerics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.errors import MethodError
from daamctl.methods import LayerGate, build
from daamctl.methods.gct import GaussianGate, PooledLayerGate, bounded_width, gct_b0, standardize
from daamctl.methods.settings import DecoderOptions, Sizes

SIZES: dict[str, Any] = {"num_layers": 6, "embed_dim": 8, "num_classes": 3}


def scores(columns: np.ndarray, groups: int = 1) -> np.ndarray:
    """z of every layer, written out per sample and column in float64: columns (B, L, K)."""
    z = np.empty(columns.shape)
    length = columns.shape[1] // groups
    for b in range(columns.shape[0]):
        for k in range(columns.shape[2]):
            for start in range(0, columns.shape[1], length):
                values = [float(value) for value in columns[b, start : start + length, k]]
                m = sum(values) / length
                v = sum((value - m) ** 2 for value in values) / length
                z[b, start : start + length, k] = [(value - m) / math.sqrt(v + 1e-5) for value in values]
    return z


def sample(*shape: int, seed: int = 0, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, shape)


@pytest.mark.parametrize(("layers", "groups"), [(1, 1), (2, 1), (24, 1), (24, 8), (6, 6)])
def test_scores_equal_the_formula(layers: int, groups: int) -> None:
    x = sample(3, layers, 5)
    found = standardize(torch.from_numpy(x), num_groups=groups)
    np.testing.assert_allclose(found.numpy(), scores(x, groups), rtol=1e-9, atol=1e-12)


def test_scores_do_not_cancel() -> None:
    """Variance in two passes: with a spread of 0.1 around 1000, one pass in float32 would be off by far more."""
    x = (0.1 * sample(4, 24, 16) + 1000).astype(np.float32)
    np.testing.assert_allclose(standardize(torch.from_numpy(x)).numpy(), scores(x), atol=5e-3)


@pytest.mark.parametrize(
    ("learned", "at_one", "at_two"), [(False, 0.882, 0.607), (True, 0.923, 0.726)], ids=["B0", "B1"]
)
def test_printed_weights_at_the_start(learned: bool, at_one: float, at_two: float) -> None:
    """docs/sources.md#gaussian-context-transformer, table of the four widths not to be confused."""
    found = GaussianGate(learned=learned)(torch.tensor([0.0, 1.0, -1.0, 2.0]))
    assert found.tolist() == pytest.approx([1, at_one, at_one, at_two], abs=5e-4)


def test_width_range() -> None:
    found = bounded_width(torch.tensor([-100.0, math.log(0.5), 0.0, 100.0]))
    assert found.tolist() == pytest.approx([1, 2, 2.5, 4])


@pytest.mark.parametrize("theta", [None, -1.3, 0.7])
def test_feature_form_equals_numpy(theta: float | None) -> None:
    fusion = gate(LayerGate, theta)
    x = sample(3, 24, 7)
    width = 2.0 if theta is None else 3 / (1 + math.exp(-theta)) + 1
    expected = np.exp(-(scores(x) ** 2) / (2 * width**2))
    output, density = fusion(torch.from_numpy(x), return_density=True)
    np.testing.assert_allclose(density.detach().numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(output.detach().numpy(), x * expected, rtol=1e-6)
    assert torch.equal(fusion(torch.from_numpy(x)), output)


@pytest.mark.parametrize("theta", [None, -1.3, 0.7])
def test_layer_form_equals_numpy(theta: float | None) -> None:
    fusion = gate(PooledLayerGate, theta)
    x = sample(3, 24, 7)
    width = 2.0 if theta is None else 3 / (1 + math.exp(-theta)) + 1
    expected = np.exp(-(scores(x.mean(-1, keepdims=True)) ** 2) / (2 * width**2))  # (B, L, 1)
    output, density = fusion(torch.from_numpy(x), return_density=True)
    np.testing.assert_allclose(fusion.layer_weights(torch.from_numpy(x)).detach().numpy(), expected[..., 0], rtol=1e-6)
    np.testing.assert_allclose(density.detach().numpy(), np.broadcast_to(expected, x.shape), rtol=1e-6)
    np.testing.assert_allclose(output.detach().numpy(), x * expected, rtol=1e-6)


@pytest.mark.parametrize("kind", [LayerGate, PooledLayerGate])
def test_any_leading_axes(kind: type[LayerGate]) -> None:
    fusion, x = gate(kind, 0.7), torch.from_numpy(sample(6, 5, 7))
    torch.testing.assert_close(fusion(x.view(2, 3, 5, 7)), fusion(x).view(2, 3, 5, 7))
    torch.testing.assert_close(fusion(x[0]), fusion(x)[0])


@pytest.mark.parametrize("kind", [LayerGate, PooledLayerGate])
def test_one_layer_is_the_identity(kind: type[LayerGate]) -> None:
    x = torch.from_numpy(sample(4, 1, 5, mean=9)).float()
    assert torch.equal(gate(kind, 0.7)(x), x)


@pytest.mark.parametrize("kind", [LayerGate, PooledLayerGate])
def test_statistics_stay_in_float32_under_autocast(kind: type[LayerGate]) -> None:
    fusion, x = gate(kind, 0.7).float(), torch.from_numpy(sample(4, 24, 8, mean=30)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, density = fusion(x, return_density=True)
    assert density.dtype == torch.float32
    assert torch.equal(output, fusion(x))
    half, weights = fusion(x.half(), return_density=True)
    assert (half.dtype, weights.dtype) == (torch.float16, torch.float32)


@pytest.mark.parametrize(
    ("name", "form", "count", "label"),
    [
        ("gct-b0", "feature", 0, "adaptation (a), constants from ports"),
        ("gct-b0", "layer", 0, "adaptation (b), constants from ports"),
        ("gct-b1", "feature", 1, "adaptation (a), constants from ports"),
        ("gct-b1", "layer", 1, "adaptation (b), constants from ports"),
    ],
)
def test_builders_join_form_count_and_label(name: str, form: str, count: int, label: str) -> None:
    model = build(name, **SIZES, form=form)
    assert sum(p.numel() for p in model.fusion.parameters()) == count
    assert not any(p.any() for p in model.fusion.parameters())
    assert model.traits.reconstructed == label
    assert model.has_density
    assert hasattr(model.fusion, "layer_weights") == (form == "layer")
    x = torch.from_numpy(sample(2, 6, 8)).float()
    z = scores((x if form == "feature" else x.mean(-1, keepdim=True)).numpy())
    weights = np.exp(-(z**2) / (2 * (2 if name == "gct-b0" else 2.5) ** 2))
    np.testing.assert_allclose(
        model(x, return_density=True)[1].detach().numpy(), np.broadcast_to(weights, x.shape), rtol=1e-4
    )


def test_unknown_form() -> None:
    with pytest.raises(MethodError, match=r"^form must be 'feature' or 'layer', got 'channel'$"):
        gct_b0(Sizes(**SIZES), form="channel", decoder=DecoderOptions())  # type: ignore[arg-type]


def gate(kind: type[LayerGate], theta: float | None) -> Any:
    """A gate in float64: of fixed width, or with its learned score at `theta`."""
    inner = GaussianGate(learned=theta is not None)
    if inner.theta is not None:
        nn.init.constant_(inner.theta, theta or 0.0)
    return kind(inner).double()
