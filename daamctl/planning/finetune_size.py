"""Size of a fine-tuned encoder, computed on torch's meta device without reading or creating weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from daamctl.adapters import build_finetune
from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.encoders.encoder_size import configuration_of


class FinetuneSize(NamedTuple):
    """Numbers that are trained, numbers in a fold's file (also random ones that stay), and bytes of all weights."""

    num_trained: int
    num_kept: int
    held_bytes: int


def finetune_size(name: str, config: ExtractConfig, modality: Modality, num_classes: int) -> FinetuneSize | None:
    """Size with a fine-tuning method; None if nothing here tells the encoder's shape, or it has no meta form.

    Raises:
        MethodError: the encoder does not support the method.
    """
    from transformers import AutoModel

    if (found := configuration_of(config, modality)) is None:
        return None
    part = found[0]
    if (width := getattr(part, "hidden_size", None)) is None:  # of a hierarchical encoder
        return None
    try:
        with torch.device("meta"):
            model: Any = AutoModel.from_config(part)
            if hasattr(model, "encoder") and hasattr(model, "decoder"):
                model = model.get_encoder()
            encoder: Any = SimpleNamespace(model=model.to(finetune_dtype(config)), modality=modality, embed_dim=width)
            tuned = build_finetune(name, encoder, num_classes=num_classes, seed=0)
    except (RuntimeError, NotImplementedError, ValueError):
        return None
    trained, values = tuned.trained(), dict(tuned.named_parameters())
    return FinetuneSize(
        num_trained=sum(value.numel() for value in trained.values()),
        num_kept=sum(values[key].numel() for key in {*trained, *tuned.added}),
        held_bytes=sum(value.nbytes for value in values.values()),
    )


def finetune_dtype(config: ExtractConfig) -> torch.dtype:
    """Number format of the weights of an encoder that is fine-tuned: half precision only where it is asked for."""
    dtype: torch.dtype = getattr(torch, "float32" if config.weights_dtype == "auto" else config.weights_dtype)
    return dtype
