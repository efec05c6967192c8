"""IA3 by peft: learned factors, 1 at start, on keys, values and the inside of the feed-forward part.

Source: Liu et al. 2022. On WavLM only the last would act without `call_projections` (D2).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from daamctl.adapters.base import Adaptation
from daamctl.adapters.inject import exactly, inject
from daamctl.adapters.module_lookup import are_fused, feed_forward_outputs, projections
from daamctl.attention import call_projections


def ia3(encoder: Any) -> Adaptation:
    """Learned factors on keys, values and feed-forward activations (IA3)."""
    from peft import IA3Config

    model = encoder.model
    attention, inside = projections(model, ("key", "value")), feed_forward_outputs(model)
    notes = call_projections(model)
    if are_fused(attention):
        notes += ("query, key and value are one map in this encoder, and adapted together",)
    transposed = not isinstance(model.get_submodule(attention[0]), nn.Linear)
    config = IA3Config(
        target_modules=exactly((*attention, *inside)), feedforward_modules=exactly(inside), fan_in_fan_out=transposed
    )
    inject(model, config)
    return Adaptation((*attention, *inside), notes)
