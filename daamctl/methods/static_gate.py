"""The control without any look at the sample: learned weights per layer and feature (docs/sources.md#controls)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import check_choice, classify_map


class StaticGate(nn.Module):
    """y = x * w with learned w, 1 at start (the identity), the same for all samples; not bounded, so no density.

    Args:
        shape: of w, broadcastable to the layers (..., L, D).
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Weight layers (..., L, D)."""
        return x * self.weight.to(x.dtype)


def static_gate(
    *,
    num_layers: int,
    embed_dim: int,
    num_classes: int,
    granularity: Literal["layer-feature", "feature"] = "layer-feature",
    decoder: Literal["conv", "mlp"] = "conv",
    hidden_channels: int = 512,
    hidden_dim: int = 256,
) -> FusionClassifier:
    """Control: learned weights that do not depend on the sample, then the conv decoder.

    With `granularity="layer-feature"` L * D weights, with `feature` D, the same for all layers.

    Raises:
        MethodError: `granularity` is unknown.
    """
    check_choice("granularity", granularity, ("layer-feature", "feature"))
    return classify_map(
        StaticGate(*((num_layers, embed_dim) if granularity == "layer-feature" else (embed_dim,))),
        num_layers=num_layers,
        embed_dim=embed_dim,
        num_classes=num_classes,
        decoder=decoder,
        hidden_channels=hidden_channels,
        hidden_dim=hidden_dim,
    )
