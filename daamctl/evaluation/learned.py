"""Learned parameters of a density: offset (delta) and scaled variance (xi) of a trained fold.

Ranges that the papers print: docs/sources.md#learned-ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from daamctl.methods.weights_metadata import read_metadata

PREFIXES = ("fusion", "fusion.daam")
"""Prefixes under which methods store the parameters of their density."""


@dataclass(frozen=True)
class LearnedParameters:
    """Range and mean of the parameters over all heads and features of one run.

    Args:
        num_heads: h.
        kernel: form of the density, as in the settings of the method.
        offset: lowest and highest, in units of the features; all are 0 before training.
        scaled_variance: lowest and highest; all are 2 before training.
    """

    num_heads: int
    kernel: str
    offset: tuple[float, float]
    offset_mean: float
    scaled_variance: tuple[float, float]
    scaled_variance_mean: float


def read_learned(path: Path) -> LearnedParameters | None:
    """Read the learned parameters from a `weights.safetensors`; None for methods without them.

    Raises:
        MethodError: the file cannot be read.
    """
    settings = read_metadata(path).settings
    with safe_open(path, framework="np") as file:
        for prefix in PREFIXES:
            names = f"{prefix}.offset", f"{prefix}.scaled_variance"
            if set(names) <= set(file.keys()):
                offset, variance = map(file.get_tensor, names)
                break
        else:
            return None
    if settings.get("scaled_variance") == "softplus":
        variance = np.logaddexp(0, variance)  # the file stores the value before the softplus
    return LearnedParameters(
        num_heads=len(offset),
        kernel=settings.get("kernel", "2xi"),
        offset=(float(offset.min()), float(offset.max())),
        offset_mean=float(offset.mean()),
        scaled_variance=(float(variance.min()), float(variance.max())),
        scaled_variance_mean=float(variance.mean()),
    )
