"""The control without any attention: the conv decoder reads the pooled layers as they are (DEVIATIONS D58)."""

from __future__ import annotations

from torch import nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import ConvDecoder


def none(*, num_layers: int, embed_dim: int, num_classes: int, hidden_channels: int = 512) -> FusionClassifier:
    """Control: the conv decoder alone, no layer fusion before it."""
    decoder = ConvDecoder(
        num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, hidden_channels=hidden_channels
    )
    return FusionClassifier(nn.Identity(), decoder)
