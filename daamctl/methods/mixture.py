"""Mixture of Density Adaptive Attention: the appendix DensityBlock, for any tensor and axis, and as a method.

Source: docs/sources.md#mixture. Without a mask, the defaults compute what the released module computes. Each point on
which the papers differ is an option: `op` (D30), `variance` (D33), `init` (D32), `padding` (D34). Two differences from
the released module cannot be switched off: `eps` is the value given, while the released heads always use 1e-8 (D31);
and a masked position leaves the block unchanged, while the released block adds it to itself, which is the same for the
usual padding value 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, Traits
from daamctl.methods.decoder import check_choice, classify_map
from daamctl.methods.heads import AUTO, PUBLISHED_HEADS, Heads, check_positions, heads_of
from daamctl.methods.settings import DecoderOptions, Sizes

EPS = 1e-8  # added to the variance, and lower bound of the sum that normalises (D35)
LOG_TWO_PI = math.log(2 * math.pi)


def mixture_weights(
    x: Float[Tensor, "*S"],
    offsets: Float[Tensor, "M *#S"],
    spreads: Float[Tensor, "M *#S"],
    *,
    dim: int,
    op: str = "product",
    variance: str = "unbiased",
    eps: float = EPS,
    mask: Bool[Tensor, "*#S"] | None = None,
    padding: str = "masked",
) -> Float[Tensor, "*S"]:
    """Joint weight of M Gaussians for every position on one axis.

    z_i = (x - (mean + m_i)) / sqrt(var + eps),  g_i = exp(-z_i^2 / (2 c_i^2)) / sqrt(2 pi c_i^2),
    P = product or mean of g_i over i,  w = P / max(sum of P over the axis, eps)

    The offsets m_i are in units of x; a spread c_i enters only as its square. The published P overflows float32 for
    narrow or many Gaussians; this function works with logarithms until the last step. It computes in float32 at least,
    also under autocast.

    Args:
        x: (..., n, ...), n positions on axis `dim`.
        offsets: (M,), or (M, ...) with further axes that broadcast with x.
        spreads: like `offsets`.
        dim: the axis of the statistics and of the sum.
        op: `product` as published, which is again one Gaussian, of precision sum 1/c_i^2; or `sum`, a true mixture with
            equal shares (D30).
        variance: `unbiased` as published, undefined for n = 1; or `biased` (D33). If only one position is valid under
            the mask, the variance is 0.
        eps: added to the variance, and lower bound of the sum.
        mask: bool, broadcastable to x, True = valid; masked positions get weight 0.
        padding: `masked`: statistics and sum over valid positions only; or `counted` as published: masked positions
            count as zeros in mean and variance, and as their own values in the sum (D34).

    Returns:
        w, shape of x; sums to 1 over the axis wherever the sum of P is at least `eps`.

    Raises:
        MethodError: unknown `op`, `variance` or `padding`; or n = 1 with the unbiased variance.
    """
    _check_options(op, variance, padding)
    if x.shape[dim] == 1 and variance == "unbiased":
        raise MethodError("one position has no unbiased variance; use variance='biased' or fewer heads")
    with torch.autocast(x.device.type, enabled=False):
        dtype = torch.promote_types(x.dtype, torch.float32)
        x, offsets, spreads = x.to(dtype), _lead(offsets.to(dtype), x.dim()), _lead(spreads.to(dtype), x.dim())
        if mask is not None and padding == "masked":
            x = x.where(mask, 0)  # also keeps NaN and infinity in masked positions out of the gradients
        mean, var = _moments(x, dim, variance, mask, padding)
        if op == "product":
            log_p = _log_product(x - mean, var + eps, offsets, spreads)
        else:
            z = (x - (mean + offsets)) / (var + eps).sqrt()  # (M, ..., n, ...)
            log_g = -0.5 * (z / spreads).square() - spreads.abs().log() - 0.5 * LOG_TWO_PI
            log_p = log_g.logsumexp(0) - math.log(len(offsets))
        if mask is not None and padding == "masked":
            log_p = log_p.masked_fill(~mask, -math.inf)
        weights = (log_p - log_p.logsumexp(dim, keepdim=True).clamp(min=math.log(eps))).exp()
        return weights if mask is None else weights.masked_fill(~mask, 0)


def _lead(values: Tensor, num_axes: int) -> Tensor:
    """Reshape (M, ...) to (M, 1, ..., 1, ...), so that the axes after the first broadcast with x."""
    return values.reshape(len(values), *[1] * (num_axes + 1 - values.dim()), *values.shape[1:])


def _log_product(centred: Tensor, var: Tensor, offsets: Tensor, spreads: Tensor) -> Tensor:
    """Logarithm of the product of M Gaussians, in one pass: the product is itself a Gaussian (docs/sources.md#mixture).

    With r_i = (1/c_i^2) / sum of 1/c_i^2, their mean offset m = sum r_i m_i and joint spread c = (sum 1/c_i^2)^(-1/2),
    sum of (d - m_i)^2 / c_i^2 = ((d - m)^2 + sum r_i (m_i - m)^2) / c^2 for every deviation d.
    """
    log_precisions = -2 * spreads.abs().log()
    share = log_precisions.softmax(0)
    offset = (share * offsets).sum(0)
    scatter = (share * (offsets - offset).square()).sum(0)
    precision = log_precisions.logsumexp(0).exp() / var
    height = 0.5 * (log_precisions.sum(0) - len(offsets) * LOG_TWO_PI) - 0.5 * precision * scatter
    return height - 0.5 * precision * (centred - offset).square()


def _moments(x: Tensor, dim: int, variance: str, mask: Tensor | None, padding: str) -> tuple[Tensor, Tensor]:
    """Mean and variance over one axis, kept with length 1. Not `Tensor.var`, which is slow on any axis but the last."""
    lost = 1 if variance == "unbiased" else 0
    if mask is not None:
        x = x.where(mask, 0)
    if mask is None or padding == "counted":
        mean = x.mean(dim, keepdim=True)
        return mean, (x - mean).square().sum(dim, keepdim=True) / (x.shape[dim] - lost)
    count = mask.expand_as(x).sum(dim, keepdim=True)
    mean = x.sum(dim, keepdim=True) / count.clamp(min=1)
    squares = (x - mean).where(mask, 0).square().sum(dim, keepdim=True)
    return mean, squares / (count - lost).clamp(min=1)


class DensityAttention(nn.Module):
    """Heads that split one axis; each head weights its own positions by its own M Gaussians.

    Each head takes floor(n / H) consecutive positions, the last one also the remainder. The weights of a head sum to 1
    over its positions. The output is x * w; masked positions pass unchanged. Trainable: 2 * H * M, for any shape of x.

    Args:
        norm_axis: axis of x that is split and normalised; may be negative.
        num_heads: H.
        num_densities: M, Gaussians per head.
        op, variance, eps, padding: see `mixture_weights`; `eps` is used as given (D31).
        init: `lognormal` as published: offsets 0, spreads exp(standard normal); or `constant`: spreads sqrt(2), so that
            each Gaussian starts with the scaled variance 2 that the paper gives for DAAM: c^2 here corresponds to xi
            there (D28, D32).

    Raises:
        MethodError: unknown option, or a number below 1.
    """

    def __init__(
        self,
        *,
        norm_axis: int = 1,
        num_heads: int = 8,
        num_densities: int = 4,
        op: str = "product",
        variance: str = "unbiased",
        init: str = "lognormal",
        eps: float = EPS,
        padding: str = "masked",
    ) -> None:
        super().__init__()
        _check_options(op, variance, padding)
        check_choice("init", init, ("lognormal", "constant"))
        for what, value in (("num_heads", num_heads), ("num_densities", num_densities)):
            if value < 1:
                raise MethodError(f"{what} must be at least 1, got {value}")
        if not eps > 0:
            raise MethodError(f"eps must be above 0, got {eps}")
        self.norm_axis = norm_axis
        self.op = op
        self.variance = variance
        self.eps = eps
        self.padding = padding
        self.offsets = nn.Parameter(torch.zeros(num_heads, num_densities))
        start = torch.randn(num_heads, num_densities).exp() if init == "lognormal" else math.sqrt(2)
        self.spreads = nn.Parameter(torch.ones(num_heads, num_densities) * start)

    def forward(
        self, x: Float[Tensor, "*S"], *, mask: Bool[Tensor, "*#S"] | None = None, return_density: bool = False
    ) -> Float[Tensor, "*S"] | tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
        """Weight every element.

        Args:
            x: at least two axes.
            mask: bool, as many axes as x and broadcastable to it, True = valid.

        Returns:
            x * w, masked positions unchanged, shape and dtype of x; with `return_density` also w (shape of x, float32
            at least), 0 in masked positions.

        Raises:
            MethodError: there is no such axis; there are fewer positions than heads; there is one position per head
                with the unbiased variance; or the mask does not fit.
        """
        if x.dim() < 2 or not -x.dim() <= self.norm_axis < x.dim():
            raise MethodError(f"norm_axis {self.norm_axis} is no axis of an input of shape {tuple(x.shape)}")
        axis = self.norm_axis % x.dim()
        positions, num_heads = x.shape[axis], len(self.offsets)
        check_positions(positions, num_heads, self.variance)
        mask = None if mask is None else _expand(mask, x)
        if positions % num_heads == 0:
            density = self._weights(x, mask, self.offsets, self.spreads, axis)
        else:  # the last head has another size than the others
            sizes = [positions // num_heads * (num_heads - 1), positions // num_heads + positions % num_heads]
            masks = [None, None] if mask is None else mask.split(sizes, axis)
            offsets, spreads = (values.split([num_heads - 1, 1]) for values in (self.offsets, self.spreads))
            parts = zip(x.split(sizes, axis), masks, offsets, spreads, strict=True)
            density = torch.cat([self._weights(*part, axis) for part in parts], axis)
        output = x * density.to(x.dtype)
        if mask is not None:
            output = output.where(mask, x)
        return (output, density) if return_density else output

    def _weights(self, x: Tensor, mask: Tensor | None, offsets: Tensor, spreads: Tensor, axis: int) -> Tensor:
        """Weights, shape of x, of heads of equal size with parameters (h, M)."""
        split = (len(offsets), x.shape[axis] // len(offsets))
        rest = [1] * (x.dim() - axis)
        weights = mixture_weights(
            x.unflatten(axis, split),  # (..., h, n/h, ...)
            offsets.T.unflatten(1, (split[0], *rest)),  # (M, h, 1, ..., 1)
            spreads.T.unflatten(1, (split[0], *rest)),
            dim=axis + 1,
            op=self.op,
            variance=self.variance,
            eps=self.eps,
            mask=None if mask is None else mask.unflatten(axis, split),
            padding=self.padding,
        )
        return weights.flatten(axis, axis + 1)


class DensityBlock(nn.Module):
    """Several density attentions in a row, each with a residual: x <- layer(x) + x, that is x * (1 + w).

    With three positions per head the mean gain is 1 + 1/3 (D35). Masked positions keep their value.

    Args:
        norm_axis, num_heads, num_densities: one for all, or one per block.
        options: `op`, `variance`, `init`, `eps` and `padding` of all blocks; see `DensityAttention`.

    Raises:
        MethodError: a sequence is not of length `num_blocks`; or see `DensityAttention`.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 1,
        norm_axis: int | Sequence[int] = 1,
        num_heads: int | Sequence[int] = 8,
        num_densities: int | Sequence[int] = 4,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_blocks < 1:
            raise MethodError(f"num_blocks must be at least 1, got {num_blocks}")
        axes = _per_block("norm_axis", norm_axis, num_blocks)
        heads = _per_block("num_heads", num_heads, num_blocks)
        densities = _per_block("num_densities", num_densities, num_blocks)
        self.layers = nn.ModuleList(
            DensityAttention(norm_axis=axes[i], num_heads=heads[i], num_densities=densities[i], **options)
            for i in range(num_blocks)
        )

    def forward(
        self, x: Float[Tensor, "*S"], *, mask: Bool[Tensor, "*#S"] | None = None, return_density: bool = False
    ) -> Float[Tensor, "*S"] | tuple[Float[Tensor, "*S"], tuple[Float[Tensor, "*S"], ...]]:
        """Weight every element, once per block; arguments and errors as in `DensityAttention.forward`.

        Returns:
            the output, shape and dtype of x; with `return_density` also the weights w of each block (shape of x,
            float32 at least): the output is x times the product of 1 + w over the blocks.
        """
        densities = []
        for layer in self.layers:
            weighted, density = layer(x, mask=mask, return_density=True)
            x = weighted + x if mask is None else (weighted + x).where(mask, x)
            densities.append(density)
        return (x, tuple(densities)) if return_density else x


class LayerMixture(nn.Module):
    """A density block over the pooled layers, with one density for all its blocks.

    Args:
        block: the block; its axes must exist in (..., L, D).
    """

    def __init__(self, block: DensityBlock) -> None:
        super().__init__()
        self.block = block

    def forward(
        self, x: Float[Tensor, "*B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "*B L D"] | tuple[Float[Tensor, "*B L D"], Float[Tensor, "*B L D"]]:
        """Weight every layer and feature.

        Returns:
            the fused map, shape and dtype of x; with `return_density` also the density: the product of 1 + w over the
            blocks, minus 1, which is w for one block. Because of the residual, the map is x * (1 + density).
        """
        if not return_density:
            return self.block(x)  # type: ignore[no-any-return]
        fused, densities = self.block(x, return_density=True)
        total = densities[0]
        for density in densities[1:]:
            total = total + density + total * density
        return fused, total


def _check_options(op: str, variance: str, padding: str) -> None:
    check_choice("op", op, ("product", "sum"))
    check_choice("variance", variance, ("unbiased", "biased"))
    check_choice("padding", padding, ("masked", "counted"))


def _expand(mask: Tensor, x: Tensor) -> Tensor:
    """Expand the mask to the shape of x."""
    fits = mask.dim() == x.dim() and all(m in (1, n) for m, n in zip(mask.shape, x.shape, strict=True))
    if mask.dtype != torch.bool or not fits:
        raise MethodError(
            f"mask must be bool with axes of length 1 or those of the input {tuple(x.shape)}, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    return mask.expand_as(x)


def _per_block(what: str, value: int | Sequence[int], num_blocks: int) -> Sequence[int]:
    if isinstance(value, int):
        return [value] * num_blocks
    if len(value) != num_blocks:
        raise MethodError(f"{what} must be one number or {num_blocks}, one per block, got {len(value)}")
    return value


def mixture_daam(
    sizes: Sizes,
    *,
    norm_axis: Literal["layers", "features"] = "layers",
    num_blocks: int = 1,
    num_heads: Heads = "auto",
    num_densities: int = 4,
    op: Literal["product", "sum"] = "product",
    variance: Literal["unbiased", "biased"] = "unbiased",
    init: Literal["lognormal", "constant"] = "lognormal",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Mixture of Density Adaptive Attention: the released density block over the layers, 64 numbers as published.

    The density is the product of 1 + w over the blocks, minus 1, which is w for one block; the fused map is
    x * (1 + density). `num_heads="auto"` means `auto_heads` over layers, and the published 8 over features.
    """
    check_choice("norm_axis", norm_axis, ("layers", "features"))
    over_layers = norm_axis == "layers"
    heads = heads_of(num_heads, sizes.num_layers) if over_layers or num_heads != AUTO else PUBLISHED_HEADS
    check_positions(sizes.num_layers if over_layers else sizes.embed_dim, heads, variance)
    block = DensityBlock(
        num_blocks=num_blocks,
        norm_axis=-2 if over_layers else -1,
        num_heads=heads,
        num_densities=num_densities,
        op=op,
        variance=variance,
        init=init,
    )
    return classify_map(LayerMixture(block), sizes, decoder, traits=Traits(density=True))
