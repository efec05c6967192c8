"""Inference on a part of a split: logits, accuracy, mean density and mean layer weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor, nn

from daamctl.config import TrainConfig
from daamctl.fit.feature_split import Part, on_device
from daamctl.fit.memory import Room
from daamctl.methods.base import FusionClassifier

log = logging.getLogger(__name__)

EVAL_BATCH = 256
CPU_EVAL_BATCH = 16
"""Of models with 2-D convolutions: what the conv decoder keeps between them, 2 MB a clip, then stays near the
caches."""


def eval_batch(model: FusionClassifier, config: TrainConfig, device: str) -> int:
    """Clips per batch in evaluation.

    It is the training batch size for methods whose predictions depend on the batch, as in the released code
    (docs/sources.md#training-set-up). For all others it is free.
    """
    return config.batch_size if model.traits.batch_dependent else free_batch(model, device)


def free_batch(model: nn.Module, device: str) -> int:
    """Clips per batch, chosen for speed."""
    convolves = device == "cpu" and any(isinstance(module, nn.Conv2d) for module in model.modules())
    return CPU_EVAL_BATCH if convolves else EVAL_BATCH


def predict(model: FusionClassifier, part: Part, device: str, batch_size: int) -> Float32[Tensor, "N C"]:
    """Logits (N, C) float32 on CPU, in eval mode and float32, in the order of the part.

    Args:
        part: N clips.

    Raises:
        OutOfMemoryError: the GPU has no room for one clip, or for a batch that must not be split.
    """
    whole = model.traits.batch_dependent
    return torch.cat(_of_batches(lambda x: model(x).float().cpu(), model, part, device, batch_size, whole=whole))


def scores(logits: Tensor | None, part: Part | None) -> tuple[float | None, float | None]:
    """Accuracy and mean cross-entropy, in nats, of the logits of a part; None without one."""
    if logits is None or part is None:
        return None, None
    return accuracy_of(logits, part.y), cross_entropy_of(logits, part.y)


def density_of(model: FusionClassifier, x: Float[Tensor, "B L D"]) -> Float64[Tensor, "B L D"]:
    """Density (B, L, D) of a batch in float64. Skips the decoder."""
    return _in_float64(model.density(x))


def mean_density(model: FusionClassifier, part: Part, device: str) -> Float32[Tensor, "L D"]:
    """Mean density over clips, (L, D) float32; every clip has the same weight, whatever the batch size (D19)."""
    return _mean_over_clips(lambda x: density_of(model, x), model, part, device)


def mean_layer_weights(model: FusionClassifier, part: Part, device: str) -> Float32[Tensor, " L"] | None:
    """Mean weight of each layer over clips, (L,) float32; None if the fusion weighs no layers."""
    if not model.weighs_layers:
        return None
    return _mean_over_clips(lambda x: _in_float64(model.layer_weights(x)), model, part, device)


def _mean_over_clips(of: Callable[[Tensor], Tensor], model: FusionClassifier, part: Part, device: str) -> Tensor:
    """Mean over the N clips of the per-clip float64 values of `of`, as float32 on CPU; in eval mode."""
    sums = _of_batches(lambda x: of(x).sum(0).cpu(), model, part, device, free_batch(model, device))
    return (torch.stack(sums).sum(0) / len(part)).float()


@torch.no_grad()
def _of_batches(
    of: Callable[[Tensor], Tensor],
    model: FusionClassifier,
    part: Part,
    device: str,
    batch_size: int,
    *,
    whole: bool = False,
) -> list[Tensor]:
    """Apply `of` to the batches of a part, in order and in eval mode.

    Args:
        of: takes (B, L, D) float32 on the device.
        model: the model that `of` calls.
        part: N clips.
        batch_size: B; if a GPU runs out of memory, this batch and all later ones are halved.
    """
    model.eval()
    found: list[Tensor] = []
    room = Room(batch_size, smallest=batch_size if whole else 1)
    for batch, _ in part.batches(batch_size):
        x = on_device(batch, device)
        found += room.in_pieces(partial(_slice, of, x), len(x))
    return found


def _slice(of: Callable[[Tensor], Tensor], x: Tensor, start: int, stop: int) -> Tensor:
    return of(x[start:stop])


def _in_float64(x: Tensor) -> Tensor:
    """Convert to float64; on CPU if the device (mps) has none."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def accuracy_of(logits: Float[Tensor, "N C"], targets: Int[Tensor, " N"]) -> float:
    """Share of rows whose largest logit is the target, in [0, 1]."""
    return (logits.argmax(-1) == targets.cpu()).double().mean().item()


def is_one_class(logits: Float[Tensor, "N C"]) -> bool:
    """Whether the largest logit of every row is that of the same class."""
    return bool(logits.argmax(-1).unique().numel() < 2)


def cross_entropy_of(logits: Float[Tensor, "N C"], targets: Int[Tensor, " N"]) -> float:
    """Mean cross-entropy, in nats, of logits (N, C) against class ids (N,); never class-weighted, whatever the loss."""
    return torch.nn.functional.cross_entropy(logits.double(), targets.cpu()).item()
