"""Density Adaptive Attention (arXiv 2401.11143, Algorithm 1): version 1 (eight heads), version 2 (one head), frozen.

If the paper and the published code disagree, or a choice matters numerically, the reading is a setting: `variance`
(D25), `eps` (D24), `kernel` (D28) and `scaled_variance` (D61). The published heads flatten time into the layers (D26);
this module normalises one axis, whatever other axes there are, and takes a mask.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, Traits, at_least_float32
from daamctl.methods.decoder import check_choice, classify_map
from daamctl.methods.heads import Heads, check_heads, heads_of
from daamctl.methods.settings import DecoderOptions, DensityOptions, Sizes

VARIANCE_FLOOR = 1e-8  # added to the variance itself
ROOT_FLOOR = 1e-5  # added under the root; Algorithm 1 and the published code have both floors, the text has one (D24)


def density_weights(
    x: Float[Tensor, "*S"],
    offset: Float[Tensor, "*#S"],
    scaled_variance: Float[Tensor, "*#S"],
    *,
    variance: str = "two-pass",
    eps: str = "double",
    kernel: str = "2xi",
    dim: int = -2,
    mask: Bool[Tensor, "*#S"] | None = None,
) -> Float[Tensor, "*S"]:
    """Gaussian weight of every entry against the others along one axis.

    m = mean along the axis, v = biased variance along the axis + 1e-8,
    y = (x - (m + offset)) / sqrt(v + 1e-5),  w = exp(-y^2 / (2 * scaled_variance))

    Our `offset` is the paper's delta (feature units). Our `scaled_variance` is its xi, used like the variance of a
    Gaussian. Statistics come from the sample itself, in training and in evaluation (D62). Statistics and weights are
    computed in float32 at least, also under autocast.

    Args:
        x: (..., L, D), the layers of one head, or any shape with `dim`.
        offset: broadcastable to x with size 1 along the axis, e.g. (..., 1, D).
        scaled_variance: broadcastable like `offset`.
        variance: `two-pass`, or `moments` for the published |mean(x^2) - mean(x)^2|, which loses precision in float32
            if the mean is large against the spread (D25).
        eps: `double` for both floors, or `single` for 1e-5 under the root only, as in the paper's text (D24).
        kernel: `2xi`, or `2c2` for exp(-y^2 / (2 * scaled_variance^2)), as in the paper's entropy section (D28).
        mask: bool, broadcastable to x, True = valid. Statistics are over the valid entries; the others have weight 0.

    Returns:
        w, shape of x; in (0, 1] where valid, provided that `scaled_variance` is positive, which training does not
        enforce (D61). It has a gradient, but no second derivative and no forward-mode derivative.

    Raises:
        MethodError: unknown `variance`, `eps` or `kernel`; `mask` is not bool; or a parameter varies along the axis.
    """
    check_formula(variance=variance, eps=eps, kernel=kernel)
    for name, parameter in (("offset", offset), ("scaled_variance", scaled_variance)):
        place = parameter.dim() + (dim if dim < 0 else dim - x.dim())
        if place >= 0 and parameter.shape[place] != 1:
            shape = tuple(parameter.shape)
            raise MethodError(f"{name} must have size 1 along axis {dim} of x, which its entries share, got {shape}")
    with torch.autocast(x.device.type, enabled=False):
        x = at_least_float32(x)
        ignored = None if mask is None else ~_full_mask(mask, x)  # shape of x
        if ignored is not None:
            x = x.masked_fill(ignored, 0)
        width = scaled_variance if kernel == "2xi" else scaled_variance.square()
        floor = ROOT_FLOOR + (VARIANCE_FLOOR if eps == "double" else 0)
        # torch.compile fuses the plain formula with its derivative; of the hand-written gradient it gives other results
        # (torch 2.11)
        compute = _gaussian if torch.compiler.is_compiling() else GaussianWeights.apply
        weights: Tensor = compute(x, offset, width, variance, floor, dim, ignored)[0]
        return weights if ignored is None else weights.masked_fill(ignored, 0)


def _gaussian(
    x: Tensor, offset: Tensor, width: Tensor, variance: str, floor: float, dim: int, ignored: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Formula of `density_weights`: returns w, the mean, and the variance v before it is made positive and floored."""
    mean = _mean(x, dim, ignored)
    if variance == "two-pass":
        v = _mean((x - mean).square(), dim, ignored)
    else:
        v = _mean(x.square(), dim, ignored) - mean.square()
    u = x - (mean + offset)
    return (u.square() * (-0.5 / (width * (v.abs() + floor)))).exp_(), mean, v


class GaussianWeights(torch.autograd.Function):
    """`_gaussian` with a hand-written gradient.

    Autograd of the formula stores many tensors of the size of x; this stores x and w only (benchmarks/daam.py). With n
    valid entries along the axis,

    u = x - (mean + offset),  p = 1 / (width * (|v| + floor)),  w = exp(-p * u^2 / 2)

    and g the gradient of w, b = g * w * u, S1 = sum of b and S2 = sum of b * u over the axis, the gradients are

    offset: p * S1,  width: p * S2 / (2 * width),  v: p * S2 / (2 * (|v| + floor)) * sign(v)
    x: p * (S1 / n - b) + (gradient of v) * 2 * (x - mean) / n

    In-place operations are limited to tensors that depend on g, x and both parameters: under vmap, each of these may
    have a batch axis.
    """

    generate_vmap_rule = True
    forward = staticmethod(_gaussian)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Store the tensors that the gradient needs."""
        x, offset, width, _, ctx.floor, ctx.dim, ignored = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(x, offset, width, ignored, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, offset and width."""
        x, offset, width, ignored, w, mean, v = ctx.saved_tensors
        spread = v.abs() + ctx.floor
        p = (width * spread).reciprocal()
        u = x - (mean + offset)
        b = (g * w).mul_(u)
        p_s1 = p * b.sum(ctx.dim, keepdim=True)
        p_s2 = p * (b * u).sum(ctx.dim, keepdim=True)
        rest = None, None, None, None
        parameters = p_s1.sum_to_size(offset.shape), (p_s2 / (2 * width)).sum_to_size(width.shape)
        if not ctx.needs_input_grad[0]:
            return None, *parameters, *rest
        n = _count(x, ctx.dim, ignored)
        slope = p_s2 / spread * v.sign() / n  # of x - mean = u + offset
        return torch.addcmul(p_s1 / n + slope * offset, u, slope).sub_(b.mul_(p)), *parameters, *rest


def _mean(x: Tensor, dim: int, ignored: Tensor | None) -> Tensor:
    """Mean along an axis, kept with size 1, over the entries that are not ignored; 0 if all are ignored."""
    if ignored is None:
        return x.mean(dim=dim, keepdim=True)
    return x.masked_fill(ignored, 0).sum(dim=dim, keepdim=True) / _count(x, dim, ignored)


def _count(x: Tensor, dim: int, ignored: Tensor | None) -> Tensor | int:
    """Number of entries along an axis that are not ignored; 1 if all are ignored."""
    return x.shape[dim] if ignored is None else (~ignored).sum(dim=dim, keepdim=True).clamp(min=1)


def _full_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Broadcast the mask to the shape of x. Only bool is accepted: in an additive mask, 0 means valid."""
    if mask.dtype != torch.bool:
        raise MethodError(f"mask must be bool with True = valid, got {mask.dtype}")
    return mask.broadcast_to(x.shape)


def check_formula(*, variance: str, eps: str, kernel: str) -> None:
    """Check the named choices of `density_weights`.

    Raises:
        MethodError: one of them is unknown.
    """
    check_choice("variance", variance, ("two-pass", "moments"))
    check_choice("eps", eps, ("double", "single"))
    check_choice("kernel", kernel, ("2xi", "2c2"))


class MultiHeadDAAM(nn.Module):
    """DAAM with heads: contiguous groups of layers, each with its own offset and scaled variance per feature.

    Head i sees layers i*L/h … (i+1)*L/h - 1; statistics are taken per sample and feature over the layers of a head.
    The output is x * w: no softmax, no residual, no projection. Trainable: 2 * h * D.
    Start: offset 0, scaled variance 2 (docs/sources.md#density-attention and #heads).

    Any axis but the last can be used instead of the layers: with frames (B, L, T, D) and `norm_axis=-2`, heads are runs
    of frames. There is no setting that splits the features among the heads (D27), because every statistic and parameter
    already belongs to one feature: any number of such heads equals one head over all layers (`daam-v2`).

    Args:
        num_heads: h; must divide the size of the axis.
        num_layers: size of the axis, to check it now rather than at the first call.
        norm_axis: axis of the statistics and heads, counted as in the tensor given to `forward`.
        variance, eps, kernel: see `density_weights`.
        scaled_variance: `free` as published, or `softplus`: softplus of the parameter, which keeps it positive (D61).
            The parameter then starts at ln(e^2 - 1), whose softplus is 2.
        trainable: train offset and scaled variance; False: they are buffers and keep their start.

    Raises:
        MethodError: `num_heads` does not divide `num_layers`, or a choice is unknown.
    """

    offset: Tensor  # (h, D)
    scaled_variance: Tensor  # (h, D); before the softplus, if there is one

    def __init__(
        self,
        *,
        num_heads: int,
        embed_dim: int,
        num_layers: int | None = None,
        norm_axis: int = -2,
        variance: str = "two-pass",
        eps: str = "double",
        kernel: str = "2xi",
        scaled_variance: str = "free",
        trainable: bool = True,
    ) -> None:
        super().__init__()
        if num_layers is not None:
            check_heads("num_heads", num_heads, num_layers)
        check_formula(variance=variance, eps=eps, kernel=kernel)
        check_choice("scaled_variance", scaled_variance, ("free", "softplus"))
        self.num_heads = num_heads
        self.norm_axis = norm_axis
        self.variance = variance
        self.eps = eps
        self.kernel = kernel
        self.softplus = scaled_variance == "softplus"
        start = math.log(math.expm1(2)) if self.softplus else 2.0
        for name, value in (("offset", 0.0), ("scaled_variance", start)):
            tensor = torch.full((num_heads, embed_dim), value)
            if trainable:
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)

    def forward(
        self, x: Float[Tensor, "*S D"], *, mask: Bool[Tensor, "*#S #D"] | None = None, return_density: bool = False
    ) -> Float[Tensor, "*S D"] | tuple[Float[Tensor, "*S D"], Float[Tensor, "*S D"]]:
        """Weight every layer and feature.

        Args:
            x: (..., L, D), or any shape that ends in D with `norm_axis`.
            mask: bool, broadcastable to x, True = valid. Other entries do not enter the statistics; they pass through
                unchanged and have density 0.

        Returns:
            x * w, shape and dtype of x; with `return_density` also w, shape of x, float32 at least.

        Raises:
            MethodError: `norm_axis` is the last axis of x or no axis of it, `num_heads` does not divide its size, or
                `mask` is not bool.
        """
        axis = self._axis(x)
        mask = None if mask is None else _full_mask(mask, x)
        split = (self.num_heads, x.shape[axis] // self.num_heads)
        xi = nn.functional.softplus(self.scaled_variance) if self.softplus else self.scaled_variance
        density = density_weights(
            x.unflatten(axis, split),  # (..., h, L/h, ..., D)
            *(one.reshape(one.shape[0], *[1] * (-1 - axis), one.shape[1]) for one in (self.offset, xi)),  # (h, 1, …, D)
            variance=self.variance,
            eps=self.eps,
            kernel=self.kernel,
            dim=axis,
            mask=None if mask is None else mask.unflatten(axis, split),
        ).flatten(axis - 1, axis)  # (..., L, ..., D)
        gain = density if mask is None else density.masked_fill(~mask, 1)
        output = x * gain.to(x.dtype)
        return (output, density) if return_density else output

    def _axis(self, x: Tensor) -> int:
        """The axis of the heads, counted from the end, so that it stays valid once the heads have their own axis."""
        axis = self.norm_axis if self.norm_axis < 0 else self.norm_axis - x.ndim
        if axis == -1:
            raise MethodError(
                f"norm_axis ({self.norm_axis}) must not be the last axis of x: offset and scaled variance run along it"
            )
        if not -x.ndim <= axis < -1:
            raise MethodError(f"norm_axis ({self.norm_axis}) must be an axis of x, which has {x.ndim}")
        if x.shape[axis] % self.num_heads:
            check_heads("num_heads", self.num_heads, x.shape[axis], f"the size of axis {self.norm_axis}")
        return axis


def daam_v1(
    sizes: Sizes,
    *,
    num_heads: Heads = "auto",
    density: DensityOptions,
    scaled_variance: Literal["free", "softplus"] = "free",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Density Adaptive Attention with several heads over the layers: eight as published, see `auto_heads`."""
    fusion = layer_daam(sizes, num_heads, density, scaled_variance=scaled_variance)
    return classify_map(fusion, sizes, decoder, traits=Traits(density=True))


def daam_v2(
    sizes: Sizes,
    *,
    density: DensityOptions,
    scaled_variance: Literal["free", "softplus"] = "free",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Density Adaptive Attention with one head over all layers."""
    return daam_v1(sizes, num_heads=1, density=density, scaled_variance=scaled_variance, decoder=decoder)


def daam_frozen(
    sizes: Sizes, *, num_heads: Heads = "auto", density: DensityOptions, decoder: DecoderOptions
) -> FusionClassifier:
    """Control: Density Adaptive Attention held at its start, offset 0 and scaled variance 2.

    The published weights stay near that start (docs/sources.md#controls). What learning them brings is therefore the
    gain of `daam-v1` over this method, not over `none`.
    """
    fusion = layer_daam(sizes, num_heads, density, trainable=False)
    return classify_map(fusion, sizes, decoder, traits=Traits(density=True))


def layer_daam(sizes: Sizes, num_heads: Heads, density: DensityOptions, **settings: Any) -> MultiHeadDAAM:
    """Build a DAAM over the layers.

    Args:
        settings: further arguments of `MultiHeadDAAM`.

    Raises:
        MethodError: `num_heads` does not divide L, or a choice is unknown.
    """
    num_layers, embed_dim, _ = sizes
    heads = heads_of(num_heads, num_layers)
    return MultiHeadDAAM(num_heads=heads, embed_dim=embed_dim, num_layers=num_layers, **asdict(density), **settings)
