"""GQDAAM: Density Adaptive Attention, then a linear map to width 512, then grouped-query attention.

The papers describe density and grouped-query attention only. The map to 512, for every encoder width, and the LayerNorm
inside the attention come from the published code (D60; docs/sources.md#grouped-query-attention). They may explain a
gain over `daam-v1`: compare with `gqa`, which is the same without density.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, overload

from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.daam import MultiHeadDAAM, layer_daam
from daamctl.methods.gqa import (
    GroupedQueryAttention,
    ProjectedAttention,
    SummedQueryAttention,
    classify_projected,
)
from daamctl.methods.heads import Heads
from daamctl.methods.settings import DecoderOptions, DensityOptions, GroupedQueryOptions, Sizes


class ProjectedDensityAttention(ProjectedAttention):
    """`ProjectedAttention` of layers that a DAAM has weighted.

    Args:
        daam: maps (..., L, D) to (..., L, D).
        attention: maps (..., L, W) to (..., L, W).
    """

    def __init__(self, *, daam: MultiHeadDAAM, embed_dim: int, width: int, attention: nn.Module) -> None:
        super().__init__(embed_dim=embed_dim, width=width, attention=attention)
        self.daam = daam

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(
        self, x: Float[Tensor, "*B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "*B L W"] | tuple[Float[Tensor, "*B L W"], Float[Tensor, "*B L D"]]:
        """Map layers (..., L, D) to (..., L, W).

        Args:
            return_density: also return the weights of the DAAM (..., L, D).
        """
        weighted, density = self.daam(x, return_density=True)
        mixed = super().forward(weighted)
        return (mixed, density) if return_density else mixed


def gqdaam(
    sizes: Sizes,
    *,
    num_heads: Heads = "auto",
    density: DensityOptions,
    scaled_variance: Literal["free", "softplus"] = "free",
    attention: GroupedQueryOptions,
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Density Adaptive Attention with several heads, then standard grouped-query attention at width 512."""
    core = GroupedQueryAttention(**asdict(attention))
    daam = layer_daam(sizes, num_heads, density, scaled_variance=scaled_variance)
    fusion = ProjectedDensityAttention(daam=daam, embed_dim=sizes.embed_dim, width=attention.width, attention=core)
    return classify_projected(fusion, sizes, attention, decoder, density=True)


def gqdaam_published(
    sizes: Sizes,
    *,
    num_heads: Heads = "auto",
    density: DensityOptions,
    scaled_variance: Literal["free", "softplus"] = "free",
    attention: GroupedQueryOptions,
    decoder: DecoderOptions,
) -> FusionClassifier:
    """The published form of `gqdaam`: queries of a group summed before the softmax, scaled twice.

    The published code also computes the variance as a difference of moments; for this, set `variance="moments"` (D25).
    """
    core = SummedQueryAttention(**asdict(attention))
    daam = layer_daam(sizes, num_heads, density, scaled_variance=scaled_variance)
    fusion = ProjectedDensityAttention(daam=daam, embed_dim=sizes.embed_dim, width=attention.width, attention=core)
    return classify_projected(fusion, sizes, attention, decoder, density=True)
