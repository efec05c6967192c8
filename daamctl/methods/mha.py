"""Multi-head self-attention over the layers of one sample, as the papers' text describes the MHA baseline.

The released code attends over the mini-batch instead (DEVIATIONS D1); this module does not.
"""

from __future__ import annotations

from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, check_divides
from daamctl.methods.decoder import ConvDecoder


class LayerSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V over the layer axis, with output projection; biases, no dropout, no residual.

    Torch's start: Xavier uniform for the stacked input projection, zero biases. Trainable: 4 D^2 + 4 D.

    Args:
        embed_dim: D.
        num_heads: attention heads; must divide D.

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`.
    """

    def __init__(self, *, embed_dim: int, num_heads: int = 8) -> None:
        super().__init__()
        check_divides("num_heads", num_heads, embed_dim, "the layer width")
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Let the layers of each sample attend to one another: (B, L, D) to (B, L, D)."""
        output, _ = self.attention(x, x, x, need_weights=False)
        mixed: Tensor = output
        return mixed


def mha(
    *, num_layers: int, embed_dim: int, num_classes: int, num_heads: int = 8, hidden_channels: int = 512
) -> FusionClassifier:
    """Multi-head self-attention over the layers (not over the batch), then the conv decoder.

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`.
    """
    decoder = ConvDecoder(
        num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, hidden_channels=hidden_channels
    )
    return FusionClassifier(LayerSelfAttention(embed_dim=embed_dim, num_heads=num_heads), decoder)
