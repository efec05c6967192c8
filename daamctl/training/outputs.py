"""What a model gives for a part of a split: logits, accuracy, mean density, mean weights of the layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from daamctl.config import TrainConfig
from daamctl.methods.base import FusionClassifier
from daamctl.training.parts import Part, on_device

EVAL_BATCH = 256
CPU_EVAL_BATCH = 16
"""Smaller on a CPU: what the conv decoder keeps between its convolutions, 2 MB a clip, then stays near its caches."""


def eval_batch(model: FusionClassifier, config: TrainConfig, device: str) -> int:
    """Clips per batch in evaluation: free, except where predictions depend on it; then that of training (FACTS 9)."""
    return config.batch_size if model.traits.batch_dependent else _free_batch(device)


def _free_batch(device: str) -> int:
    return CPU_EVAL_BATCH if device == "cpu" else EVAL_BATCH


@torch.no_grad()
def predict(model: nn.Module, part: Part, device: str, batch_size: int) -> Tensor:
    """Logits (N, C) float32 on CPU, in eval mode and float32, in the order of the part."""
    model.eval()
    return torch.cat([model(on_device(x, device)).float().cpu() for x, _ in part.batches(batch_size)])


def mean_density(model: FusionClassifier, part: Part, device: str) -> Tensor:
    """Mean over clips of the density, (L, D) float32: every clip counts the same, whatever the batch size (D19)."""
    return _mean_over_clips(lambda x: model(x, return_density=True)[1], model, part, device)


def mean_layer_weights(model: FusionClassifier, part: Part, device: str) -> Tensor | None:
    """Mean over clips of the weight that every layer gets, (L,) float32; None for a fusion that weighs no layers."""
    weights_of: Callable[[Tensor], Tensor] | None = getattr(model.fusion, "layer_weights", None)
    return None if weights_of is None else _mean_over_clips(weights_of, model, part, device)


@torch.no_grad()
def _mean_over_clips(of: Callable[[Tensor], Tensor], model: nn.Module, part: Part, device: str) -> Tensor:
    """Mean over the N clips of what `of` gives per clip, in eval mode; summed in float64 on CPU, as mps has none."""
    model.eval()
    sums = [of(on_device(x, device)).cpu().double().sum(0) for x, _ in part.batches(_free_batch(device))]
    return (torch.stack(sums).sum(0) / len(part)).float()


def accuracy_of(logits: Tensor, targets: Tensor) -> float:
    """Share of rows whose largest logit is the target, in [0, 1]."""
    return (logits.argmax(-1) == targets.cpu()).double().mean().item()
