"""The control without any look at the sample: learned weights per layer and feature (docs/sources.md#controls)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier, Traits
from daamctl.methods.decoder import check_choice, classify_map
from daamctl.methods.settings import DecoderOptions, Sizes


class StaticGate(nn.Module):
    """y = x * w with learned w, 1 at start (the identity), the same for all samples; not bounded, so no density.

    Args:
        shape: of w, broadcastable to the layers (..., L, D).
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        """Weight layers (..., L, D)."""
        return x * self.weight.to(x.dtype)


def static_gate(
    sizes: Sizes,
    *,
    granularity: Literal["layer-feature", "feature"] = "layer-feature",
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Control: learned weights that do not depend on the sample, then the conv decoder.

    L * D weights with `granularity="layer-feature"`; with `feature` D, the same for all layers.
    """
    check_choice("granularity", granularity, ("layer-feature", "feature"))
    per_layer = (sizes.num_layers,) if granularity == "layer-feature" else ()
    return classify_map(
        StaticGate(*per_layer, sizes.embed_dim), sizes, decoder, traits=Traits(gains=("fusion.weight",))
    )
