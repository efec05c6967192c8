"""Loss functions of the papers (docs/sources.md#focal-loss)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from daamctl.config import TrainConfig

SURE = 0.95
"""Probability of the target class where the squared loss is 0."""
FOCAL_EPS = 1e-6  # inside the power, as in the published code (D39)


def focal_loss(
    logits: Float[Tensor, "B C"], targets: Int[Tensor, " B"], *, gamma: float, alpha: float
) -> Float[Tensor, ""]:
    """Alpha * (1 - p + 1e-6)^gamma * cross-entropy, averaged; p = softmax probability of the target class.

    Args:
        logits: (B, C), any float type; computed in float32.
        targets: (B,) class ids.
        alpha: constant factor, the same for all classes.
    """
    cross_entropy = F.cross_entropy(logits.float(), targets, reduction="none")  # (B,)
    return (alpha * (1 - (-cross_entropy).exp() + FOCAL_EPS) ** gamma * cross_entropy).mean()


def square_loss(logits: Float[Tensor, "B C"], targets: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Mean squared distance of logits from scaled one-hot targets (docs/sources.md#square-loss).

    Targets are s for the class and 0 for the others; s is the logit at which softmax gives the class the probability
    `SURE`. Distances are divided by s squared.

    Args:
        logits: (B, C), any float type; computed in float32.
        targets: (B,) class ids.
    """
    number = logits.shape[-1]
    logit = math.log(SURE / (1 - SURE) * max(number - 1, 1))
    # one_hot() would look at the values, and wait for a GPU
    wanted = (targets.unsqueeze(-1) == torch.arange(number, device=logits.device)).float()  # (B, C)
    return (logits.float() / logit - wanted).square().sum(-1).mean()


def build_loss(config: TrainConfig, *, finetuning: bool = False) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the loss named in the settings: a function of logits (B, C) and targets (B,); see `train.loss`."""
    if config.loss == "focal":
        return lambda logits, targets: focal_loss(logits, targets, gamma=config.focal_gamma, alpha=config.focal_alpha)
    if config.loss == "square" and not finetuning:
        return square_loss
    return lambda logits, targets: F.cross_entropy(logits.float(), targets)
