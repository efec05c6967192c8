"""Whether a method has an effect on given inputs: its weights vary, and gradients reach its parameters."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier

SAME = 1e-6
"""Weights that differ less than this between inputs count as constant."""
STEPS, RATE = 3, 0.05
"""Steps and learning rate of a short training, after which two methods that compute the same still agree."""


def constant_weight(model: FusionClassifier, x: Float[Tensor, "B L D"], *, gate: bool = False) -> float | None:
    """The weight that a fusion gives to all inputs alike; None if its weights depend on the input as they should.

    A density should always depend on the input; over one layer, or with one layer per head, it does not. Layer weights
    may be the same for all inputs by design; they have no effect over one layer.

    Args:
        model: the method; set to eval mode.
        x: (B, L, D) different inputs.
        gate: whether layer weights, too, should depend on the input.

    Returns:
        Mean of the weights, or None.
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


def gradient_sizes(model: FusionClassifier, x: Float[Tensor, "B L D"], y: Int[Tensor, " B"]) -> dict[str, float]:
    """Largest gradient of the training loss in every trainable tensor.

    Args:
        model: the method; set to training mode, and left with its gradients.
    """
    loss, _ = model.train().training_loss(x, y, nn.functional.cross_entropy)
    loss.backward()
    return {
        name: 0.0 if p.grad is None else p.grad.abs().max().item()
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def logits_after_steps(
    model: FusionClassifier, x: Float[Tensor, "B L D"], y: Int[Tensor, " B"]
) -> Float[Tensor, "B C"]:
    """Logits (B, C) after a few training steps; methods that only start alike then differ.

    Args:
        model: the method at its start; it is trained.
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
