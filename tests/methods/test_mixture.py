"""The Mixture: the published block in NumPy, fibre by fibre, against ours; its options, its bounds, its numerics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import DensityAttention, DensityBlock, build, mixture_weights, rebuild

GOLDEN = Path(__file__).resolve().parents[2].parent / "shared/golden/mixture-axis1.safetensors"


def fibre(
    values: np.ndarray,
    m: np.ndarray,
    c: np.ndarray,
    *,
    op: str = "product",
    variance: str = "unbiased",
    eps: float = 1e-8,
    valid: np.ndarray | None = None,
    padding: str = "masked",
) -> np.ndarray:
    """docs/sources.md#mixture for the positions (n,) of one head, sample and feature, in float64; m and c are (M,)."""
    if valid is not None and padding == "masked":
        weights = np.zeros(len(values))
        if valid.any():
            weights[valid] = fibre(values[valid], m, c, op=op, variance=variance, eps=eps)
        return weights
    counted = values if valid is None else np.where(valid, values, 0)
    mu = counted.sum() / len(counted)
    lost = 1 if variance == "unbiased" else 0
    s2 = ((counted - mu) ** 2).sum() / max(len(counted) - lost, 1) + eps
    pairs = list(zip(m, c, strict=True))
    g = [np.exp(-((values - mu - a) ** 2 / s2) / (2 * b**2)) / math.sqrt(2 * math.pi * b**2) for a, b in pairs]
    p = np.prod(g, axis=0) if op == "product" else np.mean(g, axis=0)
    weights = p / max(p.sum(), eps)
    return weights if valid is None else np.where(valid, weights, 0)


def reference(
    x: Tensor, layer: DensityAttention, axis: int, valid: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """Weights of one layer: heads take floor(n / H) positions of the axis, the last one also the remainder."""
    rows = np.moveaxis(x.detach().double().numpy(), axis, -1)
    valids = None if valid is None else np.moveaxis(np.broadcast_to(valid, x.shape), axis, -1)
    m, c = layer.offsets.detach().double().numpy(), layer.spreads.detach().double().numpy()
    heads, weights = len(m), np.empty_like(rows)
    for index in np.ndindex(rows.shape[:-1]):
        for head in range(heads):
            size = rows.shape[-1] // heads
            part = slice(head * size, rows.shape[-1] if head == heads - 1 else (head + 1) * size)
            mask = None if valids is None else valids[index][part]
            weights[index][part] = fibre(rows[index][part], m[head], c[head], valid=mask, **options)
    return np.moveaxis(weights, -1, axis)


def off_start(module: Any, seed: int = 0) -> Any:
    """Offsets and spreads away from their start; the kernel has c^2, so signs of c are mixed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            if name.endswith("offsets"):
                p.copy_(0.6 * torch.randn(p.shape, generator=generator))
            elif name.endswith("spreads"):
                sign = 1 - 2 * torch.rand(p.shape, generator=generator).round()
                p.copy_((0.8 + torch.rand(p.shape, generator=generator)) * sign)
    return module


def sample(*shape: int, seed: int = 1, scale: float = 1.5) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.4


def test_golden_tensors() -> None:
    if not GOLDEN.exists():
        pytest.skip(f"no golden tensors at {GOLDEN}")
    golden = load_file(GOLDEN)
    block = DensityBlock(num_blocks=2, norm_axis=1, num_heads=8, num_densities=4)
    with torch.no_grad():
        for i, layer in enumerate(block.layers):
            for head in range(8):
                layer.offsets[head] = golden[f"param/layers.{i}.attention_heads.{head}.mean_offsets"]
                layer.spreads[head] = golden[f"param/layers.{i}.attention_heads.{head}.c"]
        output, densities = block(golden["input"], return_density=True)
    torch.testing.assert_close(output, golden["output"], atol=1e-5, rtol=1e-5)
    for i, density in enumerate(densities):
        torch.testing.assert_close(density, golden[f"density/layer_{i}"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("op", ["product", "sum"])
@pytest.mark.parametrize("variance", ["unbiased", "biased"])
@pytest.mark.parametrize(
    ("shape", "axis", "heads"),
    [
        ((3, 24, 5), 1, 8),
        ((2, 11, 4), 1, 3),
        ((2, 3, 13), 2, 4),
        ((2, 3, 9), -1, 1),
        ((7, 4), 0, 2),
        ((2, 3, 7, 4), -2, 3),
    ],
)
def test_weights_equal_the_formula(shape: tuple[int, ...], axis: int, heads: int, op: str, variance: str) -> None:
    layer = off_start(DensityAttention(norm_axis=axis, num_heads=heads, num_densities=3, op=op, variance=variance))
    x = sample(*shape)
    output, density = layer(x, return_density=True)
    expected = reference(x, layer, axis, op=op, variance=variance)
    np.testing.assert_allclose(density.detach().numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(output.detach().numpy(), x.numpy() * expected, atol=1e-5)
    assert torch.equal(layer(x), output)
    assert expected.std() > 0.02


@pytest.mark.parametrize("axes", [1, 2, -1, [1, 2], [2, -2, 1]])
def test_block_is_its_layers_with_a_residual_each(axes: int | list[int]) -> None:
    each = [axes, axes] if isinstance(axes, int) else axes
    heads, densities = [3, 2, 4][: len(each)], [1, 4, 2][: len(each)]
    block = off_start(DensityBlock(num_blocks=len(each), norm_axis=axes, num_heads=heads, num_densities=densities))
    x = sample(2, 9, 10)
    found, weights = block(x, return_density=True)
    expected = x.double().numpy()
    assert len(weights) == len(each)
    for layer, axis, weight in zip(block.layers, each, weights, strict=True):
        w = reference(torch.from_numpy(expected), layer, axis)
        np.testing.assert_allclose(weight.detach().numpy(), w, atol=5e-6)
        expected = expected * w + expected
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=5e-5)
    assert torch.equal(block(x), found)


@pytest.mark.parametrize("op", ["product", "sum"])
@pytest.mark.parametrize("variance", ["unbiased", "biased"])
@pytest.mark.parametrize("padding", ["masked", "counted"])
@pytest.mark.parametrize(("axis", "heads"), [(1, 3), (2, 1)])
def test_masked_positions(op: str, variance: str, padding: str, axis: int, heads: int) -> None:
    layer = off_start(
        DensityAttention(norm_axis=axis, num_heads=heads, num_densities=2, op=op, variance=variance, padding=padding)
    )
    x = sample(3, 13, 7)
    valid = torch.rand(3, 13, 7, generator=torch.Generator().manual_seed(5)) > 0.3
    valid[0, :4] = False  # a head without any valid position, for axis 1
    output, density = layer(x, mask=valid, return_density=True)
    expected = reference(x, layer, axis, valid.numpy(), op=op, variance=variance, padding=padding)
    np.testing.assert_allclose(density.detach().numpy(), expected, atol=5e-6)
    np.testing.assert_allclose(
        output.detach().numpy(), np.where(valid.numpy(), x.numpy() * expected, x.numpy()), atol=2e-5
    )
    one = torch.ones(3, 13, 1, dtype=torch.bool)
    torch.testing.assert_close(layer(x, mask=one), layer(x))  # nothing masked; and a mask may have axes of length 1


def test_counted_padding_is_the_published_block_for_padding_value_zero() -> None:
    """Restated as released: mask from the value, zeros in the statistics, masked positions passed on and then added."""
    block = off_start(DensityBlock(num_blocks=2, norm_axis=1, num_heads=3, num_densities=2, padding="counted"))
    x = sample(2, 9, 4)
    x[0, 7:], x[1, 2] = 0, 0
    mask = x != 0
    expected = x.double().numpy()
    for layer in block.layers:
        valid = expected != 0
        w = reference(torch.from_numpy(expected), layer, 1, valid, padding="counted")
        expected = np.where(valid, expected * w, expected) + expected
    np.testing.assert_allclose(block(x, mask=mask).detach().numpy(), expected, atol=2e-5)
    different = DensityBlock(num_blocks=2, norm_axis=1, num_heads=3, num_densities=2, padding="masked")
    different.load_state_dict(block.state_dict())
    assert (different(x, mask=mask) - block(x, mask=mask)).abs().max() > 0.05


def test_block_leaves_masked_positions_unchanged() -> None:
    block = off_start(DensityBlock(num_blocks=2, norm_axis=1, num_heads=2, num_densities=2))
    x, mask = sample(2, 6, 3), torch.ones(2, 6, 3, dtype=torch.bool)
    mask[0, 4:], mask[1, 0, 1] = False, False
    output, densities = block(x, mask=mask, return_density=True)
    assert torch.equal(output[~mask], x[~mask])
    assert all(not density[~mask].any() for density in densities)
    assert (output[mask] != x[mask]).float().mean() > 0.8  # a weight may be too small to be seen


@pytest.mark.parametrize("variance", ["unbiased", "biased"])
def test_masked_positions_reach_neither_values_nor_gradients(variance: str) -> None:
    layer = off_start(DensityAttention(num_heads=2, num_densities=2, variance=variance))
    x, mask = sample(2, 6, 3), torch.ones(2, 6, 3, dtype=torch.bool)
    mask[0, 1:3], mask[1, 3:] = False, False  # one valid position left in a head, and none
    clean = x.clone()
    x[~mask] = torch.tensor([math.nan, math.inf, 1e30]).repeat(5)
    x.requires_grad_()
    output, density = layer(x, mask=mask, return_density=True)
    torch.testing.assert_close(density, layer(clean, mask=mask, return_density=True)[1])
    assert density[0, 0].isfinite().all()
    output[mask].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_a_product_of_gaussians_is_one_gaussian() -> None:
    """docs/sources.md#mixture: precision sum 1/c^2, offset sum(m/c^2) / sum(1/c^2); no two modes (D30)."""
    x = sample(4, 12, 6).double()
    m, c = torch.tensor([0.3, -0.8, 1.1]).double(), torch.tensor([0.9, 1.6, 2.2]).double()
    precision = (1 / c**2).sum()
    single = mixture_weights(x, ((m / c**2).sum() / precision)[None], precision.rsqrt()[None], dim=1)
    torch.testing.assert_close(mixture_weights(x, m, c, dim=1), single, atol=1e-12, rtol=1e-9)


def test_a_sum_of_gaussians_can_have_two_modes() -> None:
    x = torch.linspace(-1, 1, 41).view(1, 41, 1).double()
    std = x.var(1, correction=1).sqrt().item()
    m, c = torch.tensor([-0.7, 0.7]).double(), torch.tensor([0.2, 0.2]).double() / std
    mixed = mixture_weights(x, m, c, dim=1, op="sum").flatten()
    joint = mixture_weights(x, m, c, dim=1, op="product").flatten()
    rising = [int(((w[1:] > w[:-1]).diff()).sum()) for w in (mixed, joint)]
    assert rising == [3, 1]  # changes of direction: up, down, up, down against up, down
    assert mixed.argmax() in (6, 34)
    assert joint.argmax() == 20


@pytest.mark.parametrize("op", ["product", "sum"])
def test_weights_of_a_head_sum_to_one_and_the_gain_is_four_thirds(op: str) -> None:
    """D35: three layers a head give 1 + 1/3 on average at start; the spreads here are not so small that eps counts."""
    block = DensityBlock(norm_axis=1, num_heads=8, num_densities=4, op=op, init="constant")
    x = sample(16, 24, 32)
    output, (density,) = block(x, return_density=True)
    torch.testing.assert_close(density.unflatten(1, (8, 3)).sum(2), torch.ones(16, 8, 32))
    gain = (output / x).mean().item()
    assert gain == pytest.approx(4 / 3, abs=1e-4)
    assert (output / x).std() > 0.01


def test_gain_with_the_published_start() -> None:
    torch.manual_seed(0)
    gains = [
        (block(x) / x).mean().item() for block, x in ((DensityBlock(), sample(8, 24, 16, seed=s)) for s in range(20))
    ]
    assert sum(gains) / len(gains) == pytest.approx(1.333, abs=0.02)


def test_start_values() -> None:
    torch.manual_seed(0)
    layer = DensityAttention(num_heads=50, num_densities=40)
    logs = layer.spreads.detach().log()
    assert layer.offsets.shape == logs.shape == (50, 40)
    assert not layer.offsets.any()
    assert logs.mean().item() == pytest.approx(0, abs=0.07)
    assert logs.std().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(DensityAttention(init="constant").spreads, torch.full((8, 4), math.sqrt(2)))


@pytest.mark.parametrize("eps", [1e-8, 1e-3, 0.3])
def test_eps_is_the_one_given(eps: float) -> None:
    """D31: the released heads took 1e-8 whatever was asked."""
    layer = off_start(DensityAttention(num_heads=2, num_densities=3, eps=eps))
    x = sample(2, 8, 5, scale=0.1)
    np.testing.assert_allclose(layer(x, return_density=True)[1].detach(), reference(x, layer, 1, eps=eps), atol=2e-6)


@pytest.mark.parametrize("op", ["product", "sum"])
def test_sum_below_eps_is_not_scaled_up(op: str) -> None:
    """The clamp: where all positions lie far out, w = P / eps stays small instead of summing to 1."""
    x = torch.tensor([0.0, 1.0, 2.0]).double().view(1, 3, 1)
    c = torch.tensor([1.0, 1.5]).double()
    totals = []
    for far in (2.0, 12.0):
        m = torch.tensor([far, far + 1]).double()
        weights = mixture_weights(x, m, c, dim=1, op=op)
        expected = fibre(x[0, :, 0].numpy(), m.numpy(), c.numpy(), op=op)
        np.testing.assert_allclose(weights[0, :, 0], expected, rtol=1e-10)
        totals.append(weights.sum().item())
    assert totals[0] == pytest.approx(1)
    assert 0 < totals[1] < 0.9


@pytest.mark.parametrize(("spread", "number"), [(1e-12, 4), (1e-3, 16)])
def test_narrow_or_many_gaussians_do_not_overflow(spread: float, number: int) -> None:
    """The published form, evaluated in float32, ends in inf / inf; the weights are a third each."""
    x = torch.full((1, 3, 1), 0.5)
    m, c = torch.zeros(number), torch.full((number,), spread)
    z = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-8).sqrt()
    p = (torch.exp(-(z[..., None] ** 2) / (2 * c**2)) / torch.sqrt(2 * torch.pi * c**2)).prod(-1)
    assert not (p / p.sum(1, keepdim=True).clamp(min=1e-8)).isfinite().any()
    torch.testing.assert_close(mixture_weights(x, m, c, dim=1), torch.full((1, 3, 1), 1 / 3))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e15])
def test_extreme_inputs_stay_finite_with_finite_gradients(scale: float) -> None:
    torch.manual_seed(3)
    block = DensityBlock(num_blocks=2)
    x = (scale * torch.randn(2, 24, 8)).requires_grad_()
    output = block(x)
    assert output.isfinite().all()
    (output / scale).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in block.parameters())


@pytest.mark.parametrize("op", ["product", "sum"])
@pytest.mark.parametrize("padding", [None, "masked", "counted"])
def test_gradients(op: str, padding: str | None) -> None:
    x = sample(2, 5, 3).double().requires_grad_()
    m = torch.tensor([0.2, -0.4]).double().requires_grad_()
    c = torch.tensor([0.9, -1.4]).double().requires_grad_()
    mask = torch.ones(2, 5, 3, dtype=torch.bool)
    mask[0, 3:], mask[1, 0, 0] = False, False
    options: dict[str, Any] = {"op": op} if padding is None else {"op": op, "padding": padding, "mask": mask}
    assert torch.autograd.gradcheck(lambda *args: mixture_weights(*args, dim=1, **options), (x, m, c))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_stay_in_float32_under_autocast(dtype: torch.dtype) -> None:
    block = off_start(DensityBlock(num_blocks=2))
    x = sample(4, 24, 8, scale=300.0)  # the square of 300 is beyond float16
    plain, densities = block(x, return_density=True)
    with torch.autocast("cpu", dtype=dtype):
        output, cast = block(x, return_density=True)
        half, _ = block(x.to(dtype), return_density=True)
    assert torch.equal(output, plain)
    assert all(torch.equal(a, b) for a, b in zip(cast, densities, strict=True))
    assert all(density.dtype == torch.float32 for density in cast)
    assert half.dtype == dtype
    assert half.isfinite().all()


def test_module_in_half_precision() -> None:
    block = off_start(DensityBlock()).to(torch.bfloat16)
    output, (density,) = block(sample(2, 24, 4).bfloat16(), return_density=True)
    assert (output.dtype, density.dtype) == (torch.bfloat16, torch.float32)


def test_compiles_to_one_graph_and_exports_with_a_longer_last_head() -> None:
    model = off_start(build("mixture-daam", num_layers=27, embed_dim=6, num_classes=3)).eval()
    x = sample(3, 27, 6)
    torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes).module()
    torch.testing.assert_close(exported(x[:2]), model(x[:2]))


def test_leading_axes_are_free_on_a_negative_axis() -> None:
    block = off_start(DensityBlock(norm_axis=-2, num_heads=2))
    x = sample(2, 3, 6, 4)
    torch.testing.assert_close(block(x).flatten(0, 1), block(x.flatten(0, 1)))
    assert block(x[0, 0]).shape == (6, 4)


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("axis", ["layers", "features"])
def test_method_fuses_by_one_plus_its_density(axis: str, blocks: int) -> None:
    settings = {"norm_axis": axis, "num_heads": 4, "num_blocks": blocks}
    model = off_start(build("mixture-daam", num_layers=12, embed_dim=9, num_classes=3, **settings))
    x = sample(2, 12, 9)
    fused, density = model.fusion(x, return_density=True)
    assert density.shape == x.shape
    torch.testing.assert_close(fused, x * (1 + density))
    torch.testing.assert_close(model.fusion(x), fused)
    expected = x.double().numpy()
    for layer in model.fusion.block.layers:
        expected = expected * (1 + reference(torch.from_numpy(expected), layer, 1 if axis == "layers" else 2))
    np.testing.assert_allclose(fused.detach().numpy(), expected, atol=1e-4)
    assert sum(p.numel() for p in model.fusion.parameters()) == blocks * 4 * 4 * 2


def test_one_layer_a_head_needs_the_biased_variance() -> None:
    """D33: the released module gives NaN there."""
    text = (
        r"^num_heads \(8\) leaves one of 8 positions to a head, which has no unbiased variance; "
        r"use at most 4 heads$"
    )
    with pytest.raises(MethodError, match=text):
        build("mixture-daam", num_layers=8, embed_dim=4, num_classes=2, num_heads=8)
    with pytest.raises(MethodError, match=text):
        DensityAttention()(torch.zeros(2, 8, 3))
    with pytest.raises(MethodError, match=r"use variance='biased'$"):
        DensityAttention(num_heads=1)(torch.zeros(2, 1, 3))
    with pytest.raises(
        MethodError, match=r"^one position has no unbiased variance; use variance='biased' or fewer heads$"
    ):
        mixture_weights(torch.zeros(2, 1, 3), torch.zeros(1), torch.ones(1), dim=1)
    model = rebuild("mixture-daam", num_layers=8, embed_dim=4, num_classes=2, num_heads=8, variance="biased")
    _, density = model(sample(2, 8, 4), return_density=True)
    assert torch.equal(density, torch.ones(2, 8, 4))  # one position takes all of its head's weight


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: DensityAttention(num_heads=5)(torch.zeros(2, 4, 3)),
            r"num_heads \(5\) must not exceed the positions on",
        ),
        (lambda: DensityAttention(norm_axis=3)(torch.zeros(2, 4, 3)), r"norm_axis 3 is no axis of an input of shape"),
        (lambda: DensityAttention(norm_axis=0)(torch.zeros(4)), r"norm_axis 0 is no axis of an input of shape \(4,\)$"),
        (lambda: DensityAttention(num_heads=0), r"num_heads must be at least 1, got 0$"),
        (lambda: DensityAttention(num_densities=0), r"num_densities must be at least 1, got 0$"),
        (lambda: DensityAttention(eps=0.0), r"eps must be above 0, got 0.0$"),
        (lambda: DensityAttention(op="mean"), r"op must be 'product' or 'sum', got 'mean'$"),
        (lambda: DensityAttention(variance="two-pass"), r"variance must be 'unbiased' or 'biased', got 'two-pass'$"),
        (lambda: DensityAttention(init="zeros"), r"init must be 'lognormal' or 'constant', got 'zeros'$"),
        (lambda: DensityAttention(padding="none"), r"padding must be 'masked' or 'counted', got 'none'$"),
        (lambda: DensityBlock(num_blocks=0), r"num_blocks must be at least 1, got 0$"),
        (
            lambda: DensityBlock(num_blocks=2, norm_axis=[1]),
            r"norm_axis must be one number or 2, one per block, got 1$",
        ),
        (lambda: DensityBlock(num_heads=[2, 2]), r"num_heads must be one number or 1, one per block, got 2$"),
        (
            lambda: build("mixture-daam", num_layers=4, embed_dim=8, num_classes=2, num_heads=8),
            r"num_heads \(8\) must not exceed",
        ),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    with pytest.raises(MethodError, match=f"^{message}"):
        call()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("mask", [torch.ones(2, 6, 3), torch.ones(2, 6).bool(), torch.ones(2, 5, 3).bool()])
def test_masks_that_do_not_fit(mask: Tensor) -> None:
    with pytest.raises(
        MethodError, match=r"^mask must be bool with axes of length 1 or those of the input \(2, 6, 3\)"
    ):
        DensityAttention(num_heads=2)(torch.zeros(2, 6, 3), mask=mask)
