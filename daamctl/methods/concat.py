"""One linear map of the concatenated layers, the `Concat` baseline of DWAtt (ElNokrashy et al., LREC-COLING 2024).

The source applies it to tokens; this module fuses pooled layers (docs/sources.md#depth-wise-attention).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import classify_vector
from daamctl.methods.settings import Sizes


class ConcatLinear(nn.Module):
    """y = sum_l W_l x_l + b, where the W_l are the blocks of one linear map of all layers side by side.

    Torch's start for a linear layer of L * D inputs. Trainable: L * D^2 + D.
    """

    def __init__(self, *, num_layers: int, embed_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_layers * embed_dim, embed_dim)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Fuse layers (..., L, D) to (..., D)."""
        fused: Tensor = self.linear(x.flatten(-2))
        return fused.to(x.dtype)


def concat(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """One linear map of all layers side by side, then the MLP decoder."""
    fusion = ConcatLinear(num_layers=sizes.num_layers, embed_dim=sizes.embed_dim)
    return classify_vector(fusion, sizes, hidden_dim)
