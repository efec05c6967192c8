"""Fine-tuning methods for encoders: one file per idea, one line per method in the table below.

A method changes a frozen encoder in place (by adapters in its modules, or by unfreezing its own weights) and puts a
classifier on its last hidden state, or on a fusion of all: of whole items, or of the words of sentences. All but the
published variants share one classifier, so that they differ in nothing else. This package does not depend on
configuration files, folders or the command line. An encoder is any object with `model`, `modality`, `embed_dim`,
`hidden(inputs)` and `hidden_layers(inputs)`:

    from daamctl.adapters import build_finetune
    model = build_finetune("lora-r8", encoder, num_classes=4, seed=1)
    logits = model(*encoder.collate(items))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from daamctl.data.registry import Registry

if TYPE_CHECKING:
    from torch import nn

    from daamctl.adapters.activity_check import Effect, check_effect
    from daamctl.adapters.base import FineTuned

FINETUNES = Registry(
    "fine-tuning method",
    {
        "linear-probe": "daamctl.adapters.probe:linear_probe",
        # low-rank updates
        "lora-r4": "daamctl.adapters.lora:lora_r4",
        "lora-r8": "daamctl.adapters.lora:lora_r8",
        "lora-r8-qk": "daamctl.adapters.lora:lora_r8_qk",
        "lora-r4-published": "daamctl.adapters.lora_published:lora_r4",
        "lora-r8-published": "daamctl.adapters.lora_published:lora_r8",
        "lora-plus-r4": "daamctl.adapters.lora:lora_plus_r4",
        "lora-plus-r8": "daamctl.adapters.lora:lora_plus_r8",
        "lora-plus-r4-published": "daamctl.adapters.lora_published:lora_plus_r4",
        "lora-plus-r8-published": "daamctl.adapters.lora_published:lora_plus_r8",
        "rslora-r8": "daamctl.adapters.lora:rslora_r8",
        "dora-r8": "daamctl.adapters.lora:dora_r8",
        # factors, biases, norms
        "ia3": "daamctl.adapters.ia3:ia3",
        "bitfit": "daamctl.adapters.selective:bitfit",
        "ln-tuning": "daamctl.adapters.selective:ln_tuning",
        # further modules and vectors
        "houlsby": "daamctl.adapters.houlsby:houlsby",
        "prompt-tuning": "daamctl.adapters.prompt:prompt_tuning",
        "prefix-tuning": "daamctl.adapters.prefix:prefix_tuning",
        # everything
        "full-finetune": "daamctl.adapters.selective:full_finetune",
        # modules between encoder and classifier
        "base-plus-1": "daamctl.adapters.fusion:base_plus_1",
        "base-plus-2": "daamctl.adapters.fusion:base_plus_2",
        "full-finetune-base-plus-1": "daamctl.adapters.fusion:full_base_plus_1",
        "full-finetune-base-plus-2": "daamctl.adapters.fusion:full_base_plus_2",
        "full-finetune-weighted-sum": "daamctl.adapters.fusion:full_weighted_sum",
        "full-finetune-concat": "daamctl.adapters.fusion:full_concat",
        "full-finetune-dwatt": "daamctl.adapters.fusion:full_dwatt",
        "full-finetune-dwatt-scaled": "daamctl.adapters.fusion:full_dwatt_scaled",
    },
)

_LAZY = {"FineTuned": "base", "Effect": "activity_check", "check_effect": "activity_check"}

__all__ = ["FINETUNES", "Effect", "FineTuned", "build_finetune", "check_effect", "stage_of"]


def stage_of(method: str) -> Literal["train", "finetune"]:
    """The stage that trains a method."""
    return "finetune" if method in FINETUNES else "train"


def build_finetune(name: str, encoder: Any, *, num_classes: int, seed: int) -> FineTuned:
    """Apply a fine-tuning method to an encoder. The encoder is changed in place, so pass a fresh one.

    Args:
        encoder: its `model` is a Hugging Face base model, `modality` is speech, text, image or tokens, `embed_dim` is
            D, `hidden(inputs)` returns the last hidden state (B, T, D) of `model`, and `hidden_layers(inputs)` those
            of all layers.
        seed: seed of all random values; with equal seeds, methods that share the classifier get the same one.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: the method does not support this encoder, or there are too few classes.
    """
    from daamctl.adapters.base import FineTuned, seeded
    from daamctl.adapters.heads import MeanHead
    from daamctl.adapters.words import WordHead
    from daamctl.compute.attention import read_projections
    from daamctl.errors import MethodError

    builder = FINETUNES.load(name)
    if num_classes < 2:
        raise MethodError(f"{name}: num_classes must be at least 2, got {num_classes}")
    model = encoder.model
    pretrained = list(model.parameters())
    model.requires_grad_(False)
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False  # the cache for generation takes memory and is unused
    with seeded(seed):
        shared = WordHead if encoder.modality == "tokens" else MeanHead
        head: nn.Module = shared(encoder.embed_dim, num_classes)  # drawn first, so that it is the same for all methods
        try:
            adaptation = builder(encoder)
        except MethodError as error:
            raise MethodError(f"{name}: {error.message}", fix=error.fix) from error
        if adaptation.head is not None:
            if encoder.modality == "tokens":
                raise MethodError(
                    f"{name}: its classifier is for whole texts, not for words",
                    fix=f"use '{name.removesuffix('-published')}'",
                )
            head = adaptation.head(num_classes)
    read_projections(model)
    return FineTuned(name, encoder, head, adaptation, pretrained=pretrained)


def __getattr__(name: str) -> Any:
    """Import the public classes on first use, so that listing names needs no torch."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"daamctl.adapters.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'daamctl.adapters' has no attribute '{name}'")
