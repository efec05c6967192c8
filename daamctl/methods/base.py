"""A method combines a fusion of the encoder's layers with a decoder that predicts classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from daamctl.errors import MethodError


@dataclass(frozen=True)
class Traits:
    """Properties of a method that a reader of its results should know; the contract tests check each of them.

    Args:
        density: the fusion has a density, one weight per layer and feature.
        batch_dependent: a prediction depends on the other rows of its batch.
        reconstructed: which reading of the source this is, e.g. `reading A, scalar`, if the original definition is not
            available; empty for all other methods.
        inert: trainable tensors that cannot change the output, e.g. a key bias, which cancels in softmax. They exist
            because the source has them and counts them.
        needs_dev: part of the method is chosen on a held-out group, so training needs one; see
            `FusionClassifier.choose`.
        closed_form: solved directly instead of trained in steps; see `daamctl.methods.probes.RidgeProbe`. A method of
            another package cannot be.
        full_rate: the matrices of the fusion are trained at the rate of the decoder, whatever `train.fusion_lr_factor`.
        gains: trainable tensors called `weight` that are no matrices although they have two or more dimensions, e.g.
            the scales of one norm per layer: a decay towards 0 would switch their features off.
    """

    density: bool = False
    batch_dependent: bool = False
    reconstructed: str = ""
    inert: tuple[str, ...] = ()
    needs_dev: bool = False
    closed_form: bool = False
    full_rate: bool = False
    gains: tuple[str, ...] = ()


class HeldOut(Protocol):
    """Pooled layers (N, L, D) that may be larger than memory: a tensor, or a part that is read from disk."""

    def __len__(self) -> int: ...

    def split(self, batch_size: int, /) -> Iterable[Tensor]:
        """Batches (B, L, D) in order; only the last one may be smaller."""


WHITENED = 32
"""Directions of a layer that partial whitening shrinks."""


class Standardize(nn.Module):
    """Standardise pooled layers (B, L, D): subtract a mean, divide by a deviation, and whiten in part if asked to.

    y = z - (z W) W^T, with z = (x - mean) * scale. The columns of W are orthogonal and shorter than 1: along each of
    these directions the clips differ most, and z shrinks.

    Args:
        mean: (L, 1) or (L, D); a buffer, saved with the weights.
        deviation: same shape; 0 for constant inputs, whose output is 0.
        directions: W (L, D, K); None: y = z.
    """

    mean: Tensor
    scale: Tensor
    directions: Tensor | None

    def __init__(
        self, mean: Float[Tensor, "L K"], deviation: Float[Tensor, "L K"], directions: Tensor | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        # stored as a factor: a product is faster than a quotient, and 0 needs no case of its own
        self.register_buffer("scale", torch.where(deviation > 0, 1 / deviation, 0))
        self.register_buffer("directions", directions)

    @classmethod
    def empty(cls, kind: str, num_layers: int, embed_dim: int) -> Standardize:
        """An instance to be filled from a file.

        Args:
            kind: layer, feature or whiten.

        Raises:
            MethodError: unknown kind.
        """
        if kind not in ("layer", "feature", "whiten"):
            raise MethodError(f"standardize must be 'layer', 'feature' or 'whiten', got {kind!r}")
        shape = (num_layers, 1 if kind == "layer" else embed_dim)
        # a layer has no more directions than features
        whitens = torch.zeros(*shape, min(embed_dim, WHITENED)) if kind == "whiten" else None
        return cls(torch.zeros(shape), torch.ones(shape), whitens)

    @property
    def kind(self) -> str:
        """Either layer (one mean and deviation per layer), feature (one per layer and feature) or whiten."""
        if self.directions is not None:
            return "whiten"
        return "layer" if self.mean.shape[-1] == 1 else "feature"

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """Standardise (..., L, D)."""
        z = (x - self.mean) * self.scale
        if self.directions is None:
            return z
        with torch.autocast(z.device.type, enabled=False):  # half precision would drown directions of small variance
            along = torch.einsum("...ld,ldk->...lk", z, self.directions)
            return z - torch.einsum("...lk,ldk->...ld", along, self.directions)


class FusionClassifier(nn.Module):
    """A layer fusion followed by a decoder, behind an optional standardisation of the input.

    Args:
        fusion: maps (B, L, D) to the decoder's input: (B, L, D') for a map of layers, (B, D) for one vector.
            With a density it accepts `return_density=True` and then returns (output, density).
        decoder: maps the fused layers to logits (B, C).

    Attributes:
        standardize: applied to the layers before the fusion; identity unless replaced by a `Standardize`.
    """

    def __init__(self, fusion: nn.Module, decoder: nn.Module, traits: Traits = Traits()) -> None:
        super().__init__()
        self.fusion = fusion
        self.decoder = decoder
        self.traits = traits
        self.standardize: nn.Module = nn.Identity()

    @property
    def has_density(self) -> bool:
        """Whether `forward` can return a density."""
        return self.traits.density

    def forward(
        self, x: Float[Tensor, "B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "B C"] | tuple[Float[Tensor, "B C"], Float[Tensor, "B L D"]]:
        """Classify pooled layers.

        Returns:
            logits (B, C); with `return_density` also the density (B, L, D).

        Raises:
            MethodError: `return_density` is set but the fusion has no density.
        """
        if return_density and not self.has_density:
            raise MethodError(f"{type(self.fusion).__name__} has no density")
        x = self.standardize(x)
        if return_density:
            fused, density = self.fusion(x, return_density=True)
            return self.decoder(fused), density
        logits: Tensor = self.decoder(self.fusion(x))
        return logits

    def density(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Density (B, L, D) of pooled layers (B, L, D). Skips the decoder, which takes most of the time."""
        density: Tensor = self.fusion(self.standardize(x), return_density=True)[1]
        return density

    @property
    def weighs_layers(self) -> bool:
        """Whether the fusion gives every layer a weight."""
        return hasattr(self.fusion, "layer_weights")

    def layer_weights(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L"]:
        """Weight (B, L) of every layer of x (B, L, D); defined only if `weighs_layers`."""
        weights: Tensor = self.fusion.layer_weights(self.standardize(x))  # type: ignore[operator]
        return weights

    def training_loss(
        self, x: Float[Tensor, "B L D"], y: Int[Tensor, " B"], criterion: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B C"]]:
        """Loss of one training batch.

        Its value is recorded, and decides whether a refit has collapsed. So it must be on the scale of one classifier:
        a method that trains several at once returns the mean of their losses, with the gradient of the sum.

        Args:
            criterion: maps logits (B, C) and class ids to a scalar.

        Returns:
            the loss, and the logits (B, C).
        """
        logits = self(x)
        return criterion(logits, y), logits

    def choose(self, x: HeldOut, y: Int[Tensor, " N"]) -> None:
        """Choose on the held-out group what training leaves open; called after each epoch, in eval mode.

        The choice is kept in buffers, e.g. `fusion.chosen`. A refit, which holds nothing out, takes them over.
        """


def at_least_float32(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Widen float16 and bfloat16 to float32; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
