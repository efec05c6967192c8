"""Means and spreads over folds, and the scores of answering without looking. Fractions, log losses in nats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import entropy

from daamctl.evaluation.metrics import ClassIds


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and both standard deviations of one figure over folds and seeds.

    Returns:
        mean; sample_std (divisor n - 1, None for n = 1), which this project reports; population_std (divisor n), which
        many published rows use (docs/sources.md#means-and-standard-deviations); n.

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
    """What needs no model.

    Returns:
        majority_class and majority_fraction: the most frequent class and its share of the items; uniform_fraction:
        1 / C, the balanced accuracy of a constant answer where every class is present; uniform_log_loss: ln C;
        share_log_loss: the log loss of always answering with the shares of the classes, that is their entropy;
        per_class: number of items.

    Raises:
        ValueError: there is no target.
    """
    if len(targets) == 0:
        raise ValueError("no target to count")
    counts = np.bincount(targets, minlength=len(classes))
    return {
        "majority_class": classes[int(counts.argmax())],
        "majority_fraction": float(counts.max() / counts.sum()),
        "uniform_fraction": 1.0 / len(classes),
        "uniform_log_loss": float(np.log(len(classes))),
        "share_log_loss": float(entropy(counts)),
        "per_class": {name: int(count) for name, count in zip(classes, counts, strict=True)},
    }
