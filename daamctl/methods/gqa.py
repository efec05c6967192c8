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

from daamctl.methods.base import FusionClassifier, Traits, at_least_float32
from daamctl.methods.daam import MultiHeadDAAM
from daamctl.methods.decoder import classify_map, feature_grid
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import DecoderOptions, GroupedQueryOptions, Sizes


class GroupedQueryAttention(nn.Module):
    """Grouped-query attention: groups of G = query_heads / kv_heads query heads share a key and a value head.

    Query head h attends with key head h // G: softmax(q_h k^T / sqrt(d)) v, d = width / query_heads; the heads are
    concatenated, normalised (LayerNorm) and projected. Projections have biases; no residual, no dropout. Start: Xavier
    normal for the four projections, zero biases (docs/sources.md#grouped-query-attention).
    Trainable: 2 (W^2 + W) + 2 (W + 1) d kv_heads + 2 W.

    Args:
        width: W.
        kv_heads: key and value heads; must divide `query_heads`.

    Raises:
        MethodError: the heads do not divide the width, or one another.
    """

    summed = False

    def __init__(self, *, width: int, query_heads: int = 8, kv_heads: int = 2) -> None:
        super().__init__()
        check_heads("query_heads", query_heads, width, "the width", least=1)
        check_heads("kv_heads", kv_heads, query_heads, "query_heads", least=1)
        self.query_heads = query_heads
        self.kv_heads = kv_heads
        self.head_dim = width // query_heads
        inner = (kv_heads if self.summed else query_heads) * self.head_dim
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
        heads: Tensor = at_least_float32(projected).unflatten(-1, (-1, self.head_dim))
        return heads.transpose(-3, -2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix values: q (..., kv_heads, group, L, d), k and v (..., kv_heads, L, d)."""
        scores = q @ k.unsqueeze(-3).transpose(-2, -1) / math.sqrt(self.head_dim)  # (..., kv_heads, group, L, L)
        return (scores.softmax(-1) @ v.unsqueeze(-3)).flatten(-4, -3)  # (..., query_heads, L, d)


class SummedQueryAttention(GroupedQueryAttention):
    """The released form (D5): the query heads of a group are summed, and 1/sqrt(d) is applied twice.

    Key head k attends with its G = query_heads / kv_heads query heads k*G … (k+1)*G - 1 at once:
    softmax((sum of q_h) k^T / d) v, d = width / query_heads. Its output is kv_heads * d wide; the attention is almost
    uniform at start. Trainable: W^2 + 2 (W + 1) d kv_heads + W + 2 d kv_heads + (d kv_heads + 1) W.
    """

    summed = True

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.sum(-3) @ k.transpose(-2, -1) / self.head_dim  # (..., kv_heads, L, L)
        return scores.softmax(-1) @ v


class ProjectedAttention(nn.Module):
    """A linear map of every layer from D to W, then an attention over the layers.

    Args:
        attention: maps (..., L, W) to (..., L, W).
        daam: weights the layers first, (..., L, D) to (..., L, D); None: the fusion has no density.
    """

    def __init__(self, *, embed_dim: int, width: int, attention: nn.Module, daam: MultiHeadDAAM | None = None) -> None:
        super().__init__()
        self.projection = nn.Linear(embed_dim, width)
        self.attention = attention
        self.daam = daam

    def forward(
        self, x: Float[Tensor, "*B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "*B L W"] | tuple[Float[Tensor, "*B L W"], Float[Tensor, "*B L D"]]:
        """Map layers (..., L, D) to (..., L, W); with `return_density` also the weights of the DAAM (..., L, D)."""
        density = None
        if self.daam is not None:
            x, density = self.daam(x, return_density=True)
        mixed: Tensor = self.attention(self.projection(x))
        return mixed if density is None or not return_density else (mixed, density)


def gqa(sizes: Sizes, *, attention: GroupedQueryOptions, decoder: DecoderOptions) -> FusionClassifier:
    """Grouped-query attention over the layers, projected to width 512 first."""
    return classify_projected(GroupedQueryAttention(**asdict(attention)), sizes, attention, decoder)


def gqa_published(sizes: Sizes, *, attention: GroupedQueryOptions, decoder: DecoderOptions) -> FusionClassifier:
    """The published form of `gqa`: queries of a group summed before the softmax, scaled twice."""
    return classify_projected(SummedQueryAttention(**asdict(attention)), sizes, attention, decoder)


def classify_projected(
    core: GroupedQueryAttention,
    sizes: Sizes,
    attention: GroupedQueryOptions,
    decoder: DecoderOptions,
    daam: MultiHeadDAAM | None = None,
) -> FusionClassifier:
    """Join a projected attention to either decoder; the image's shape follows the heads (see `feature_grid`)."""
    fusion = ProjectedAttention(embed_dim=sizes.embed_dim, width=attention.width, attention=core, daam=daam)
    grid = feature_grid(attention.width, embed_dim=sizes.embed_dim, num_heads=attention.query_heads)
    # A key bias adds the same number to all scores of a query, which softmax cancels.
    traits = Traits(density=daam is not None, inert=("fusion.attention.key.bias",))
    return classify_map(fusion, sizes, decoder, width=attention.width, grid=grid, traits=traits)
