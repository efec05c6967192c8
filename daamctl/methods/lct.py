"""Linear Context Transform over layers (Ruan et al., AAAI 2020, arXiv 1909.03834): GCT with a sigmoid gate.

The ports disagree on the start of w = sigmoid(a * z + b): a=1, b=0 or a=0, b=1
(docs/sources.md#linear-context-transform). This module starts at a=0, b=1, so all weights start at sigmoid(1) = 0.731.
The adaptations to layers, and z with the root of v + 1e-5, are those of `gct`.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.gct import classify_gate
from daamctl.methods.heads import check_heads
from daamctl.methods.settings import DecoderOptions, Sizes


class SigmoidGate(nn.Module):
    """w = sigmoid(a * z + b) with learned slope a, 0 at start, and bias b, 1 at start.

    Args:
        shape: of a and b, broadcastable to z.
    """

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(shape))
        self.bias = nn.Parameter(torch.ones(shape))

    def forward(self, z: Float[Tensor, "*B L K"]) -> Float[Tensor, "*B L K"]:
        """Weigh z-scores (..., L, K)."""
        return (self.slope * z + self.bias).sigmoid()


def lct(
    sizes: Sizes,
    *,
    form: Literal["feature", "layer"] = "feature",
    num_groups: int = 1,
    decoder: DecoderOptions,
) -> FusionClassifier:
    """Sigmoid gate over the standardised layers (LCT, reconstructed), then the conv decoder.

    Args:
        form: `feature`: z over the layers of every feature, a and b per feature, 2 D parameters; `layer`: z over the
            layers' means over features, a and b per layer, 2 L parameters.
    """
    check_heads("num_groups", num_groups, sizes.num_layers)
    gate = SigmoidGate(sizes.embed_dim) if form == "feature" else SigmoidGate(sizes.num_layers, 1)
    source = "start a=0, b=1 from ports that disagree"
    return classify_gate(gate, sizes, decoder, form=form, source=source, num_groups=num_groups)
