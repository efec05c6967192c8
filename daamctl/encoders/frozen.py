"""Prepare a frozen model for inference: pre-cast weights, fold weight norm, avoid WavLM's slow attention path.

After `prepare_for_inference`, a model supports forward passes only; it can no longer be trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from daamctl.compute.attention import call_projections, gate_bias_once

CAST = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Modules whose weights autocast would cast at every use, since it caches casts only of weights that need gradients."""
LEAST_GROUP = 16
"""Smallest number of channels per group for which oneDNN's convolutions on AMX processors are correct: with 4 to 15,
torch 2.11 gives wrong numbers in bfloat16, without an error."""


class Float32Conv1d(nn.Conv1d):
    """A convolution that always computes in float32, also under autocast."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve (B, C, T) in float32."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def _cast_once(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast the input of WavLM's attention, which four projections read: autocast would cast it for each of them."""
    hidden, *others = args
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden = hidden.to(torch.get_autocast_dtype(device))
    return (hidden, *others)


def prepare_for_inference(model: Any, precision: str) -> None:
    """Prepare a model for forward passes without gradients only. Idempotent.

    Weights that autocast would cast in every batch are stored in its number format, and weights that weight norm would
    recompute in every batch are folded. Neither changes any value. WavLM's attention is replaced by a faster one, equal
    up to rounding (see `daamctl.compute.attention`).

    Args:
        precision: number format of its autocast; float32: no autocast.
    """
    call_projections(model)
    gate_bias_once(model)
    for module in model.modules():
        gated = hasattr(module, "gru_rel_pos_linear") and "forward" in vars(module)  # attention that was replaced above
        if gated and _cast_once not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_cast_once)
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):
                parametrize.remove_parametrizations(module, name)
    if precision == "float32":
        return
    for module in model.modules():
        if type(module) is nn.Conv1d and module.groups > 1 and module.in_channels // module.groups < LEAST_GROUP:
            module.__class__ = Float32Conv1d  # not a patched method: copies of the model must use their own weights
            continue
        if isinstance(module, Float32Conv1d):
            continue
        for value in module.parameters(recurse=False) if isinstance(module, CAST) else ():
            if value.dtype == torch.float32:
                value.data = value.data.to(getattr(torch, precision))
