"""Weighted sums over layers whose weights do not depend on the input: the standard probes of frozen encoders.

`weighted-sum` is SUPERB's (Yang et al., 2021); `weighted-sum-ln` normalises each layer first, which s3prl offers and
SUPERB does not use; `scalar-mix` is ELMo's (Peters et al., 2018); `mean` learns nothing
(docs/sources.md#weighted-sums).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes


def weigh_layers(x: Float[Tensor, "*B L D"], weights: Float[Tensor, "*B L"]) -> Float[Tensor, "*B D"]:
    """sum_l w_l * x_l, in float32 at least, also under autocast.

    Args:
        weights: (..., L), float32 at least.

    Returns:
        (..., D), dtype of x.
    """
    with torch.autocast(x.device.type, enabled=False):
        return (x * weights.unsqueeze(-1)).sum(-2).to(x.dtype)


class WeightedSum(nn.Module):
    """y = gamma * sum_l softmax(a)_l * x_l, with one scalar a_l per layer, zero at start (the plain mean).

    Args:
        learned: train the scores a; otherwise the sum stays the plain mean.
        layer_norm: normalise each x_l over its features first (eps 1e-5, no scale or shift).
        learned_scale: train gamma, 1 at start; otherwise there is none.
    """

    def __init__(
        self, *, num_layers: int, learned: bool = True, layer_norm: bool = False, learned_scale: bool = False
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.scores: Tensor
        if learned:
            self.scores = nn.Parameter(torch.zeros(num_layers))
        else:
            self.register_buffer("scores", torch.zeros(num_layers), persistent=False)
        self.gamma = nn.Parameter(torch.ones(())) if learned_scale else None

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the layers of x (..., L, D), the same for every sample: (..., L), sum 1 or gamma."""
        weights = at_least_float32(self.scores).softmax(0)  # (L,)
        if self.gamma is not None:
            weights = self.gamma * weights
        return weights.expand(x.shape[:-1])

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Sum layers (..., L, D) to (..., D)."""
        layers = x
        if self.layer_norm:
            with torch.autocast(x.device.type, enabled=False):
                layers = nn.functional.layer_norm(at_least_float32(x), x.shape[-1:])
        return weigh_layers(layers, self.layer_weights(x)).to(x.dtype)


def weighted_sum(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Softmax-weighted sum of the layers, then the MLP decoder."""
    return classify_vector(WeightedSum(num_layers=sizes.num_layers), sizes, hidden_dim)


def weighted_sum_ln(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Softmax-weighted sum of layers that are normalised over their features first, then the MLP decoder."""
    return classify_vector(WeightedSum(num_layers=sizes.num_layers, layer_norm=True), sizes, hidden_dim)


def scalar_mix(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Softmax-weighted sum of the layers times one learned scale, as in ELMo, then the MLP decoder."""
    return classify_vector(WeightedSum(num_layers=sizes.num_layers, learned_scale=True), sizes, hidden_dim)


def mean(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Control: the plain mean of the layers, nothing learned in it, then the MLP decoder."""
    return classify_vector(WeightedSum(num_layers=sizes.num_layers, learned=False), sizes, hidden_dim)
