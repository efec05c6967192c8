"""Intervals and tests of entity F1 against enumeration and an independent bootstrap."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest
from scipy import stats

from daamctl.data.spans import word_id
from daamctl.data.task import Sums, Tagging, Task, task_of
from daamctl.evaluation.engine import score_p
from daamctl.evaluation.trials import compare_trials, mean_figure, trial_intervals, trials_not_worse

TASK = task_of("tokens", ("O", "B-X", "I-X"))
NAMES = ("a", "b")


def counted(rng: np.random.Generator, gold: np.ndarray, hit: float) -> Sums:
    """Sums of a method that finds a share of the entities and makes up as many."""
    correct = rng.binomial(gold, hit)
    extra = rng.binomial(gold, 1 - hit)
    return Sums("sentence", np.arange(len(gold)), gold[None].astype(float), np.stack([correct + extra, correct]) + 0.0)


def method(rng: np.random.Generator, gold: np.ndarray, hit: float, number: int = 1) -> dict[int, Sums]:
    """Trials of a method, by seed."""
    return {seed: counted(rng, gold, hit) for seed in range(1, number + 1)}


def f1(trial: Sums, times: np.ndarray | None = None) -> float:
    weights = np.ones(len(trial.units)) if times is None else times
    gold, predicted, correct = (float(weights @ part) for part in (*trial.given, *trial.own))
    return 2 * correct / (gold + predicted) if gold + predicted else 0.0


def test_interval_is_that_of_resampled_sentences() -> None:
    rng = np.random.default_rng(0)
    gold = rng.poisson(1.0, 60)
    trials = method(rng, gold, 0.6, 3)
    single, pooled = trial_intervals(TASK, [{1: trials[1]}, trials])
    assert single.value == pytest.approx(f1(trials[1]))
    assert [pooled.value, mean_figure(TASK, trials.values())] == pytest.approx(
        2 * [np.mean([*map(f1, trials.values())])]
    )
    figures = []
    for _ in range(2_000):  # an independent bootstrap
        times = rng.multinomial(60, np.full(60, 1 / 60))
        figures.append(np.mean([f1(trial, times) for trial in trials.values()]))
    assert [pooled.low, pooled.high] == pytest.approx(np.percentile(figures, [2.5, 97.5]), abs=0.015)
    assert (pooled.n_clusters, pooled.method) == (60, "korn-graubard")
    assert pooled.high - pooled.low < single.high - single.low


def test_a_tagger_without_an_error_has_an_interval() -> None:
    """Of as many independent entities (Clopper and Pearson)."""
    rng = np.random.default_rng(0)
    gold = rng.poisson(1.0, 60)
    (found,) = trial_intervals(TASK, [{1: counted(rng, gold, 1.0)}])
    reach = stats.binomtest(int(gold.sum()), int(gold.sum())).proportion_ci(0.95, method="exact").low
    widened = found.low, reach  # 60 sentences are somewhat less than as many items
    assert (found.value, found.high) == (1.0, 1.0)
    assert widened[0] == pytest.approx(widened[1], abs=0.003)


def test_not_worse_by_a_margin_equals_an_independent_computation() -> None:
    """The score test of Tango, for as many entities as would have the standard error of the difference."""
    rng = np.random.default_rng(4)
    gold = rng.poisson(1.0, 60)
    good, poor = (method(rng, gold, hit, 2) for hit in (0.9, 0.6))
    one, two = ([np.vstack([trial.given, trial.own]) for trial in trials.values()] for trials in (poor, good))
    added = np.zeros(60)  # by a swap of the sentence, halfway between both methods
    for first, second in zip(one, two, strict=True):
        for sentence in range(60):
            middle, half = (first + second).sum(1) / 2, (first - second)[:, sentence] / 2
            ends = [2 * sums[2] / (sums[0] + sums[1]) for sums in (middle + half, middle - half)]
            added[sentence] += 60 * (ends[0] - ends[1]) / 2
    difference = np.mean([*map(f1, poor.values())]) - np.mean([*map(f1, good.values())])
    added *= difference / added.mean()
    error = np.sqrt(((added - difference * gold / gold.mean()) ** 2).sum() / (60 * 59))
    won, lost, items = np.maximum(added, 0).mean(), np.maximum(-added, 0).mean(), 2 * gold.sum()
    size = min((won + lost - difference**2) / error**2 + 1, items)
    size *= (stats.t.ppf(0.95, items - 1) / stats.t.ppf(0.95, 59)) ** 2
    for margin in (0.01, 0.2, 0.3, 0.4):
        found, p = trials_not_worse(TASK, poor, good, margin)
        assert p == pytest.approx(score_p(lost * size, won * size, size, margin), abs=1e-9)
        assert (p <= 0.05) == (found.low > -margin)
        assert found.value == pytest.approx(difference)
    assert trials_not_worse(TASK, good, good, 0.01)[1] < 0.001


def test_taggers_that_are_worse_by_the_margin_seldom_pass() -> None:
    """Most sentences are tagged alike. Student's t with the jackknife passes 9 % of 2,000."""
    rng, passed = np.random.default_rng(0), 0
    for _ in range(300):
        gold = rng.integers(0, 4, 50)
        both, _, lost, won = rng.multinomial(gold, [0.7, 0.23, 0.06, 0.01]).T
        found = [np.stack([gold, correct]) + 0.0 for correct in (both + won, both + lost)]
        one, two = ({1: Sums("sentence", np.arange(50), gold[None] + 0.0, own)} for own in found)
        passed += trials_not_worse(TASK, one, two, 0.05)[1] <= 0.05
    assert 5 <= passed <= 18


def test_tags_outside_entities_are_accurate_and_worthless() -> None:
    tags = np.tile([1, 2] + 8 * [0], 20)
    ids = [word_id(f"s{sentence:02d}", position) for sentence in range(20) for position in range(10)]
    words = pl.DataFrame({"utterance_id": ids, "speaker": [name[:3] for name in ids], "target": tags})
    right, outside = (
        {1: TASK.sums(words.with_columns(logits=pl.Series(np.eye(3)[found].tolist())))} for found in (tags, 0 * tags)
    )  # all outside: accuracy 80 %
    gap, p = trials_not_worse(TASK, outside, right, 0.25)
    assert (mean_figure(TASK, outside.values()), gap.value) == (0.0, -1.0)
    assert p == pytest.approx(0.999734, abs=1e-6)  # with Student's t 1, because no sentence differs from another


def test_few_sentences_are_swapped_in_all_ways() -> None:
    rng = np.random.default_rng(1)
    gold = rng.poisson(2.0, 9)
    first, second = method(rng, gold, 0.7, 2), method(rng, gold, 0.4, 2)
    observed = np.mean([*map(f1, first.values())]) - np.mean([*map(f1, second.values())])
    found = compare_trials(TASK, first, second, NAMES)
    as_large = []
    for swaps in product((0, 1), repeat=9):
        keep = 1 - np.array(swaps)
        values = []
        for one, two in zip(first.values(), second.values(), strict=True):
            (a, b), (c, d) = one.own @ keep + two.own @ swaps, two.own @ keep + one.own @ swaps
            values.append(2 * b / (gold.sum() + a) - 2 * d / (gold.sum() + c))
        as_large.append(abs(np.mean(values)) >= abs(observed) - 1e-12)
    assert found.difference == pytest.approx(observed)
    assert found.p == pytest.approx(np.mean(as_large))
    assert (found.unit, found.exact, found.units) == ("sentence", True, 9)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.difference <= found.high


def test_swaps_of_many_sentences_are_calibrated() -> None:
    """Equally good methods: p is about uniform. Better ones: p is small, and the sign is right."""
    rng = np.random.default_rng(2)
    gold = rng.poisson(1.5, 80)
    null = []
    for _ in range(200):
        pair = compare_trials(TASK, method(rng, gold, 0.6), method(rng, gold, 0.6), NAMES)
        assert not pair.exact
        assert pair.low is not None
        assert pair.high is not None
        assert (pair.low <= 0 <= pair.high) == (pair.p is not None and pair.p > 0.05)
        null.append(pair.p)
    assert 0.01 <= np.mean([p is not None and p <= 0.05 for p in null]) <= 0.10
    better = compare_trials(TASK, method(rng, gold, 0.9), method(rng, gold, 0.4), NAMES)
    assert better.p == pytest.approx(better.floor, abs=2e-4)
    assert better.difference > 0.3
    assert better.low is not None
    assert better.low > 0


def test_equal_methods_have_no_difference() -> None:
    rng = np.random.default_rng(3)
    one = method(rng, rng.poisson(1.5, 40), 0.5)
    found = compare_trials(TASK, one, one, NAMES)
    assert (found.difference, found.p, found.low + found.high) == (0, 1, 0)
    assert 0.05 < found.high < 0.07  # of 58 entities, some may differ
    interval, p = trials_not_worse(TASK, one, dict(one), 0.06)
    assert (p <= 0.05) == (interval.low > -0.06)
    assert trials_not_worse(TASK, one, one, 0.06)[1] < 0.05  # a method is not worse than itself


def test_sentences_without_entities_can_be_compared() -> None:
    """Both taggers have an F1 of 0; no sentence counts more than another."""
    one, two = (
        {1: Sums("sentence", np.arange(9), np.zeros((1, 9)), np.stack([np.full(9, made), np.zeros(9)]))}
        for made in (1.0, 2.0)
    )
    found = compare_trials(TASK, one, two, NAMES)
    assert (found.difference, found.low, found.high, found.p) == (0, 0, 0, 1)


def test_trials_must_be_comparable() -> None:
    rng = np.random.default_rng(4)
    one, other = (counted(rng, rng.poisson(1.5, 40), 0.5) for _ in range(2))
    with pytest.raises(ValueError, match="true answers of two trials differ"):
        trial_intervals(TASK, [{1: one}, {1: other}])
    with pytest.raises(ValueError, match="sentences of two trials differ"):
        compare_trials(TASK, {1: one}, {1: replace(one, units=one.units + 1)}, NAMES)


class Unbounded(Tagging):
    """Entity F1 as if it were no share of items."""

    def size(self, figure: float, given: np.ndarray, trials: int) -> None:
        return None


@pytest.mark.parametrize("sizes", [(3, 2), (4, 6), (1, 3)])
@pytest.mark.parametrize("task", [TASK, Unbounded(**vars(TASK))], ids=["share", "no share"])
def test_methods_of_other_seeds_are_compared_by_all_of_their_trials(task: Task, sizes: tuple[int, int]) -> None:
    """As if each had trained as often as the least common multiple of their numbers."""
    rng = np.random.default_rng(5)
    gold = rng.poisson(1.5, 40)
    one, other = (method(rng, gold, hit, number) for hit, number in zip((0.7, 0.5), sizes, strict=True))
    first, second = (dict(enumerate([*trials.values()] * (math.lcm(*sizes) // len(trials)))) for trials in (one, other))
    found, expected = compare_trials(task, one, other, NAMES), compare_trials(task, first, second, NAMES)
    assert found.difference == pytest.approx(np.mean([*map(f1, one.values())]) - np.mean([*map(f1, other.values())]))
    for name in ("difference", "low", "high", "p", "detectable"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=0, abs=1e-12)
    same, again = (trials_not_worse(task, *trials, 0.1) for trials in ((one, other), (first, second)))
    assert (same[0].low, same[1]) == pytest.approx((again[0].low, again[1]), rel=0, abs=1e-12)


def test_other_numbers_of_seeds_need_no_more_memory() -> None:
    rng = np.random.default_rng(6)
    one, other = (method(rng, rng.poisson(1.5, 2000), 0.5, 16) for _ in range(2))
    gold = one[1].given
    other = {seed: replace(trial, given=gold) for seed, trial in other.items()}
    peaks = []
    for number in (16, 15):  # 15 and 16 make 240 pairs
        tracemalloc.start()
        trials_not_worse(TASK, one, dict(list(other.items())[:number]), 0.1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
