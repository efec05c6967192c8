"""Whether a method does anything of its own on given inputs: its weights vary, and training reaches its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier

SAME = 1e-6
"""Weights that differ less than this between inputs are constant."""
STEPS, RATE = 3, 0.05
"""Of the short training after which two methods that compute the same still agree."""


def constant_weight(model: FusionClassifier, x: Tensor, *, gate: bool = False) -> float | None:
    """The weight that all inputs get, where a fusion cannot tell them apart; None for all others.

    A density depends on the input by its nature, so it is degenerate wherever it does not: over one layer, or with one
    layer a head. Layer weights may be the same for all inputs by design, and are degenerate over one layer.

    Args:
        model: set to evaluation.
        x: (B, L, D) different inputs.
        gate: layer weights, too, are to depend on the input.

    Returns:
        Their mean, or None.
    """
    model.eval()
    with torch.no_grad():
        if model.has_density:
            weights = model.density(x)
        elif model.weighs_layers and (gate or x.shape[1] == 1):
            weights = model.layer_weights(x)
        else:
            return None
    return float(weights.mean()) if float((weights - weights[:1]).abs().max()) < SAME else None


def gradient_sizes(model: FusionClassifier, x: Tensor, y: Tensor) -> dict[str, float]:
    """Largest gradient of the training loss in every trainable tensor.

    Args:
        model: set to training; its gradients are left behind.
        x: (B, L, D).
        y: (B,) class ids.
    """
    loss, _ = model.train().training_loss(x, y, nn.functional.cross_entropy)
    loss.backward()
    return {
        name: 0.0 if p.grad is None else p.grad.abs().max().item()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def logits_after_steps(model: FusionClassifier, x: Tensor, y: Tensor) -> Tensor:
    """Logits (B, C) after a few steps of training, in which methods that only start alike part ways.

    Args:
        model: as it starts; it is trained.
        x: (B, L, D).
        y: (B,) class ids.
    """
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=RATE)
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss, _ = model.training_loss(x, y, nn.functional.cross_entropy)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits: Tensor = model.eval()(x)
    return logits
