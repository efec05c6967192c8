"""GQDAAM: Density Adaptive Attention, then a linear map to width 512, then grouped-query attention.

The papers describe density and grouped-query attention only. The map to 512, for every encoder width, and the LayerNorm
inside the attention come from the published code (D60; docs/sources.md#grouped-query-attention). They may explain a
gain over `daam-v1`: compare with `gqa`, which is the same without density.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from daamctl.methods.base import FusionClassifier
from daamctl.methods.daam import layer_daam
from daamctl.methods.gqa import GroupedQueryAttention, SummedQueryAttention, classify_projected
from daamctl.methods.heads import Heads
from daamctl.methods.settings import DecoderOptions, DensityOptions, GroupedQueryOptions, Sizes


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
    return classify_projected(core, sizes, attention, decoder, daam)


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
    return classify_projected(core, sizes, attention, decoder, daam)
