"""Sizes of a method, and settings that several methods share; a builder takes each as one object.

This module imports no torch, so that `daamctl ls` and `daamctl check` can read the settings of every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Sizes(NamedTuple):
    """Sizes that a method is built for.

    Args:
        num_layers: L, number of stored encoder layers.
        embed_dim: D, width of one layer's vector.
        num_classes: C.
    """

    num_layers: int
    embed_dim: int
    num_classes: int

    def __str__(self) -> str:
        return str(tuple(self))


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """The decoder behind a fusion that gives a map of layers; see `daamctl.methods.decoder.classify_map`.

    Args:
        decoder: `conv`, or `mlp` on the sum over layers.
        hidden_channels: width of the conv decoder.
        hidden_dim: width of the MLP decoder.
    """

    decoder: Literal["conv", "mlp"] = "conv"
    hidden_channels: int = 512
    hidden_dim: int = 256


@dataclass(frozen=True, kw_only=True)
class DensityOptions:
    """Readings of the density's formula; see `daamctl.methods.daam.density_weights`.

    Args:
        variance: `two-pass`, or the published difference of `moments` (D25).
        eps: `double` or `single` floor (D24).
        kernel: `2xi` or `2c2` (D28).
    """

    variance: Literal["two-pass", "moments"] = "two-pass"
    eps: Literal["double", "single"] = "double"
    kernel: Literal["2xi", "2c2"] = "2xi"


@dataclass(frozen=True, kw_only=True)
class GroupedQueryOptions:
    """Sizes of a grouped-query attention; see `daamctl.methods.gqa.GroupedQueryAttention`.

    Args:
        width: W, to which every layer is projected first.
        query_heads: must divide the width.
        kv_heads: key and value heads; must divide `query_heads`.
    """

    width: int = 512
    query_heads: int = 8
    kv_heads: int = 2


GROUPS = (DecoderOptions, DensityOptions, GroupedQueryOptions)
"""All of them. A builder's argument annotated with one brings all its fields as settings of the method."""
