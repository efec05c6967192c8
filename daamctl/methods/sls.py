"""Sensitive layer selection (Zhang et al., ACM Multimedia 2024), on pooled layers.

Source: docs/sources.md#sensitive-layer-selection. The source gates each layer by its mean over time, sums the gated
frames to a map (T, D), and normalises that map as an image of one channel. Max pooling over time and features and its
own classifier follow. Pooled layers have no time axis, so here the map is the fused vector itself, and the shared MLP
head follows directly.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes
from daamctl.methods.weighted_sum import weigh_layers


def batch_normalized(norm: nn.BatchNorm1d, x: Tensor) -> Tensor:
    """Batch normalisation; where training has one value of a feature, which has no variance, by the running statistics.

    Args:
        x: (B, D) or (B, D, N), float32 at least.
    """
    if norm.training and x.numel() == norm.num_features:
        return nn.functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    normalized: Tensor = norm(x)
    return normalized


class SensitiveLayerSelection(nn.Module):
    """y = selu(BN(sum_l s_l x_l)) with s_l = sigmoid(w . x_l + b), w and b shared by all layers.

    The batch norm has one channel: in training, one mean and one variance over all samples and features of the batch,
    so a batch of one works too; in eval mode, running statistics. Torch's start. Trainable: D + 1 + 2.
    """

    def __init__(self, *, embed_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(embed_dim, 1)
        self.norm = nn.BatchNorm1d(1)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the layers of x (..., L, D): (..., L), each in (0, 1)."""
        with torch.autocast(x.device.type, enabled=False):
            gates: Tensor = self.gate(at_least_float32(x))  # (..., L, 1)
            return gates.squeeze(-1).sigmoid()

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Sum layers (..., L, D) to (..., D), normalised over all samples."""
        fused = weigh_layers(at_least_float32(x), self.layer_weights(x))  # (..., D)
        with torch.autocast(x.device.type, enabled=False):
            channel = batch_normalized(self.norm, fused.reshape(1, 1, -1))
            return nn.functional.selu(channel).reshape(fused.shape).to(x.dtype)


def sls(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Sensitive layer selection: layers gated one by one and summed, batch norm, SELU, then the MLP decoder."""
    return classify_vector(SensitiveLayerSelection(embed_dim=sizes.embed_dim), sizes, hidden_dim)
