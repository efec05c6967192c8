"""What a way of fine-tuning makes of an encoder, told on torch's meta device: no weight is read or made."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from daamctl.adapters import build_finetune
from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.encoders.encoder_size import PARTS, configuration_of


@dataclass(frozen=True)
class FinetuneSize:
    """Numbers and bytes of an encoder and what is added to it.

    Args:
        num_trained: numbers that are trained.
        num_kept: numbers in a fold's file: the trained ones, and random ones that are never trained.
        held_bytes: of all weights.
    """

    num_trained: int
    num_kept: int
    held_bytes: int


def empty_encoder(config: ExtractConfig, modality: Modality, dtype: torch.dtype) -> Any | None:
    """What `build_finetune` takes of the encoder that the settings name; None where nothing here tells its shape.

    Args:
        config: the extract settings.
        modality: what it is to read.
        dtype: number format of its weights.
    """
    from transformers import AutoModel

    found = configuration_of(config)
    if found is None:
        return None
    part = getattr(found[0], PARTS.get(modality, ""), None) or found[0]
    try:
        with torch.device("meta"):
            model = AutoModel.from_config(part)
    except (RuntimeError, NotImplementedError, ValueError):
        return None
    if hasattr(model, "encoder") and hasattr(model, "decoder"):
        model = model.get_encoder()
    return SimpleNamespace(model=model.to(dtype), modality=modality, embed_dim=part.hidden_size)


def finetune_size(name: str, encoder: Any, num_classes: int) -> FinetuneSize | None:
    """Build a way of fine-tuning on the meta device; None where that has not all that it needs.

    Args:
        name: a name from the table of ways of fine-tuning.
        encoder: see `empty_encoder`; it is changed.
        num_classes: C.

    Raises:
        MethodError: the encoder cannot be fine-tuned in this way.
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
