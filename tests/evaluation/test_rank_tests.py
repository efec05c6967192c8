"""Rank tests against scipy, and against profiles whose relation is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from daamctl.evaluation.rank_tests import agreement, is_ranking, order_of, random_orders, rank_test


def smooth(rng, num_layers=24):
    return np.cumsum(rng.normal(size=num_layers))


def test_correlations_equal_those_of_scipy():
    rng = np.random.default_rng(0)
    score, worth = rng.normal(size=24), rng.integers(0, 9, 24).astype(float)  # with ties
    found = agreement(score, worth)
    assert found is not None
    assert found.rho == pytest.approx(stats.spearmanr(score, worth).statistic)
    depth = np.arange(24)

    def rest(values):
        ranks = stats.rankdata(values)
        return ranks - np.polyval(np.polyfit(depth, ranks, 1), depth)

    assert found.rho_beside_depth == pytest.approx(np.corrcoef(rest(score), rest(worth))[0, 1])


@pytest.mark.parametrize("number", [4, 6])
def test_few_layers_are_permuted_exactly(number):
    rng = np.random.default_rng(number)
    score, worth = rng.normal(size=number), rng.normal(size=number)
    found = agreement(score, worth)
    assert found is not None

    def p(statistic, alternative):
        result = stats.permutation_test(
            (score,), lambda x: statistic(x, worth).statistic, permutation_type="pairings", n_resamples=np.inf,
            alternative=alternative,
        )  # fmt: skip
        return result.pvalue

    assert found.p == pytest.approx(p(stats.spearmanr, "greater"))
    assert found.floor == pytest.approx(1 / np.prod(np.arange(1, number + 1)))
    assert rank_test(score, worth) == pytest.approx((found.rho, found.p))


def test_turned_profiles_by_hand():
    score = np.array([1.0, 4.0, 2.0, 3.0, 5.0])
    worth = np.array([2.0, 5.0, 1.0, 3.0, 4.0])
    turned = [np.roll(part, k) for part in (score, score[::-1]) for k in range(5)]
    rhos = [np.corrcoef(part, worth)[0, 1] for part in turned]
    found = agreement(score, worth)
    assert found is not None
    assert found.p_turned == np.mean(np.array(rhos) >= rhos[0] - 1e-9)


def test_planted_relation_is_found_and_chance_is_not():
    rng = np.random.default_rng(1)
    truth = smooth(rng)
    truth /= truth.std()
    found = agreement(truth + 0.2 * rng.normal(size=24), truth + 0.2 * rng.normal(size=24))
    assert found is not None
    assert found.verdict == "yes"
    verdicts = [agreement(rng.normal(size=24), rng.normal(size=24)).verdict for _ in range(20)]
    assert verdicts.count("yes") <= 2
    assert verdicts.count("not shown") >= 16


def test_what_only_depth_has_in_common_is_unclear():
    rng = np.random.default_rng(2)
    depth = np.arange(24.0)
    found = agreement(depth + 2 * rng.normal(size=24), depth + 2 * rng.normal(size=24))
    assert found is not None
    assert found.p < 1e-4
    assert found.p_beside_depth > 0.05
    assert found.verdict == "unclear"
    only_depth = agreement(depth, depth)
    assert only_depth is not None
    assert (only_depth.rho_beside_depth, only_depth.verdict) == (None, "unclear")


def test_smooth_unrelated_profiles_are_seldom_called_related():
    rng = np.random.default_rng(3)
    found = [agreement(smooth(rng), smooth(rng)) for _ in range(25)]
    naive = sum(one.p <= 0.05 for one in found)
    assert naive >= 4  # what a permutation test alone would call related
    assert sum(one.verdict == "yes" for one in found) <= 2


def test_too_little_to_tell():
    assert agreement(np.ones(5), np.arange(5)) is None
    assert agreement([1.0], [2.0]) is None
    assert rank_test([1.0, 1.0], [1.0, 2.0]) is None
    found = agreement([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert found is not None
    assert found.verdict == "cannot be told"
    with pytest.raises(ValueError, match=r"shape \(3,\) against \(2,\)"):
        agreement([1.0, 2.0, 3.0], [1.0, 2.0])


def test_orders():
    orders = random_orders(6, 50, seed=1)
    assert (np.sort(orders, axis=1) == np.arange(6)).all()
    assert len(np.unique(orders, axis=0)) > 40
    np.testing.assert_array_equal(orders, random_orders(6, 50, seed=1))
    assert order_of(np.array([0.1, 0.5, 0.1, 0.9])).tolist() == [3, 1, 0, 2]


def test_what_counts_as_a_ranking():
    assert is_ranking(np.array([0.1, 0.2, 0.3]))
    assert not is_ranking(np.array([0.0, 0.0, 1.0]))
    assert not is_ranking(np.full(24, 1 / 24))
    assert not is_ranking(np.full(24, 1 / 24) + 1e-9 * np.arange(24))  # rounding tells no layers apart
