"""Hierarchical convolution over layers (Shih and Harwath, Interspeech 2024, arXiv 2406.12209), on pooled layers.

There are two differences from the released code (docs/sources.md#hierarchical-convolution): any number of layers is
accepted, and the output width is computed instead of given, e.g. 1023 instead of 1024 for the 24 or 25 layers of a
1024-wide encoder.
"""

from __future__ import annotations

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes

KERNEL, STRIDE, PADDING = 5, 3, 2


def num_convolutions(num_layers: int) -> int:
    """Number of convolutions: floor(log3 L), at least 1."""
    # in whole numbers, because a quotient of logarithms can be rounded down at powers of three
    count = 1
    while STRIDE ** (count + 1) <= num_layers:
        count += 1
    return count


class HierarchicalConv(nn.Module):
    """Convolutions along the layer axis, features as channels; each divides the length by 3 and ends in a ReLU.

    Kernel 5, stride 3, padding 2: 24 -> 8 -> 3 layers. All have D output channels except the last one, which has
    D // L' (at least 1) for its L' output layers, so that the flattened output is about as wide as one layer. Torch's
    start.

    Attributes:
        output_dim: width of the fused vector, (D // L') * L'.
    """

    def __init__(self, *, num_layers: int, embed_dim: int) -> None:
        super().__init__()
        count = num_convolutions(num_layers)
        length = num_layers
        for _ in range(count):
            length = (length + 2 * PADDING - KERNEL) // STRIDE + 1
        channels = max(1, embed_dim // length)
        self.output_dim = channels * length
        widths = [embed_dim] * count + [channels]
        self.convolutions = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL, stride=STRIDE, padding=PADDING) for before, after in pairwise(widths)
        )

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B E"]:
        """Fuse layers (..., L, D) to (..., output_dim)."""
        image = x.reshape(-1, *x.shape[-2:]).transpose(1, 2)  # (N, D, L)
        for convolution in self.convolutions:
            image = convolution(image).relu()
        return image.reshape(*x.shape[:-2], self.output_dim).to(x.dtype)


def hconv(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Hierarchical convolution along the layers, flattened to one vector, then the MLP decoder."""
    fusion = HierarchicalConv(num_layers=sizes.num_layers, embed_dim=sizes.embed_dim)
    return classify_vector(fusion, sizes, hidden_dim, width=fusion.output_dim)
