"""Squeeze-and-excitation over layers (Hu et al., 2018, arXiv 1709.01507).

The source gates the channels of an image. This adaptation is our own (docs/sources.md#channel-gates-over-layers): the
layers are the channels, the D features are the pixels, and the gated layers are summed for the shared MLP head.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes
from daamctl.methods.weighted_sum import weigh_layers


class SqueezeExcitation(nn.Module):
    """y = sum_l s_l x_l with s = sigmoid(W2 relu(W1 u + b1) + b2) and u_l the mean of x_l over its features.

    Torch's start for linear layers. The hidden width is L // r, at least 1. With few layers the ReLU may start at zero
    for all inputs, and then only b2 learns. Trainable: 2 * L * (L // r) + L // r + L, 318 for 24 layers.

    Args:
        reduction: r.
    """

    def __init__(self, *, num_layers: int, reduction: int = 4) -> None:
        super().__init__()
        width = max(1, num_layers // reduction)
        self.squeeze = nn.Linear(num_layers, width)
        self.excite = nn.Linear(width, num_layers)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the layers of x (..., L, D): (..., L), each in (0, 1)."""
        with torch.autocast(x.device.type, enabled=False):
            pooled = at_least_float32(x).mean(-1)  # (..., L)
            gates: Tensor = self.excite(self.squeeze(pooled).relu())
            return gates.sigmoid()

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Sum layers (..., L, D) to (..., D)."""
        return weigh_layers(x, self.layer_weights(x))


def se(sizes: Sizes, *, reduction: int = 4, hidden_dim: int = 256) -> FusionClassifier:
    """Squeeze-and-excitation: sigmoid gates of all layer means, gated layers summed, then the MLP decoder."""
    fusion = SqueezeExcitation(num_layers=sizes.num_layers, reduction=reduction)
    return classify_vector(fusion, sizes, hidden_dim)
