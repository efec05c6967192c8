"""The optimiser of every training, its schedules, and its clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from daamctl.errors import TrainingError

WARM_UP_FRACTION = 0.1
"""Share of the steps over which the rate of `warm-up` rises."""

Schedule = Literal["cosine", "linear", "warm-up", "constant", "plateau"]


def adam(groups: Sequence[Mapping[str, Any]], device: str, *, decoupled: bool = True, fused: bool = True) -> Any:
    """AdamW over parameter groups, or with `decoupled=False` Adam, whose decay is added to the gradient.

    Args:
        groups: params, lr and weight_decay of each; empty ones are left out.
        device: resolved device; on CUDA rates are tensors, so that a recorded step can change them.
        fused: update a group in one kernel, where the device has one.
    """
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    filled: list[dict[str, Any]] = [dict(group) for group in groups if group["params"]]
    for group in filled:
        group["peak"] = group["lr"]
        if device.startswith("cuda") and fused:
            group["lr"] = torch.tensor(group["lr"], device=device)
    return kind(filled, fused=(fused and device != "mps") or None)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every rate to its peak times a factor."""
    for group in optimizer.param_groups:
        rate = group["peak"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state; how the kernels run stays as this optimiser was built, since it depends on the device."""
    for saved, ours in zip(state["param_groups"], optimizer.param_groups, strict=True):
        saved |= {name: ours[name] for name in ("fused", "capturable", "lr")}
    optimizer.load_state_dict(state)


def rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Factor on the peak rate.

    Args:
        schedule: cosine and linear fall from 1 to 0 one step after the last; warm-up rises over the first tenth, then
            falls linearly; constant and plateau stay at 1.
        step: counted from 0.
    """
    if schedule == "cosine":
        return (1 + math.cos(math.pi * step / steps)) / 2
    if schedule == "linear":
        return 1 - step / steps
    if schedule == "warm-up":
        rise = max(1, round(WARM_UP_FRACTION * steps))
        return min((step + 1) / rise, (steps - step) / (steps - rise + 1))
    return 1.0


def is_decayed(name: str, value: Tensor, decay: str) -> bool:
    """Whether a tensor has weight decay: matrices and kernels, or with `all` every tensor; see `train.decay`."""
    return decay == "all" or (value.ndim > 1 and name.endswith("weight"))


def clip_by_member(gradients: Tensor, most: float) -> None:
    """Clip gradients (..., P) in place like `clip_grad_norm_`, each model by its own norm."""
    norms = gradients.norm(dim=-1, keepdim=True)
    gradients.mul_((most / (norms + 1e-6)).clamp(max=1.0))


def check_gradients(named: Mapping[str, Tensor | None]) -> None:
    """Check after a backward pass that every trained tensor has a gradient.

    Raises:
        TrainingError: tensors without one, by name; they would silently keep their initial values.
    """
    without = [name for name, gradient in named.items() if gradient is None]
    if without:
        raise TrainingError(f"no gradient reaches {', '.join(without)}: they would never be trained")


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    """Gradient of every trained tensor, by name."""
    return {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
