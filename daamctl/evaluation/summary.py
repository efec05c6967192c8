"""Means and spreads over folds, and the scores of answering without looking. Fractions throughout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from daamctl.evaluation.metrics import ClassIds


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and both standard deviations of one figure over folds and seeds.

    Returns:
        mean; sample_std (divisor n - 1, None for n = 1), which this project reports; population_std (divisor n), which
        many published rows use (FACTS 21); n.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no value to summarise")
    array = np.asarray(values, dtype=np.float64)
    return {
        "mean": float(array.mean()),
        "sample_std": float(array.std(ddof=1)) if len(array) > 1 else None,
        "population_std": float(array.std()),
        "n": len(array),
    }


def chance(targets: ClassIds, classes: Sequence[str]) -> dict[str, Any]:
    """What needs no model: the most frequent class, its share of the items, and 1 / C (balanced accuracy)."""
    counts = np.bincount(targets, minlength=len(classes))
    return {
        "majority_class": classes[int(counts.argmax())],
        "majority_fraction": float(counts.max() / counts.sum()),
        "uniform_fraction": 1.0 / len(classes),
        "per_class": {name: int(count) for name, count in zip(classes, counts, strict=True)},
    }
