"""Tests for few speakers and few folds; intervals are in `engine`. Pure functions on arrays.

Utterances of one speaker share a voice, and folds share training data, so neither utterances nor seeds are independent:
McNemar's test on pooled utterances rejected in 34 % of simulated null comparisons at a level of 5 %
(docs/sources.md#paired-comparison). The unit is therefore the speaker, or the item if speakers are unknown. Seeds are
averaged before any test.

scipy computes what it provides. The corrected t-test is written in this module because no maintained library has it.
The sign-flip test is in `daamctl.data.sign_flip`. All p-values are two-sided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from daamctl.artifacts.statistics import CorrectedTTest
from daamctl.data.sign_flip import Floats, detectable_effect, finite


def nadeau_bengio(
    differences: Sequence[float] | Floats,
    n_test: float | Sequence[float],
    n_train: float | Sequence[float],
    *,
    unit: str = "fold",
) -> CorrectedTTest:
    """t-test on fold differences with the variance corrected for shared training data (Nadeau and Bengio 2003).

    t = mean / sqrt((1 / J + n_test / n_train) s^2) with J - 1 degrees of freedom, s^2 the sample variance. The ratio
    replaces a correlation that cannot be estimated, so the test is a heuristic, not exact.

    Args:
        differences: one per fold, averaged over seeds; J of them. With repeated folds, one per fold and repeat.
        n_test: number of test items, one number or one per fold.
        n_train: number of training items, likewise. If folds differ, the mean of n_test / n_train is used.
        unit: name of a fold in the result.

    Returns:
        The test; t and p are None if the differences do not vary (or J = 1).

    Raises:
        ValueError: there is no difference, one is not finite, or a size is not positive.
    """
    array = finite(differences)
    tested, trained = np.asarray(n_test, dtype=np.float64), np.asarray(n_train, dtype=np.float64)
    if not (np.all(tested > 0) and np.all(trained > 0)):
        raise ValueError(f"n_test {n_test} and n_train {n_train} must be positive")
    ratio, n = float(np.mean(tested / trained)), len(array)
    t = p = None
    if np.ptp(array) > 1e-12 * np.abs(array).max():
        t = float(array.mean() / np.sqrt((1 / n + ratio) * array.var(ddof=1)))
        p = float(2 * special.stdtr(n - 1, -abs(t)))
    return CorrectedTTest(unit=unit, mean=float(array.mean()), n=n, p=p, t=t, df=n - 1, ratio=ratio)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p-values of one family (Holm 1979); a test without a p-value counts as p = 1."""
    order = sorted(range(len(p_values)), key=lambda index: (p_values[index] is None, p_values[index] or 0.0))
    adjusted: list[float | None] = [None] * len(p_values)
    least = 0.0
    for place, index in enumerate(order):
        p = p_values[index]
        if p is not None:
            least = adjusted[index] = max(least, min(1.0, p * (len(p_values) - place)))
    return adjusted


def minimal_detectable_difference(
    differences: Sequence[float] | Floats, *, power: float = 0.8, alpha: float = 0.05
) -> float | None:
    """Smallest true mean difference that a paired t-test on as many units would detect (Cohen 1988, chapter 2).

    It follows from the non-central t distribution, with the observed spread taken as the true one. It is therefore an
    estimate, and an optimistic one for the sign-flip test, whose smallest p-value may be above alpha.

    Args:
        differences: observed differences, one per unit (fractions).
        alpha: two-sided level; divide it by the size of the family for the strictest step of Holm's procedure.

    Returns:
        A fraction; None for one unit or without spread.

    Raises:
        ValueError: there is no difference, or one is not finite.
    """
    array = finite(differences)
    n = len(array)
    std = float(array.std(ddof=1)) if n > 1 else 0.0
    return std * detectable_effect(n, alpha, power) if std > 1e-12 else None


def grouped_means(values: ArrayLike, groups: ArrayLike, classes: ArrayLike | None = None) -> Floats:
    """Mean of `values` in each group, groups in sorted order; with `classes`, the mean of the class means.

    For values of 1 (right) and 0 (wrong) this is the accuracy of each group; with classes, the balanced accuracy.
    Classes that a group lacks are skipped.

    Args:
        values: one per item, shape (N,).
        groups: group of each item, shape (N,).
        classes: true class of each item, shape (N,).
    """
    array = np.asarray(values)
    labels = np.zeros(len(array), dtype=np.int64) if classes is None else np.asarray(classes)
    return class_mean(*_totals(array, labels, np.unique(np.asarray(groups), return_inverse=True)[1]))


def _totals(values: NDArray[Any], labels: NDArray[Any], codes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Sum of values and number of items by cluster and class, shapes (clusters, classes)."""
    kinds, kind = np.unique(labels, return_inverse=True)
    sums = np.zeros((int(codes.max()) + 1, len(kinds)))
    counts = np.zeros_like(sums)
    np.add.at(sums, (codes, kind), values)
    np.add.at(counts, (codes, kind), 1.0)
    return sums, counts


def class_items(counts: NDArray[Any], weights: Floats | None = None) -> float:
    """As many items as would give a weighted mean over classes the same variance.

    Args:
        counts: items of each class, (C,).
        weights: what each class counts, (C,); None: all the same.
    """
    own = np.ones(len(counts)) if weights is None else weights
    return float(own.sum() ** 2 / (own**2 / np.maximum(counts, 1)).sum())


def class_mean(sums: Floats, counts: Floats) -> Floats:
    """Mean of sum / count over the classes with items, along the last axis."""
    present = counts > 0
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=present)
    return np.asarray(means.sum(axis=-1) / present.sum(axis=-1))
