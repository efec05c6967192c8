"""Decoders: from fused layers to class logits.

`ConvDecoder` is the published one (two 3x3 convolutions over the layers as image channels, then one linear layer).
`MLPDecoder` serves fusions that give a single vector.
"""

from __future__ import annotations

import math

from torch import Tensor, nn


def feature_grid(embed_dim: int) -> tuple[int, int]:
    """Height and width of the image that one feature row becomes: the factor pair nearest to a square, H <= W.

    Gives the published shapes 32x32 for D = 1024 and 64x80 for D = 5120.
    """
    height = next(h for h in range(math.isqrt(embed_dim), 0, -1) if embed_dim % h == 0)
    return height, embed_dim // height


class ConvDecoder(nn.Module):
    """The published decoder (FACTS 1): conv L->512 3x3, ReLU, conv 512->L 3x3, ReLU, flatten, linear to C.

    Every layer's feature row becomes one H x W image channel. Weights of the three layers start Xavier uniform, biases
    at torch's default, as in the published code.

    Args:
        num_layers: L, image channels.
        embed_dim: D = H * W, see `feature_grid`.
        num_classes: C.
        hidden_channels: width between the convolutions.
    """

    def __init__(self, *, num_layers: int, embed_dim: int, num_classes: int, hidden_channels: int = 512) -> None:
        super().__init__()
        self.grid = feature_grid(embed_dim)
        self.conv1 = nn.Conv2d(num_layers, hidden_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(hidden_channels, num_layers, 3, padding=1)
        self.fc = nn.Linear(num_layers * embed_dim, num_classes)
        for module in (self.conv1, self.conv2, self.fc):
            nn.init.xavier_uniform_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map fused layers (B, L, D) to logits (B, C)."""
        image = x.unflatten(-1, self.grid)  # (B, L, H, W)
        image = self.conv1(image).relu()  # (B, 512, H, W)
        image = self.conv2(image).relu()  # (B, L, H, W)
        logits: Tensor = self.fc(image.flatten(1))
        return logits


class MLPDecoder(nn.Module):
    """Classifier for fusions that give one vector: linear D->256, ReLU, linear 256->C.

    The width is that of the projector in SUPERB's downstream probe (Yang et al., 2021), which has no activation.

    Args:
        embed_dim: D.
        num_classes: C.
        hidden_dim: width of the hidden layer.
    """

    def __init__(self, *, embed_dim: int, num_classes: int, hidden_dim: int = 256) -> None:
        super().__init__()
        self.projector = nn.Linear(embed_dim, hidden_dim)
        self.classifier = nn.Linear(hidden_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map one vector per sample (B, D) to logits (B, C)."""
        logits: Tensor = self.classifier(self.projector(x).relu())
        return logits
