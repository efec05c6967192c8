"""Grouped-query attention over the layers of one sample (Ainslie et al., 2023), standard and as published.

The papers name grouped-query attention; their released code sums the queries of a group before the softmax and scales
twice (D5). `GroupedQueryAttention` is the standard, `SummedQueryAttention` the released form. A linear map to width 512
comes first in both, which the papers do not mention (D60). The released layer refuses head widths above 128 or not
divisible by 8; these modules accept any.
"""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, Traits, check_divides
from daamctl.methods.decoder import classify_map, feature_grid
from daamctl.methods.settings import DecoderOptions, GroupedQueryOptions, Sizes


class _LayerAttention(nn.Module):
    """Shared by both forms: projections with biases, inner norm, output projection; no residual, no dropout.

    Start: Xavier normal for the four projections, zero biases (docs/sources.md#grouped-query-attention).
    """

    def __init__(self, *, width: int, query_heads: int, kv_heads: int, summed: bool) -> None:
        super().__init__()
        check_divides("query_heads", query_heads, width, "the width")
        check_divides("kv_heads", kv_heads, query_heads, "query_heads")
        self.query_heads = query_heads
        self.kv_heads = kv_heads
        self.head_dim = width // query_heads
        inner = (kv_heads if summed else query_heads) * self.head_dim
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, kv_heads * self.head_dim)
        self.value = nn.Linear(width, kv_heads * self.head_dim)
        self.norm = nn.LayerNorm(inner, eps=1e-5)
        self.output = nn.Linear(inner, width)
        for projection in (self.query, self.key, self.value, self.output):
            nn.init.xavier_normal_(projection.weight)
            nn.init.zeros_(projection.bias)

    def forward(self, x: Float[Tensor, "*B L W"]) -> Float[Tensor, "*B L W"]:
        """Let the layers of each sample attend to one another: (..., L, W) to (..., L, W)."""
        query, key, value = self.query(x), self.key(x), self.value(x)
        with torch.autocast(x.device.type, enabled=False):
            q = self._heads(query).unflatten(-3, (self.kv_heads, -1))  # (..., kv_heads, group, L, d)
            mixed = self._attend(q, self._heads(key), self._heads(value))  # (..., heads, L, d)
        joined = mixed.transpose(-3, -2).flatten(-2).to(value.dtype)  # (..., L, heads * d)
        output: Tensor = self.output(self.norm(joined))
        return output

    def _heads(self, projected: Tensor) -> Tensor:
        """Split (..., L, heads * d) to (..., heads, L, d), in float32 at least."""
        projected = projected if projected.dtype == torch.float64 else projected.float()
        heads: Tensor = projected.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(-3, -2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix values: q (..., kv_heads, group, L, d), k and v (..., kv_heads, L, d)."""
        raise NotImplementedError


class GroupedQueryAttention(_LayerAttention):
    """Grouped-query attention: groups of G = query_heads / kv_heads query heads share a key and a value head.

    Query head h attends with key head h // G: softmax(q_h k^T / sqrt(d)) v, d = width / query_heads; the heads are
    concatenated, normalised (LayerNorm) and projected. Trainable: 2 (W^2 + W) + 2 (W + 1) d kv_heads + 2 W.

    Args:
        width: W.
        kv_heads: key and value heads; must divide `query_heads`.

    Raises:
        MethodError: the heads do not divide the width, or one another.
    """

    def __init__(self, *, width: int, query_heads: int = 8, kv_heads: int = 2) -> None:
        super().__init__(width=width, query_heads=query_heads, kv_heads=kv_heads, summed=False)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.unsqueeze(-3).transpose(-2, -1) / math.sqrt(self.head_dim)  # (..., kv_heads, group, L, L)
        return (scores.softmax(-1) @ v.unsqueeze(-3)).flatten(-4, -3)  # (..., query_heads, L, d)


class SummedQueryAttention(_LayerAttention):
    """The released form (D5): the query heads of a group are summed, and 1/sqrt(d) is applied twice.

    Key head k attends with its G = query_heads / kv_heads query heads k*G … (k+1)*G - 1 at once:
    softmax((sum of q_h) k^T / d) v, d = width / query_heads. Its output is kv_heads * d wide; the attention is almost
    uniform at start. Trainable: W^2 + 2 (W + 1) d kv_heads + W + 2 d kv_heads + (d kv_heads + 1) W.

    Args:
        width: W.
        kv_heads: key and value heads; must divide `query_heads`.

    Raises:
        MethodError: the heads do not divide the width, or one another.
    """

    def __init__(self, *, width: int, query_heads: int = 8, kv_heads: int = 2) -> None:
        super().__init__(width=width, query_heads=query_heads, kv_heads=kv_heads, summed=True)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.sum(-3) @ k.transpose(-2, -1) / self.head_dim  # (..., kv_heads, L, L)
        return scores.softmax(-1) @ v


class ProjectedAttention(nn.Module):
    """A linear map of every layer from D to W, then an attention over the layers.

    Args:
        attention: maps (..., L, W) to (..., L, W).
    """

    def __init__(self, *, embed_dim: int, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.projection = nn.Linear(embed_dim, width)
        self.attention = attention

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L W"]:
        """Map layers (..., L, D) to (..., L, W)."""
        mixed: Tensor = self.attention(self.projection(x))
        return mixed


def gqa(sizes: Sizes, *, attention: GroupedQueryOptions, decoder: DecoderOptions) -> FusionClassifier:
    """Grouped-query attention over the layers, projected to width 512 first."""
    core = GroupedQueryAttention(**asdict(attention))
    fusion = ProjectedAttention(embed_dim=sizes.embed_dim, width=attention.width, attention=core)
    return classify_projected(fusion, sizes, attention, decoder)


def gqa_published(sizes: Sizes, *, attention: GroupedQueryOptions, decoder: DecoderOptions) -> FusionClassifier:
    """The published form of `gqa`: queries of a group summed before the softmax, scaled twice."""
    core = SummedQueryAttention(**asdict(attention))
    fusion = ProjectedAttention(embed_dim=sizes.embed_dim, width=attention.width, attention=core)
    return classify_projected(fusion, sizes, attention, decoder)


def classify_projected(
    fusion: ProjectedAttention,
    sizes: Sizes,
    attention: GroupedQueryOptions,
    decoder: DecoderOptions,
    *,
    density: bool = False,
) -> FusionClassifier:
    """Join a projected attention to either decoder; the image's shape follows the heads (see `feature_grid`).

    Args:
        fusion: maps (B, L, D) to (B, L, W).
    """
    grid = feature_grid(attention.width, embed_dim=sizes.embed_dim, num_heads=attention.query_heads)
    # A key bias adds the same number to all scores of a query, which softmax cancels.
    traits = Traits(density=density, inert=("fusion.attention.key.bias",))
    return classify_map(fusion, sizes, decoder, width=attention.width, grid=grid, traits=traits)
