"""Attentive layer fusion, ALF (Ciernik, Morik et al., ICML 2026, arXiv 2601.09322), on pooled layers.

A learned query attends to the layers of a sample. The source gives two tokens of every layer, the class token and the
mean of the patches, and one linear classifier; here a layer has one pooled vector, and the shared MLP head follows
(docs/sources.md#attentive-layer-fusion).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import Sizes
from daamctl.methods.sls import batch_normalized


class AttentiveLayerFusion(nn.Module):
    """y = BN(O [sum_l a_1l v_1l; ...; sum_l a_Hl v_Hl]) with a_h = softmax over l of q_h . k_hl / sqrt(d).

    q_h, k_hl and v_hl are the parts of head h, each d = 2 D / H wide, of Q LN(token), K LN(x_l) and V LN(x_l), with a
    layer norm of their own each. The token is learned, the same for all samples, and starts at N(0, .02^2). The biases
    that cannot change the output are left out: of K's norm, because of the softmax; of V's norm and of O, because of
    the batch norm. Torch's start for all matrices. Trainable: 8 D^2 + 7 D.

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`.
    """

    def __init__(self, *, embed_dim: int, num_heads: int = 8) -> None:
        super().__init__()
        check_heads("num_heads", num_heads, embed_dim, "the layer width", least=1)
        self.num_heads, width = num_heads, 2 * embed_dim
        self.token = nn.Parameter(0.02 * torch.randn(embed_dim))
        self.query_norm = nn.LayerNorm(embed_dim)
        self.key_norm = nn.LayerNorm(embed_dim, bias=False)
        self.value_norm = nn.LayerNorm(embed_dim, bias=False)
        self.query = nn.Linear(embed_dim, width, bias=False)
        self.key = nn.Linear(embed_dim, width, bias=False)
        self.value = nn.Linear(embed_dim, width, bias=False)
        self.project = nn.Linear(width, embed_dim, bias=False)
        self.norm = nn.BatchNorm1d(embed_dim)

    def _attention(self, x: Tensor) -> Tensor:
        """Weights (..., H, L) of the layers of x (..., L, D), float32 at least."""
        heads = (self.num_heads, -1)
        with torch.autocast(x.device.type, enabled=False):
            normed = self.key_norm(at_least_float32(x))
            query = self.query(self.query_norm(self.token)).unflatten(-1, heads)  # (H, d)
        keys = self.key(normed).unflatten(-1, heads)  # (..., L, H, d)
        with torch.autocast(x.device.type, enabled=False):
            scores = torch.einsum("hd,...lhd->...hl", query * query.shape[-1] ** -0.5, at_least_float32(keys))
            return scores.softmax(-1)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Attention that every layer of x (..., L, D) gets, mean over heads: (..., L), sum 1."""
        return self._attention(x).mean(-2)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Fuse layers (..., L, D) to (..., D), normalised over all samples."""
        attention = self._attention(x)
        with torch.autocast(x.device.type, enabled=False):
            normed = self.value_norm(at_least_float32(x))
        values = self.value(normed).unflatten(-1, (self.num_heads, -1))  # (..., L, H, d)
        with torch.autocast(x.device.type, enabled=False):
            fused = torch.einsum("...hl,...lhd->...hd", attention, at_least_float32(values)).flatten(-2)
        mixed = self.project(fused)
        with torch.autocast(x.device.type, enabled=False):
            rows = at_least_float32(mixed).reshape(-1, mixed.shape[-1])
            rows = batch_normalized(self.norm, rows)
            return rows.reshape(mixed.shape).to(x.dtype)


def alf(sizes: Sizes, *, num_heads: int = 8, hidden_dim: int = 256) -> FusionClassifier:
    """Attentive layer fusion: a learned query attends to the layers, batch norm, then the MLP decoder."""
    return classify_vector(AttentiveLayerFusion(embed_dim=sizes.embed_dim, num_heads=num_heads), sizes, hidden_dim)
