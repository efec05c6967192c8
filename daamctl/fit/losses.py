"""Loss functions of the papers (docs/sources.md#focal-loss)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from daamctl.config import TrainConfig

FOCAL_EPS = 1e-6  # inside the power, as in the published code (D39)


def focal_loss(
    logits: Float[Tensor, "B C"], targets: Int[Tensor, " B"], *, gamma: float, alpha: float
) -> Float[Tensor, ""]:
    """Alpha * (1 - p + 1e-6)^gamma * cross-entropy, averaged; p = softmax probability of the target class.

    Args:
        logits: (B, C), any float type; computed in float32.
        targets: (B,) class ids.
        gamma: focusing exponent.
        alpha: constant factor, the same for all classes.
    """
    cross_entropy = F.cross_entropy(logits.float(), targets, reduction="none")  # (B,)
    return (alpha * (1 - (-cross_entropy).exp() + FOCAL_EPS) ** gamma * cross_entropy).mean()


def build_loss(config: TrainConfig) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the loss named in the settings: a function of logits (B, C) and targets (B,)."""
    if config.loss == "focal":
        return lambda logits, targets: focal_loss(logits, targets, gamma=config.focal_gamma, alpha=config.focal_alpha)
    return lambda logits, targets: F.cross_entropy(logits.float(), targets)
