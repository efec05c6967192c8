"""Importance Factor, layer contribution, ranking, stability and geometry by hand."""

import numpy as np
import pytest
import torch

from daamctl.evaluation.importance import (
    geometry_caution,
    head_positions,
    importance_factor,
    is_geometry,
    layer_contribution,
    layer_importance,
    map_correlation,
    mean_density,
    num_distinct,
    order_layers,
    rank_correlation,
    stability,
)
from daamctl.methods import MultiHeadDAAM

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


def test_a_score_that_ties_all_layers_ranks_none():
    constant = np.full((3, 4), 0.7) + 1e-8 * np.arange(12).reshape(3, 4)  # within the rounding of float32
    assert not importance_factor(constant).any()
    assert order_layers(layer_importance(constant.astype(np.float32)), [7, 3, 5]) == []
    assert order_layers(np.full(24, 1 / 24) + 1e-9 * np.arange(24), list(range(24))) == []
    assert order_layers(np.zeros(2), [1, 2]) == []
    assert order_layers(np.zeros(1), [4]) == [4]  # nothing to tell apart


def test_layers_of_one_mean_density_tie_though_the_map_varies():
    density = 0.5 + 0.1 * np.tile([1.0, -1.0], (3, 2))
    density[0, 0] += 1e-8  # of the map's range, 0.2, that would be a difference
    scores = layer_importance(density)
    assert len(set(scores.tolist())) == 1
    assert order_layers(scores, [1, 2, 3]) == []


def test_small_differences_still_rank():
    assert order_layers(np.array([0.5, 0.5 + 1e-5, 0.5]), [1, 2, 3]) == [2, 1, 3]
    assert num_distinct(np.array([0.5, 0.5 + 1e-5, 0.5 + 1e-9])) == 2


def test_correlation():
    assert map_correlation(DENSITY, 2 * DENSITY + 1) == pytest.approx(1.0)
    assert map_correlation(DENSITY, -DENSITY) == pytest.approx(-1.0)
    assert map_correlation(DENSITY, np.ones((3, 2))) is None


@pytest.mark.usefixtures("unchecked_shapes")
def test_refuses_wrong_maps():
    with pytest.raises(ValueError, match=r"shape \(L, D\), got \(3,\)"):
        importance_factor(np.ones(3))
    with pytest.raises(ValueError, match="1 values that are not finite"):
        importance_factor(np.array([[np.nan, 1.0]]))
    with pytest.raises(ValueError, match=r"one shape, got \[\(1, 2\), \(2, 2\)\]"):
        mean_density([np.ones((1, 2)), np.ones((2, 2))])
    with pytest.raises(ValueError, match="cannot be compared"):
        map_correlation(DENSITY, DENSITY.T)


def test_layer_importance_is_the_mean_over_features():
    np.testing.assert_allclose(layer_importance(DENSITY), [0.125, 0.75, 0.0])
    assert order_layers(np.array([0.1, 0.5, 0.5]), [7, 9, 8]) == [8, 9, 7]


def test_stability_over_runs():
    runs = [np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])]
    assert stability(runs) == {"tau_mean": pytest.approx(-1 / 3), "tau_min": -1.0, "pairs": 3}
    assert stability(runs[:1]) == {"tau_mean": None, "tau_min": None, "pairs": 0}
    assert stability([np.ones(3), np.arange(3.0)])["pairs"] == 0  # a constant has no ranking
    assert rank_correlation(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 4.0, 3.0])) == pytest.approx(2 / 3)


def test_head_positions_by_hand():
    scores = np.array([1.0, 4.0, 2.0, 6.0])  # two heads of two layers
    found = head_positions(scores, 2)
    assert found is not None
    assert found.means == [1.5, 5.0]
    assert found.counts == [2, 2]
    assert found.share == pytest.approx(4 * 1.75**2 / ((scores - scores.mean()) ** 2).sum())
    assert found.adjusted_share == pytest.approx(1 - (1 - found.share) * 3 / 2)
    assert found.p == pytest.approx(1 / 3, abs=0.02)  # of the three ways to pair them off, this one is the best


def test_last_head_takes_the_remainder():
    found = head_positions(np.arange(7.0), 3)  # heads of 2, 2 and 3 layers
    assert found is not None
    assert found.counts == [3, 3, 1]
    assert found.means == [2.0, 3.0, 6.0]


@pytest.mark.parametrize("num_heads", [1, 4, 6])
def test_positions_need_several_heads_of_several_layers(num_heads):
    assert head_positions(np.arange(6.0), num_heads) is None


def test_constant_score_has_no_positions():
    found = head_positions(np.ones(6), 2)
    assert found is not None
    assert (found.share, found.p) == (None, None)
    assert not is_geometry(found)


def untrained_map(num_layers: int = 24, embed_dim: int = 32) -> np.ndarray:
    """The map of an untrained DAAM of eight heads over features that drift along depth."""
    torch.manual_seed(0)
    layers = torch.randn(100, num_layers, embed_dim).cumsum(1)
    density = MultiHeadDAAM(num_heads=8, embed_dim=embed_dim)(layers, return_density=True)[1]
    return density.mean(0).detach().double().numpy()


def test_pure_geometry_is_flagged_without_an_untrained_map_beside_it():
    scores = layer_importance(untrained_map())
    found = head_positions(scores, 8)
    assert is_geometry(found)
    assert found.means[1] > max(found.means[0], found.means[2])  # the middle layer of each triple
    caution = geometry_caution(None, found)
    assert "mostly geometry" in caution
    assert "the position of a layer inside its head alone explains" in caution
    both = geometry_caution(0.95, found)
    assert "Pearson r = 0.950) and the position of a layer" in both


def test_random_scores_are_not_flagged():
    rng = np.random.default_rng(0)
    flagged = [is_geometry(head_positions(rng.normal(size=24), heads)) for heads in (2, 4, 8, 12) for _ in range(15)]
    assert sum(flagged) <= 2
    assert geometry_caution(0.5, head_positions(rng.normal(size=24), 8)) is None
    assert geometry_caution(None, None) is None


def test_caution_for_layers_of_unequal_width() -> None:
    caution = geometry_caution(0.5, None, [16, 32, 96])
    assert caution is not None
    assert caution.startswith("The encoder's layers have 16 to 96 features. Those that a layer lacks are 0")
