"""The control without any attention: the decoder reads the pooled layers as they are (D58)."""

from __future__ import annotations

from torch import nn

from daamctl.methods.base import FusionClassifier
from daamctl.methods.decoder import classify_map
from daamctl.methods.settings import DecoderOptions, Sizes


def none(sizes: Sizes, *, decoder: DecoderOptions) -> FusionClassifier:
    """Control: the decoder alone, no layer fusion before it."""
    return classify_map(nn.Identity(), sizes, decoder)
