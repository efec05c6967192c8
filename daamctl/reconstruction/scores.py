"""How close reconstructions are to their originals, per image: PSNR, SSIM, L1 and L2."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03


def l1(images: Float[Tensor, "B C H W"], originals: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
    """Mean absolute difference, (B,)."""
    return (images - originals).abs().mean((1, 2, 3))


def l2(images: Float[Tensor, "B C H W"], originals: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
    """Mean squared difference, (B,)."""
    return (images - originals).square().mean((1, 2, 3))


def psnr(images: Float[Tensor, "B C H W"], originals: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
    """Peak signal-to-noise ratio in dB, (B,): 10 log10(1 / L2), at most 120."""
    return -10 * l2(images, originals).clamp(min=1e-12).log10()


def ssim(images: Float[Tensor, "B C H W"], originals: Float[Tensor, "B C H W"]) -> Float[Tensor, " B"]:
    """Structural similarity, (B,), mean over channels and positions (Wang et al., 2004).

    Gaussian window of 11 x 11 pixels and deviation 1.5, only where it lies within the image; on smaller images, the
    largest odd window that does.
    """
    channels, side = images.shape[1], min(images.shape[2:])
    size = min(WINDOW, side - 1 + side % 2)
    places = torch.arange(size, dtype=images.dtype, device=images.device) - size // 2
    bell = (-places.square() / (2 * SIGMA**2)).exp()
    window = torch.outer(bell, bell) / bell.sum().square()
    kernel = window.expand(channels, 1, size, size)

    def smooth(x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, kernel, groups=channels)

    mean_x, mean_y = smooth(images), smooth(originals)
    var_x = smooth(images.square()) - mean_x.square()
    var_y = smooth(originals.square()) - mean_y.square()
    covariance = smooth(images * originals) - mean_x * mean_y
    c1, c2 = K1**2, K2**2
    above = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    below = (mean_x.square() + mean_y.square() + c1) * (var_x + var_y + c2)
    return (above / below).mean((1, 2, 3))


SCORES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"psnr": psnr, "ssim": ssim, "l1": l1, "l2": l2}
"""Score -> from reconstructions and originals (B, C, S, S) in [0, 1] to one value per image, (B,)."""
