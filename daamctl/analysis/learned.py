"""Where the parameters of a density ended: offset (delta) and scaled variance (xi) of a trained fold.

Those that the papers print: docs/sources.md#learned-ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors import SafetensorError, safe_open

from daamctl.errors import ArtifactError

PREFIXES = ("fusion", "fusion.daam")
"""Where a method keeps the parameters of its density."""


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
    """Read them from a `weights.safetensors`; None for methods without such a density.

    Raises:
        ArtifactError: the file cannot be read.
    """
    try:
        with safe_open(path, framework="np") as file:
            settings: dict[str, Any] = yaml.safe_load((file.metadata() or {}).get("daamctl", "{}")).get("settings", {})
            for prefix in PREFIXES:
                if {f"{prefix}.offset", f"{prefix}.scaled_variance"} <= set(file.keys()):
                    offset, width = (file.get_tensor(f"{prefix}.{name}") for name in ("offset", "scaled_variance"))
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
    except (SafetensorError, OSError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}", fix=f"delete {path.parent}, train it again") from error
    return None


def _span(values: Any) -> tuple[float, float]:
    return float(values.min()), float(values.max())
