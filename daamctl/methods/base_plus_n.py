"""Further transformer layers on top: the `Base+n` baseline of DWAtt (ElNokrashy et al., LREC-COLING 2024).

Source: docs/sources.md#depth-wise-attention. The source puts them on the last layer's tokens, as `TokenLayers` does.
Stored layers have no tokens, so the method attends over the layer axis, and the output is the vector at the last
layer's position. They are standard layers like those of the source's base model, RoBERTa: normalised after each
residual, with GELU; no dropout.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import classify_vector
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import Sizes


class TransformerLayer(nn.Module):
    """One encoder layer: x = LN(x + attention(x)), then x = LN(x + W2 gelu(W1 x)) with a hidden width of 4 D.

    It computes the same as `nn.TransformerEncoderLayer`, whose fast path for inference cannot be compiled. Torch's
    start: Xavier uniform for the stacked query, key and value projection, zero biases in the attention.
    Trainable: 12 * D^2 + 13 * D.

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`.
    """

    def __init__(self, *, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        check_heads("num_heads", num_heads, embed_dim, "the layer width", least=1)
        self.num_heads = num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.linear1 = nn.Linear(embed_dim, 4 * embed_dim)
        self.linear2 = nn.Linear(4 * embed_dim, embed_dim)
        self.norm1 = nn.LayerNorm(embed_dim)
        self.norm2 = nn.LayerNorm(embed_dim)
        nn.init.xavier_uniform_(self.in_proj.weight)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, x: Float[Tensor, "*B L D"], visible: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "*B L D"]:
        """Let positions attend to one another, e.g. layers or tokens: (..., L, D) to (..., L, D).

        Args:
            visible: (B, L) positions that may be attended to; None: all. Then x is (B, L, D).
        """
        stacked = self.in_proj(x).unflatten(-1, (3, self.num_heads, -1))  # (..., L, 3, H, D/H)
        query, key, value = stacked.transpose(-4, -2).unbind(-3)  # each (..., H, L, D/H)
        mask = None if visible is None else visible[:, None, None]  # (B, 1, 1, L)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        mixed = mixed.transpose(-3, -2).flatten(-2)  # (..., L, D)
        x = self.norm1(x + self.out_proj(mixed))
        output: Tensor = self.norm2(x + self.linear2(nn.functional.gelu(self.linear1(x))))
        return output


class ExtraLayers(nn.Module):
    """Transformer layers over the layer axis; returns the vector at the last layer's position.

    There is no position encoding, so the order of the layers before the last does not matter. Errors as in
    `TransformerLayer`.
    """

    def __init__(self, *, embed_dim: int, num_extra_layers: int = 2, num_heads: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(TransformerLayer(embed_dim=embed_dim, num_heads=num_heads) for _ in range(num_extra_layers))
        )

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Fuse layers (..., L, D) to (..., D)."""
        mixed: Tensor = self.layers(x)
        return mixed[..., -1, :].to(x.dtype)


class TokenLayers(nn.Module):
    """Transformer layers over the tokens of the encoder's last layer, as in the source; errors as there."""

    def __init__(self, *, embed_dim: int, num_extra_layers: int, num_heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            TransformerLayer(embed_dim=embed_dim, num_heads=num_heads) for _ in range(num_extra_layers)
        )

    def forward(self, x: Float[Tensor, "B T D"], visible: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B T D"]:
        """Map tokens (B, T, D) to (B, T, D); `visible` (B, T) excludes padding, None: there is none."""
        for layer in self.layers:
            x = layer(x, visible)
        return x


def base_plus_n(
    sizes: Sizes, *, num_extra_layers: int = 2, num_heads: int = 8, hidden_dim: int = 256
) -> FusionClassifier:
    """Transformer layers over the layer axis, the vector at the last layer's position, then the MLP decoder."""
    fusion = ExtraLayers(embed_dim=sizes.embed_dim, num_extra_layers=num_extra_layers, num_heads=num_heads)
    return classify_vector(fusion, sizes, hidden_dim)
