"""Multi-head self-attention over the layers of one sample; as published; and followed by batch normalisation.

The papers' text describes attention over the layers. The released code attends over the mini-batch instead, separately
for every layer (D1), and calls its batch normalisation where it cannot run (D10). `mha` follows the text and
`mha_published` the code; `mha_bn` adds the repaired normalisation to either (docs/sources.md#multi-head-attention).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, Traits
from daamctl.methods.decoder import check_choice, classify_map, feature_grid
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import DecoderOptions, Sizes


class LayerSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_k)) V over the layer axis, with output projection; biases, no dropout, no residual.

    Torch's start: Xavier uniform for the stacked input projection, zero biases. Trainable: 4 D^2 + 4 D.

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`.
    """

    def __init__(self, *, embed_dim: int, num_heads: int = 8) -> None:
        super().__init__()
        self.attention = _attention(embed_dim, num_heads, over_layers=True)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """Let the layers of each sample attend to one another: (..., L, D) to (..., L, D)."""
        rows = x.reshape(-1, *x.shape[-2:])  # (B, L, D)
        return _attend(self.attention, rows).reshape(x.shape).to(x.dtype)

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Attention that every layer receives, mean over heads and queries: (..., L, D) to (..., L), sum 1.

        It is often read as the importance of a layer. Unlike a gate, it does not multiply the layer itself.
        """
        rows = x.reshape(-1, *x.shape[-2:])  # (B, L, D)
        with torch.autocast(x.device.type, enabled=False):
            rows = rows.to(torch.promote_types(x.dtype, self.attention.in_proj_weight.dtype))
            maps = self.attention(rows, rows, rows, need_weights=True)[1]  # (B, L, L), query by key
        received: Tensor = maps.mean(-2).reshape(x.shape[:-1])
        return received


class BatchSelfAttention(nn.Module):
    """The released layer: it expects (sequence, batch, D) and gets (B, L, D), so it takes the batch for the sequence.

    For every layer separately, the B vectors of the batch attend to one another (D1). So layers never mix, a prediction
    depends on the rest of its batch, and for a single sample all weights are 1, which leaves a linear map. Trainable:
    as in `LayerSelfAttention`, which has the same tensors under the same names.

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`.
    """

    def __init__(self, *, embed_dim: int, num_heads: int = 8) -> None:
        super().__init__()
        self.attention = _attention(embed_dim, num_heads, over_layers=False)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Let the samples of the batch attend to one another, layer by layer: (B, L, D) to (B, L, D).

        Raises:
            MethodError: `x` does not have three axes; torch would take (L, D) for one sample and mix its layers.
        """
        _check_batched(x)
        return _attend(self.attention, x).to(x.dtype)


class NormalizedAttention(nn.Module):
    """Self-attention, then batch normalisation of every layer's (H, W) image, before the decoder.

    The released code normalises before the reshape to images and stops with an error (D10); this module normalises
    after it, with torch's eps 1e-5, momentum 0.1 and affine parameters. Mean and variance of a layer are over the batch
    and all features, so the shape of the image does not matter. In training, a sample therefore depends on the rest of
    its batch; in evaluation, with running statistics, it does not. Statistics are float32 at least, also under
    autocast. Trainable: 4 D^2 + 4 D + 2 L.

    Args:
        attend_over: `layers` of one sample, or samples of the `batch` as in the released code (D1).

    Raises:
        MethodError: `num_heads` does not divide `embed_dim`, or `attend_over` is unknown.
    """

    def __init__(self, *, num_layers: int, embed_dim: int, num_heads: int = 8, attend_over: str = "layers") -> None:
        super().__init__()
        check_choice("attend_over", attend_over, ("layers", "batch"))
        self.grid = feature_grid(embed_dim)
        self.attention = _attention(embed_dim, num_heads, over_layers=attend_over == "layers")
        self.norm = nn.BatchNorm2d(num_layers)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Attend and normalise: (B, L, D) to (B, L, D).

        Raises:
            MethodError: `x` does not have three axes.
            ValueError: raised by torch in training on one sample with one feature, which has no variance.
        """
        _check_batched(x)
        mixed = _attend(self.attention, x)
        with torch.autocast(x.device.type, enabled=False):
            # contiguous, because torch.compile predicts another memory layout for batch norm of a transposed input
            mixed = mixed.to(torch.promote_types(mixed.dtype, self.norm.weight.dtype))
            normalized: Tensor = self.norm(mixed.unflatten(-1, self.grid).contiguous())  # (B, L, H, W)
        return normalized.flatten(-2).to(x.dtype)


def _attention(embed_dim: int, num_heads: int, *, over_layers: bool) -> nn.MultiheadAttention:
    check_heads("num_heads", num_heads, embed_dim, "the layer width", least=1)
    return nn.MultiheadAttention(embed_dim, num_heads, batch_first=over_layers)


def _attend(attention: nn.MultiheadAttention, x: Tensor) -> Tensor:
    """Attend; under float16 autocast in the precision of the weights, because gradients of large layers overflow it.

    Attention over the batch uses torch's code path that also returns weights, as the released code does: the other path
    rounds differently.
    """
    half = torch.is_autocast_enabled(x.device.type) and torch.get_autocast_dtype(x.device.type) is torch.float16
    with torch.autocast(x.device.type, enabled=False) if half else nullcontext():
        x = x.to(torch.promote_types(x.dtype, attention.in_proj_weight.dtype))
        mixed: Tensor = attention(x, x, x, need_weights=not attention.batch_first)[0]
    return mixed


def _check_batched(x: Tensor) -> None:
    if x.dim() != 3:
        raise MethodError(f"attention needs layers of shape (B, L, D), got {tuple(x.shape)}")


def mha(sizes: Sizes, *, num_heads: int = 8, decoder: DecoderOptions) -> FusionClassifier:
    """Multi-head self-attention over the layers (not over the batch), then the conv decoder."""
    return classify_map(LayerSelfAttention(embed_dim=sizes.embed_dim, num_heads=num_heads), sizes, decoder)


def mha_published(sizes: Sizes, *, num_heads: int = 8, decoder: DecoderOptions) -> FusionClassifier:
    """Multi-head self-attention over the samples of the batch, as in the released code (D1), then the conv decoder."""
    fusion = BatchSelfAttention(embed_dim=sizes.embed_dim, num_heads=num_heads)
    return classify_map(fusion, sizes, decoder, traits=Traits(batch_dependent=True))


def mha_bn(
    sizes: Sizes,
    *,
    num_heads: int = 8,
    attend_over: Literal["layers", "batch"] = "layers",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Multi-head self-attention over the layers, batch normalisation, then the conv decoder.

    With `attend_over="batch"` it is the released code, except that the normalisation comes where it can run (D1, D10).
    """
    num_layers, width, _ = sizes
    fusion = NormalizedAttention(num_layers=num_layers, embed_dim=width, num_heads=num_heads, attend_over=attend_over)
    return classify_map(fusion, sizes, decoder, traits=Traits(batch_dependent=attend_over == "batch"))
