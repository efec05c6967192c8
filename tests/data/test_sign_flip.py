"""The sign-flip test, two-sided and one-sided, against hand counts, scipy and other exact tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from daamctl.data.sign_flip import paired_sign_flip, random_sets, sign_flip_floor


def above(differences: Any) -> dict[str, Any]:
    return paired_sign_flip(differences, one_sided=True)


def test_sign_flips_by_hand() -> None:
    assert above([0.1, 0.2, 0.1, 0.3, 0.2]) == {
        "mean": pytest.approx(0.18), "p": 1 / 32, "floor": 1 / 32, "n": 5, "exact": True, "flips": 32,
    }  # fmt: skip
    assert above([1.0, -1.0])["p"] == 3 / 4
    assert above([-1.0, -2.0])["p"] == 1.0
    many = above(np.full(30, 0.1))
    assert many["p"] == many["floor"] == pytest.approx(1e-5, rel=0.2)


def test_one_side_equals_scipy() -> None:
    values = np.random.default_rng(0).normal(0.2, 1, 12)
    assert above(values)["p"] == pytest.approx(
        stats.permutation_test((values,), np.mean, permutation_type="samples", alternative="greater",
                               n_resamples=np.inf).pvalue
    )  # fmt: skip


def test_a_difference_of_zero_is_no_evidence() -> None:
    assert above([0.2, 0.1, 0.0])["p"] == above([0.2, 0.1, 0.0])["floor"] == sign_flip_floor(2, one_sided=True) == 1 / 4
    assert above([0.0])["p"] == above([0.0])["floor"] == 1.0


@pytest.mark.parametrize(("n", "floor"), [(1, 1.0), (5, 0.0625), (10, 0.001953125), (20, 2**-19)])
def test_floor_is_reached_when_every_difference_points_the_same_way(n: int, floor: float) -> None:
    result = paired_sign_flip(np.linspace(0.01, 0.02, n))
    assert result["p"] == result["floor"] == sign_flip_floor(n) == floor
    assert result["exact"]
    assert result["flips"] == 2**n


def test_two_sides_by_hand() -> None:
    assert paired_sign_flip([1.0, 2.0, 3.0])["p"] == 2 / 8
    assert paired_sign_flip([1.0, 2.0, -3.0])["p"] == 1.0
    assert paired_sign_flip([-1.0, 2.0, 6.0])["p"] == 4 / 8  # 9, 7, 5, 3 and their negatives; 7 was observed


@pytest.mark.parametrize("seed", range(4))
def test_two_sides_equal_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differences = rng.integers(-4, 8, 11) / 550  # many ties among the sums
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False
    )
    result = paired_sign_flip(differences)
    assert result["p"] == pytest.approx(theirs.pvalue)
    assert result["mean"] == pytest.approx(theirs.statistic)


def test_differences_of_zero_raise_the_floor() -> None:
    result = paired_sign_flip([0.1, 0.1, 0.1, 0.0, 0.0])
    assert result["p"] == result["floor"] == 0.25
    assert paired_sign_flip([0.0, 0.0])["p"] == paired_sign_flip([0.0])["floor"] == 1.0


def test_random_signs_beyond_twenty() -> None:
    rng = np.random.default_rng(0)
    clear = paired_sign_flip(np.full(24, 0.02))
    assert (clear["exact"], clear["flips"]) == (False, 100_000)
    assert clear["p"] == clear["floor"] == 1 / 100_001
    differences = rng.normal(0.2, 1.0, 91)
    result = paired_sign_flip(differences, seed=1)
    normal = 2 * stats.norm.sf(abs(differences.sum()) / np.sqrt((differences**2).sum()))
    assert result["p"] == pytest.approx(normal, abs=0.003)
    assert result == paired_sign_flip(differences, seed=1)
    assert result["p"] != paired_sign_flip(differences, seed=2)["p"]


def test_equal_differences_are_flipped_together() -> None:
    """Thousands of right and wrong answers: among differences of one size the test is McNemar's."""
    won, lost = 620, 540
    differences = np.concatenate([np.ones(won), -np.ones(lost), np.zeros(8840)])
    result = paired_sign_flip(differences)
    exact = stats.binomtest(won, won + lost).pvalue  # McNemar's exact test
    assert (result["n"], result["exact"]) == (10_000, False)
    assert result["p"] == pytest.approx(exact, abs=0.001)
    mixed = np.concatenate([differences, 0.5 * differences, np.full(3, 1 / 3), np.full(2, -(1 - 2 / 3))])
    normal = 2 * stats.norm.sf(abs(mixed.sum()) / np.sqrt((mixed**2).sum()))
    assert paired_sign_flip(mixed)["p"] == pytest.approx(normal, abs=0.003)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200, 5000])
def test_of_equal_units_the_number_in_a_set_is_binomial(count: int) -> None:
    """Also where several kinds are drawn together, and whatever is left of the last 64 bits."""
    sizes = (count, 64, 7)
    units = np.repeat(np.eye(3), sizes, axis=0)
    drawn = random_sets(np.concatenate([units] * 10), 100_000, 0) if count < 3 else random_sets(units, 100_000, 0)
    for column, size in zip(drawn.T, sizes, strict=True):
        number = 10 * size if count < 3 else size
        assert column.min() >= 0
        assert column.max() <= number
        assert (
            stats.kstest(column, stats.binom(number, 0.5).cdf).statistic
            < stats.binom.pmf(number // 2, number, 0.5) + 0.01
        )
    assert abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.02


def test_zeros_among_thousands_leave_an_exact_test() -> None:
    result = paired_sign_flip(np.concatenate([np.zeros(9990), np.full(8, 1.0), np.full(2, -1.0)]))
    assert (result["exact"], result["flips"]) == (True, 1024)
    assert result["p"] == stats.binomtest(8, 10).pvalue


def test_random_sets_are_drawn_once_for_the_same_units_and_again_for_others() -> None:
    units = np.random.default_rng(0).normal(size=(30, 2))
    found = random_sets(units, 1000, 1)
    assert random_sets(units.copy(), 1000, 1) is found
    assert not found.flags.writeable
    assert not np.array_equal(random_sets(units, 1000, 2), found)
    before = found.copy()
    units[0] += 1
    assert not np.array_equal(random_sets(units, 1000, 1), before)
    assert np.array_equal(found, before)
