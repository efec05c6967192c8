"""LAYA, layer-wise attention aggregation (Vessio, 2025, arXiv 2511.12723), on pooled layers.

A small network sees all layers of a sample and weighs them. The source classifies with one linear layer; here the
shared MLP head follows (docs/sources.md#layer-wise-attention-aggregation).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.dwatt import LayerLinear
from daamctl.methods.settings import Sizes
from daamctl.methods.weighted_sum import weigh_layers


class LayerAggregator(nn.Module):
    """y = sum_l s_l z_l with z_l = A_l x_l + a_l and s = softmax over l of (W gelu(V [z_1; ...; z_L] + v) + w) / t.

    Torch's start for linear layers.

    Args:
        adapter_dim: width of z_l.
        score_dim: width inside the network that scores the layers.
        temperature: t.

    Raises:
        MethodError: the temperature is not above 0.
    """

    def __init__(
        self, *, num_layers: int, embed_dim: int, adapter_dim: int = 96, score_dim: int = 192, temperature: float = 1.5
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise MethodError(f"temperature must be above 0, got {temperature:g}")
        self.temperature = temperature
        self.adapter = LayerLinear(num_layers=num_layers, in_dim=embed_dim, out_dim=adapter_dim)
        self.hidden = nn.Linear(num_layers * adapter_dim, score_dim)
        self.score = nn.Linear(score_dim, num_layers)

    def _weights(self, adapted: Tensor) -> Tensor:
        """Weights (..., L) of the adapted layers (..., L, adapter_dim)."""
        scores = self.score(nn.functional.gelu(self.hidden(adapted.flatten(-2))))
        with torch.autocast(adapted.device.type, enabled=False):
            return (at_least_float32(scores) / self.temperature).softmax(-1)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the adapted layers of x (..., L, D): (..., L), sum 1."""
        return self._weights(self.adapter(x))

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B E"]:
        """Fuse layers (..., L, D) to (..., adapter_dim)."""
        adapted = self.adapter(x)
        return weigh_layers(adapted, self._weights(adapted))


def laya(
    sizes: Sizes, *, adapter_dim: int = 96, score_dim: int = 192, temperature: float = 1.5, hidden_dim: int = 256
) -> FusionClassifier:
    """Layer-wise attention aggregation: a linear map of each layer, weights from all layers, then the MLP decoder."""
    fusion = LayerAggregator(
        num_layers=sizes.num_layers,
        embed_dim=sizes.embed_dim,
        adapter_dim=adapter_dim,
        score_dim=score_dim,
        temperature=temperature,
    )
    return classify_vector(fusion, sizes, hidden_dim, width=adapter_dim)
