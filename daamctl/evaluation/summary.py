"""Means and deviations over folds and seeds, and the scores of constant predictions. Fractions; log losses in nats."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import entropy

from daamctl.artifacts.evaluation import Chance, Spread
from daamctl.evaluation.metrics import ClassIds


def spread(values: Sequence[float]) -> Spread:
    """Mean and both standard deviations of one figure over folds and seeds.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("no value to summarise")
    array = np.asarray(values, dtype=np.float64)
    return Spread(
        mean=float(array.mean()),
        sample_std=float(array.std(ddof=1)) if len(array) > 1 else None,
        population_std=float(array.std()),
        n=len(array),
    )


def chance(targets: ClassIds, classes: Sequence[str]) -> Chance:
    """Scores of constant predictions.

    Args:
        targets: true class ids, shape (N,).

    Raises:
        ValueError: there is no target.
    """
    if len(targets) == 0:
        raise ValueError("no target to count")
    counts = np.bincount(targets, minlength=len(classes))
    return Chance(
        majority_class=classes[int(counts.argmax())],
        majority_fraction=float(counts.max() / counts.sum()),
        uniform_fraction=1.0 / len(classes),
        uniform_log_loss=float(np.log(len(classes))),
        share_log_loss=float(entropy(counts)),
        per_class={name: int(count) for name, count in zip(classes, counts, strict=True)},
    )
