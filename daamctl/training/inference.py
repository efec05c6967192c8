"""Inference on a part of a split: logits, accuracy, mean density and mean layer weights."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Float32, Float64, Int
from torch import Tensor, nn

from daamctl.config import TrainConfig
from daamctl.devices import is_out_of_memory
from daamctl.methods.base import FusionClassifier
from daamctl.training.feature_split import Part, on_device

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


def predict(
    model: FusionClassifier,
    part: Part,
    device: str,
    batch_size: int,
    *,
    found: list[Tensor] | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> Float32[Tensor, "N C"]:
    """Logits (N, C) float32 on CPU, in eval mode and float32, in the order of the part.

    Args:
        model: the model, on the device.
        part: N clips.
        device: where to compute.
        batch_size: clips per batch.
        found: logits of the first batches, as an interrupted call has left them; those of the others are appended.
        on_batch: called after each batch.

    Raises:
        OutOfMemoryError: the GPU has no room for one clip, or for a batch that must not be split.
    """
    found = [] if found is None else found
    options: dict[str, Any] = {"whole": model.traits.batch_dependent, "found": found, "on_batch": on_batch}
    return torch.cat(_of_batches(lambda x: model(x).float().cpu(), model, part, device, batch_size, **options))


def scores(
    model: FusionClassifier,
    part: Part | None,
    device: str,
    batch_size: int,
    *,
    found: list[Tensor] | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> tuple[float | None, float | None]:
    """Accuracy and mean cross-entropy, in nats, on a part; None without a part. For the rest see `predict`."""
    if part is None:
        return None, None
    logits = predict(model, part, device, batch_size, found=found, on_batch=on_batch)
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
    found: list[Tensor] | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """Apply `of` to the batches of a part, in order and in eval mode.

    Args:
        of: takes (B, L, D) float32 on the device.
        model: the model that `of` calls.
        part: N clips.
        device: the model's device.
        batch_size: B; if a GPU runs out of memory, this batch and all later ones are halved.
        whole: never split a batch.
        found: results by row of the first batches, which are left out; the others are appended.
        on_batch: called after each batch.
    """
    model.eval()
    found = [] if found is None else found
    most, done = batch_size, -(-sum(map(len, found)) // batch_size)
    for batch, _ in islice(part.batches(batch_size), done, None):
        x, start = on_device(batch, device), 0
        while start < len(x):
            size = min(most, len(x) - start)
            try:
                found.append(of(x[start : start + size]))
                start += size
            except (RuntimeError, MemoryError) as error:
                # retried outside this block, which keeps the failed pass's tensors alive
                if whole or size == 1 or not is_out_of_memory(error):
                    raise
                most = size // 2
                log.info("no room on %s to evaluate %d clips at once: now %d", device, size, most)
        on_batch()
    return found


def _in_float64(x: Tensor) -> Tensor:
    """Convert to float64; on CPU if the device (mps) has none."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def accuracy_of(logits: Float[Tensor, "N C"], targets: Int[Tensor, " N"]) -> float:
    """Share of rows whose largest logit is the target, in [0, 1]."""
    return (logits.argmax(-1) == targets.cpu()).double().mean().item()


def cross_entropy_of(logits: Float[Tensor, "N C"], targets: Int[Tensor, " N"]) -> float:
    """Mean cross-entropy, in nats, of logits (N, C) against class ids (N,); never class-weighted, whatever the loss."""
    return torch.nn.functional.cross_entropy(logits.double(), targets.cpu()).item()
