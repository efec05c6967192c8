"""Vector quantisation with codes that follow exponential moving averages (van den Oord et al., 2017, appendix A.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

SMOOTHING = 1e-5
"""Added to the count of every code, so that unused codes can be divided by it."""


class Quantised(NamedTuple):
    """Result of `Codebook.forward`."""

    latents: Tensor
    """The nearest codes, (B, D, H, W); gradients go to the input unchanged."""
    distance: Tensor
    """Mean squared distance of the latents from their codes, a scalar."""
    nearest: Tensor
    """Number of the nearest code, (B, H, W)."""


class Codebook(nn.Module):
    """A codebook of K vectors of size D.

    Each latent becomes its nearest code. In training, a code moves to the mean of the latents that chose it, as a
    moving average: n <- g n + (1 - g) count, s <- g s + (1 - g) sum, code = s / n. The codes start as latents of the
    first batch, drawn at random. A code with n below a limit is out of use, and becomes a latent of the batch
    (Dhariwal et al., 2020, section 3.1): otherwise most codes would stay where the untrained encoder put them.

    Args:
        number: K.
        decay: g.
        restart_below: limit of n; 0: codes are never replaced.
    """

    codes: Tensor  # (K, D)
    counts: Tensor  # (K,), n
    sums: Tensor  # (K, D), s
    ready: Tensor  # whether the codes have their start

    def __init__(self, number: int, size: int, *, decay: float, restart_below: float = 0.0) -> None:
        super().__init__()
        self.decay, self.restart_below, self._started = decay, restart_below, False
        self.first = max(1.0, restart_below)  # n of a new code, which is not out of use yet
        self.register_buffer("codes", torch.zeros(number, size))
        self.register_buffer("counts", torch.full((number,), self.first))
        self.register_buffer("sums", torch.zeros(number, size))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def forward(self, latents: Float[Tensor, "B D H W"]) -> Quantised:
        """Quantise latents (B, D, H, W), in float32; in training, move the codes too."""
        with torch.autocast(latents.device.type, enabled=False):
            wide = latents.float()
            flat = wide.movedim(1, -1).flatten(0, -2)  # (N, D)
            if self.training and not self._started:
                if not self.ready:  # waits for a GPU, so it is asked once
                    self._start(flat.detach())
                self._started = True
            # the least |x - c|^2 = |x|^2 - 2 x c + |c|^2, without |x|^2, which all codes share
            nearest = (self.codes.square().sum(1) - 2 * flat.detach() @ self.codes.T).argmin(1)
            quantised = self.codes[nearest].unflatten(0, (latents.shape[0], *latents.shape[2:])).movedim(-1, 1)
            if self.training:
                self._move(flat.detach(), nearest)
            distance = (wide - quantised).square().mean()
            passed = wide + (quantised - wide).detach()
        return Quantised(passed, distance, nearest.unflatten(0, (latents.shape[0], *latents.shape[2:])))

    def _start(self, flat: Tensor) -> None:
        """Draw the codes among latents; several times if there are fewer of them."""
        number = len(self.codes)
        order = torch.randperm(len(flat), generator=torch.Generator().manual_seed(0))
        drawn = order.repeat(-(-number // len(flat)))[:number].to(flat.device)
        self.codes.copy_(flat[drawn])
        self.sums.copy_(flat[drawn] * self.first)
        self.ready.fill_(True)

    def _move(self, flat: Tensor, nearest: Tensor) -> None:
        ones = torch.ones(len(flat), device=flat.device)
        counts = torch.zeros_like(self.counts).index_add_(0, nearest, ones)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add_(0, nearest, flat), 1 - self.decay)
        total = self.counts.sum()
        smooth = (self.counts + SMOOTHING) / (total + len(self.counts) * SMOOTHING) * total
        self.codes.copy_(self.sums / smooth[:, None])
        if self.restart_below:
            # Evenly spaced latents: the order of crops is random already, and nothing is left to restore on resuming.
            number = len(self.codes)
            drawn = flat[torch.arange(number, device=flat.device) * len(flat) // number]
            idle = self.counts < self.restart_below
            self.codes.copy_(torch.where(idle[:, None], drawn, self.codes))
            self.sums.copy_(torch.where(idle[:, None], drawn * self.first, self.sums))
            self.counts.masked_fill_(idle, self.first)


def perplexity(uses: NDArray[np.int64]) -> float:
    """Exp of the entropy of how often each code was chosen: K if all are used alike, 1 if only one is.

    Args:
        uses: (K,), over a whole pass; those of a batch mislead, because a batch is too small to use all codes.
    """
    shares = uses[uses > 0] / uses.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
