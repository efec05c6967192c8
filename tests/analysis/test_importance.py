"""Importance Factor, layer contribution and ranking by hand."""

import numpy as np
import pytest

from daamctl.analysis.importance import (
    importance_factor,
    layer_contribution,
    map_correlation,
    mean_density,
    rank_layers,
)

DENSITY = np.array([[0.2, 0.4], [0.6, 1.0], [0.2, 0.2]])


def test_importance_factor_by_hand():
    expected = np.array([[0.0, 0.25], [0.5, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(importance_factor(DENSITY), expected)


def test_constant_map_gives_zeros():
    assert not importance_factor(np.full((3, 4), 0.7)).any()


def test_importance_is_unchanged_by_scale_and_offset():
    np.testing.assert_allclose(importance_factor(3 * DENSITY + 1), importance_factor(DENSITY))


def test_layer_contribution_by_hand():
    np.testing.assert_allclose(layer_contribution(DENSITY), [100 * 0.6 / 2.6, 100 * 1.6 / 2.6, 100 * 0.4 / 2.6])
    assert layer_contribution(DENSITY).sum() == pytest.approx(100)
    assert layer_contribution(np.zeros((2, 2))).tolist() == [0, 0]


def test_ranking_uses_stored_layer_numbers():
    assert rank_layers([DENSITY], [4, 9, 2]) == [9, 4, 2]


def test_ranking_uses_the_mean_over_folds():
    assert rank_layers([DENSITY, np.array([[2.0, 2.0], [0, 0], [0, 0]])], [1, 2, 3]) == [1, 2, 3]


def test_ties_go_by_layer_number():
    assert rank_layers([np.ones((3, 2))], [7, 3, 5]) == [3, 5, 7]


def test_correlation():
    assert map_correlation(DENSITY, 2 * DENSITY + 1) == pytest.approx(1.0)
    assert map_correlation(DENSITY, -DENSITY) == pytest.approx(-1.0)
    assert map_correlation(DENSITY, np.ones((3, 2))) is None


def test_refuses_wrong_maps():
    with pytest.raises(ValueError, match=r"shape \(L, D\), met \(3,\)"):
        importance_factor(np.ones(3))
    with pytest.raises(ValueError, match="1 values that are not finite"):
        importance_factor(np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match=r"one shape, met \[\(1, 2\), \(2, 2\)\]"):
        mean_density([np.ones((1, 2)), np.ones((2, 2))])
    with pytest.raises(ValueError, match="2 layer numbers for maps of 3 rows"):
        rank_layers([DENSITY], [1, 2])
    with pytest.raises(ValueError, match="cannot be compared"):
        map_correlation(DENSITY, DENSITY.T)
