"""Skewed Gaussian gates in both readings: formulas, the maximum of the skew-normal, and how they start as GCT."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import erf
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.settings import DecoderOptions, Sizes
from daamctl.methods.sga import sga, skewed_peak

SIZES: dict[str, Any] = {"num_layers": 6, "embed_dim": 8, "num_classes": 3}
CASES = [(m, r, g) for m in ("sga", "bi-sga") for r in "AB" for g in ("scalar", "feature")]


def sample(*shape: int, seed: int = 0, mean: float = 0.7) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1, shape)


def make(method: str, reading: str, granularity: str, **values: float) -> Any:
    """A model in float64, its parameters away from their start or, where given, at `values`."""
    model = build(method, **SIZES, reading=reading, granularity=granularity).double()
    with torch.no_grad():
        for i, p in enumerate(model.fusion.parameters()):
            p.copy_((torch.linspace(0.9, -0.6, 8) * (-1) ** i)[: p.numel()].reshape(p.shape))
        for name, value in values.items():
            model.fusion.get_parameter(name).fill_(value)
    return model


def parameters(model: Any) -> dict[str, np.ndarray]:
    return {name.split(".")[-1]: p.detach().numpy() for name, p in model.fusion.named_parameters()}


def skew_normal(t: np.ndarray, skew: np.ndarray | float) -> np.ndarray:
    """exp(-t^2/2) * 2 * Phi(a t)."""
    return np.exp(-(t**2) / 2) * (1 + erf(skew * t / math.sqrt(2)))


def peak(skew: float) -> float:
    """Largest value on a grid, refined around its best point: no derivative, no property of the peak used."""
    low, high = -8.0, 8.0
    for _ in range(12):
        grid = np.linspace(low, high, 2001)
        best = grid[np.argmax(skew_normal(grid, skew))]
        low, high = best - (high - low) / 100, best + (high - low) / 100
    return float(skew_normal(np.array(best), skew))


def reference(x: np.ndarray, p: dict[str, np.ndarray], reading: str) -> np.ndarray:
    """docs/sources.md#sga-and-bi-sga for layers x (B, L, D)."""
    m = x.mean(1, keepdims=True)
    s = np.sqrt(((x - m) ** 2).mean(1, keepdims=True) + 1e-5)
    z = (x - m * (1 + np.tanh(p["theta"]))) / s if reading == "A" else (x - m) / s
    width = {name: 3 / (1 + np.exp(-value)) + 1 for name, value in p.items() if name.startswith("phi")}
    c = width["phi"] if "phi" in width else np.where(z < 0, width["phi_left"], width["phi_right"])
    if reading == "A":
        return np.exp(-(z**2) / (2 * c**2))
    top = np.reshape([peak(value) for value in p["skew"].reshape(-1)], p["skew"].shape)
    return skew_normal(z / c, p["skew"]) / top


@pytest.mark.parametrize(("method", "reading", "granularity"), CASES)
def test_weights_equal_the_formula(method: str, reading: str, granularity: str) -> None:
    model, x = make(method, reading, granularity), sample(3, 6, 8)
    expected = reference(x, parameters(model), reading)
    output, density = model.fusion(torch.from_numpy(x), return_density=True)
    np.testing.assert_allclose(density.detach().numpy(), expected, rtol=1e-7)
    np.testing.assert_allclose(output.detach().numpy(), x * expected, rtol=1e-7)
    single = model.float().fusion(torch.from_numpy(x).float(), return_density=True)[1]
    np.testing.assert_allclose(single.detach().numpy(), expected, atol=2e-6)


@pytest.mark.parametrize(("method", "reading", "granularity"), CASES)
def test_names_counts_and_labels(method: str, reading: str, granularity: str) -> None:
    model = build(method, **SIZES, reading=reading, granularity=granularity)
    first = "theta" if reading == "A" else "skew"
    widths = {"phi"} if method == "sga" else {"phi_left", "phi_right"}
    assert set(parameters(model)) == {first} | widths
    count = sum(p.numel() for p in model.fusion.parameters())
    assert count == (1 + len(widths)) * (1 if granularity == "scalar" else 8)
    extended = " extended to two widths" if (method, reading) == ("bi-sga", "B") else ""
    assert model.traits.reconstructed == f"reading {reading}{extended}, {granularity}"
    assert model.has_density


def test_published_widths_give_the_parameters_of_one_head_of_daam() -> None:
    """docs/sources.md#sga-and-bi-sga: per feature, SGA has 2,048 parameters, as DAAM v2, and bi-SGA 3,072."""
    sizes = {"num_layers": 24, "embed_dim": 1024, "num_classes": 4}
    with torch.device("meta"):
        found = [
            sum(p.numel() for p in build(name, **sizes, **settings).fusion.parameters())
            for name, settings in (
                ("sga", {"granularity": "feature"}),
                ("daam-v2", {}),
                ("bi-sga", {"granularity": "feature"}),
            )
        ]
    assert found == [2048, 2048, 3072]


@pytest.mark.parametrize(("method", "reading", "granularity"), CASES)
def test_starts_as_gct(method: str, reading: str, granularity: str) -> None:
    """phi = 0 is GCT-B1 at its start (c = 2.5), phi = ln(1/2) is GCT-B0 (c = 2)."""
    x = torch.from_numpy(sample(3, 6, 8)).float()
    model = build(method, **SIZES, reading=reading, granularity=granularity)
    torch.testing.assert_close(density(model, x), density(build("gct-b1", **SIZES), x))
    with torch.no_grad():
        for name, p in model.fusion.named_parameters():
            if "phi" in name:
                p.fill_(math.log(0.5))
    torch.testing.assert_close(density(model, x), density(build("gct-b0", **SIZES), x))


@pytest.mark.parametrize("reading", ["A", "B"])
def test_equal_widths_make_both_the_same(reading: str) -> None:
    x = torch.from_numpy(sample(3, 6, 8))
    first = {"theta": 0.3} if reading == "A" else {"gate.skew": 0.8}
    one = make("sga", reading, "scalar", **first, **{"gate.phi": 0.2})
    two = make("bi-sga", reading, "scalar", **first, **{"gate.phi_left": 0.2, "gate.phi_right": 0.2})
    torch.testing.assert_close(density(one, x), density(two, x))
    with torch.no_grad():
        two.fusion.gate.phi_left.fill_(-1)
    below = density(two, x) < density(one, x)
    centre = x.mean(1, keepdim=True) * (1 + (math.tanh(0.3) if reading == "A" else 0))
    assert torch.equal(below, x < centre)  # only the left side became narrower


def test_shift_is_relative_to_the_mean() -> None:
    """docs/sources.md#sga-and-bi-sga: at theta = 0.5 and c = 2, .893 becomes .871 for |m|/sd = 1 and .497 for 5."""
    x = torch.from_numpy(sample(400, 24, 16, mean=0.0))
    model = make("sga", "A", "scalar", theta=0.5, **{"gate.phi": math.log(0.5)})
    plain = make("sga", "A", "scalar", theta=0.0, **{"gate.phi": math.log(0.5)})
    centred = x - x.mean(1, keepdim=True)
    torch.testing.assert_close(density(model, centred), density(plain, centred))  # nothing to scale
    for mean, before, after in ((1, 0.893, 0.871), (5, 0.893, 0.497)):
        assert density(plain, x + mean).mean().item() == pytest.approx(before, abs=2e-3)
        assert density(model, x + mean).mean().item() == pytest.approx(after, abs=6e-3)


def test_printed_maxima() -> None:
    """docs/sources.md#sga-and-bi-sga: 1.22 at a = 1 and 1.65 at a = 3; 1 without skew."""
    found = skewed_peak(torch.tensor([0.0, 1.0, 3.0]))
    assert found.tolist() == pytest.approx([1, 1.22, 1.65], abs=5e-3)


def test_maximum_is_exact_for_any_skew() -> None:
    skews = [0.0, 1e-3, -0.1, 0.5, -1, 2, 3, -5, 10, 15, 20, -20, 100]
    expected = [peak(skew) for skew in skews]
    np.testing.assert_allclose(skewed_peak(torch.tensor(skews, dtype=torch.float64)).numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(skewed_peak(torch.tensor(skews)).numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(skewed_peak(torch.tensor([1e4, -1e6])).numpy(), [2, 2], rtol=1e-6)


def test_gradient_of_the_maximum() -> None:
    skew = torch.tensor([-20.0, -3, -0.5, 0, 0.2, 1, 7, 20], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(skewed_peak, (skew,))


@pytest.mark.parametrize(("method", "reading", "granularity"), CASES)
def test_gradients(method: str, reading: str, granularity: str) -> None:
    model = make(method, reading, granularity)
    names, values = zip(*model.fusion.named_parameters(), strict=True)

    def weigh(x: Tensor, *parameters: Tensor) -> Any:
        return torch.func.functional_call(model.fusion, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.from_numpy(sample(2, 6, 8)).requires_grad_()
    assert torch.autograd.gradcheck(weigh, (x, *values), fast_mode=True)


@pytest.mark.parametrize("skew", [-20.0, -3.0, 0.0, 20.0])
def test_bounds_and_gradients_at_strong_skews(skew: float) -> None:
    model = make("bi-sga", "B", "feature", **{"gate.skew": skew}).float()
    x = torch.from_numpy(sample(200, 6, 8)).float()
    weights = density(model, x, grad=True)
    assert weights.min() >= 0
    assert 0.99 < weights.max() <= 1
    weights.sum().backward()
    for p in model.fusion.parameters():
        assert p.grad is not None
        assert p.grad.isfinite().all()
    assert model.fusion.gate.skew.grad.any()


def test_no_weight_above_one_at_the_very_peak() -> None:
    """Rounding would else put some of them a little above."""
    for skew in np.linspace(-6, 6, 41):
        gate = make("sga", "B", "scalar", **{"gate.skew": float(skew), "gate.phi": 0.0}).float().fusion.gate
        weights = gate(torch.linspace(-2, 2, 4001)[:, None])  # (L, D)
        assert weights.max().item() == pytest.approx(1, abs=1e-6)
        assert weights.max() <= 1


@pytest.mark.parametrize(("method", "reading", "granularity"), CASES)
def test_statistics_stay_in_float32_under_autocast(method: str, reading: str, granularity: str) -> None:
    model, x = make(method, reading, granularity).float(), torch.from_numpy(sample(4, 6, 8, mean=30)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = model.fusion(x, return_density=True)
    assert weights.dtype == torch.float32
    assert torch.equal(output, model.fusion(x))


@pytest.mark.parametrize(
    ("setting", "value", "allowed"), [("reading", "C", "'A' or 'B'"), ("granularity", "layer", "'scalar' or 'feature'")]
)
def test_unknown_choice(setting: str, value: str, allowed: str) -> None:
    with pytest.raises(MethodError, match=rf"^{setting} must be {allowed}, got '{value}'$"):
        sga(Sizes(**SIZES), **{setting: value}, decoder=DecoderOptions())  # type: ignore[arg-type]


def density(model: Any, x: Tensor, *, grad: bool = False) -> Tensor:
    with torch.set_grad_enabled(grad):
        weights: Tensor = model.fusion(x, return_density=True)[1]
    return weights
