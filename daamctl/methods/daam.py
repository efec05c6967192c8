"""Density Adaptive Attention over layers (arXiv 2401.11143, Algorithm 1), versions 1 (eight heads) and 2 (one head)."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, check_divides
from daamctl.methods.decoder import ConvDecoder

VARIANCE_FLOOR = 1e-8  # added to the variance itself
ROOT_FLOOR = 1e-5  # added again under the root: Algorithm 1 and the published code have both (D24)


def density_weights(x: Tensor, offset: Tensor, scaled_variance: Tensor, *, variance: str = "two-pass") -> Tensor:
    """Gaussian weight of every layer and feature.

    m = mean over layers, v = biased variance over layers + 1e-8,
    y = (x - (m + offset)) / sqrt(v + 1e-5),  w = exp(-y^2 / (2 * scaled_variance))

    Our `offset` is the paper's delta (feature units), our `scaled_variance` its xi, which stands where a Gaussian has
    its variance. Statistics and weights are computed in float32 at least, also under autocast.

    Args:
        x: (..., L, D), the layers of one head.
        offset: broadcastable to (..., 1, D).
        scaled_variance: broadcastable to (..., 1, D).
        variance: `two-pass`, or `moments` for the published |mean(x^2) - mean(x)^2|, which cancels in float32 when
            the mean is large against the spread (D25).

    Returns:
        w, shape of x; in (0, 1] as long as `scaled_variance` is positive, which training does not enforce (D61).

    Raises:
        MethodError: unknown `variance`.
    """
    check_variance(variance)
    with torch.autocast(x.device.type, enabled=False):
        x = x if x.dtype == torch.float64 else x.float()
        mean = x.mean(dim=-2, keepdim=True)
        if variance == "two-pass":
            spread = (x - mean).square().mean(dim=-2, keepdim=True)
        else:
            spread = (x.square().mean(dim=-2, keepdim=True) - mean.square()).abs()
        y = (x - (mean + offset)) / (spread + VARIANCE_FLOOR + ROOT_FLOOR).sqrt()
        return torch.exp(-y.square() / (2 * scaled_variance))


def check_variance(variance: str) -> None:
    """Check the name of a variance formula.

    Raises:
        MethodError: it is neither `two-pass` nor `moments`.
    """
    if variance not in ("two-pass", "moments"):
        raise MethodError(f"variance must be 'two-pass' or 'moments', met '{variance}'")


class MultiHeadDAAM(nn.Module):
    """DAAM with heads: contiguous groups of layers, each with its own offset and scaled variance per feature.

    Head i sees layers i*L/h … (i+1)*L/h - 1; statistics are taken per sample and feature over the layers of a head.
    The output is x * w: no softmax, no residual, no projection. Trainable: 2 * h * D.
    Start: offset 0, scaled variance 2 (FACTS 2-3).

    Args:
        num_layers: L.
        embed_dim: D.
        num_heads: h; must divide L.
        variance: `two-pass` or `moments`, see `density_weights`.

    Raises:
        MethodError: `num_heads` does not divide `num_layers`, or `variance` is unknown.
    """

    def __init__(self, *, num_layers: int, embed_dim: int, num_heads: int, variance: str = "two-pass") -> None:
        super().__init__()
        check_divides("num_heads", num_heads, num_layers, "the number of layers")
        check_variance(variance)
        self.num_heads = num_heads
        self.variance = variance
        self.offset = nn.Parameter(torch.zeros(num_heads, embed_dim))
        self.scaled_variance = nn.Parameter(torch.full((num_heads, embed_dim), 2.0))

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, x: Tensor, *, return_density: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Weight every layer and feature.

        Args:
            x: (..., L, D).
            return_density: also return the weights.

        Returns:
            x * w, shape and dtype of x; with `return_density` also w (..., L, D), float32 at least.
        """
        heads = x.unflatten(-2, (self.num_heads, -1))  # (..., h, L/h, D)
        density = density_weights(
            heads, self.offset.unsqueeze(-2), self.scaled_variance.unsqueeze(-2), variance=self.variance
        )
        density = density.flatten(-3, -2)  # (..., L, D)
        output = x * density.to(x.dtype)
        return (output, density) if return_density else output


def _daam(
    *, num_layers: int, embed_dim: int, num_classes: int, num_heads: int, variance: str, hidden_channels: int
) -> FusionClassifier:
    fusion = MultiHeadDAAM(num_layers=num_layers, embed_dim=embed_dim, num_heads=num_heads, variance=variance)
    decoder = ConvDecoder(
        num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, hidden_channels=hidden_channels
    )
    return FusionClassifier(fusion, decoder, has_density=True)


def daam_v1(
    *,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    num_heads: int = 8,
    variance: str = "two-pass",
    hidden_channels: int = 512,
) -> FusionClassifier:
    """Density Adaptive Attention with eight heads over the layers, then the conv decoder.

    Raises:
        MethodError: `num_heads` does not divide `num_layers`.
    """
    return _daam(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_classes=num_classes,
        num_heads=num_heads,
        variance=variance,
        hidden_channels=hidden_channels,
    )


def daam_v2(
    *, num_layers: int, embed_dim: int, num_classes: int, variance: str = "two-pass", hidden_channels: int = 512
) -> FusionClassifier:
    """Density Adaptive Attention with one head over all layers, then the conv decoder."""
    return _daam(
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_classes=num_classes,
        num_heads=1,
        variance=variance,
        hidden_channels=hidden_channels,
    )
