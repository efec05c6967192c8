"""The control without any attention: the decoder reads the pooled layers as they are (D58)."""

from __future__ import annotations

from typing import Literal

from torch import nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import classify_map


def none(
    *,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    decoder: Literal["conv", "mlp"] = "conv",
    hidden_channels: int = 512,
    hidden_dim: int = 256,
) -> FusionClassifier:
    """Control: the decoder alone, no layer fusion before it."""
    return classify_map(
        nn.Identity(),
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_classes=num_classes,
        decoder=decoder,
        hidden_channels=hidden_channels,
        hidden_dim=hidden_dim,
    )
