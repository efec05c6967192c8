"""Depth-wise attention, DWAtt (ElNokrashy, AlKhamissi and Diab, LREC-COLING 2024).

The source applies it to tokens; this module fuses pooled layers (docs/sources.md#depth-wise-attention). The source does
not scale the scores, so at the width of a real encoder the softmax starts nearly one-hot. `dwatt-scaled` divides the
scores by sqrt(D) and starts nearly uniform.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, Traits, at_least_float32
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes
from daamctl.methods.weighted_sum import weigh_layers

POSITION_DIM = 24  # width of the fixed vector p_l of a layer


class LayerLinear(nn.Module):
    """One linear map per layer: y_l = W_l x_l + b_l, started like separate `nn.Linear` modules."""

    def __init__(self, *, num_layers: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        bound = in_dim**-0.5
        self.weight = nn.Parameter(torch.empty(num_layers, out_dim, in_dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_layers, out_dim).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "*B L I"]) -> Float[Tensor, "*B L O"]:
        """Map layers (..., L, in_dim) to (..., L, out_dim)."""
        return torch.einsum("...li,loi->...lo", x, self.weight) + self.bias


class PerLayerNorm(nn.Module):
    """One layer norm per layer, over its features, with scale and shift; in float32 at least, also under autocast."""

    def __init__(self, *, num_layers: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_layers, dim))
        self.bias = nn.Parameter(torch.zeros(num_layers, dim))

    def forward(self, x: Float[Tensor, "*B L K"]) -> Float[Tensor, "*B L K"]:
        """Normalise layers (..., L, dim)."""
        with torch.autocast(x.device.type, enabled=False):
            return nn.functional.layer_norm(at_least_float32(x), x.shape[-1:]) * self.weight + self.bias


class LayerMLP(nn.Sequential):
    """f_l(x_l) = W_l LN_l(gelu(U_l x_l)) with biases, a bottleneck of D // 2 (at least 1), nothing shared."""

    def __init__(self, *, num_layers: int, embed_dim: int) -> None:
        width = max(1, embed_dim // 2)
        super().__init__(
            LayerLinear(num_layers=num_layers, in_dim=embed_dim, out_dim=width),
            nn.GELU(),
            PerLayerNorm(num_layers=num_layers, dim=width),
            LayerLinear(num_layers=num_layers, in_dim=width, out_dim=embed_dim),
        )


class DepthWiseAttention(nn.Module):
    """y = x_L + sum_l s_l v_l, with the last layer x_L as the query and a fixed random vector p_l as a layer's key.

    v_l = LN_l(f_l(x_l)),  k_l = W_K p_l + b_K,  q = 1 + elu(x_L + f_Q(x_L)),  s = softmax over l of q . k_l

    Every p_l is drawn once from U(0, 1) and saved with the weights. b_K adds q . b_K to every score, which cannot
    change the output; it exists because the source has it. Torch's start for linear layers.

    Args:
        scaled: divide the scores by sqrt(D).
    """

    position: Tensor

    def __init__(self, *, num_layers: int, embed_dim: int, scaled: bool = False) -> None:
        super().__init__()
        self.scale = embed_dim**-0.5 if scaled else 1.0
        self.register_buffer("position", torch.rand(num_layers, POSITION_DIM))
        self.key = nn.Linear(POSITION_DIM, embed_dim)
        self.query = LayerMLP(num_layers=1, embed_dim=embed_dim)
        self.value = LayerMLP(num_layers=num_layers, embed_dim=embed_dim)
        self.value_norm = PerLayerNorm(num_layers=num_layers, dim=embed_dim)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights of the values of the layers of x (..., L, D): (..., L), sum 1."""
        last = x[..., -1:, :]
        moved = self.query(last)
        with torch.autocast(x.device.type, enabled=False):
            query = 1 + nn.functional.elu(at_least_float32(last) + at_least_float32(moved))  # (..., 1, D)
            keys: Tensor = self.key(self.position)  # (L, D)
            scores = query @ keys.T * self.scale  # (..., 1, L)
            return scores.squeeze(-2).softmax(-1)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Fuse layers (..., L, D) to (..., D)."""
        values = self.value_norm(self.value(x))
        return (x[..., -1, :] + weigh_layers(values, self.layer_weights(x))).to(x.dtype)


def dwatt(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Depth-wise attention: the last layer queries an MLP of each layer, scores unscaled, then the MLP decoder."""
    return _dwatt(sizes, hidden_dim, scaled=False)


def dwatt_scaled(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Depth-wise attention with scores divided by the root of the layer width, then the MLP decoder."""
    return _dwatt(sizes, hidden_dim, scaled=True)


def _dwatt(sizes: Sizes, hidden_dim: int, *, scaled: bool) -> FusionClassifier:
    fusion = DepthWiseAttention(num_layers=sizes.num_layers, embed_dim=sizes.embed_dim, scaled=scaled)
    # Of few sentences a lower rate learns too little in as many steps (docs/training.md#why-this-recipe).
    gains = ("fusion.query.2.weight", "fusion.value.2.weight", "fusion.value_norm.weight")
    traits = Traits(inert=("fusion.key.bias",), full_rate=True, gains=gains)
    return classify_vector(fusion, sizes, hidden_dim, traits=traits)
