"""Intervals and tests of entity F1 against enumeration and an independent bootstrap."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from daamctl.data.task import Sums, task_of
from daamctl.evaluation.trials import compare_trials, trial_intervals, trials_not_worse

TASK = task_of("tokens", ("O", "B-X", "I-X"))


def counted(rng: np.random.Generator, gold: np.ndarray, hit: float) -> Sums:
    """Sums of a method that finds a share of the entities and makes up as many."""
    correct = rng.binomial(gold, hit)
    extra = rng.binomial(gold, 1 - hit)
    return Sums("sentence", np.arange(len(gold)), gold[None].astype(float), np.stack([correct + extra, correct]) + 0.0)


def f1(trial: Sums, times: np.ndarray | None = None) -> float:
    weights = np.ones(len(trial.units)) if times is None else times
    gold, predicted, correct = (float(weights @ part) for part in (*trial.given, *trial.own))
    return 2 * correct / (gold + predicted) if gold + predicted else 0.0


def test_interval_is_that_of_resampled_sentences() -> None:
    rng = np.random.default_rng(0)
    gold = rng.poisson(1.0, 60)
    trials = [counted(rng, gold, 0.6) for _ in range(3)]
    single, pooled = trial_intervals(TASK, [trials[:1], trials], resamples=4_000)
    assert single.value == pytest.approx(f1(trials[0]))
    assert pooled.value == pytest.approx(np.mean([f1(trial) for trial in trials]))
    figures = []
    for _ in range(2_000):  # an independent bootstrap
        times = rng.multinomial(60, np.full(60, 1 / 60))
        figures.append(np.mean([f1(trial, times) for trial in trials]))
    assert [pooled.low, pooled.high] == pytest.approx(np.percentile(figures, [2.5, 97.5]), abs=0.015)
    assert (pooled.n_clusters, pooled.resamples, pooled.method) == (60, 4_000, "bootstrap")
    assert trial_intervals(TASK, [trials], resamples=200, seed=5) == trial_intervals(
        TASK, [trials], resamples=200, seed=5
    )


def test_not_worse_by_a_margin_agrees_with_the_interval() -> None:
    rng = np.random.default_rng(4)
    gold = rng.poisson(1.0, 60)
    good, poor = ([counted(rng, gold, hit) for _ in range(2)] for hit in (0.9, 0.6))
    gap = compare_trials(TASK, poor, good, level=0.9, resamples=999).interval
    found, p, floor = trials_not_worse(TASK, poor, good, 0.01, resamples=999)
    assert (found, floor) == (gap, 0.001)
    assert p > 0.95
    assert gap.low is not None
    for beyond, shown in ((0.01, True), (-0.01, False)):  # the lower end is the margin that is just shown
        assert (trials_not_worse(TASK, poor, good, beyond - gap.low, resamples=999)[1] < 0.05) == shown
    assert trials_not_worse(TASK, good, good, 0.01, resamples=999)[1] == floor


def test_tags_outside_entities_are_accurate_and_worthless() -> None:
    given, found = np.ones((1, 20)), np.ones((2, 20))  # one entity of two words in sentences of ten: accuracy 80 %
    right, outside = (Sums("sentence", np.arange(20), given, share * found) for share in (1, 0))
    gap, p, _ = trials_not_worse(TASK, [outside], [right], 0.25, resamples=999)
    assert (f1(outside), gap.value, p) == (0.0, -1.0, 1.0)


def test_randomisation_of_few_sentences_tries_all_swaps() -> None:
    rng = np.random.default_rng(1)
    gold = rng.poisson(2.0, 9)
    first = [counted(rng, gold, 0.7) for _ in range(2)]
    second = [counted(rng, gold, 0.4) for _ in range(2)]
    observed = np.mean([f1(one) for one in first]) - np.mean([f1(two) for two in second])
    found = compare_trials(TASK, first, second, resamples=100)
    as_large = []
    for swaps in product((0, 1), repeat=9):
        keep = 1 - np.array(swaps)
        values = []
        for one, two in zip(first, second, strict=True):
            parts = [
                *(one.own @ keep + two.own @ swaps),
                *(two.own @ keep + one.own @ swaps),
            ]
            a, b, c, d = map(float, parts)
            values.append(2 * b / (gold.sum() + a) - 2 * d / (gold.sum() + c))
        as_large.append(abs(np.mean(values)) >= abs(observed) - 1e-12)
    assert found.difference == pytest.approx(observed)
    assert found.primary is not None
    assert found.primary.p == pytest.approx(np.mean(as_large))
    assert (found.primary.unit, found.primary.exact, found.primary.n) == ("sentence", True, 9)
    assert found.interval is not None
    assert found.interval.low <= found.difference <= found.interval.high


def test_randomisation_of_many_sentences_is_calibrated() -> None:
    """Equally good methods: p is about uniform. Better ones: p is small, and the sign is right."""
    rng = np.random.default_rng(2)
    gold = rng.poisson(1.5, 80)
    null = []
    for _ in range(200):
        pair = compare_trials(
            TASK, [counted(rng, gold, 0.6)], [counted(rng, gold, 0.6)], resamples=2, flips=500
        ).primary
        assert pair is not None
        assert not pair.exact
        null.append(pair.p)
    assert 0.01 <= np.mean([p is not None and p <= 0.05 for p in null]) <= 0.10
    better = compare_trials(TASK, [counted(rng, gold, 0.9)], [counted(rng, gold, 0.4)], resamples=500)
    assert better.primary is not None
    assert better.primary.p == pytest.approx(better.primary.floor, abs=2e-4)
    assert better.difference > 0.3
    assert better.interval is not None
    assert better.interval.low > 0


def test_equal_methods_have_no_difference() -> None:
    rng = np.random.default_rng(3)
    one = counted(rng, rng.poisson(1.5, 40), 0.5)
    found = compare_trials(TASK, [one], [one], resamples=100)
    assert found.primary is not None
    assert found.interval is not None
    assert (found.difference, found.primary.p, found.interval.low, found.interval.high) == (0, 1, 0, 0)


def test_trials_must_be_comparable() -> None:
    rng = np.random.default_rng(4)
    one, other = (counted(rng, rng.poisson(1.5, 40), 0.5) for _ in range(2))
    with pytest.raises(ValueError, match="true answers of two trials differ"):
        trial_intervals(TASK, [[one], [other]])
    shifted = replace(one, units=one.units + 1)
    with pytest.raises(ValueError, match="sentences of two trials differ"):
        compare_trials(TASK, [one], [shifted])
    with pytest.raises(ValueError, match="2 and 1 trials"):
        compare_trials(TASK, [one, one], [one])
    with pytest.raises(ValueError, match="no trial"):
        trial_intervals(TASK, [[]])
