"""Attentive pooling over layers: each layer's weight is scored from its own vector.

The usual attention pooling with a learned query; no single source, the hidden width of 128 is our choice
(docs/sources.md#attentive-pooling).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes
from daamctl.methods.weighted_sum import weigh_layers


class AttentivePooling(nn.Module):
    """y = sum_l s_l x_l with s = softmax over l of u . tanh(V x_l + b).

    The score has no bias of its own: softmax is blind to it. Torch's start for linear layers.
    Trainable: D * A + 2 * A for attention width A.

    Args:
        attention_dim: A.
    """

    def __init__(self, *, embed_dim: int, attention_dim: int = 128) -> None:
        super().__init__()
        self.hidden = nn.Linear(embed_dim, attention_dim)
        self.score = nn.Linear(attention_dim, 1, bias=False)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the layers of x (..., L, D): (..., L), sum 1."""
        hidden = self.hidden(x)  # (..., L, A)
        with torch.autocast(x.device.type, enabled=False):
            hidden = at_least_float32(hidden).tanh()
            scores = (hidden * self.score.weight[0]).sum(-1)  # (..., L)
            return scores.softmax(-1)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Sum layers (..., L, D) to (..., D)."""
        return weigh_layers(x, self.layer_weights(x))


def attentive(sizes: Sizes, *, attention_dim: int = 128, hidden_dim: int = 256) -> FusionClassifier:
    """Attentive pooling: layers weighted by a softmax score of their own vectors, then the MLP decoder."""
    fusion = AttentivePooling(embed_dim=sizes.embed_dim, attention_dim=attention_dim)
    return classify_vector(fusion, sizes, hidden_dim)
