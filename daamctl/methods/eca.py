"""Efficient channel attention over layers (Wang et al., 2020, arXiv 1910.03151).

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


def kernel_size(num_channels: int) -> int:
    """Width of the convolution: int((log2 C + 1) / 2), made odd upwards; 3 for 24, 5 for 768."""
    # the bit length is floor(log2 C) + 1, without the rounding of a logarithm
    return (num_channels.bit_length() // 2) | 1


class EfficientChannelAttention(nn.Module):
    """y = sum_l s_l x_l with s = sigmoid(conv_k(u)) and u_l the mean of x_l over its features.

    One kernel of k weights without bias slides over the layers, padded with zeros; torch's start. Trainable: k.
    """

    def __init__(self, *, num_layers: int) -> None:
        super().__init__()
        size = kernel_size(num_layers)
        self.conv = nn.Conv1d(1, 1, size, padding=size // 2, bias=False)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the layers of x (..., L, D): (..., L), each in (0, 1)."""
        with torch.autocast(x.device.type, enabled=False):
            pooled = at_least_float32(x).mean(-1)  # (..., L)
            gates: Tensor = self.conv(pooled.reshape(-1, 1, pooled.shape[-1]))  # (N, 1, L)
            return gates.reshape(pooled.shape).sigmoid()

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Sum layers (..., L, D) to (..., D)."""
        return weigh_layers(x, self.layer_weights(x))


def eca(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Efficient channel attention: sigmoid gates of neighbouring layers' means, layers summed, then the MLP decoder."""
    return classify_vector(EfficientChannelAttention(num_layers=sizes.num_layers), sizes, hidden_dim)
