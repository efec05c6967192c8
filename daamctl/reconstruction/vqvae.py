"""A VQ-VAE with a block after every change of size (docs/sources.md#vq-vae).

Encoder: a convolution, then for every width a convolution with stride 2, GroupNorm, ReLU and the block; a convolution
of size 1 to the size of the codes. Decoder: a convolution, then the mirror image with transposed convolutions; a
convolution to the three colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from daamctl.config.schema import ReconstructConfig
from daamctl.reconstruction.blocks import make_block
from daamctl.reconstruction.codes import Codebook, Quantised


class Reconstructed(NamedTuple):
    """Result of `VQVAE.forward`."""

    images: Tensor
    """(B, 3, S, S); not limited to the range of the input."""
    quantised: Quantised


class VQVAE(nn.Module):
    """The model.

    The weights outside the blocks are drawn first, so with one seed they are the same in every arm.

    Args:
        block: a name from `BLOCKS`.

    Raises:
        UnknownNameError: no such block.
        MethodError: `num_heads` or `norm_groups` does not divide a width.
    """

    def __init__(self, block: str, settings: ReconstructConfig) -> None:
        super().__init__()
        widths, size = settings.widths, settings.code_size
        downs = list(pairwise([widths[0], *widths]))
        ups = [(wide, narrow) for narrow, wide in reversed(downs)]
        first, last = nn.Conv2d(3, widths[0], 3, padding=1), nn.Conv2d(widths[0], 3, 3, padding=1)
        to_codes, from_codes = nn.Conv2d(widths[-1], size, 1), nn.Conv2d(size, widths[-1], 3, padding=1)
        halve = [nn.Conv2d(*pair, 4, stride=2, padding=1) for pair in downs]
        double = [nn.ConvTranspose2d(*pair, 4, stride=2, padding=1) for pair in ups]

        def steps(layers: Sequence[nn.Module], pairs: Sequence[tuple[int, int]]) -> list[nn.Module]:
            found: list[nn.Module] = []
            for layer, (_, width) in zip(layers, pairs, strict=True):
                own = make_block(block, width, heads=settings.num_heads, gaussians=settings.num_densities)
                found += [layer, nn.GroupNorm(settings.norm_groups, width), nn.ReLU(), own]
            return found

        self.encoder = nn.Sequential(first, *steps(halve, downs), to_codes)
        self.codes = Codebook(settings.codes, size, decay=settings.code_decay, restart_below=settings.code_restart)
        self.decoder = nn.Sequential(from_codes, *steps(double, ups), last)

    @property
    def blocks(self) -> dict[str, nn.Module]:
        """The blocks by name, in the order of the data: encoder-1, …, decoder-1 and so on."""
        parts = {"encoder": self.encoder, "decoder": self.decoder}
        return {
            f"{name}-{number}": block
            for name, part in parts.items()
            for number, block in enumerate(list(part)[4:-1:4], start=1)
        }

    def forward(self, images: Float[Tensor, "B 3 S S"]) -> Reconstructed:
        """Reconstruct images (B, 3, S, S) with values in [-1, 1]; S is divisible by 2 to the number of widths."""
        quantised = self.codes(self.encoder(images))
        return Reconstructed(self.decoder(quantised.latents), quantised)
