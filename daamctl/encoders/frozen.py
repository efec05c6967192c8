"""What a frozen encoder need not do anew for every batch, and what WavLM's attention does too dearly without gradients.

From the moment a model is settled it serves forward passes only; it cannot be trained any more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from daamctl.adapters.attention import call_projections

CAST = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Modules whose weights autocast casts at every use: it keeps the cast ones only where they are trained."""


LEAST_GROUP = 16
"""Channels in a group from which oneDNN's convolutions for AMX processors are right: with 4 to 15, torch 2.11 gives
wrong numbers in bfloat16, without an error."""


class Float32Conv1d(nn.Conv1d):
    """A convolution that is computed in float32 whatever autocast asks for."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve (B, C, T) in float32."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def settle(model: Any, precision: str) -> None:
    """Prepare a model for nothing but forward passes without gradients. Repeating it does nothing.

    Weights that autocast would cast for every batch are held in its number format, and those that weight norm would
    compute for every batch are computed: both leave every value as it was, bit for bit. WavLM's attention is computed
    by its projections, equal but for rounding: transformers (to 5.23) gives torch a transposed view (T, B, D), which
    torch without gradients multiplies by T copies of each projection's weights.

    Args:
        model: frozen, on its device.
        precision: number format of its autocast; float32: it runs without.
    """
    call_projections(model)
    for module in model.modules():
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name)
    if precision == "float32":
        return
    for module in model.modules():
        if type(module) is nn.Conv1d and module.groups > 1 and module.in_channels // module.groups < LEAST_GROUP:
            module.__class__ = Float32Conv1d  # a class, not a closure: copies of the model keep their own weights
            continue
        if isinstance(module, Float32Conv1d):
            continue
        for value in module.parameters(recurse=False) if isinstance(module, CAST) else ():
            if value.dtype == torch.float32:
                value.data = value.data.to(getattr(torch, precision))
