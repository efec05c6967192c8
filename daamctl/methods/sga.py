"""SGA and bi-SGA, the skewed and the asymmetric Gaussian gate (Chen and Li, Pattern Recognition 139, 2023).

Their definition is not available: the papers compared here say only that a mean m * (1 + tanh theta) is learned on top
of GCT, and print results. Both methods are therefore reconstructed, in two readings (docs/sources.md#sga-and-bi-sga),
and all results are labelled so:

- A: GCT with a learned centre; bi-SGA also has a width for either side;
- B: the skew-normal density of Azzalini, centred on m, divided by its maximum; for bi-SGA with a width for either side,
  which is our own extension of this reading.

Both equal GCT-B1 at the start. z is that of `gct`, over all layers, single head.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, Traits
from daamctl.methods.decoder import check_choice, classify_map
from daamctl.methods.gct import LayerGate, bounded_width, standardize
from daamctl.methods.settings import DecoderOptions, Sizes

NEWTON_STEPS = 12  # relative error of the maximum below 1e-6 for every skew, at rounding for |a| <= 100


def skewed_density(t: Float[Tensor, "*S"], skew: Float[Tensor, "*#S"]) -> Float[Tensor, "*S"]:
    """Skew-normal shape exp(-t^2 / 2) * 2 * Phi(a t), not normalised; Phi is the normal distribution function."""
    return torch.exp(-t.square() / 2) * torch.erfc(-skew * t / math.sqrt(2))


def skewed_peak(skew: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Largest value of `skewed_density` over t: 1 at a = 0, 1.22 at 1, 1.65 at 3, towards 2.

    The peak solves t = a * phi(a t) / Phi(a t). Newton's method from t = 0 reaches it without overshooting, because the
    ratio is convex. The steps are not differentiated: at a maximum the derivative by t is zero, so the gradient by a is
    that of the density at the fixed peak.
    """
    size = skew.detach().abs()
    t = torch.zeros_like(size)
    for _ in range(NEWTON_STEPS):
        u = size * t
        ratio = math.sqrt(2 / math.pi) * torch.exp(-u.square() / 2) / torch.erfc(-u / math.sqrt(2))
        t = t + (size * ratio - t) / (1 + size.square() * ratio * (u + ratio))
    return skewed_density(t * skew.detach().sign(), skew)


class SkewedGate(nn.Module):
    """w = exp(-t^2 / 2) with t = z / c; with a skew a: w = exp(-t^2 / 2) * 2 * Phi(a t) / its maximum over t.

    c = 3 * sigmoid(phi) + 1, one for all z or one for z < 0 and one for z >= 0. All parameters start at 0: c = 2.5, no
    skew.

    Args:
        shape: of every parameter, broadcastable to z; empty for scalars.
        two_sided: a width for either side.
    """

    phi: Tensor
    phi_left: Tensor
    phi_right: Tensor

    def __init__(self, *shape: int, two_sided: bool, skewed: bool) -> None:
        super().__init__()
        for name in ("phi_left", "phi_right") if two_sided else ("phi",):
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
        self.two_sided = two_sided
        self.skew = nn.Parameter(torch.zeros(shape)) if skewed else None

    def forward(self, z: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """Weigh z-scores (..., L, D): weights in (0, 1], down to the smallest float32 number."""
        if self.two_sided:
            width = torch.where(z < 0, bounded_width(self.phi_left), bounded_width(self.phi_right))
        else:
            width = bounded_width(self.phi)
        t = z / width
        if self.skew is None:
            return torch.exp(-t.square() / 2)
        density = skewed_density(t, self.skew) / skewed_peak(self.skew)
        return density.clamp(max=1)  # rounding at the peak, where all its derivatives are zero


class ShiftedLayerGate(LayerGate):
    """A gate of z = (x - m * (1 + tanh theta)) / sqrt(v + 1e-5), theta learned, 0 at start.

    The shift is relative: theta has little effect if m is near 0, and much if |m| is large against the spread.

    Args:
        shape: of theta, broadcastable to x; empty for a scalar.
    """

    def __init__(self, gate: nn.Module, *shape: int) -> None:
        super().__init__(gate)
        self.theta = nn.Parameter(torch.zeros(shape))

    def density(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """The weights w (..., L, D) of layers x (..., L, D), float32 at least."""
        weights: Tensor = self.gate(standardize(x, shift=self.theta.tanh()))
        return weights


def sga(
    sizes: Sizes,
    *,
    reading: Literal["A", "B"] = "A",
    granularity: Literal["scalar", "feature"] = "scalar",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Skewed Gaussian gate over the layers (SGA, reconstructed), then the conv decoder.

    Trainable besides the decoder: 2 scalars, or 2 D with `granularity="feature"`.
    """
    return _sga(sizes, reading, granularity, decoder, two_sided=False)


def bi_sga(
    sizes: Sizes,
    *,
    reading: Literal["A", "B"] = "A",
    granularity: Literal["scalar", "feature"] = "scalar",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Skewed Gaussian gate with a width for either side (bi-SGA, reconstructed), then the conv decoder.

    Trainable besides the decoder: 3 scalars, or 3 D with `granularity="feature"`.
    """
    return _sga(sizes, reading, granularity, decoder, two_sided=True)


def _sga(sizes: Sizes, reading: str, granularity: str, decoder: DecoderOptions, *, two_sided: bool) -> FusionClassifier:
    check_choice("reading", reading, ("A", "B"))
    check_choice("granularity", granularity, ("scalar", "feature"))
    shape = () if granularity == "scalar" else (sizes.embed_dim,)
    gate = SkewedGate(*shape, two_sided=two_sided, skewed=reading == "B")
    fusion = ShiftedLayerGate(gate, *shape) if reading == "A" else LayerGate(gate)
    label = f"reading {reading}, {granularity}"
    if two_sided and reading == "B":
        label = f"reading B extended to two widths, {granularity}"
    return classify_map(fusion, sizes, decoder, traits=Traits(density=True, reconstructed=label))
