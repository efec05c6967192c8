"""Check whether adapters have an effect; it would have revealed that the published LoRA has none on WavLM (D2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daamctl.adapters.base import FineTuned, seeded
from daamctl.errors import TrainingError

NOISE_STD = 0.05
LEAST_CHANGE = 1e-6
"""Smallest change of the logits that counts, relative to their largest value: above float32 rounding."""
LOSS_SCALE = 2.0**12
"""Keeps half precision from rounding small gradients to zero; only whether they are zero matters."""


@dataclass(frozen=True)
class Effect:
    """Effect of a fine-tuned encoder's adapters.

    Args:
        tensors: number of trained tensors within the encoder.
        with_gradient: number of them with a gradient once all have been moved off their initial values.
        output_change: largest change of a logit when all of them are moved.
        silent: names of those without a gradient.
    """

    tensors: int
    with_gradient: int
    output_change: float
    silent: tuple[str, ...]


def check_effect(
    model: FineTuned,
    inputs: Mapping[str, Tensor],
    mask: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Effect:
    """Run one batch, with a backward pass, before and after adding noise to the adapters; then restore everything.

    A zero matrix, such as LoRA's B, hides its partner from the first backward pass, hence the second. Dropout is off,
    because it would change the output by itself.

    Args:
        model: a fine-tuned encoder with its initial values; autocast is left to the caller.
        inputs: a batch from the encoder's `collate`.
        mask: (B, T), from `collate`.
        loss: maps logits (B, C) and targets to a scalar.

    Returns:
        the effect found; for a published variant, also if there is none.

    Raises:
        TrainingError: the adapters of a corrected variant have no effect.
    """
    tensors = {name: value for name, value in model.trained().items() if name.startswith("model.")}
    if not tensors:
        return Effect(0, 0, 0.0, ())
    with _evaluating(model):
        before, reached_at_start = _reached(model, inputs, mask, targets, loss, tensors)
        with _perturbed(tensors):
            after, reached = _reached(model, inputs, mask, targets, loss, tensors)
    change = (after - before).abs().max().item()
    silent = tuple(name for name in tensors if name not in reached)
    effect = Effect(len(tensors), len(reached), change, silent)
    if model.published:
        return effect
    least = LEAST_CHANGE * before.abs().max().item()
    added = [name for name in silent if name in model.added]
    if added or not reached or not reached_at_start or not change > least:
        shown = f", first '{(added or silent)[0]}'" if silent else ""
        raise TrainingError(
            f"{model.name} does not act on {type(model.model).__name__}: {len(silent)} of {len(tensors)} tensors have "
            f"no gradient{shown}, {len(reached_at_start)} have one at the start, noise changes logits by {change:.2g}",
            fix="this encoder does not use the adapted modules; choose another of `daamctl ls finetunes`",
        )
    return effect


def _reached(
    model: FineTuned,
    inputs: Mapping[str, Tensor],
    mask: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    tensors: Mapping[str, nn.Parameter],
) -> tuple[Tensor, set[str]]:
    """Logits (B, C), and names of the tensors with a nonzero gradient; leaves `grad` unchanged."""
    logits = model(inputs, mask)
    value = loss(logits, targets) * LOSS_SCALE
    if not value.requires_grad:
        return logits.detach(), set()
    grads = torch.autograd.grad(value, list(tensors.values()), allow_unused=True)
    found = {name for name, grad in zip(tensors, grads, strict=True) if grad is not None and grad.count_nonzero() > 0}
    return logits.detach(), found


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put all modules in eval mode; restore each module's own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _perturbed(tensors: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Add seeded noise to the tensors; restore them bit by bit afterwards."""
    kept = {name: value.detach().cpu().clone() for name, value in tensors.items()}
    try:
        with torch.no_grad(), seeded(0):
            for value in tensors.values():
                value.add_(torch.randn(value.shape).to(value) * NOISE_STD)
        torch.clear_autocast_cache()  # else a caller's autocast would reuse half-precision copies of the old values
        yield
    finally:
        with torch.no_grad():
            for name, value in tensors.items():
                value.copy_(kept[name])
        torch.clear_autocast_cache()
