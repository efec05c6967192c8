"""Density Adaptive Attention: the formula, its bounds, its numerics, and how heads split the layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import MultiHeadDAAM, build, density_weights


def reference(x: np.ndarray, offset: np.ndarray, scaled_variance: np.ndarray) -> np.ndarray:
    """FACTS 2, written out per sample and feature in float64: x (B, n, D), offset and scaled variance (D,)."""
    weights = np.empty(x.shape)
    for b in range(x.shape[0]):
        for j in range(x.shape[2]):
            column = x[b, :, j].astype(np.float64)
            m = sum(column) / len(column)
            v = sum((value - m) ** 2 for value in column) / len(column) + 1e-8
            for layer, value in enumerate(column):
                y = (value - (m + offset[j])) / math.sqrt(v + 1e-5)
                weights[b, layer, j] = math.exp(-y * y / (2 * scaled_variance[j]))
    return weights


def sample(*shape: int, seed: int = 0, mean: float = 0.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(mean, 1, shape))


def parameters(dim: int) -> tuple[Tensor, Tensor]:
    """Ramps, away from the start values 0 and 2."""
    return torch.linspace(-0.3, 0.4, dim, dtype=torch.float64), torch.linspace(1.2, 2.9, dim, dtype=torch.float64)


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
@pytest.mark.parametrize("layers", [1, 3, 24])
def test_weights_equal_the_formula(variance: str, layers: int) -> None:
    x, (offset, scaled_variance) = sample(3, layers, 7), parameters(7)
    expected = reference(x.numpy(), offset.numpy(), scaled_variance.numpy())
    found = density_weights(x, offset, scaled_variance, variance=variance)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    single = density_weights(x.float(), offset.float(), scaled_variance.float(), variance=variance)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-5 if layers > 1 else 1e-3)


@pytest.mark.parametrize("layers", [2, 3, 5, 24, 40])
def test_lower_bound_at_start(layers: int) -> None:
    """FACTS 2: w >= exp(-(n-1) / (2 xi)); n=3: 0.6065, n=5: 0.3679, n=24: 0.0032, n=40: 5.8e-5 for xi = 2."""
    bound = math.exp(-(layers - 1) / 4)
    zero, two = torch.zeros(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    random = density_weights(sample(50, layers, 9), zero, two)
    assert random.min() >= bound
    assert random.max() <= 1
    outlier = torch.zeros(1, layers, 1, dtype=torch.float64)
    outlier[0, 0] = 1e6  # the one pattern that meets the bound: a single layer apart from all others
    assert density_weights(outlier, zero, two).min().item() == pytest.approx(bound, rel=1e-4)


def test_printed_bounds() -> None:
    printed = {3: 0.6065, 5: 0.3679, 24: 0.0032, 40: 5.8e-5}
    for layers, value in printed.items():
        outlier = torch.zeros(1, layers, 1)
        outlier[0, 0] = 1e3
        weight = density_weights(outlier, torch.zeros(1), torch.full((1,), 2.0)).min().item()
        assert weight == pytest.approx(value, rel=0.02)


def test_one_layer_is_the_identity_at_start_and_a_constant_later() -> None:
    module = MultiHeadDAAM(num_layers=1, embed_dim=5, num_heads=1)
    x = sample(4, 1, 5).float()
    assert torch.equal(module(x), x)
    with torch.no_grad():
        module.offset.copy_(torch.linspace(-0.004, 0.004, 5))
    _, density = module(x, return_density=True)
    expected = torch.exp(-(module.offset**2) / (2 * 2 * (1e-8 + 1e-5)))
    torch.testing.assert_close(density, expected.expand(4, 1, 5), rtol=1e-2, atol=1e-3)
    assert density.min() < 0.8


def test_two_pass_variance_does_not_cancel() -> None:
    """FACTS 2: with std 0.1 the moment difference in float32 is off by 10 % at mean 100 and by 900 % at 1000."""
    x = 0.1 * sample(8, 24, 64, mean=0.0) + 1000
    zero, two = torch.zeros(64), torch.full((64,), 2.0)
    exact = density_weights(x, zero.double(), two.double())
    two_pass = density_weights(x.float(), zero, two)
    moments = density_weights(x.float(), zero, two, variance="moments")
    assert (two_pass - exact).abs().max() < 1e-2
    assert (moments - exact).abs().median() > 0.1


def test_moments_is_the_published_variance() -> None:
    """The published float32 arithmetic, in its order: |E[x^2] - E[x]^2| + 1e-8, then the root of it plus 1e-5."""
    x = (0.1 * sample(2, 6, 5) + 30).float()
    offset, scaled_variance = (value.float() for value in parameters(5))
    mean = x.mean(1, keepdim=True)
    var = torch.abs(torch.mean(x**2, dim=1, keepdim=True) - mean**2) + 1e-8
    y = (x - (mean + offset)) / torch.sqrt(var + 1e-5)
    expected = torch.exp(-(y**2) / (2 * scaled_variance))
    torch.testing.assert_close(density_weights(x, offset, scaled_variance, variance="moments"), expected)


def test_unknown_variance() -> None:
    with pytest.raises(MethodError, match=r"^variance must be 'two-pass' or 'moments', met 'one-pass'$"):
        density_weights(torch.zeros(2, 3), torch.zeros(3), torch.ones(3), variance="one-pass")


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
def test_statistics_stay_in_float32_under_autocast(variance: str) -> None:
    module = MultiHeadDAAM(num_layers=24, embed_dim=16, num_heads=8, variance=variance)
    x = sample(4, 24, 16, mean=3.0).float()
    plain, density = module(x, return_density=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, cast = module(x, return_density=True)
    assert cast.dtype == torch.float32
    assert torch.equal(cast, density)
    assert torch.equal(output, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_input_gives_half_output_and_full_weights(dtype: torch.dtype) -> None:
    module = MultiHeadDAAM(num_layers=6, embed_dim=5, num_heads=2)
    x = (sample(3, 6, 5) * 300).to(dtype)  # the square of 300 is beyond float16
    output, density = module(x, return_density=True)
    assert output.dtype == dtype
    assert density.dtype == torch.float32
    torch.testing.assert_close(density, module(x.float(), return_density=True)[1])
    assert output.isfinite().all()


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
def test_gradients(variance: str) -> None:
    x, (offset, scaled_variance) = sample(2, 5, 3).requires_grad_(), parameters(3)
    inputs = (x, offset.requires_grad_(), scaled_variance.requires_grad_())
    assert torch.autograd.gradcheck(lambda *args: density_weights(*args, variance=variance), inputs)


def test_gradient_is_finite_where_all_layers_are_equal() -> None:
    module = MultiHeadDAAM(num_layers=6, embed_dim=4, num_heads=2)
    x = torch.full((2, 6, 4), 0.7, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_leading_axes_are_free(lead: tuple[int, ...]) -> None:
    module = ramp(MultiHeadDAAM(num_layers=6, embed_dim=4, num_heads=2))
    x = sample(*lead, 6, 4).float()
    output, density = module(x, return_density=True)
    assert output.shape == density.shape == x.shape
    flat = module(x.reshape(-1, 6, 4))
    torch.testing.assert_close(output.reshape(-1, 6, 4), flat)


@pytest.mark.parametrize("num_heads", [1, 2, 4, 8])
def test_heads_are_contiguous_groups_of_layers(num_heads: int) -> None:
    """FACTS 3: head i has layers i*N/g .. (i+1)*N/g - 1 and sees no others."""
    layers, dim = 8, 5
    module = ramp(MultiHeadDAAM(num_layers=layers, embed_dim=dim, num_heads=num_heads))
    x = sample(3, layers, dim)
    size = layers // num_heads
    expected = np.concatenate(
        [
            reference(
                x.numpy()[:, i * size : (i + 1) * size],
                module.offset[i].detach().numpy(),
                module.scaled_variance[i].detach().numpy(),
            )
            for i in range(num_heads)
        ],
        axis=1,
    )
    output, density = module(x.float(), return_density=True)
    np.testing.assert_allclose(density.detach().numpy(), expected, atol=1e-3 if size == 1 else 1e-5)
    np.testing.assert_allclose(output.detach().numpy(), x.numpy() * expected, atol=5e-3 if size == 1 else 2e-5)


def test_start_values_and_number_of_parameters() -> None:
    module = MultiHeadDAAM(num_layers=24, embed_dim=10, num_heads=8)
    assert torch.equal(module.offset, torch.zeros(8, 10))
    assert torch.equal(module.scaled_variance, torch.full((8, 10), 2.0))
    assert sum(p.numel() for p in module.parameters()) == 2 * 8 * 10


def test_heads_must_divide_the_layers() -> None:
    with pytest.raises(
        MethodError,
        match=r"^num_heads \(7\) must divide the number of layers \(24\); possible: 1, 2, 3, 4, 6, 8, 12, 24$",
    ):
        MultiHeadDAAM(num_layers=24, embed_dim=4, num_heads=7)


def test_versions_differ_in_heads_only() -> None:
    one, two = (build(name, num_layers=8, embed_dim=6, num_classes=3) for name in ("daam-v1", "daam-v2"))
    assert one.fusion.num_heads == 8
    assert two.fusion.num_heads == 1
    single = build("daam-v1", num_layers=8, embed_dim=6, num_classes=3, num_heads=1)
    single.load_state_dict(two.state_dict())
    x = sample(2, 8, 6).float()
    assert torch.equal(single.eval()(x), two.eval()(x))


def ramp(module: MultiHeadDAAM) -> MultiHeadDAAM:
    with torch.no_grad():
        module.offset.copy_(torch.linspace(-0.2, 0.3, module.offset.numel()).view_as(module.offset))
        module.scaled_variance.copy_(torch.linspace(1.1, 2.7, module.offset.numel()).view_as(module.offset))
    return module
