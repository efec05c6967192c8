"""Learned parameters of a density: offset (delta) and scaled variance (xi) of a trained fold.

The published ranges are in docs/sources.md#learned-ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from daamctl.methods.weights_metadata import read_metadata

PREFIXES = ("fusion", "fusion.daam")
"""Modules that can hold the parameters of a density."""


@dataclass(frozen=True)
class Learned:
    """Lowest and highest value, and mean, over all heads and features of one run.

    Args:
        num_heads: h.
        kernel: form of the density.
        offset: in feature units; 0 at the start.
        offset_mean: the same unit.
        scaled_variance: 2 at the start.
        scaled_variance_mean: 2 at the start.
    """

    num_heads: int
    kernel: str
    offset: tuple[float, float]
    offset_mean: float
    scaled_variance: tuple[float, float]
    scaled_variance_mean: float


def read_learned(path: Path) -> Learned | None:
    """Read the parameters from a `weights.safetensors`; None for methods without such a density.

    Raises:
        MethodError: the file cannot be read.
    """
    settings = read_metadata(path).settings
    with safe_open(path, framework="np") as file:
        for prefix in PREFIXES:
            names = f"{prefix}.offset", f"{prefix}.scaled_variance"
            if set(names) <= set(file.keys()):
                offset, width = map(file.get_tensor, names)
                break
        else:
            return None
    if settings.get("scaled_variance") == "softplus":
        width = np.logaddexp(0, width)
    return Learned(
        num_heads=len(offset),
        kernel=settings.get("kernel", "2xi"),
        offset=_span(offset),
        offset_mean=float(offset.mean()),
        scaled_variance=_span(width),
        scaled_variance_mean=float(width.mean()),
    )


def _span(values: Any) -> tuple[float, float]:
    return float(values.min()), float(values.max())
