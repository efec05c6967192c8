"""Intervals and tests of primary figures that are not accuracy, e.g. entity F1 (docs/sources.md#entity-f1).

The task gives the figure, and the sums over independent units that it is a function of (`daamctl.data.task`). Intervals
leave out units (`engine`), and the paired test swaps the predictions of two methods within units. Both take the trained
models as given: they say nothing about models trained on other samples. The figure of a method is the mean over its
trials (seeds, samples of training items), which share the test items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import polars as pl

from daamctl.artifacts.results import Fold
from daamctl.artifacts.scores import Compared
from daamctl.artifacts.statistics import Interval, NonInferiority
from daamctl.data.sign_flip import Floats
from daamctl.data.task import Sums, Task
from daamctl.errors import ArtifactError
from daamctl.evaluation.comparison import paired_columns
from daamctl.evaluation.engine import Statistic, contributions, intervals, non_inferiority, worse_p

Trials = Mapping[int, Sums]
"""Seed -> sums of a method over the units of its task."""


def predictions_of(parts: Iterable[tuple[Fold, pl.DataFrame]]) -> dict[int, pl.DataFrame]:
    """Seed -> the test items of all folds with their predictions; seeds ascend.

    Args:
        parts: folds of a method, each with the predictions on its test items.
    """
    frames: dict[int, list[pl.DataFrame]] = {}
    for fold, frame in sorted(parts, key=lambda part: (part[0].seed, part[0].fold)):
        frames.setdefault(fold.seed, []).append(frame.select("utterance_id", "speaker", "target", "logits"))
    return {seed: pl.concat(own) for seed, own in frames.items()}


def trials_of(task: Task, parts: Iterable[tuple[Fold, pl.DataFrame]]) -> Trials:
    """The trials of a method from its predictions, see `predictions_of`."""
    return {seed: task.sums(frame) for seed, frame in predictions_of(parts).items()}


def mean_figure(task: Task, trials: Iterable[Sums]) -> float:
    """Mean of the primary figure over trials."""
    return float(np.mean([task.figure(np.vstack([one.given, one.own]).sum(1, keepdims=True)) for one in trials]))


def trial_intervals(task: Task, methods: Sequence[Trials]) -> list[Interval]:
    """95 % intervals of the primary figure of several methods.

    Args:
        methods: trials of each method, all over the same units in the same order.

    Raises:
        ValueError: units or true answers differ.
        ArtifactError: there is one unit, so nothing can be resampled.
    """
    given, sums, statistic = _stacked(task, methods)
    figures = statistic(sums.sum(1, keepdims=True))[:, 0]
    sizes = [task.size(figure, given.sum(1), len(trials)) for figure, trials in zip(figures, methods, strict=True)]
    items = [size for size in sizes if size is not None]
    return intervals(sums, statistic, items=items or None)


def compare_trials(
    task: Task, first: Trials, second: Trials, names: tuple[str, str], *, alpha: float = 0.05, seed: int = 0
) -> Compared:
    """The primary figure of one method minus that of another: `comparison.paired_columns` of what units add to it.

    Args:
        first: trials of one method; the other may have other seeds, and more or fewer.
        names: of both methods.

    Returns:
        The comparison; `p_holm` is empty until `comparison.with_holm` fills it in for the family.

    Raises:
        ArtifactError: there is one unit.
        ValueError: units or true answers differ.
    """
    pairs, trial = _pairs(first, second), next(iter(first.values()))
    values = [mean_figure(task, trials.values()) for trials in (first, second)]
    # nothing tells whether a difference would be in one or both answers (`Task.size`)
    alike = task.size(0.0, trial.given.sum(1), 1) if _equal(pairs) else None
    added = contributions(pairs, lambda sums: task.figure(sums)[None])
    row = paired_columns(added, _sizes(task, trial), trial.word, alpha=alpha, alike=alike, seed=seed)
    gap = values[0] - values[1]
    # where units add less than the difference, as with a figure that moves in steps, the interval reaches it
    if "low" in row and row["low"] <= 0 <= row["high"]:
        row |= {"low": min(row["low"], gap), "high": max(row["high"], gap)}
    return Compared(
        first=names[0],
        second=names[1],
        metric=task.primary,
        first_value=values[0],
        second_value=values[1],
        difference=gap,
        **row,
    )


def trials_not_worse(
    task: Task, first: Trials, second: Trials, margin: float, *, alpha: float = 0.05
) -> tuple[Interval, float]:
    """Test that the primary figure of one method is less than a margin below that of another.

    `non_inferiority`, of what units add; where the figure is no share, Student's t with the jackknife
    (docs/sources.md#shortest-encoder). p is below alpha exactly if the interval is above the margin.

    Args:
        margin: in units of the figure.
        alpha: one-sided level; the interval has the level 1 - 2 alpha.

    Returns:
        interval of the difference, and p. Errors as in `compare_trials`.
    """
    pairs, trial = _pairs(first, second), next(iter(first.values()))
    if first is second:
        return Interval(0.0, 0.0, 0.0, 1 - 2 * alpha, len(trial.units), len(trial.units), "score"), 0.0
    value = 0.0 if _equal(pairs) else mean_figure(task, first.values())
    items = task.size(value, trial.given.sum(1), 1)
    if items is None:
        _, sums, statistic = _stacked(task, [first, second])
        (interval,) = intervals(sums, lambda part: -np.diff(statistic(part), axis=0), level=1 - 2 * alpha)
        return interval, worse_p(interval, margin)
    added = contributions(pairs, lambda sums: task.figure(sums)[None])
    return non_inferiority(added, added, _sizes(task, trial), margin, level=1 - 2 * alpha, items=items)


def compare_primary(first: Sequence[Fold], second: Sequence[Fold], names: tuple[str, str]) -> list[Compared]:
    """`compare_trials` of two methods; nothing if the primary figure is accuracy, which needs no trials."""
    task = first[0].task
    if task.by_accuracy:
        return []
    one, two = (trials_of(task, ((fold, fold.predictions()) for fold in folds)) for folds in (first, second))
    return [compare_trials(task, one, two, names)]


def primary_not_worse(
    folds: Mapping[str, Sequence[Fold]],
    tested: dict[str, NonInferiority],
    *,
    reference: str,
    margin: float,
    alpha: float,
) -> dict[str, NonInferiority]:
    """Results of `comparison.not_worse` for the primary figure; where accuracy has no test, neither has this.

    Args:
        folds: method -> its finished folds, the reference among them.
        tested: results for accuracy.
        margin: in units of the figure.
        alpha: one-sided level.
    """
    task = folds[reference][0].task
    if task.by_accuracy:
        return tested
    trials = {name: trials_of(task, ((fold, fold.predictions()) for fold in own)) for name, own in folds.items()}
    return figure_not_worse(task, trials, reference, margin, alpha, tested=tested[reference].p is not None)


def figure_not_worse(
    task: Task, trials: Mapping[str, Trials], reference: str, margin: float, alpha: float, *, tested: bool
) -> dict[str, NonInferiority]:
    """`trials_not_worse` of every method against a reference, itself included; without a test, values alone."""
    values = {name: mean_figure(task, own.values()) for name, own in trials.items()}
    found = {}
    for name, own in trials.items():
        low = high = p = None
        if tested:
            interval, p = trials_not_worse(task, own, trials[reference], margin, alpha=alpha)
            low, high = interval.low, interval.high
        found[name] = NonInferiority(values[name], values[name] - values[reference], low, high, p)
    return found


def _given(methods: Sequence[Trials]) -> Floats:
    """The sums of the true answers, which all trials share, (A, U)."""
    first, *others = (trial for trials in methods for trial in trials.values())
    if len(first.units) < 2:
        raise ArtifactError(
            f"the test part has one {first.word}; intervals and tests need two or more",
            fix=f"put more {first.word}s into the test part",
        )
    for trial in others:
        if not np.array_equal(trial.units, first.units):
            raise ValueError(f"the {first.word}s of two trials differ")
        if not np.array_equal(trial.given, first.given):
            raise ValueError("the true answers of two trials differ")
    return first.given


def _stacked(task: Task, methods: Sequence[Trials]) -> tuple[Floats, Floats, Statistic]:
    """The sums of the true answers; these and those of all trials; the mean figure of each method from the latter."""
    given = _given(methods)
    own = [trial.own for trials in methods for trial in trials.values()]
    ends = np.cumsum([len(given), *map(len, own)])[:-1]

    def statistic(sums: Floats) -> Floats:
        first, *parts = np.split(sums, ends)
        figures = iter([task.figure(np.vstack([first, part])) for part in parts])
        return np.stack([np.mean([*islice(figures, len(trials))], axis=0) for trials in methods])

    return given, np.vstack([given, *own]), statistic


def _sizes(task: Task, trial: Sums) -> Floats:
    """What each unit counts, (U,), with mean 1."""
    weights = task.weights(trial.given)
    return weights / weights.mean() if weights.any() else np.ones(len(weights))  # e.g. no sentence has an entity


def _pairs(first: Trials, second: Trials) -> list[tuple[Floats, Floats]]:
    """Sums of every trial of a method, each with those of one of the other, which it is swapped with.

    Of fewer trials each is in more pairs, which keeps the mean.
    """
    _given([first, second])
    one, two = ([np.vstack([trial.given, trial.own]) for trial in trials.values()] for trials in (first, second))
    number = math.lcm(len(one), len(two))
    return [(one[pair % len(one)], two[pair % len(two)]) for pair in range(number)]


def _equal(pairs: Iterable[tuple[Floats, Floats]]) -> bool:
    """Whether two methods have the same sums."""
    return all(np.array_equal(one, two) for one, two in pairs)
