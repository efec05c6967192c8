"""Size of a fine-tuned encoder, computed on torch's meta device without reading or creating weights."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from daamctl.adapters import build_finetune
from daamctl.artifacts.utterances import Modality, encoder_input
from daamctl.config import ExtractConfig
from daamctl.encoders.encoder_size import PARTS, configuration_of


@dataclass(frozen=True)
class FinetuneSize:
    """Parameters and bytes of an encoder with its additions.

    Args:
        num_kept: numbers stored in a fold's file: trained ones, and random ones that are never trained.
        held_bytes: size of all weights.
    """

    num_trained: int
    num_kept: int
    held_bytes: int


def empty_encoder(config: ExtractConfig, modality: Modality, dtype: torch.dtype) -> Any | None:
    """The encoder on the meta device, as input of `build_finetune`; None if nothing on this machine tells its shape."""
    from transformers import AutoModel

    found = configuration_of(config)
    if found is None:
        return None
    part = getattr(found[0], PARTS.get(encoder_input(modality), ""), None) or found[0]
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(part)
    except (RuntimeError, NotImplementedError, ValueError):
        return None
    if hasattr(model, "encoder") and hasattr(model, "decoder"):
        model = model.get_encoder()
    return SimpleNamespace(model=model.to(dtype), modality=modality, embed_dim=part.hidden_size)


def finetune_size(name: str, encoder: Any, num_classes: int) -> FinetuneSize | None:
    """Apply a fine-tuning method on the meta device; None if it does not work there.

    Args:
        name: a name from the table of fine-tuning methods.
        encoder: see `empty_encoder`; it is modified.
        num_classes: C.

    Raises:
        MethodError: the encoder does not support the method.
    """
    try:
        with torch.device("meta"):
            model = build_finetune(name, encoder, num_classes=num_classes, seed=0)
    except (RuntimeError, NotImplementedError):
        return None
    trained, values = model.trained(), dict(model.named_parameters())
    return FinetuneSize(
        num_trained=sum(value.numel() for value in trained.values()),
        num_kept=sum(values[key].numel() for key in {*trained, *model.added}),
        held_bytes=sum(value.nbytes for value in values.values()),
    )
