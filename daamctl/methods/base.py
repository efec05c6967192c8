"""A method = a fusion over the layers + a decoder to the classes."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor, nn

from daamctl.errors import MethodError


class FusionClassifier(nn.Module):
    """A layer fusion followed by a decoder.

    Args:
        fusion: maps (B, L, D) to what the decoder takes: (B, L, D) for the convolutional decoder, (B, D) for the MLP.
            With a density it accepts `return_density=True` and then returns (output, density).
        decoder: maps the fused layers to logits (B, C).
        has_density: whether the fusion has a density, one weight per layer and feature.
    """

    def __init__(self, fusion: nn.Module, decoder: nn.Module, *, has_density: bool = False) -> None:
        super().__init__()
        self.fusion = fusion
        self.decoder = decoder
        self.has_density = has_density

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


def check_divides(what: str, parts: int, whole: int, whole_name: str) -> None:
    """Check that `whole` splits into `parts` equal pieces.

    Raises:
        MethodError: it does not; names the numbers that would do.
    """
    if parts < 1 or whole % parts:
        divisors = [str(n) for n in range(1, whole + 1) if whole % n == 0]
        raise MethodError(f"{what} ({parts}) must divide {whole_name} ({whole}); possible: {', '.join(divisors)}")
