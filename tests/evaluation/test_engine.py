"""Intervals and swaps against enumeration, inversion of the test, plain loops and simulation."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from daamctl.data.sign_flip import paired_sign_flip
from daamctl.evaluation.engine import contributions, equal_p, flip_interval, mean_intervals, non_inferiority, score_p


@pytest.fixture
def answers():
    """Right (1) and wrong (0) answers of 5 speakers who differ in how many items and classes they have."""
    rng = np.random.default_rng(5)
    clusters = np.repeat(np.arange(5), [4, 9, 6, 12, 8])
    classes = np.where(clusters == 2, 0, rng.integers(0, 3, len(clusters)))
    return rng.integers(0, 2, len(clusters)).astype(float), clusters, classes


def one_interval(values, clusters, **options):
    """The interval of one figure."""
    return mean_intervals([values], clusters, **options)[0]


def balanced(values, classes):
    return float(np.mean([values[classes == name].mean() for name in np.unique(classes)]))


def test_repeating_every_utterance_does_not_narrow_the_interval(answers):
    values, clusters, classes = answers
    once = one_interval(values, clusters, classes=classes)
    many = one_interval(np.tile(values, 50), np.tile(clusters, 50), classes=np.tile(classes, 50))
    assert many == once


def test_intervals_of_few_speakers_keep_their_level_and_those_over_utterances_do_not():
    """500 draws of 10 speakers; 94 % and more, where a bootstrap over speakers has 84 to 94 %."""
    rng = np.random.default_rng(2)
    clusters, covered, naive = np.repeat(np.arange(10), 100), 0, 0
    for _ in range(500):
        values = (rng.random(1000) < 0.7 + np.repeat(rng.normal(0, 0.1, 10), 100)).astype(float)
        result = one_interval(values, clusters)
        covered += result.low <= 0.7 <= result.high
        naive += abs(values.mean() - 0.7) <= 1.96 * values.std() / np.sqrt(1000)
    assert covered / 500 > 0.93
    assert naive / 500 < 0.7


def test_few_speakers_are_left_out_one_by_one(answers):
    values, clusters, classes = answers
    left_out = [balanced(values[clusters != one], classes[clusters != one]) for one in range(5)]
    reach = stats.t.ppf(0.95, 4) * np.sqrt(4 / 5 * ((left_out - np.mean(left_out)) ** 2).sum())
    result = one_interval(values, clusters, classes=classes, level=0.9)
    assert result.value == pytest.approx(balanced(values, classes))
    assert (result.low, result.high) == pytest.approx((result.value - reach, result.value + reach))


@pytest.mark.parametrize(("right", "number"), [(0, 20), (1, 20), (13, 20), (72, 72), (295, 300)])
def test_the_share_of_independent_items_has_the_exact_interval(right, number):
    values = np.arange(number) < right
    (result,) = mean_intervals([values], np.arange(number), items=number)
    exact = stats.binomtest(right, number).proportion_ci(0.95, method="exact")
    assert (result.low, result.high) == pytest.approx(tuple(exact))
    assert result.method == "korn-graubard"


def test_intervals_of_high_shares_of_few_speakers_keep_their_level():
    """500 draws of 10 speakers who are right in 97 %, more or less; the jackknife has 87 %."""
    rng = np.random.default_rng(3)
    clusters, covered, plain = np.repeat(np.arange(10), 30), 0, 0
    for _ in range(500):
        values = (rng.random(300) < np.repeat(rng.beta(9.7, 0.3, 10), 30)).astype(float)
        (share,), jackknife = mean_intervals([values], clusters, items=300), one_interval(values, clusters)
        covered += share.low <= 0.97 <= share.high
        plain += jackknife.low <= 0.97 <= jackknife.high
    assert covered / 500 > 0.93
    assert plain / 500 < 0.9


def test_interval_says_what_it_rests_on():
    values = np.arange(60.0)
    found = one_interval(values, values % 30)
    assert (found.n_clusters, found.level, found.resamples, found.method) == (30, 0.95, 30, "jackknife")
    with pytest.raises(ValueError, match="1 units; an interval needs at least 2"):
        one_interval([0.0, 1.0], ["a", "a"])
    with pytest.raises(ValueError, match="2 values, 1 units, 2 classes"):
        one_interval([0.0, 1.0], ["a"])


def test_an_end_at_zero_is_zero():
    """Rounding in the sums may not put an end of the interval beside zero, nor write it as -0.0."""
    reach = stats.t.ppf(0.975, 1)
    result = one_interval([reach - 1, reach + 1], ["a", "b"])
    assert json.dumps([result.low, result.high]) == f"[0.0, {round(2 * reach, 12)}]"
    assert json.dumps(one_interval([-1e-17, -1e-17], ["a", "b"]).low) == "0.0"


@pytest.mark.parametrize("block", [1, 700, 1_000_000])
@pytest.mark.parametrize("balanced", [False, True])
def test_units_are_left_out_in_blocks_as_one_by_one(monkeypatch, block, balanced):
    monkeypatch.setattr("daamctl.data.sign_flip.BLOCK", block)
    rng = np.random.default_rng(0)
    clusters, classes = rng.integers(0, 60, 150), rng.integers(0, 5, 150)
    values = np.stack([rng.random(150) < 0.7, rng.random(150) - 0.5])
    found = mean_intervals(values, clusters, classes=classes if balanced else None)
    names = np.unique(clusters)
    for row, result in zip(values, found, strict=True):
        figures = []
        for name in names:
            items = np.flatnonzero(clusters != name)
            means = [row[items[classes[items] == c]].mean() for c in np.unique(classes[items])]
            figures.append(np.mean(means) if balanced else row[items].mean())
        number = len(names)
        error = np.sqrt((number - 1) / number * ((figures - np.mean(figures)) ** 2).sum())
        reach = stats.t.ppf(0.975, number - 1) * error
        assert (result.low, result.high) == pytest.approx((result.value - reach, result.value + reach))
        assert result == one_interval(row, clusters, classes=classes if balanced else None)


def test_thousands_of_clusters_of_one_item_each():
    rng = np.random.default_rng(0)
    values = rng.random(3000) < 0.8
    result = one_interval(values, np.arange(3000))
    error = np.sqrt(values.mean() * (1 - values.mean()) / 3000)
    assert (result.low, result.high) == pytest.approx(
        (values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.003
    )
    assert result.method == "jackknife"


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("equal", [True, False])
def test_flip_interval_holds_what_the_test_does_not_reject(level, equal):
    rng = np.random.default_rng(0)
    for _ in range(20):
        number = rng.integers(6, 11)
        sizes = np.ones(number) if equal else rng.integers(1, 9, number).astype(float)
        sizes /= sizes.mean()
        differences = np.round(rng.normal(0.03, 0.05, number), 3) * sizes
        found = flip_interval(differences, sizes, level=level)
        for value in np.linspace(found.low - 0.02, found.high + 0.02, 41):
            if min(abs(value - found.low), abs(value - found.high)) > 1e-9:
                kept = paired_sign_flip(differences - value * sizes)["p"] > 1 - level + 1e-12
                assert kept == (found.low < value < found.high)
        assert found.low <= found.value <= found.high
        assert found.value == pytest.approx(differences.mean())


@pytest.mark.parametrize("equal", [True, False])
def test_flip_interval_never_disagrees_with_the_test(equal):
    rng = np.random.default_rng(1)
    excluded = 0
    for round_ in range(540):
        number = rng.integers(6, 13) if round_ < 500 else rng.integers(45, 60)
        sizes = np.ones(number) if equal else rng.integers(1, 40, number).astype(float)
        sizes /= sizes.mean()
        mean = 0.6 if round_ < 500 else 0.27
        differences = np.round(rng.normal(mean, 1, number), 1) * sizes  # ties and zeros are frequent
        found = flip_interval(differences, sizes)
        excludes = not found.low <= 0 <= found.high
        assert excludes == (paired_sign_flip(differences, sizes)["p"] <= 0.05)
        excluded += excludes
    assert 100 < excluded < 450


def test_flip_interval_of_many_units_is_drawn():
    """Random sets give the ends of all sets, and of thousands of answers those of the normal distribution."""
    rng = np.random.default_rng(3)
    sizes = rng.integers(1, 9, 24).astype(float)
    sizes /= sizes.mean()
    differences = (0.05 + rng.normal(0, 0.1, 24)) * sizes
    found = flip_interval(differences, sizes)
    assert (found.n_clusters, found.resamples, found.method) == (24, 100_000, "sign-flip")
    for end in (found.low, found.high):
        assert paired_sign_flip(differences - end * sizes)["p"] == pytest.approx(0.05, abs=0.005)
    answers = rng.choice([-1.0, 0.0, 1.0], 5_000, p=[0.1, 0.75, 0.15])
    many, error = flip_interval(answers), 1.96 * answers.std() / np.sqrt(5_000)
    assert (many.low, many.high) == pytest.approx((answers.mean() - error, answers.mean() + error), abs=0.001)
    assert flip_interval(np.zeros(40)).high == 0.0


def test_there_is_no_flip_interval_of_five_units():
    assert flip_interval(np.arange(5.0)) is None
    assert flip_interval(np.arange(5.0), level=0.9) is not None
    assert flip_interval(np.full(6, 0.25)).low == 0.25


def test_units_add_what_swapping_them_changes():
    rng = np.random.default_rng(2)
    first, second = rng.integers(1, 9, (2, 3, 12)).astype(float)
    first[0] = second[0]  # of the labels

    def share(sums):
        return sums[None, 1] / sums[0]

    def f1(sums):
        return 2 * sums[None, 2] / (sums[0] + sums[1])

    gaps = (first[1] - second[1]) / first[0].mean()
    np.testing.assert_allclose(contributions([(first, second)], share), gaps, rtol=1e-12)
    found = contributions([(first, second)], f1)
    observed = (f1(first.sum(1, keepdims=True)) - f1(second.sum(1, keepdims=True))).item()
    assert found.mean() == pytest.approx(observed)
    for unit in range(12):  # a swap changes one sign and nothing else
        one, two = first.copy(), second.copy()
        one[:, unit], two[:, unit] = second[:, unit], first[:, unit]
        signs = np.where(np.arange(12) == unit, -1, 1)
        other = contributions([(one, two)], f1)
        np.testing.assert_allclose(other / other[0], signs * found / (signs * found)[0], rtol=1e-12)
        np.testing.assert_allclose(other, signs * found, rtol=0.02)
    # units that the methods answer alike add nothing
    second[:, 4] = first[:, 4]
    assert contributions([(first, second)], f1)[4] == 0


@pytest.mark.parametrize("step", [0.0, 0.004])
def test_units_add_no_more_than_the_difference(step: float) -> None:
    """A figure that moves in steps may be equal, or nearly so, although every unit alone would change it."""

    def figure(sums):
        total, other = sums[0] / 12, sums[1] / 12
        return (0.1 * total + np.where(np.abs(total) > 0.2, step - 0.1, 0.0) * total + 0 * other)[None]

    first, second = np.array([[1.0] * 12, [1.0] * 12]), np.array([[-1.0] * 12, [1.0] * 12])
    found = contributions([(first, second)], figure)
    assert found.mean() == pytest.approx((figure(first.sum(1)) - figure(second.sum(1))).item(), abs=1e-12)
    low, high = flip_interval(found).low, flip_interval(found).high
    assert low - 1e-12 <= found.mean() <= high + 1e-12


@pytest.mark.parametrize(("items", "units"), [(60, 60), (300, 10)])
def test_methods_that_agree_may_differ_on_other_items(items, units):
    interval = flip_interval(np.zeros(units), level=0.9, alike=items)
    assert interval.value == interval.low + interval.high == 0.0
    independent = 1 - 0.05 ** (1 / items)
    assert interval.high >= independent - 1e-12
    assert (interval.high == pytest.approx(independent)) == (items == units)
    for margin in (0.99 * interval.high, 1.01 * interval.high):
        assert (equal_p(interval, margin) <= 0.05) == (interval.low >= -margin)


def test_score_interval_is_the_published_one():
    """21 children, of whom 7 changed one way and 1 the other (Fagerland, Lydersen and Laake 2014, table 1)."""
    gaps = np.array([1.0] + [-1.0] * 7 + [0.0] * 13)
    interval, _ = non_inferiority(gaps, gaps, np.ones(21), 0.1, level=0.95)
    assert (interval.low, interval.high) == pytest.approx((-0.517, -0.026), abs=5e-4)


@pytest.mark.parametrize("times", [1, 10])
def test_items_that_always_agree_with_their_unit_tell_no_more_than_one(times):
    gaps = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], 30, p=[0.2, 0.6, 0.2])
    p = non_inferiority(np.repeat(gaps, times), gaps, np.ones(30), 0.2, level=0.9)[1]
    size = 30 * (stats.t.ppf(0.95, 30 * times - 1) / stats.t.ppf(0.95, 29)) ** 2  # degrees of freedom are the units'
    lost, won = (gaps < 0).mean() * size, (gaps > 0).mean() * size
    assert p == pytest.approx(score_p(lost, won, size, 0.2))


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.3, 1.0])
def test_score_test_agrees_with_its_interval(margin):
    for lost, won in ((0, 1), (3, 0), (3, 8), (30, 0), (0, 30), (15, 15)):
        gaps = np.repeat([-1.0, 1.0, 0.0], [lost, won, 30 - lost - won])
        interval, p = non_inferiority(gaps, gaps, np.ones(30), margin, level=0.9)
        assert interval.low <= interval.value <= interval.high
        assert (p <= 0.05) == (interval.low > -margin)


def test_few_lost_items_pass_no_more_often_than_the_level():
    """All outcomes where 5 % of 100 items are lost: the sign-flip test with that margin passes 11.8 %."""
    chance = 0.0
    for lost in range(30):
        gaps = np.repeat([-1.0, 0.0], [lost, 100 - lost])
        p = non_inferiority(gaps, gaps, np.ones(100), 0.05, level=0.9)[1]
        chance += stats.binom.pmf(lost, 100, 0.05) * (p <= 0.05)
    assert 0.02 < chance <= 0.05


@pytest.mark.parametrize("units", [6, 8, 11, 17])
def test_interval_and_test_agree_where_units_count_nothing(units: int) -> None:
    """As recordings without speech, in some of which something is recognised, and sentences without entities."""
    rng, found = np.random.default_rng(units), Counter[bool]()
    for _ in range(150):
        sizes = rng.integers(0, 2, units) * rng.random(units)
        differences = np.where(rng.random(units) < 0.7, rng.normal(0.4, 1.0, units), 0.0)
        if not sizes.any() or not differences.any():
            continue
        sizes /= sizes.mean()
        p = paired_sign_flip(differences, sizes)["p"]
        interval = flip_interval(differences, sizes)
        rejected = interval is not None and not interval.low <= 0 <= interval.high
        found[rejected] += 1
        assert rejected == (p <= 0.05)
        assert interval is None or np.isfinite([interval.low, interval.high]).all()
    assert found[True]
    assert found[False]
