"""IA3 by peft: learned factors, 1 at start, on keys, values and the inside of the feed-forward part.

Source: Liu et al. 2022. On WavLM only the last would act without `call_projections` (D2).
"""

from __future__ import annotations

from typing import Any

from daamctl.adapters.base import Adaptation
from daamctl.adapters.inject import attention_maps, exactly
from daamctl.adapters.module_lookup import feed_forward_outputs


def ia3(encoder: Any) -> Adaptation:
    """Learned factors on keys, values and feed-forward activations (IA3)."""
    from peft import IA3Config, inject_adapter_in_model

    model = encoder.model
    inside = feed_forward_outputs(model)
    attention, notes, transposed = attention_maps(model, ("key", "value"))
    config = IA3Config(
        target_modules=exactly((*attention, *inside)), feedforward_modules=exactly(inside), fan_in_fan_out=transposed
    )
    inject_adapter_in_model(config, model)
    return Adaptation((*attention, *inside), notes)
