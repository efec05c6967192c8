"""Gaussian Context Transformer over layers (Ruan et al., CVPR 2021), and the code that similar gates share.

A gate standardises the layers and maps each z-score to a weight. The paper's code is not public: form and constants
come from third-party ports and explanations (docs/sources.md#gaussian-context-transformer), so results are labelled
"reconstructed". The paper gates image channels. There are two adaptations to layers:

- feature (a): z over the layers of every feature, one weight per layer and feature, as in DAAM;
- layer (b): the literal form with layers as channels, z over the layers' means over features, one weight per layer.

The explanations have z = (x - m) / (SD + eps). This module divides by the root of v + eps, as DAAM does
(docs/sources.md#density-attention), so that all Gaussian gates share one z. Another method is also called GCT: Gated
Channel Transformation (CVPR 2020).
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, Traits, at_least_float32
from daamctl.methods.decoder import check_choice, classify_map
from daamctl.methods.settings import DecoderOptions, Sizes

ROOT_FLOOR = 1e-5  # added to the variance under the root
WIDTH_RANGE, WIDTH_FLOOR = 3.0, 1.0  # of a learned width; the same in two ports


def standardize(
    x: Float[Tensor, "*B L K"], *, num_groups: int = 1, shift: Tensor | None = None
) -> Float[Tensor, "*B L K"]:
    """Z-score of every layer: z = (x - m) / sqrt(v + 1e-5).

    m and v are the mean and the biased variance, in two passes, over the layers of a group. Float32 at least, also
    under autocast.

    Args:
        num_groups: contiguous groups of layers, each with its own m and v; must divide L.
        shift: broadcastable to (..., L, K); moves the centre to m * (1 + shift), but v stays the variance about m.

    Returns:
        z (..., L, K).
    """
    with torch.autocast(x.device.type, enabled=False):
        x = at_least_float32(x)
        groups: Tensor = x.unflatten(-2, (num_groups, -1))  # (..., groups, L/groups, K)
        mean = groups.mean(-2, keepdim=True)
        deviation = groups - mean
        root = (deviation.square().mean(-2, keepdim=True) + ROOT_FLOOR).sqrt()
        if shift is not None:
            deviation = deviation - mean * shift
        return (deviation / root).flatten(-3, -2)


def bounded_width(score: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """Width c = 3 * sigmoid(score) + 1 of a Gaussian gate, in (1, 4): 2.5 at score 0, 2 at ln(1/2)."""
    return WIDTH_RANGE * score.sigmoid() + WIDTH_FLOOR


class GaussianGate(nn.Module):
    """w = exp(-z^2 / (2 c^2)), with c = 2 (GCT-B0) or c = 3 * sigmoid(theta) + 1, theta a scalar from 0 (GCT-B1)."""

    def __init__(self, *, learned: bool) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(())) if learned else None

    def forward(self, z: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """Weigh z-scores of any shape."""
        width = 2.0 if self.theta is None else bounded_width(self.theta)
        return torch.exp(-(z / width).square() / 2)


class LayerGate(nn.Module):
    """y = x * w, with w = gate(z) for every layer and feature, z standardised over the layers (see `standardize`).

    Args:
        gate: maps z (..., L, K) to weights of the same shape.
        num_groups: contiguous groups of layers that are standardised separately; must divide L.
    """

    def __init__(self, gate: nn.Module, *, num_groups: int = 1) -> None:
        super().__init__()
        self.gate = gate
        self.num_groups = num_groups

    def density(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """The weights w (..., L, D) of layers x (..., L, D), float32 at least."""
        weights: Tensor = self.gate(standardize(x, num_groups=self.num_groups))
        return weights

    def forward(
        self, x: Float[Tensor, "*B L D"], *, return_density: bool = False
    ) -> Float[Tensor, "*B L D"] | tuple[Float[Tensor, "*B L D"], Float[Tensor, "*B L D"]]:
        """Weight every layer and feature.

        Returns:
            x * w, shape and dtype of x; with `return_density` also w (..., L, D), float32 at least.
        """
        density = self.density(x)
        output = x * density.to(x.dtype)
        return (output, density) if return_density else output


class PooledLayerGate(LayerGate):
    """The literal form, layers as channels: w = gate(z), one w per layer, with z of the layers' means over features."""

    def layer_weights(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L"]:
        """Weights (..., L) of layers x (..., L, D), float32 at least."""
        pooled = at_least_float32(x).mean(-1, keepdim=True)  # (..., L, 1)
        return super().density(pooled).squeeze(-1)

    def density(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """The weights of the layers, repeated over the features: (..., L, D)."""
        return self.layer_weights(x).unsqueeze(-1).expand_as(x)


def gct_b0(sizes: Sizes, *, form: Literal["feature", "layer"] = "feature", decoder: DecoderOptions) -> FusionClassifier:
    """Gaussian gate of fixed width over the layers (GCT-B0, reconstructed), then the conv decoder."""
    return classify_gate(GaussianGate(learned=False), sizes, decoder, form=form, source="constants from ports")


def gct_b1(sizes: Sizes, *, form: Literal["feature", "layer"] = "feature", decoder: DecoderOptions) -> FusionClassifier:
    """Gaussian gate of one learned width over the layers (GCT-B1, reconstructed), then the conv decoder."""
    return classify_gate(GaussianGate(learned=True), sizes, decoder, form=form, source="constants from ports")


def classify_gate(
    gate: nn.Module, sizes: Sizes, decoder: DecoderOptions, *, form: str, source: str, num_groups: int = 1
) -> FusionClassifier:
    """Join a gate over z-scores, in either adaptation to layers, to either decoder.

    Args:
        form: `feature` for adaptation (a), `layer` for (b).
        source: where the details come from that the papers omit; part of the label of a reconstruction.

    Raises:
        MethodError: unknown `form` or `decoder`.
    """
    check_choice("form", form, ("feature", "layer"))
    kind, letter = (LayerGate, "a") if form == "feature" else (PooledLayerGate, "b")
    traits = Traits(density=True, reconstructed=f"adaptation ({letter}), {source}")
    return classify_map(kind(gate, num_groups=num_groups), sizes, decoder, traits=traits)
