"""LoRA, LoRA+, rsLoRA and DoRA by peft: a low-rank matrix beside two of the attention maps of every layer.

    y = W x + s B A x        A: (r, in) Kaiming uniform, B: (out, r) zero at start
                             s = alpha / r; rsLoRA: alpha / sqrt(r)

Sources: Hu et al. 2021 (LoRA), Hayou et al. 2024 (LoRA+), Kalajdzievski 2023 (rsLoRA), Liu et al. 2024 (DoRA, with a
learned length of each output row). The published scripts differ in scale, start, rates and classifier: see
`lora_published`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from daamctl.adapters.base import Adaptation
from daamctl.adapters.inject import attention_maps, exactly

TARGETS = ("query", "value")
"""The maps that have an adapter: those of the released scripts and of LoRA's own paper."""
TARGETS_OF_TEXT = ("query", "key")
"""Those of the DAAM paper's text (D17)."""

ALPHA = 16

PLUS_RATIO = 16.0
"""Learning rate of B over that of A in LoRA+: peft's example and a common recommendation; the released scripts have
2.828."""


def lora_r4(encoder: Any) -> Adaptation:
    """LoRA of rank 4 on the query and value maps, scaled by alpha / r."""
    return _lora(encoder, 4)


def lora_r8(encoder: Any) -> Adaptation:
    """LoRA of rank 8 on the query and value maps, scaled by alpha / r."""
    return _lora(encoder, 8)


def lora_r8_qk(encoder: Any) -> Adaptation:
    """LoRA of rank 8 on the query and key maps, as the DAAM paper's text has it, scaled by alpha / r."""
    return _lora(encoder, 8, targets=TARGETS_OF_TEXT)


def lora_plus_r4(encoder: Any) -> Adaptation:
    """LoRA of rank 4 whose B learns 16 times as fast as A (LoRA+)."""
    return _lora(encoder, 4, ratio=PLUS_RATIO)


def lora_plus_r8(encoder: Any) -> Adaptation:
    """LoRA of rank 8 whose B learns 16 times as fast as A (LoRA+)."""
    return _lora(encoder, 8, ratio=PLUS_RATIO)


def rslora_r8(encoder: Any) -> Adaptation:
    """LoRA of rank 8 scaled by alpha / sqrt(r), which keeps updates of equal size at every rank (rsLoRA)."""
    return _lora(encoder, 8, use_rslora=True)


def dora_r8(encoder: Any) -> Adaptation:
    """LoRA of rank 8 for the direction of each output row, its length learned apart (DoRA)."""
    return _lora(encoder, 8, use_dora=True)


def _lora(
    encoder: Any, rank: int, *, targets: Iterable[str] = TARGETS, ratio: float = 1.0, **settings: Any
) -> Adaptation:
    from peft import LoraConfig, inject_adapter_in_model

    names, notes, transposed = attention_maps(encoder.model, targets)
    config = LoraConfig(
        r=rank, lora_alpha=ALPHA, target_modules=exactly(names), fan_in_fan_out=transposed, lora_dropout=0.0, **settings
    )
    inject_adapter_in_model(config, encoder.model)
    # By name, not by number of axes: peft's own optimiser for LoRA+ would also speed up the classifier's bias.
    return Adaptation(names, notes, lr_factor=lambda name: ratio if ".lora_B." in name else 1.0)
