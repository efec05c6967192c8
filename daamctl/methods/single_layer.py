"""Controls that read one layer: the last stored one, or the best one on a held-out group.

`best_layer` trains one MLP head per layer, all at once, and picks the layer with the best accuracy on the held-out
group: the usual test of whether a fusion beats the best single layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, HeldOut, Traits
from daamctl.methods.decoder import MLPDecoder, classify_vector
from daamctl.methods.settings import Sizes

CHUNK = 256  # held-out samples per forward pass


class LastLayer(nn.Module):
    """The vector of the last stored layer; nothing is learned."""

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """1 for the last layer, 0 for all others: (..., L), float32 at least."""
        return _one_hot(x, x.shape[-2] - 1)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Pick from layers (..., L, D) the last: (..., D)."""
        return x[..., -1, :]


class ChosenLayer(nn.Module):
    """The vector of one chosen layer: the buffer `chosen`, the last one at start, saved with the weights."""

    chosen: Tensor

    def __init__(self, *, num_layers: int) -> None:
        super().__init__()
        self.register_buffer("chosen", torch.tensor(num_layers - 1))  # int64

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """1 for the chosen layer, 0 for all others: (..., L), float32 at least."""
        return _one_hot(x, self.chosen)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B D"]:
        """Pick from layers (..., L, D) the chosen one: (..., D)."""
        return x.index_select(-2, self.chosen.view(1)).squeeze(-2)


class LayerHeads(nn.Module):
    """One `MLPDecoder` per layer: the tensors are stacked, and start like those of L separate decoders.

    Args:
        linear: leave out the ReLU between the two maps of a head.
    """

    def __init__(
        self, *, num_layers: int, embed_dim: int, num_classes: int, hidden_dim: int = 256, linear: bool = False
    ) -> None:
        super().__init__()
        self.linear = linear
        heads = [
            MLPDecoder(embed_dim=embed_dim, num_classes=num_classes, hidden_dim=hidden_dim) for _ in range(num_layers)
        ]
        self.projector_weight = _stack([head.projector.weight for head in heads])  # (L, hidden, D)
        self.projector_bias = _stack([head.projector.bias for head in heads])  # (L, hidden)
        self.classifier_weight = _stack([head.classifier.weight for head in heads])  # (L, C, hidden)
        self.classifier_bias = _stack([head.classifier.bias for head in heads])  # (L, C)

    def forward(self, x: Float[Tensor, "*B K D"], layers: Int[Tensor, " K"] | None = None) -> Float[Tensor, "*B K C"]:
        """Classify every layer by its own head.

        Args:
            layers: (K,) layers whose heads are used; None: all, K = L.

        Returns:
            logits (..., K, C).
        """
        own = (self.projector_weight, self.projector_bias, self.classifier_weight, self.classifier_bias)
        inner, inner_bias, outer, outer_bias = own if layers is None else (one.index_select(0, layers) for one in own)
        hidden = torch.einsum("...kd,khd->...kh", x, inner) + inner_bias
        hidden = hidden if self.linear else hidden.relu()
        return torch.einsum("...kh,kch->...kc", hidden, outer) + outer_bias


class BestLayer(FusionClassifier):
    """A head per layer, all trained at once; predictions come from the layer that is best on the held-out group.

    Each head trains as it would alone: the gradient is that of the sum of the heads' losses, the heads share no
    parameter, and Adam scales every parameter separately. Only clipping by the norm of the whole gradient couples them.
    """

    fusion: ChosenLayer
    decoder: LayerHeads

    def __init__(self, *, num_layers: int, embed_dim: int, num_classes: int, hidden_dim: int = 256) -> None:
        heads = LayerHeads(num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, hidden_dim=hidden_dim)
        super().__init__(ChosenLayer(num_layers=num_layers), heads, Traits(needs_dev=True))

    def forward(
        self, x: Float[Tensor, "B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "B C"] | tuple[Float[Tensor, "B C"], Float[Tensor, "B L D"]]:
        """Logits (B, C) of the chosen layer of x (B, L, D).

        Raises:
            MethodError: `return_density` is set.
        """
        if return_density:
            return super().forward(x, return_density=True)
        chosen = self.fusion(self.standardize(x)).unsqueeze(-2)  # (B, 1, D)
        logits: Tensor = self.decoder(chosen, self.fusion.chosen.view(1))  # (B, 1, C)
        return logits.squeeze(-2)

    def training_loss(
        self, x: Float[Tensor, "B L D"], y: Int[Tensor, " B"], criterion: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B C"]]:
        """Mean of the losses of all heads, with the gradient of their sum, and the logits of the chosen layer.

        See `FusionClassifier`.
        """
        logits: Tensor = self.decoder(self.standardize(x))  # (B, L, C)
        losses = torch.stack([criterion(layer, y) for layer in logits.unbind(1)])
        total = losses.sum()
        chosen: Tensor = self.fusion(logits)
        return losses.detach().mean() + (total - total.detach()), chosen  # the difference is 0, but has the gradient

    @torch.no_grad()
    def choose(self, x: HeldOut, y: Int[Tensor, " N"]) -> None:
        """Choose the layer with the most correct held-out samples, the first of equals; see `FusionClassifier`."""
        like = self.decoder.projector_weight
        correct = torch.zeros(like.shape[0], dtype=torch.int64, device=like.device)
        for rows, targets in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
            predicted = self.decoder(self.standardize(rows.to(like.device, like.dtype))).argmax(-1)  # (b, L)
            correct += (predicted == targets.to(like.device).unsqueeze(-1)).sum(0)
        counts = correct.tolist()
        self.fusion.chosen.fill_(counts.index(max(counts)))


def _one_hot(x: Tensor, layer: Tensor | int) -> Tensor:
    """1 for one layer of x (..., L, D), 0 for all others: (..., L), float32 at least."""
    hot = torch.arange(x.shape[-2], device=x.device) == layer
    return hot.to(torch.promote_types(x.dtype, torch.float32)).expand(x.shape[:-1])


def _stack(tensors: list[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.stack([tensor.detach() for tensor in tensors]))


def last_layer(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Control: the last stored layer alone, then the MLP head."""
    return classify_vector(LastLayer(), sizes, hidden_dim)


def best_layer(sizes: Sizes, *, hidden_dim: int = 256) -> FusionClassifier:
    """Control: an MLP head on every layer, of which the best on a held-out group is used."""
    return BestLayer(**sizes._asdict(), hidden_dim=hidden_dim)
