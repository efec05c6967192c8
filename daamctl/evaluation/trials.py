"""Intervals and tests of primary figures that are not accuracy, e.g. entity F1 (docs/sources.md#entity-f1).

The task gives the figure, and the sums over independent units that it is a function of (`daamctl.data.task`). Intervals
redraw units (`engine`), and the paired test swaps the predictions of two methods within units. Both take the trained
models as given: they say nothing about models trained on other samples. The figure of a method is the mean over its
trials (seeds, samples of training items), which share the test items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.results import Fold
from daamctl.artifacts.statistics import Interval, MetricComparison
from daamctl.artifacts.truncation import NonInferiority
from daamctl.data.task import Sums, Task
from daamctl.errors import ArtifactError
from daamctl.evaluation.engine import FLIPS, Statistic, intervals, randomisation, redrawn
from daamctl.sign_flip import Floats

RESAMPLES = 2000
"""Draws of the bootstraps; with all methods of a run, more would take minutes."""


def predictions_of(parts: Iterable[tuple[Fold, pl.DataFrame]]) -> dict[int, pl.DataFrame]:
    """Seed -> the test items of all folds with their predictions; seeds ascend.

    Args:
        parts: folds of a method, each with the predictions on its test items.
    """
    frames: dict[int, list[pl.DataFrame]] = {}
    for fold, frame in sorted(parts, key=lambda part: (part[0].seed, part[0].fold)):
        frames.setdefault(fold.seed, []).append(frame.select("utterance_id", "speaker", "target", "logits"))
    return {seed: pl.concat(own) for seed, own in frames.items()}


def trials_of(task: Task, parts: Iterable[tuple[Fold, pl.DataFrame]]) -> dict[int, Sums]:
    """Seed -> sums of a method over the units of the task.

    Raises:
        ArtifactError: there is one unit, so nothing can be resampled.
    """
    found = {seed: task.sums(frame) for seed, frame in predictions_of(parts).items()}
    if len((first := next(iter(found.values()))).units) < 2:
        raise ArtifactError(
            f"the test part has one {first.word}; intervals of {task.metric} need two or more",
            fix=f"put more {first.word}s into the test part",
        )
    return found


def trial_intervals(task: Task, methods: Sequence[Sequence[Sums]], **settings: Any) -> list[Interval]:
    """Intervals of the primary figure of several methods, which share the draws.

    Args:
        methods: trials of each method, all over the same units in the same order.
        settings: see `engine.intervals`.

    Raises:
        ValueError: units or true answers differ, a method has no trial, or there are fewer than two units.
    """
    given, tables = _stacked(methods)
    ends = np.cumsum([len(table) for table in tables])[:-1]
    means = [_mean(task, trials) for trials in methods]

    def statistic(sums: Floats) -> Floats:
        first, rest = np.split(sums, [len(given)])
        parts = zip(means, np.split(rest, ends), strict=True)
        return np.concatenate([mean(np.vstack([first, part])) for mean, part in parts])

    return intervals(np.vstack([given, *tables]), statistic, limits=(0.0, 1.0), **{"resamples": RESAMPLES, **settings})


def compare_trials(
    task: Task,
    first: Sequence[Sums],
    second: Sequence[Sums],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    flips: int = FLIPS,
    seed: int = 0,
) -> MetricComparison:
    """Difference of the primary figure of two methods, with its interval and a paired test; first minus second.

    The test is approximate randomisation (Noreen 1989, `engine.randomisation`): it swaps the methods in a unit in all
    trials at once.

    Args:
        first: trials of one method.
        second: the same trials of the other, over the same units in the same order.
        resamples: number of draws of the bootstrap.
        flips: number of random swaps.

    Returns:
        The comparison; `p_holm` is empty until `statistics.with_holm` fills it in for the family.

    Raises:
        ValueError: units, true answers or numbers of trials differ, or there are fewer than two units.
    """
    sums, gap, sides = _gap(task, first, second)
    mean, (one, two) = _mean(task, first), sides
    (interval,) = intervals(sums, gap, level=level, resamples=resamples, seed=seed)
    values = [float(mean(side.sum(1, keepdims=True))[0, 0]) for side in sides]
    return MetricComparison(
        first_value=values[0],
        second_value=values[1],
        difference=values[0] - values[1],
        primary=randomisation(one, two, mean, unit=first[0].word, flips=flips, seed=seed),
        secondary=None,
        minimal_detectable=None,
        interval=interval,
    )


def trials_not_worse(
    task: Task,
    first: Sequence[Sums],
    second: Sequence[Sums],
    margin: float,
    *,
    alpha: float = 0.05,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Interval, float, float]:
    """Test that the primary figure of one method is less than a margin below that of another.

    p is the share of bootstrap draws in which the first is worse by the margin or more
    (docs/sources.md#shortest-encoder).

    Args:
        first: trials of one method.
        second: those of the other, over the same units in the same order.
        margin: in units of the figure.
        alpha: one-sided level; the interval has the level 1 - 2 alpha.
        resamples: number of draws.

    Returns:
        interval of the difference, p, and the smallest p possible.

    Raises:
        ValueError: units or true answers differ, or there are fewer than two units.
    """
    sums, gap, _ = _gap(task, first, second)
    (interval,) = intervals(sums, gap, level=1 - 2 * alpha, resamples=resamples, seed=seed)
    floor = 1 / (resamples + 1)
    p = floor + float((redrawn(sums, gap, resamples, seed) <= -margin).sum()) * floor
    return interval, p, floor


def shared(first: Mapping[int, Sums], second: Mapping[int, Sums]) -> tuple[list[Sums], list[Sums]]:
    """The trials of both whose seed the other has, in the same order."""
    seeds = [seed for seed in first if seed in second]
    return [first[seed] for seed in seeds], [second[seed] for seed in seeds]


def compare_primary(first: Sequence[Fold], second: Sequence[Fold]) -> dict[str, MetricComparison]:
    """The primary figure of one method minus that of another; empty if it is accuracy, which needs no trials.

    Raises:
        ArtifactError: no seed is in both, or there is one unit.
    """
    task = first[0].task
    if task.by_accuracy:
        return {}
    sides = [trials_of(task, ((fold, fold.predictions()) for fold in folds)) for folds in (first, second)]
    own, theirs = shared(*sides)
    if not own:
        seeds = " and ".join(", ".join(map(str, trials)) for trials in sides)
        raise ArtifactError(
            f"{task.metric} is compared by trials of the same seed; the seeds are {seeds}",
            fix="train both with the same train.seeds",
        )
    return {task.primary: compare_trials(task, own, theirs)}


def primary_not_worse(
    folds: Mapping[str, Sequence[Fold]],
    tested: dict[str, NonInferiority],
    *,
    reference: str,
    margin: float,
    alpha: float,
) -> dict[str, NonInferiority]:
    """Results of `not_worse` of the primary figure; where accuracy has no test, neither has this.

    Args:
        folds: method -> its finished folds, the reference among them.
        tested: results of `not_worse`, which compares accuracy.
        margin: in units of the figure.
        alpha: one-sided level.
    """
    task = folds[reference][0].task
    if task.by_accuracy:
        return tested
    parts = {name: ((fold, fold.predictions()) for fold in own) for name, own in folds.items()}
    trials = {name: list(trials_of(task, own).values()) for name, own in parts.items()}
    values = {name: mean_figure(task, own) for name, own in trials.items()}
    found = {}
    for name, result in tested.items():
        gap = values[name] - values[reference]
        found[name] = replace(result, entity_f1=values[name], difference=gap, low=None, high=None)
        if result.p is not None:
            interval, p, floor = trials_not_worse(task, trials[name], trials[reference], margin, alpha=alpha)
            found[name] = replace(found[name], low=interval.low, high=interval.high, p=p, floor=floor)
    return found


def mean_figure(task: Task, trials: Sequence[Sums]) -> float:
    """Mean of the primary figure over trials."""
    given, (own,) = _stacked([trials])
    return float(_mean(task, trials)(np.vstack([given, own]).sum(1, keepdims=True))[0, 0])


def _stacked(methods: Sequence[Sequence[Sums]]) -> tuple[Floats, list[Floats]]:
    """The sums of the true answers, (A, U), and of each method those of its T trials, sum by sum, (K T, U)."""
    flat = [trial for trials in methods for trial in trials]
    if not all(methods) or not flat:
        raise ValueError("a method has no trial")
    for trial in flat[1:]:
        if not np.array_equal(trial.units, flat[0].units):
            raise ValueError(f"the {flat[0].word}s of two trials differ")
        if not np.array_equal(trial.given, flat[0].given):
            raise ValueError("the true answers of two trials differ")
    if len(flat[0].units) < 2:
        raise ValueError(f"{len(flat[0].units)} {flat[0].word}s; an interval needs at least 2")
    tables = [np.stack([trial.own for trial in trials], axis=1) for trials in methods]
    return flat[0].given, [table.reshape(-1, table.shape[-1]) for table in tables]


def _mean(task: Task, trials: Sequence[Sums]) -> Statistic:
    """Mean over T trials of the figure, (1, R), from R sums as `_stacked` arranges them."""
    rows = len(trials[0].given)

    def mean(sums: Floats) -> Floats:
        given, own = sums[:rows], sums[rows:].reshape(-1, len(trials), sums.shape[1])
        found = [task.figure(np.vstack([given, own[:, trial]])) for trial in range(len(trials))]
        return np.asarray(np.mean(found, axis=0, keepdims=True))

    return mean


def _gap(task: Task, first: Sequence[Sums], second: Sequence[Sums]) -> tuple[Floats, Statistic, list[Floats]]:
    """Sums of both methods, the difference of their figures as a function of these, and the sums of each method."""
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} trials; need the same number")
    given, tables = _stacked([first, second])
    mean = _mean(task, first)

    def gap(sums: Floats) -> Floats:
        one, two = np.split(sums[len(given) :], 2)
        return mean(np.vstack([sums[: len(given)], one])) - mean(np.vstack([sums[: len(given)], two]))

    return np.vstack([given, *tables]), gap, [np.vstack([given, table]) for table in tables]
