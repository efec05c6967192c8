"""Intervals and tests for few speakers and few folds. Pure functions on arrays; results are plain dicts.

Utterances of one speaker share a voice, and folds share training data, so neither utterances nor seeds are independent:
McNemar's test on pooled utterances rejected in 34 % of simulated null comparisons at a level of 5 %
(docs/sources.md#paired-comparison). Speakers are the units here, or the items themselves where nobody is known; seeds
are averaged before anything is tested. scipy, statsmodels and confidence_intervals compute what they have. Written
here: the corrected t-test (no library in use has it); the sign-flip test is in `daamctl.sign_flip`. scipy's bootstrap
knows no clusters. Units may be thousands: draws are made in blocks.

Every p-value is two-sided. `floor` is the smallest p-value that the number of units allows: above the level of the
test, no difference can be called significant, however large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from confidence_intervals import get_conf_int
from numpy.typing import ArrayLike, NDArray
from scipy import sparse, stats
from scipy.optimize import brentq
from statsmodels.stats.multitest import multipletests

from daamctl.sign_flip import SAME, Floats, finite

FEW_CLUSTERS = 20
BLOCK = 1_000_000
"""Most counts (clusters x draws) that a bootstrap holds at once."""


def cluster_bootstraps(
    values: ArrayLike,
    clusters: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Percentile intervals of K figures of items that come in clusters: speakers are redrawn with replacement.

    A drawn speaker brings all its items along; drawing items within it as well would add their noise a second time
    (Davison and Hinkley 1997, section 3.8; Field and Welsh 2007 show that drawing clusters is consistent). With few
    clusters the interval is too narrow (Cameron, Gelbach and Miller 2008).

    Args:
        values: shape (K, N).
        clusters: the cluster of each item, shape (N,).
        classes: the true class of each item, shape (N,): a figure is then the mean of its values over the items of a
            class, averaged over the classes drawn (balanced accuracy). Without them it is the mean of its values.
        level: of the intervals.
        resamples: how many draws.
        seed: of the draws.

    Returns:
        For each figure value: on all items; low, high: the interval; level; n_clusters; resamples; warning: text when
        there are fewer than 20 clusters, else None.

    Raises:
        ValueError: the lengths differ, or there are fewer than two clusters.
    """
    table = np.asarray(values, dtype=np.float64)
    names, codes, labels = _checked(table.shape[1], clusters, classes)
    kinds = np.unique(labels, return_inverse=True)[1]
    # Sums of the values by figure and class, and numbers of items by class, of every cluster: few cells are filled.
    filled = [_cells(row, kinds, codes) for row in (*table, np.ones(len(kinds)))]
    cells, number = sparse.vstack(filled, format="csr"), len(names)
    rng = np.random.default_rng(seed)
    drawn = []
    width = max(1, BLOCK // number)
    for size in (min(width, resamples - start) for start in range(0, resamples, width)):
        flat = rng.integers(number, size=(size, number)) * size + np.arange(size)[:, None]
        times = np.bincount(flat.ravel(), minlength=number * size).reshape(number, size).astype(np.float64)
        drawn.append(_figures(cells @ times, len(table)))
    whole = _figures(cells @ np.ones((number, 1)), len(table))[:, 0]
    return [
        _interval(value, figures, number, level)
        for value, figures in zip(whole.tolist(), np.concatenate(drawn, axis=1), strict=True)
    ]


def _checked(
    number: int, clusters: ArrayLike, classes: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """Names of the clusters, the cluster of each item as a number, and the class of each item."""
    names, codes = np.unique(np.asarray(clusters), return_inverse=True)
    labels = np.zeros(number, dtype=np.int64) if classes is None else np.asarray(classes)
    if not number == len(codes) == len(labels):
        raise ValueError(f"{number} values, {len(codes)} clusters, {len(labels)} classes; need one each per item")
    if len(names) < 2:
        raise ValueError(f"{len(names)} clusters; an interval needs at least 2")
    return names, codes, labels


def _cells(values: Floats, kinds: NDArray[np.int64], codes: NDArray[np.int64]) -> sparse.coo_array:
    """Sum of values by class and cluster, (classes, clusters)."""
    known = values != 0
    shape = (int(kinds.max()) + 1, int(codes.max()) + 1)
    return sparse.coo_array((values[known], (kinds[known], codes[known])), shape=shape)


def _figures(totals: Floats, number: int) -> Floats:
    """Class means (K, draws) from the sums of K figures and the counts, ((K + 1) x classes, draws)."""
    parts = totals.reshape(number + 1, -1, totals.shape[1]).swapaxes(1, 2)  # (K + 1, draws, classes)
    return _class_mean(parts[:-1], np.broadcast_to(parts[-1], parts[:-1].shape))


def _interval(value: float, figures: Floats, clusters: int, level: float) -> dict[str, Any]:
    low, high = get_conf_int(figures, alpha=100 * (1 - level))
    few = f"only {clusters} clusters: the interval is optimistic (too narrow)"
    # Sums in another order differ by rounding: without this an end at 0 might seem to lie beside it.
    value, low, high = (round(float(end), SAME) + 0.0 for end in (value, low, high))
    return {
        "value": value,
        "low": low,
        "high": high,
        "level": level,
        "n_clusters": clusters,
        "resamples": len(figures),
        "warning": few if clusters < FEW_CLUSTERS else None,
    }


def nadeau_bengio(
    differences: Sequence[float] | Floats, n_test: float | Sequence[float], n_train: float | Sequence[float]
) -> dict[str, Any]:
    """t-test on fold differences with the variance corrected for shared training data (Nadeau and Bengio 2003).

    t = mean / sqrt((1 / J + n_test / n_train) s^2) with J - 1 degrees of freedom, s^2 the sample variance. The ratio
    stands for a correlation that cannot be estimated: a heuristic, not an exact test.

    Args:
        differences: one per fold, seeds averaged first; J of them. With repeated folds, one per fold and repeat.
        n_test: items tested, one number or one per fold.
        n_train: items trained on, likewise. Where folds differ the mean of n_test / n_train is used.

    Returns:
        mean; t, p: None when the differences do not vary (or J = 1); df; ratio: n_test / n_train; n: J.

    Raises:
        ValueError: there is no difference, one is not finite, or a size is not positive.
    """
    array = finite(differences)
    tested, trained = np.asarray(n_test, dtype=np.float64), np.asarray(n_train, dtype=np.float64)
    if not (np.all(tested > 0) and np.all(trained > 0)):
        raise ValueError(f"n_test {n_test} and n_train {n_train} must be positive")
    ratio, n = float(np.mean(tested / trained)), len(array)
    result = {"mean": float(array.mean()), "t": None, "df": n - 1, "p": None, "ratio": ratio, "n": n}
    if np.ptp(array) <= 1e-12 * np.abs(array).max():
        return result
    t = float(array.mean() / np.sqrt((1 / n + ratio) * array.var(ddof=1)))
    return {**result, "t": t, "p": float(2 * stats.t.sf(abs(t), n - 1))}


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p-values of one family, by statsmodels; a test without a p counts in the family as p = 1."""
    if len(p_values) < 2:
        return list(p_values)
    adjusted = multipletests([1.0 if p is None else p for p in p_values], method="holm")[1]
    return [None if p is None else float(value) for p, value in zip(p_values, adjusted, strict=True)]


def minimal_detectable_difference(
    differences: Sequence[float] | Floats, *, power: float = 0.8, alpha: float = 0.05
) -> dict[str, Any]:
    """The smallest true mean difference that a paired t-test on as many units would detect (Cohen 1988, chapter 2).

    Found from the non-central t distribution with the observed spread taken as the true one, so it is an estimate, and
    an optimistic one for the sign-flip test, whose floor may lie above alpha.

    Args:
        differences: observed, one per unit (fractions).
        power: chance of detection.
        alpha: two-sided level; divide it by the size of the family for the strictest step of Holm's procedure.

    Returns:
        points: in percentage points, None for a single unit or without spread; std: sample deviation of the differences
        (fraction), None for a single unit; power; alpha; n.

    Raises:
        ValueError: there is no difference, or one is not finite.
    """
    array = finite(differences)
    result = {"points": None, "std": None, "power": power, "alpha": alpha, "n": len(array)}
    if len(array) < 2:
        return result
    std = float(array.std(ddof=1))
    if std <= 1e-12:
        return {**result, "std": std}
    return {**result, "points": 100 * std * _effect(len(array), alpha, power), "std": std}


def _effect(n: int, alpha: float, power: float) -> float:
    """The standardised difference that a two-sided t-test of n differences finds with a power.

    The root is bracketed here, for statsmodels' search gives an array, another sign or no root for some n.
    """
    limit = stats.t.isf(alpha / 2, n - 1)

    def missing(effect: float) -> float:
        upper, lower = (stats.nct.sf(sign * limit, n - 1, effect * np.sqrt(n)) for sign in (1, -1))
        return float(upper + np.nan_to_num(1 - lower)) - power  # far in the tail scipy gives no number

    most = 1.0
    while missing(most) < 0:
        most *= 2
    return float(brentq(missing, 0.0, most))


def friedman_nemenyi(
    scores: Mapping[str, Sequence[float]], *, higher_is_better: bool = True, alpha: float = 0.05
) -> dict[str, Any]:
    """Friedman's test and Nemenyi's critical difference of average ranks (Demšar 2006), for a CD diagram over folds.

    Demšar ranks over data sets, which are independent; folds share training data, so both are optimistic here, and
    with the usual 5 folds the chi-squared p is rough. The critical difference is q sqrt(k (k + 1) / (6 n)), q the
    studentized range of k means (infinite df) divided by sqrt 2.

    Args:
        scores: method -> one score per fold, folds in the same order.
        higher_is_better: direction; rank 1 is best, ties share the mean rank.
        alpha: level of the critical difference.

    Returns:
        average_ranks: method -> rank, best first; critical_difference; groups: lists of methods whose ranks span less
        than that (each as long as can be, best first); chi2, p: Friedman's; n: folds; k: methods; alpha; note.

    Raises:
        ValueError: there are fewer than three methods, fewer than two folds, or methods differ in their number.
    """
    sizes = sorted({len(values) for values in scores.values()})
    k, n = len(scores), sizes[-1] if sizes else 0
    if k < 3 or n < 2 or len(sizes) > 1:
        raise ValueError(f"{k} methods with {sizes} folds; ranks need 3 methods or more with the same 2 folds or more")
    table = np.array(list(scores.values()), dtype=np.float64)  # (k, n)
    ranks = stats.rankdata(-table if higher_is_better else table, axis=0).mean(axis=1)
    order = sorted(zip(scores, ranks.tolist(), strict=True), key=lambda pair: pair[1])
    critical = float(stats.studentized_range.isf(alpha, k, np.inf) / np.sqrt(2) * np.sqrt(k * (k + 1) / (6 * n)))
    tied = bool((np.ptp(table, axis=0) == 0).all())
    chi2, p = (0.0, 1.0) if tied else map(float, stats.friedmanchisquare(*table))
    return {
        "average_ranks": dict(order),
        "critical_difference": critical,
        "groups": _groups(order, critical),
        "chi2": chi2,
        "p": p,
        "n": n,
        "k": k,
        "alpha": alpha,
        "note": f"ranks of {k} methods over {n} folds, which share training data; Demšar's test assumes independence",
    }


def _totals(values: NDArray[Any], labels: NDArray[Any], codes: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Sum of values and number of items by cluster and class, shapes (clusters, classes)."""
    kinds, kind = np.unique(labels, return_inverse=True)
    sums = np.zeros((int(codes.max()) + 1, len(kinds)))
    counts = np.zeros_like(sums)
    np.add.at(sums, (codes, kind), values)
    np.add.at(counts, (codes, kind), 1.0)
    return sums, counts


def _class_mean(sums: Floats, counts: Floats) -> Floats:
    """Mean over the classes with items of sum / count, along the last axis."""
    present = counts > 0
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=present)
    return np.asarray(means.sum(axis=-1) / present.sum(axis=-1))


def grouped_means(values: ArrayLike, groups: ArrayLike, classes: ArrayLike | None = None) -> Floats:
    """Mean of `values` in each group, groups in sorted order; with `classes`, the mean of the class means.

    Of right (1) and wrong (0) answers that is the accuracy, with classes the balanced accuracy, of each group. A class
    that a group lacks is left out.

    Args:
        values: one per item, shape (N,).
        groups: the group of each item, shape (N,).
        classes: the true class of each item, shape (N,).
    """
    array = np.asarray(values)
    labels = np.zeros(len(array), dtype=np.int64) if classes is None else np.asarray(classes)
    return _class_mean(*_totals(array, labels, np.unique(np.asarray(groups), return_inverse=True)[1]))


def _groups(order: list[tuple[str, float]], critical: float) -> list[list[str]]:
    """Longest runs of at least two methods, sorted by rank, whose ends lie less than `critical` apart."""
    groups: list[list[str]] = []
    reached = 0
    for start, (_, first) in enumerate(order):
        run = [name for name, rank in order[start:] if rank - first < critical]
        if len(run) > 1 and start + len(run) > reached:
            groups.append(run)
            reached = start + len(run)
    return groups
