"""Softmax-weighted sum over layers, the standard probe of speech encoders (SUPERB, Yang et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import MLPDecoder


class WeightedSum(nn.Module):
    """y = sum_l softmax(a)_l * x_l, with one learned scalar a_l per layer, zero at start (the plain mean).

    As in SUPERB, layers are not normalised first.

    Args:
        num_layers: L.
    """

    def __init__(self, *, num_layers: int) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """Sum layers (..., L, D) to (..., D)."""
        weights = self.scores.softmax(0)  # (L,)
        return (x * weights.unsqueeze(-1).to(x.dtype)).sum(-2)


def weighted_sum(*, num_layers: int, embed_dim: int, num_classes: int, hidden_dim: int = 256) -> FusionClassifier:
    """Softmax-weighted sum of the layers, then the MLP decoder."""
    decoder = MLPDecoder(embed_dim=embed_dim, num_classes=num_classes, hidden_dim=hidden_dim)
    return FusionClassifier(WeightedSum(num_layers=num_layers), decoder)
