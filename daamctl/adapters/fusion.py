"""Modules between the encoder and the classifier: fusions of all its layers per position, and further layers on top.

DWAtt, Concat and Base+n as their paper uses them, on tokens (docs/sources.md#token-tasks): with the encoder fine-tuned
in full, or, for Base+n, frozen. Fusions over a frozen encoder are methods of `train`, which reads stored layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from daamctl.adapters.base import Adaptation
from daamctl.adapters.selective import full_finetune
from daamctl.errors import MethodError
from daamctl.methods.base_plus_n import TokenLayers
from daamctl.methods.concat import ConcatLinear
from daamctl.methods.dwatt import DepthWiseAttention
from daamctl.methods.weighted_sum import WeightedSum


class FusedLayers(nn.Module):
    """A fusion of layers 1 to L of every position.

    Args:
        fusion: maps (N, L, D) to (N, D).
    """

    def __init__(self, fusion: nn.Module) -> None:
        super().__init__()
        self.fusion = fusion

    def forward(self, states: Sequence[Tensor], visible: Tensor | None) -> Tensor:
        """Fuse L hidden states (B, T, D) to (B, T, D)."""
        layers = torch.stack([state.to(states[-1].device).float() for state in states], dim=2)  # (B, T, L, D)
        fused: Tensor = self.fusion(layers.flatten(0, 1)).unflatten(0, layers.shape[:2])
        return fused


class LayersOnTop(nn.Module):
    """Further transformer layers over the positions of the last layer.

    Args:
        layers: maps (B, T, D), and which positions may be attended to (B, T), to (B, T, D).
    """

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, states: Sequence[Tensor], visible: Tensor | None) -> Tensor:
        """Map the last of L hidden states (B, T, D) to (B, T, D)."""
        read: Tensor = self.layers(states[-1].float(), visible)
        return read


def base_plus_1(encoder: Any) -> Adaptation:
    """One transformer layer on top of the frozen encoder (Base+n, ElNokrashy et al. 2024; for 12 layers)."""
    return Adaptation((), before_head=_on_top(encoder, 1))


def base_plus_2(encoder: Any) -> Adaptation:
    """Two transformer layers on top of the frozen encoder (Base+n; for 24 layers)."""
    return Adaptation((), before_head=_on_top(encoder, 2))


def full_base_plus_1(encoder: Any) -> Adaptation:
    """Every weight of the encoder, and one transformer layer on top (Base+n)."""
    return replace(full_finetune(encoder), before_head=_on_top(encoder, 1))


def full_base_plus_2(encoder: Any) -> Adaptation:
    """Every weight of the encoder, and two transformer layers on top (Base+n)."""
    return replace(full_finetune(encoder), before_head=_on_top(encoder, 2))


def full_weighted_sum(encoder: Any) -> Adaptation:
    """Every weight of the encoder, and a weighted sum of its layers."""
    return _fused(encoder, WeightedSum(num_layers=_layers(encoder)))


def full_concat(encoder: Any) -> Adaptation:
    """Every weight of the encoder, and a linear map of its concatenated layers (ElNokrashy et al. 2024)."""
    return _fused(encoder, ConcatLinear(num_layers=_layers(encoder), embed_dim=encoder.embed_dim))


def full_dwatt(encoder: Any) -> Adaptation:
    """Every weight of the encoder, and depth-wise attention over its layers (ElNokrashy et al. 2024)."""
    return _fused(encoder, DepthWiseAttention(num_layers=_layers(encoder), embed_dim=encoder.embed_dim))


def full_dwatt_scaled(encoder: Any) -> Adaptation:
    """Every weight of the encoder, and depth-wise attention with the usual scale of scores."""
    return _fused(encoder, DepthWiseAttention(num_layers=_layers(encoder), embed_dim=encoder.embed_dim, scaled=True))


def _fused(encoder: Any, fusion: nn.Module) -> Adaptation:
    # a fusion needs every layer; with `encoder_dropout`, layer drop would leave some out in training
    for module in encoder.model.modules():
        for owner in (module, getattr(module, "config", None)):
            if owner is not None and hasattr(owner, "layerdrop"):
                owner.layerdrop = 0.0
    return replace(full_finetune(encoder), before_head=FusedLayers(fusion))


def _layers(encoder: Any) -> int:
    return _stated(encoder, "num_hidden_layers", "how many layers it has")


def _on_top(encoder: Any, number: int) -> LayersOnTop:
    heads = _stated(encoder, "num_attention_heads", "how many attention heads its layers have")
    return LayersOnTop(TokenLayers(embed_dim=encoder.embed_dim, num_extra_layers=number, num_heads=heads))


def _stated(encoder: Any, name: str, what: str) -> int:
    """A number in the encoder's configuration; in that of a hierarchical one it may be missing, or one per layer."""
    number = getattr(encoder.model.config, name, None)
    if not isinstance(number, int):
        raise MethodError(f"{type(encoder.model).__name__} does not say {what}", fix="use another encoder")
    return number
