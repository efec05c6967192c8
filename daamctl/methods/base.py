"""A method = a fusion over the layers + a decoder to the classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, overload

from torch import Tensor, nn

from daamctl.errors import MethodError


@dataclass(frozen=True)
class Traits:
    """What a reader of a method's figures must know of it; the contract tests hold every claim.

    Args:
        density: the fusion has a density, one weight per layer and feature.
        batch_dependent: a prediction depends on the other rows of its batch.
        reconstructed: which reading of a method whose own definition is not available, e.g. `reading A, scalar`;
            empty for all others.
        inert: trainable tensors that cannot change the output, e.g. a key bias, to which softmax is blind; they exist
            because the source has them and counts them.
        needs_dev: part of the method is chosen on a held-out group, so training needs one.
        closed_form: it is solved rather than trained by steps; see `daamctl.methods.probes.RidgeProbe`.
    """

    density: bool = False
    batch_dependent: bool = False
    reconstructed: str = ""
    inert: tuple[str, ...] = ()
    needs_dev: bool = False
    closed_form: bool = False


class FusionClassifier(nn.Module):
    """A layer fusion followed by a decoder.

    Args:
        fusion: maps (B, L, D) to what the decoder takes: (B, L, D') for a map of layers, (B, D) for one vector.
            With a density it accepts `return_density=True` and then returns (output, density).
        decoder: maps the fused layers to logits (B, C).
        traits: what a reader must know.
    """

    def __init__(self, fusion: nn.Module, decoder: nn.Module, traits: Traits = Traits()) -> None:
        super().__init__()
        self.fusion = fusion
        self.decoder = decoder
        self.traits = traits

    @property
    def has_density(self) -> bool:
        """Whether `forward` can return a density."""
        return self.traits.density

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(self, x: Tensor, *, return_density: Literal[True]) -> tuple[Tensor, Tensor]: ...

    def forward(self, x: Tensor, *, return_density: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Classify pooled layers.

        Args:
            x: (B, L, D) pooled layers.
            return_density: also return the density.

        Returns:
            logits (B, C); with `return_density` also the density (B, L, D).

        Raises:
            MethodError: a density is asked of a fusion that has none.
        """
        if not return_density:
            logits: Tensor = self.decoder(self.fusion(x))
            return logits
        if not self.has_density:
            raise MethodError(f"{type(self.fusion).__name__} has no density")
        fused, density = self.fusion(x, return_density=True)
        return self.decoder(fused), density

    def training_loss(
        self, x: Tensor, y: Tensor, criterion: Callable[[Tensor, Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Loss of one training batch; a method that trains several candidates at once adds theirs.

        Args:
            x: (B, L, D) pooled layers.
            y: (B,) class ids.
            criterion: maps logits (B, C) and class ids to a scalar.

        Returns:
            the loss, and the logits (B, C).
        """
        logits = self(x)
        return criterion(logits, y), logits

    def choose(self, x: Tensor, y: Tensor) -> None:
        """Settle on the held-out group what training leaves open; called after each epoch, in eval mode.

        Args:
            x: (N, L, D) pooled layers of the held-out group.
            y: (N,) class ids.
        """


def check_divides(what: str, parts: int, whole: int, whole_name: str) -> None:
    """Check that `whole` splits into `parts` equal pieces.

    Raises:
        MethodError: it does not; names the numbers that would do, and the nearest of them that is not larger.
    """
    if parts < 1 or whole % parts:
        divisors = [n for n in range(1, whole + 1) if whole % n == 0]
        raise MethodError(
            f"{what} ({parts}) must divide {whole_name} ({whole}); possible: {', '.join(map(str, divisors))}",
            setting=(what, max([n for n in divisors if n <= parts] or [1])),
        )
