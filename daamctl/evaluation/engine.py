"""Intervals and tests of every figure: a figure is a function of sums over independent units.

A unit is what is independent: a speaker, a document, an image, an item (docs/sources.md#paired-comparison). For the
interval of a figure units are left out one by one. The test of a difference flips the signs of what units add to it,
and its interval holds what the test does not reject. Accuracy, balanced accuracy, entity F1, perplexity and the scores
of reconstructions differ in their sums and statistic alone:

- `sums`: K sums of U units, a dense or sparse array (K, U);
- `statistic`: K sums of R samples, (K, R), -> F figures of each, (F, R).

Pure functions on arrays. Seeds are averaged before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse, special

from daamctl.artifacts.statistics import Interval
from daamctl.data.sign_flip import EXACT_FLIPS_UP_TO, RANDOM_FLIPS, SAME, Floats, all_sets, blocks, finite, random_sets
from daamctl.evaluation.statistics import class_mean

SMALL = 1e-9
"""Below this, a standard error or a number of items is rounding."""

Sums: TypeAlias = "NDArray[np.float64] | sparse.csr_array"
Statistic = Callable[[Floats], Floats]


def intervals(
    sums: Sums, statistic: Statistic, *, level: float = 0.95, items: ArrayLike | None = None
) -> list[Interval]:
    """Intervals of F figures.

    The figure plus and minus t of U - 1 degrees of freedom times the standard error of the jackknife, which leaves out
    one unit with all of its items at a time (Efron and Tibshirani 1993, chapter 11). A bootstrap over units gives
    intervals that are too narrow with few (Cameron, Gelbach and Miller 2008), and the same with many
    (docs/sources.md#intervals).

    They are too narrow for a share near 0 or 1, and have no width where every item, or none, is right. So shares have
    the interval of Korn and Graubard (1998): that of Clopper and Pearson for as many independent items as would have
    the standard error of the jackknife, at most N, times the squared ratio of t of N - 1 to t of U - 1 degrees of
    freedom.

    Args:
        sums: (K, U).
        statistic: see the module.
        items: N, one or (F,), as the figures are shares of so many items, or means of such shares; None: they are not.

    Raises:
        ValueError: there are fewer than two units.
    """
    number = sums.shape[1]
    if number < 2:
        raise ValueError(f"{number} units; an interval needs at least 2")
    totals = sums @ np.ones((number, 1))
    values = statistic(totals)[:, 0]
    columns, ends = sparse.csc_array(sums), np.cumsum([0, *blocks(number, len(totals))])
    # the sums without each unit, in blocks that fit in memory
    parts = [statistic(totals - columns[:, start:end].toarray()) for start, end in pairwise(ends)]
    without = np.concatenate(parts, axis=1)
    error = np.sqrt((number - 1) / number * ((without - without.mean(1, keepdims=True)) ** 2).sum(1))
    reach = special.stdtrit(number - 1, (1 + level) / 2)
    method = "jackknife" if items is None else "korn-graubard"
    low, high = values - reach * error, values + reach * error
    if items is not None:
        low, high = _share_ends(values, error, np.asarray(items, dtype=np.float64), reach, level)
    # The order of summation changes the last digits. Without rounding, an end at 0 could seem to exclude 0.
    found = np.round([values, low, high], SAME) + 0.0
    return [Interval(value, low, high, level, number, number, method) for value, low, high in found.T.tolist()]


def _share_ends(values: Floats, error: Floats, items: Floats, reach: float, level: float) -> tuple[Floats, Floats]:
    """Ends of the intervals of shares with these standard errors; `reach`: t of U - 1 degrees of freedom."""
    size = _independent_items(values * (1 - values), error, items, reach, level)
    right, wrong = values * size, (1 - values) * size
    # the beta quantile has no value at 0 right or wrong items, where the end is 0 or 1 anyway
    low = np.where(values > 0, special.betaincinv(np.maximum(right, SMALL), wrong + 1, (1 - level) / 2), 0.0)
    high = np.where(values < 1, special.betaincinv(right + 1, np.maximum(wrong, SMALL), (1 + level) / 2), 1.0)
    return low, high


def _independent_items(variance: Floats, error: Floats, items: Floats, reach: float, level: float) -> Floats:
    """Numbers of independent items with this variance whose means would have these standard errors, at most all.

    They are fewer where t of U - 1 degrees of freedom, `reach`, is above that of the number of items.
    """
    varies = error > SMALL  # else no unit tells how far units differ
    alike = np.divide(variance, error**2, out=np.full(len(error), np.inf), where=varies)
    size: Floats = np.minimum(alike + 1, items)  # n independent items have the squared error variance/(n - 1)
    size *= (special.stdtrit(np.maximum(items - 1, 1), (1 + level) / 2) / reach) ** 2
    return size


def mean_sums(values: ArrayLike, units: ArrayLike, classes: ArrayLike | None = None) -> tuple[Sums, Statistic]:
    """Sums and statistic of F means over N items, or of F means of class means (balanced accuracy).

    Args:
        values: (F, N).
        units: unit of each item, (N,).
        classes: true class of each item, (N,); None: plain means. A class that a sample lacks does not count in it.

    Raises:
        ValueError: the lengths differ.
    """
    table = np.asarray(values, dtype=np.float64)
    codes = np.unique(np.asarray(units), return_inverse=True)[1]
    labels = np.zeros(table.shape[1]) if classes is None else np.asarray(classes)
    kinds = np.unique(labels, return_inverse=True)[1]
    if not table.shape[1] == len(codes) == len(kinds):
        raise ValueError(f"{table.shape[1]} values, {len(codes)} units, {len(kinds)} classes; need one each per item")
    # Sums of the values by figure and class, then the number of items by class. Most are zero.
    filled = [_by_class(row, kinds, codes) for row in (*table, np.ones(len(kinds)))]

    def means(totals: Floats) -> Floats:
        parts = totals.reshape(len(table) + 1, -1, totals.shape[1]).swapaxes(1, 2)  # (F + 1, samples, classes)
        return class_mean(parts[:-1], np.broadcast_to(parts[-1], parts[:-1].shape))

    return sparse.vstack(filled, format="csr"), means


def _by_class(values: Floats, kinds: NDArray[np.int64], codes: NDArray[np.int64]) -> sparse.coo_array:
    """Sum of values by class and unit, (classes, U)."""
    known = values != 0
    shape = (int(kinds.max()) + 1, int(codes.max()) + 1)
    return sparse.coo_array((values[known], (kinds[known], codes[known])), shape=shape)


def mean_intervals(
    values: ArrayLike,
    units: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    level: float = 0.95,
    items: ArrayLike | None = None,
) -> list[Interval]:
    """`intervals` of the means of `mean_sums`."""
    return intervals(*mean_sums(values, units, classes), level=level, items=items)


def contributions(pairs: Sequence[tuple[Floats, Floats]], statistic: Statistic) -> Floats:
    """What each of U units adds to the difference of two methods, times U, (U,).

    It is what swapping the methods in this unit alone changes, halfway between the two. Any swap changes the sign of
    these numbers and nothing else, so flipping their signs swaps the methods, as approximate randomisation does (Noreen
    1989). Their mean is the difference: of means and error rates exactly, of others to the second order, so they are
    scaled to it, or moved where that would shrink them too much (docs/sources.md#figures-of-sums).

    Args:
        pairs: sums of a trial of one method, (K, U), and of one of the other; their differences are averaged.
        statistic: of one trial, with one figure.
    """
    number, difference = pairs[0][0].shape[1], 0.0
    added = np.zeros(number)
    for first, second in pairs:  # not all at once: there may be thousands of pairs of a hundred trials
        one, two = (side.sum(1, keepdims=True) for side in (first, second))
        middle, half = (one + two) / 2, (first - second) / 2
        added += (statistic(middle + half) - statistic(middle - half))[0] * (number / len(pairs))
        difference += float((statistic(one) - statistic(two))[0, 0]) / len(pairs)
    scale = difference / mean if (mean := float(added.mean())) else 1.0
    if 0.5 < scale < 2:
        return np.asarray(added * scale)
    # The figure moves in steps. Units that seem to add more than the difference are moved to it, so that models of
    # equal figures are not told apart; the other way round, moving would make units that add nothing look alike.
    return np.asarray(added + (difference - mean) if abs(scale) < 1 else added)


def flip_interval(
    differences: Floats,
    sizes: Floats | None = None,
    *,
    level: float = 0.95,
    alike: float | None = None,
    seed: int = 0,
) -> Interval | None:
    """Interval of the mean of paired differences: all values that the sign-flip test does not reject.

    The test of a value v sums differences minus v times sizes, with every combination of signs. As many combinations
    are at least as large as the observed one as there are sets of units whose sum of differences over sum of sizes is
    not above v (Hartigan 1969). So the ends are order statistics of these ratios. With at most 20 units they are those
    of all sets. With more, sets are drawn at random, each with its complement. The interval excludes 0 exactly if
    `paired_sign_flip` of the same units has p <= 1 - level, unless that is exact and this is not.

    Args:
        differences: one per unit, (U,).
        sizes: what a unit counts, (U,), with mean 1; None: all the same.
        alike: N, if no unit of the N items has a difference to flip: see `equal_interval`.

    Returns:
        None with so few units that the test rejects nothing.
    """
    array = finite(differences)
    number, value = len(array), round(float(array.mean()), SAME) + 0.0
    rows = np.stack([array, np.ones(number) if sizes is None else sizes], axis=1)
    # units that count nothing and add nothing, e.g. sentences without entities, do not count for the test either
    if (counts := rows.any(axis=1)).sum() <= EXACT_FLIPS_UP_TO:
        rows = rows[counts]
    every = len(rows) <= EXACT_FLIPS_UP_TO
    # combinations of signs that may be as large for p <= 1 - level, half of them at each end; a set and its complement
    # stand for one combination
    rank = int(np.floor((1 - level) * (2.0 ** (len(rows) - 1) if every else RANDOM_FLIPS + 1) + 1e-9))
    if rank < 1:
        return None
    if alike is not None:
        return equal_interval(alike, number, level)
    if every:
        # without the empty set, which has no ratio
        sets = all_sets(rows)[1:]
        samples = len(sets)
    else:
        half = random_sets(rows, RANDOM_FLIPS, seed)
        sets, samples = np.concatenate([half, rows.sum(0) - half]), RANDOM_FLIPS
    sums, parts = sets.T
    # a set that counts nothing is below all means, or above; if it adds nothing either, it says nothing about them
    tiny = 10.0**-SAME * np.abs(array).sum()
    ratios = np.where(np.abs(sums) > tiny, np.copysign(np.inf, sums), value)
    np.divide(sums, parts, out=ratios, where=parts > 1e-9)
    # one end at a time: numpy takes three times as long to find both at once
    ends = [np.partition(ratios, end)[end] for end in (rank - 1, len(ratios) - rank)]
    if not np.isfinite(ends).all():  # without an end: as far as any set of units that counts, and to 0
        known = ratios[np.isfinite(ratios)]
        ends = [max(ends[0], known.min(initial=0.0)), min(ends[1], known.max(initial=0.0))]
    low, high = np.round(ends, SAME).tolist()
    return Interval(value, low + 0.0, high + 0.0, level, number, samples, "sign-flip")


def equal_interval(items: float, units: int, level: float) -> Interval:
    """Interval of the difference of two methods that agree on all of N items in U units.

    Its ends are that of the share of items on which they may differ, in favour of one or the other (`intervals`).
    """
    none, reach = np.zeros(1), float(special.stdtrit(units - 1, (1 + level) / 2))
    high = float(_share_ends(none, none, np.array(items), reach, level)[1][0])
    return Interval(0.0, -high, high, level, units, units, "korn-graubard")


def equal_p(interval: Interval, margin: float) -> float:
    """Probability that two methods agree on all items although one is worse by a margin.

    It is at most (1 - level) / 2 exactly if the lower end of `equal_interval` is above the margin's.
    """
    size = np.log((1 - interval.level) / 2) / np.log1p(-interval.high)  # independent items that tell as much
    return float((1 - margin) ** size)


def worse_p(interval: Interval, margin: float) -> float:
    """One-sided p-value of Student's t that a difference is -margin or less, from its interval of the jackknife."""
    units, reach = interval.n_clusters, interval.high - interval.value
    error = max(reach / float(special.stdtrit(units - 1, (1 + interval.level) / 2)), SMALL)
    return float(special.stdtr(units - 1, -(interval.value + margin) / error))


def non_inferiority(
    differences: Floats, sums: Floats, sizes: Floats, margin: float, *, level: float, items: float | None = None
) -> tuple[Interval, float]:
    """Interval of a mean difference, and the p-value of the hypothesis that one method is worse by a margin or more.

    Tango's score test (1998), for as many independent items as would have the standard error of the difference over
    units (docs/sources.md#shortest-encoder). The interval is above the margin exactly if p is at most (1 - level) / 2.

    Args:
        differences: per item, (N,), from -1 to 1; or with the weights of items; or, where a figure is no mean over
            items, `sums` again.
        sums: of the units, (U,), scaled to the mean of the differences; U > 1.
        sizes: what a unit counts, (U,), with mean 1.
        margin: from 0 to 1.
        items: how many items the figure is a share of; None: N.
    """
    items, units, value = items or len(differences), len(sums), float(differences.mean())
    if not differences.any():
        interval = equal_interval(items, units, level)
        return interval, equal_p(interval, margin)
    won, lost = float(np.maximum(differences, 0).mean()), float(np.maximum(-differences, 0).mean())
    variance = np.array([won + lost - value**2])
    error = np.sqrt(((sums - value * sizes) ** 2).sum(keepdims=True) / (units * (units - 1)))
    reach = float(special.stdtrit(units - 1, (1 + level) / 2))
    size = float(_independent_items(variance, error, np.array([items]), reach, level)[0])
    # the same shares of as many independent items as tell as much
    lost, won = lost * size, won * size
    low, high = _score_end(lost, won, size, level), -_score_end(won, lost, size, level)
    low, value, high = np.round([low, value, high], SAME).tolist()
    return Interval(value, low, high, level, units, units, "score"), score_p(lost, won, size, margin)


def score_p(lost: float, won: float, items: float, margin: float) -> float:
    """One-sided p-value of the score test that a method is worse by a margin or more (Tango 1998).

    Args:
        lost: number of items that only the other method gets right; need not be whole.
        won: number of items that only this one gets right.
        items: number of all items.
        margin: share of the items, from -1 to 1.
    """
    # The share of items lost that is most likely where exactly the margin separates the methods.
    slope = (lost + won) * (1 + margin) + 2 * (items - won) * margin
    root = np.sqrt(max(slope**2 - 8 * items * lost * margin * (1 + margin), 0.0))
    share = min(max((slope + root) / (4 * items), margin, 0.0), (1 + margin) / 2)
    variance, excess = items * (2 * share - margin - margin**2), won - lost + items * margin
    if variance <= SMALL:
        return 0.0 if excess > 0 else 1.0
    return float(special.ndtr(-excess / np.sqrt(variance)))


def _score_end(lost: float, won: float, items: float, level: float) -> float:
    """The largest difference that `score_p` rejects at (1 - level) / 2, by bisection."""
    low, high = -1.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if score_p(lost, won, items, -middle) <= (1 - level) / 2 else (low, middle)
    return low
