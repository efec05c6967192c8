"""Density Adaptive Attention: the formula, its bounds, its numerics, and how heads split the layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import MultiHeadDAAM, build, density_weights


def reference(
    x: np.ndarray,
    offset: np.ndarray,
    scaled_variance: np.ndarray,
    *,
    eps: str = "double",
    kernel: str = "2xi",
    mask: np.ndarray | None = None,
    axis: int = 1,
) -> np.ndarray:
    """docs/sources.md#density-attention, per column of `axis`, float64: x (..., D), offset and scaled variance (D,)."""
    columns = np.moveaxis(x.astype(np.float64), axis, 0)
    valid = np.moveaxis(np.broadcast_to(True if mask is None else mask, x.shape), axis, 0)
    weights = np.zeros(columns.shape)
    for place in np.ndindex(*columns.shape[1:]):
        rows = [row for row in range(len(columns)) if valid[(row, *place)]]
        values = [columns[(row, *place)] for row in rows]
        xi, delta = scaled_variance[place[-1]], offset[place[-1]]
        for row, value in zip(rows, values, strict=True):
            m = sum(values) / len(values)
            v = sum((other - m) ** 2 for other in values) / len(values) + {"double": 1e-8, "single": 0}[eps]
            y = (value - (m + delta)) / math.sqrt(v + 1e-5)
            weights[(row, *place)] = math.exp(-y * y / {"2xi": 2 * xi, "2c2": 2 * xi**2}[kernel])
    return np.moveaxis(weights, 0, axis)


def sample(*shape: int, seed: int = 0, mean: float = 0.0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(mean, 1, shape))


def holes(*shape: int) -> Tensor:
    """A mask with about a third of the entries not valid."""
    return sample(*shape, seed=1) > -0.4


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


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
@pytest.mark.parametrize("eps", ["double", "single"])
@pytest.mark.parametrize("kernel", ["2xi", "2c2"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_formula(variance: str, eps: str, kernel: str, masked: bool) -> None:
    x, (offset, scaled_variance) = 1e-3 * sample(3, 6, 7), parameters(7)  # near the floors, where `eps` matters
    offset = 1e-3 * offset
    mask = holes(3, 6, 7) if masked else None
    found = density_weights(x, offset, scaled_variance, variance=variance, eps=eps, kernel=kernel, mask=mask)
    keep = None if mask is None else mask.numpy()
    settings = {"eps": eps, "kernel": kernel, "mask": keep}
    expected = reference(x.numpy(), offset.numpy(), scaled_variance.numpy(), **settings)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    for other in ({"eps": "single" if eps == "double" else "double"}, {"kernel": "2c2" if kernel == "2xi" else "2xi"}):
        apart = reference(x.numpy(), offset.numpy(), scaled_variance.numpy(), **{**settings, **other})
        assert np.abs(apart - expected).max() > 1e-6


@pytest.mark.parametrize("layers", [2, 3, 5, 24, 40])
def test_lower_bound_at_start(layers: int) -> None:
    """docs/sources.md#density-attention: w >= exp(-(n-1) / (2 xi))."""
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
    """docs/sources.md#density-attention: the moment difference in float32 is off by 900 % at mean 1000, std 0.1."""
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


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        ("variance", "'two-pass' or 'moments'"),
        ("eps", "'double' or 'single'"),
        ("kernel", "'2xi' or '2c2'"),
        ("scaled_variance", "'free' or 'softplus'"),
    ],
)
def test_unknown_choices(choice: str, allowed: str) -> None:
    wrong = {choice: "other"}
    with pytest.raises(MethodError, match=f"^{choice} must be {allowed}, got 'other'$"):
        MultiHeadDAAM(num_heads=1, embed_dim=3, **wrong)
    if choice != "scaled_variance":
        with pytest.raises(MethodError, match=f"^{choice} must be {allowed}, got 'other'$"):
            density_weights(torch.zeros(2, 3), torch.zeros(3), torch.ones(3), **wrong)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("variance", ["two-pass", "moments"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_large_inputs_stay_finite_under_autocast(dtype: torch.dtype, variance: str, scale: float) -> None:
    module = MultiHeadDAAM(num_heads=2, embed_dim=5, variance=variance)
    for x in (scale * sample(3, 6, 5), scale + sample(3, 6, 5), torch.full((3, 6, 5), scale)):
        half = x.to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            output, density = module(half, return_density=True)
        assert density.dtype == torch.float32
        output.float().mean().backward()
        found = [output, density, half.grad, module.offset.grad, module.scaled_variance.grad]
        assert all(value is not None and value.isfinite().all() for value in found)


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
@pytest.mark.parametrize("eps", ["double", "single"])
@pytest.mark.parametrize("kernel", ["2xi", "2c2"])
@pytest.mark.parametrize("scaled_variance", ["free", "softplus"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients(variance: str, eps: str, kernel: str, scaled_variance: str, masked: bool) -> None:
    module = MultiHeadDAAM(
        num_heads=2, embed_dim=3, variance=variance, eps=eps, kernel=kernel, scaled_variance=scaled_variance
    ).double()
    mask = holes(2, 6, 3) if masked else None

    def run(x: Tensor, offset: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
        state = {"offset": offset, "scaled_variance": width}
        found: tuple[Tensor, Tensor] = torch.func.functional_call(
            module, state, (x,), {"mask": mask, "return_density": True}
        )
        return found

    offset, width = (value.view(2, 3).requires_grad_() for value in parameters(6))
    assert torch.autograd.gradcheck(run, (sample(2, 6, 3).requires_grad_(), offset, width), fast_mode=True)


def plain(x: Tensor, offset: Tensor, scaled_variance: Tensor) -> Tensor:
    """The weights in operations whose gradient torch derives."""
    mean = x.mean(-2, keepdim=True)
    spread = (x - mean).square().mean(-2, keepdim=True) + 1e-8 + 1e-5
    return torch.exp(-(x - (mean + offset)).square() / (2 * scaled_variance * spread))


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1, 5), (2, 3, 1, 1), (1,)])
def test_gradients_equal_the_derived_ones(shape: tuple[int, ...]) -> None:
    x, g = sample(2, 3, 4, 5), sample(2, 3, 4, 5, seed=1)
    found, expected = (
        torch.autograd.grad(weigh(*inputs), inputs, g)
        for weigh in (density_weights, plain)
        for inputs in [[value.requires_grad_() for value in (x.clone(), 0.1 * sample(*shape), 1.5 + holes(*shape))]]
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_gradient_of_one_input_alone(wanted: int) -> None:
    """Stored embeddings need no gradient, a frozen module's parameters neither."""
    inputs = [sample(3, 6, 7), *parameters(7)]
    inputs[wanted].requires_grad_()
    (found,) = torch.autograd.grad(density_weights(*inputs).sum(), inputs[wanted])
    (expected,) = torch.autograd.grad(plain(*inputs).sum(), inputs[wanted])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_second_gradient_is_refused() -> None:
    x = sample(3, 6, 7).requires_grad_()
    (first,) = torch.autograd.grad(density_weights(x, *parameters(7)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("batched", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0), (0, 0, None)])
@pytest.mark.parametrize("variance", ["two-pass", "moments"])
def test_vmap_over_any_inputs(batched: tuple[int | None, ...], variance: str) -> None:
    members = [[sample(3, 6, 7, seed=k), 0.1 * sample(7, seed=k), 2 + 0.1 * sample(7, seed=k + 9)] for k in range(4)]
    inputs = [
        torch.stack(values) if axis == 0 else values[0]
        for values, axis in zip(zip(*members, strict=True), batched, strict=True)
    ]

    def loss(*inputs: Tensor) -> Tensor:
        return density_weights(*inputs, variance=variance).square().sum()

    for value in inputs:
        value.requires_grad_()
    losses = torch.func.vmap(loss, in_dims=batched)(*inputs)
    found = torch.autograd.grad(losses.sum(), inputs)
    single = [
        loss(*(value[k] if axis == 0 else value for value, axis in zip(inputs, batched, strict=True))) for k in range(4)
    ]
    torch.testing.assert_close(losses, torch.stack(single))
    for one, other in zip(found, torch.autograd.grad(torch.stack(single).sum(), inputs), strict=True):
        torch.testing.assert_close(one, other)
    _, pull = torch.func.vjp(lambda x: density_weights(x, inputs[1].mean(), inputs[2].mean()), sample(3, 6, 7))
    directions = sample(2, 3, 6, 7, seed=3)
    (rows,) = torch.func.vmap(pull)(directions)
    for row, direction in zip(rows, directions, strict=True):
        torch.testing.assert_close(row, pull(direction)[0])


@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 6, 7)), (-2, (3, 6, 7)), (0, (6, 7))])
def test_parameters_along_the_axis_are_refused(axis: int, shape: tuple[int, ...]) -> None:
    x, along = sample(*shape), torch.ones(6, 1)
    for name, pair in (("offset", (along, along[:1])), ("scaled_variance", (along[:1], along))):
        with pytest.raises(MethodError, match=rf"^{name} must have size 1 along axis {axis} of x, .*, got \(6, 1\)$"):
            density_weights(x, *pair, dim=axis)


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
    """docs/sources.md#heads: head i has layers i*N/g .. (i+1)*N/g - 1 and sees no others."""
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


def test_features_split_among_heads_are_one_head() -> None:
    """D27: with parameters per feature, heads that take runs of features instead of layers change nothing."""
    x = sample(3, 6, 8).float()
    whole = ramp(MultiHeadDAAM(num_heads=1, embed_dim=8))
    parts = []
    for run in range(4):
        part = MultiHeadDAAM(num_heads=1, embed_dim=2)
        part.load_state_dict({name: value[:, 2 * run : 2 * run + 2] for name, value in whole.state_dict().items()})
        parts.append(part(x[..., 2 * run : 2 * run + 2]))
    torch.testing.assert_close(torch.cat(parts, -1), whole(x))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("axis", "shape"), [(1, (2, 6, 3, 5)), (2, (2, 3, 6, 5)), (0, (6, 2, 5)), (0, (6, 5))])
def test_any_axis_but_the_last(axis: int, shape: tuple[int, ...], masked: bool) -> None:
    x, mask = sample(*shape), holes(*shape) if masked else None
    for norm_axis in (axis, axis - len(shape)):
        module = ramp(MultiHeadDAAM(num_heads=2, embed_dim=5, norm_axis=norm_axis)).double()
        output, density = module(x, mask=mask, return_density=True)
        keep = np.ones(shape, dtype=bool) if mask is None else mask.numpy()
        heads = []
        for i, (part, valid) in enumerate(zip(np.split(x.numpy(), 2, axis), np.split(keep, 2, axis), strict=True)):
            offset, scaled_variance = (p[i].detach().numpy() for p in (module.offset, module.scaled_variance))
            heads.append(reference(part, offset, scaled_variance, mask=valid, axis=axis))
        expected = np.concatenate(heads, axis)
        np.testing.assert_allclose(density.detach().numpy(), expected, rtol=1e-9)
        np.testing.assert_allclose(output.detach().numpy(), np.where(keep, x.numpy() * expected, x.numpy()), rtol=1e-9)


@pytest.mark.parametrize("norm_axis", [-1, 2])
def test_the_last_axis_is_refused(norm_axis: int) -> None:
    module = MultiHeadDAAM(num_heads=1, embed_dim=5, norm_axis=norm_axis)
    message = rf"^norm_axis \({norm_axis}\) must not be the last axis of x: offset and scaled variance run along it$"
    with pytest.raises(MethodError, match=message):
        module(torch.zeros(2, 5, 5))


@pytest.mark.parametrize("norm_axis", [-4, 3])
def test_an_axis_that_is_not_there_is_refused(norm_axis: int) -> None:
    module = MultiHeadDAAM(num_heads=1, embed_dim=5, norm_axis=norm_axis)
    with pytest.raises(MethodError, match=rf"^norm_axis \({norm_axis}\) must be an axis of x, which has 3$"):
        module(torch.zeros(2, 5, 5))


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
def test_masked_layers_count_as_absent(variance: str) -> None:
    module = ramp(MultiHeadDAAM(num_heads=1, embed_dim=4, variance=variance))
    x = sample(3, 6, 4).float()
    mask = torch.tensor([True, False, True, True, False, True]).view(6, 1)
    garbage = x.masked_fill(~mask, float("nan"))
    output, density = module(garbage, mask=mask, return_density=True)
    keep = mask.flatten()
    expected, expected_density = module(x[:, keep], return_density=True)
    torch.testing.assert_close(density[:, keep], expected_density)
    torch.testing.assert_close(output[:, keep], expected)
    assert not density[:, ~keep].any()
    torch.testing.assert_close(output[:, ~keep], garbage[:, ~keep], equal_nan=True, rtol=0, atol=0)


def test_masked_entries_pass_and_reach_nothing_else() -> None:
    module = ramp(MultiHeadDAAM(num_heads=2, embed_dim=4))
    mask = holes(3, 6, 4)
    x = sample(3, 6, 4).float().requires_grad_()
    module(x, mask=mask)[~mask].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (~mask).float(), rtol=0, atol=0)
    x.grad = None
    module(x, mask=mask)[mask].sum().backward()
    assert not x.grad[~mask].any()


@pytest.mark.parametrize("variance", ["two-pass", "moments"])
@pytest.mark.parametrize("fill", [0.7, float("nan")])
def test_a_slice_without_valid_entries_stays_finite(variance: str, fill: float) -> None:
    module = ramp(MultiHeadDAAM(num_heads=2, embed_dim=4, variance=variance))
    x = sample(2, 6, 4).float()
    x[0] = fill
    mask = torch.tensor([False, True]).view(2, 1, 1)
    x.requires_grad_()
    output, density = module(x, mask=mask, return_density=True)
    assert not density[0].any()
    torch.testing.assert_close(output[0], x[0], equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(output[1], module(x[1:])[0])
    output[mask.expand_as(output)].sum().backward()
    for parameter in (x, *module.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert not x.grad[0].any()


@pytest.mark.usefixtures("unchecked_shapes")
def test_mask_must_be_bool() -> None:
    with pytest.raises(MethodError, match=r"^mask must be bool with True = valid, got torch\.float32$"):
        MultiHeadDAAM(num_heads=1, embed_dim=3)(torch.zeros(1, 2, 3), mask=torch.zeros(1, 2, 1))


def test_start_values_and_number_of_parameters() -> None:
    module = MultiHeadDAAM(num_layers=24, embed_dim=10, num_heads=8)
    assert torch.equal(module.offset, torch.zeros(8, 10))
    assert torch.equal(module.scaled_variance, torch.full((8, 10), 2.0))
    assert sum(p.numel() for p in module.parameters()) == 2 * 8 * 10
    assert set(module.state_dict()) == {"offset", "scaled_variance"}


def test_softplus_starts_like_the_free_form_and_stays_positive() -> None:
    free, soft = (MultiHeadDAAM(num_heads=2, embed_dim=5, scaled_variance=form) for form in ("free", "softplus"))
    assert torch.equal(torch.nn.functional.softplus(soft.scaled_variance), free.scaled_variance)
    x = sample(3, 6, 5).float()
    assert torch.equal(soft(x), free(x))
    with torch.no_grad():
        free.scaled_variance.fill_(-1.0)
        soft.scaled_variance.fill_(-1.0)
    assert free(x, return_density=True)[1].max() > 1
    width = np.full(5, math.log1p(math.exp(-1.0)))
    expected = np.concatenate([reference(half, np.zeros(5), width) for half in np.split(x.numpy(), 2, 1)], 1)
    np.testing.assert_allclose(soft(x, return_density=True)[1].detach().numpy(), expected, atol=1e-5)


def test_frozen_is_version_one_at_its_start() -> None:
    frozen, trained = (build(name, num_layers=8, embed_dim=6, num_classes=3) for name in ("daam-frozen", "daam-v1"))
    assert not list(frozen.fusion.parameters())
    frozen.load_state_dict(trained.state_dict())  # the same tensors under the same names
    x = sample(2, 8, 6).float()
    logits, density = frozen.eval()(x, return_density=True)
    expected, expected_density = trained.eval()(x, return_density=True)
    assert torch.equal(logits, expected)
    assert torch.equal(density, expected_density)


def test_heads_must_divide_the_layers() -> None:
    with pytest.raises(
        MethodError,
        match=r"^num_heads \(7\) must divide the number of layers \(24\); possible: 1, 2, 3, 4, 6, 8, 12$",
    ):
        MultiHeadDAAM(num_layers=24, embed_dim=4, num_heads=7)


def test_heads_must_divide_the_axis_met_at_the_call() -> None:
    module = MultiHeadDAAM(embed_dim=4, num_heads=4)
    assert module(torch.zeros(2, 8, 4)).shape == (2, 8, 4)
    with pytest.raises(
        MethodError, match=r"^num_heads \(4\) must divide the size of axis -2 \(6\); possible: 1, 2, 3$"
    ):
        module(torch.zeros(2, 6, 4))


def test_versions_differ_in_heads_only() -> None:
    one, two = (build(name, num_layers=24, embed_dim=6, num_classes=3) for name in ("daam-v1", "daam-v2"))
    assert one.fusion.num_heads == 8
    assert two.fusion.num_heads == 1
    single = build("daam-v1", num_layers=24, embed_dim=6, num_classes=3, num_heads=1)
    single.load_state_dict(two.state_dict())
    x = sample(2, 24, 6).float()
    assert torch.equal(single.eval()(x), two.eval()(x))


def ramp(module: MultiHeadDAAM) -> MultiHeadDAAM:
    with torch.no_grad():
        module.offset.copy_(torch.linspace(-0.2, 0.3, module.offset.numel()).view_as(module.offset))
        module.scaled_variance.copy_(torch.linspace(1.1, 2.7, module.offset.numel()).view_as(module.offset))
    return module
