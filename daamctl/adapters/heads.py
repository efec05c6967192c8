"""Classifiers on the last hidden state (B, T, D): one shared by all corrected methods, and the published ones.

The published ones are those of transformers' models for sequence and image classification as the released LoRA scripts
use them (docs/sources.md#released-lora), with transformers' initialisation: weights N(0, 0.02^2), biases 0.
"""

from __future__ import annotations

from torch import Tensor, nn

INIT_STD = 0.02


def masked_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of (B, T, D) over the positions where the mask (B, T) is 1: (B, D)."""
    weights = mask.to(hidden.dtype)
    return (hidden * weights[..., None]).sum(1) / weights.sum(1, keepdim=True).clamp(min=1)


class MeanHead(nn.Module):
    """Mean over the positions in the mask, followed by one linear map."""

    def __init__(self, embed_dim: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(embed_dim, num_classes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map (B, T, D) and (B, T) to logits (B, C)."""
        logits: Tensor = self.classifier(masked_mean(hidden, mask))
        return logits


class ProjectedHead(nn.Module):
    """Published, speech: the mean is projected by a random map that is never trained, then classified."""

    def __init__(self, embed_dim: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.projector = _linear(embed_dim, width).requires_grad_(False)
        self.classifier = _linear(width, num_classes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map (B, T, D) and (B, T) to logits (B, C)."""
        logits: Tensor = self.classifier(self.projector(masked_mean(hidden, mask)))
        return logits


class PatchHead(nn.Module):
    """Published, images: mean over the patches, a frozen layer norm (as BEiT's pooler), then the classifier."""

    def __init__(self, norm: nn.LayerNorm, num_classes: int) -> None:
        super().__init__()
        self.norm = norm.requires_grad_(False)
        self.classifier = _linear(norm.normalized_shape[-1], num_classes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map (B, T, D) and (B, T), whose mask excludes the class token, to logits (B, C)."""
        logits: Tensor = self.classifier(self.norm(masked_mean(hidden, mask)))
        return logits


class LastPositionHead(nn.Module):
    """Published, text: a random score map without bias, never trained (D4), applied at the last position (D46)."""

    def __init__(self, embed_dim: int, num_classes: int) -> None:
        super().__init__()
        self.score = _linear(embed_dim, num_classes, bias=False).requires_grad_(False)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Map (B, T, D) to logits (B, C). Ignores the mask: the last position is used even if it is padding."""
        logits: Tensor = self.score(hidden[:, -1])
        return logits


def _linear(inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(linear.weight, std=INIT_STD)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
