"""Learned keys and values before those of every layer (prefix tuning).

Source: Li and Liang 2021; they also train a network that makes the prefix, for stability; here the prefix itself is
trained, from N(0, 0.02^2). It takes a share of the attention from the start, so the output differs from the encoder's.
peft's form needs a cache of keys and values, which encoders do not take; here it enters through transformers' table of
attention functions, so that it works for all encoders that use it, and for WavLM.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from daamctl.adapters.base import Adaptation
from daamctl.adapters.module_lookup import linear_sizes, projections
from daamctl.compute.attention import IMPLEMENTATION, call_projections, register
from daamctl.errors import MethodError

LENGTH = 20
INIT_STD = 0.02


def prefix_tuning(encoder: Any) -> Adaptation:
    """20 learned keys and values before those of the input in every layer (prefix tuning)."""
    model = encoder.model
    keys, values = (projections(model, (role,), fused=False) for role in ("key", "value"))
    notes = call_projections(model)
    if not notes:  # else the attention goes through `attend` as it is
        register()
        model.set_attn_implementation(IMPLEMENTATION)
        if model.config._attn_implementation != IMPLEMENTATION:
            raise MethodError(f"the attention of {type(model).__name__} takes no prefix", fix="use lora-r8")
    adapted = []
    for key, value in zip(keys, values, strict=True):
        adapted.append(key.rpartition(".")[0])
        attention = model.get_submodule(adapted[-1])
        for name, projection in (("prefix_key", key), ("prefix_value", value)):
            weight = model.get_submodule(projection)
            start = torch.randn(LENGTH, linear_sizes(weight)[1]) * INIT_STD
            attention.register_parameter(name, nn.Parameter(start.to(weight.get_parameter("weight").device)))
    return Adaptation(tuple(adapted), notes)
