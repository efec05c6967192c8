"""GQDAAM: Density Adaptive Attention, then a linear map to width 512, then grouped-query attention.

The papers describe density and grouped-query attention only; the map to 512, for every encoder width, and the LayerNorm
within the attention are the published code's (D60; docs/sources.md#grouped-query-attention). A gain over `daam-v1` may
come from them: `gqa` is the same without density.
"""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, Traits
from daamctl.methods.daam import MultiHeadDAAM
from daamctl.methods.decoder import classify_map, feature_grid
from daamctl.methods.gqa import TRAITS, GroupedQueryAttention, ProjectedAttention, SummedQueryAttention
from daamctl.methods.heads import Heads, heads_of


class ProjectedDensityAttention(ProjectedAttention):
    """`ProjectedAttention` of the layers as a DAAM has weighted them.

    Args:
        daam: maps (..., L, D) to (..., L, D).
        embed_dim: D.
        width: W.
        attention: maps (..., L, W) to (..., L, W).
    """

    def __init__(self, *, daam: MultiHeadDAAM, embed_dim: int, width: int, attention: nn.Module) -> None:
        super().__init__(embed_dim=embed_dim, width=width, attention=attention)
        self.daam = daam

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, x: Tensor, *, return_density: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Map layers (..., L, D) to (..., L, W).

        Args:
            x: (..., L, D).
            return_density: also return the weights of the DAAM (..., L, D).
        """
        weighted, density = self.daam(x, return_density=True)
        mixed = super().forward(weighted)
        return (mixed, density) if return_density else mixed


def gqdaam(
    *,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    num_heads: Heads = "auto",
    variance: Literal["two-pass", "moments"] = "two-pass",
    eps: Literal["double", "single"] = "double",
    kernel: Literal["2xi", "2c2"] = "2xi",
    scaled_variance: Literal["free", "softplus"] = "free",
    width: int = 512,
    query_heads: int = 8,
    kv_heads: int = 2,
    decoder: Literal["conv", "mlp"] = "conv",
    hidden_channels: int = 512,
    hidden_dim: int = 256,
) -> FusionClassifier:
    """Density Adaptive Attention with several heads, then standard grouped-query attention at width 512.

    Raises:
        MethodError: `num_heads` does not divide `num_layers`, or the other heads not the width or one another.
    """
    attention = GroupedQueryAttention(width=width, query_heads=query_heads, kv_heads=kv_heads)
    daam = MultiHeadDAAM(
        num_heads=heads_of(num_heads, num_layers),
        embed_dim=embed_dim,
        num_layers=num_layers,
        variance=variance,
        eps=eps,
        kernel=kernel,
        scaled_variance=scaled_variance,
    )
    return classify_map(
        ProjectedDensityAttention(daam=daam, embed_dim=embed_dim, width=width, attention=attention),
        num_layers=num_layers,
        embed_dim=width,
        num_classes=num_classes,
        decoder=decoder,
        hidden_channels=hidden_channels,
        hidden_dim=hidden_dim,
        grid=feature_grid(width, embed_dim=embed_dim, num_heads=query_heads),
        traits=Traits(density=True, inert=TRAITS.inert),
    )


def gqdaam_published(
    *,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    num_heads: Heads = "auto",
    variance: Literal["two-pass", "moments"] = "two-pass",
    eps: Literal["double", "single"] = "double",
    kernel: Literal["2xi", "2c2"] = "2xi",
    scaled_variance: Literal["free", "softplus"] = "free",
    width: int = 512,
    query_heads: int = 8,
    kv_heads: int = 2,
    decoder: Literal["conv", "mlp"] = "conv",
    hidden_channels: int = 512,
    hidden_dim: int = 256,
) -> FusionClassifier:
    """The published form of `gqdaam`: queries of a group summed before the softmax, scaled twice.

    Its code also takes the variance as a difference of moments; that is `variance="moments"` here too (D25).

    Raises:
        MethodError: `num_heads` does not divide `num_layers`, or the other heads not the width or one another.
    """
    attention = SummedQueryAttention(width=width, query_heads=query_heads, kv_heads=kv_heads)
    daam = MultiHeadDAAM(
        num_heads=heads_of(num_heads, num_layers),
        embed_dim=embed_dim,
        num_layers=num_layers,
        variance=variance,
        eps=eps,
        kernel=kernel,
        scaled_variance=scaled_variance,
    )
    return classify_map(
        ProjectedDensityAttention(daam=daam, embed_dim=embed_dim, width=width, attention=attention),
        num_layers=num_layers,
        embed_dim=width,
        num_classes=num_classes,
        decoder=decoder,
        hidden_channels=hidden_channels,
        hidden_dim=hidden_dim,
        grid=feature_grid(width, embed_dim=embed_dim, num_heads=query_heads),
        traits=Traits(density=True, inert=TRAITS.inert),
    )
