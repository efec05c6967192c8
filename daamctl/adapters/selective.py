"""Methods that train weights the encoder already has: its biases, its layer norms, or all of them.

Weights that cannot change the last hidden state are excluded: poolers and heads after it, embeddings of masked
positions. Key biases are trained, as in BitFit, although they cancel in softmax unless positions rotate the keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from daamctl.adapters.base import Adaptation
from daamctl.adapters.module_lookup import layer_norms, reached_parameters
from daamctl.errors import MethodError

_CACHED = "generate_relative_position_index"


def bitfit(encoder: Any) -> Adaptation:
    """All biases of the encoder and nothing else of it (BitFit, Ben Zaken et al. 2022)."""
    names = [name for name in reached_parameters(encoder.model) if name.endswith("bias")]
    return _train(encoder.model, names, "biases", "use lora-r8 or ln-tuning")


def ln_tuning(encoder: Any) -> Adaptation:
    """The factors and biases of all layer norms of the encoder (Zhao et al. 2023)."""
    modules = layer_norms(encoder.model)
    names = [name for name in reached_parameters(encoder.model) if name.rpartition(".")[0] in modules]
    return _train(encoder.model, names, "layer norms", "use lora-r8 or full-finetune")


def full_finetune(encoder: Any) -> Adaptation:
    """Every weight of the encoder."""
    for module in encoder.model.modules():  # BEiT
        if hasattr(module, _CACHED):
            setattr(module, _CACHED, functools.partial(_cloned, getattr(module, _CACHED)))
    return _train(encoder.model, list(reached_parameters(encoder.model)), "weights", "use another encoder")


def _cloned(make: Callable[..., Tensor], *args: Any) -> Tensor:
    """Copy of a tensor that transformers caches for the whole process.

    If it was first created in inference mode, as in feature extraction, autograd refuses the cached one.
    """
    return make(*args).clone()


def _train(model: nn.Module, names: Iterable[str], what: str, fix: str) -> Adaptation:
    """Unfreeze the tensors with these names."""
    values = {name: model.get_parameter(name) for name in names}
    if not values:
        raise MethodError(f"{type(model).__name__} has no {what}", fix=fix)
    kinds = {value.dtype for value in values.values()} - {torch.float32}
    if kinds:
        kind = str(kinds.pop()).removeprefix("torch.")
        raise MethodError(f"the encoder's own weights are held in {kind}", fix="set extract.weights_dtype=float32")
    for value in values.values():
        value.requires_grad_()
    return Adaptation(tuple(dict.fromkeys(name.rpartition(".")[0] for name in values)))
