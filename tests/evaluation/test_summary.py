"""Means, deviations and the scores of constant predictions."""

import numpy as np
import pytest

from daamctl.artifacts.evaluation import Spread
from daamctl.evaluation.summary import chance, spread


def test_spread_by_hand():
    result = spread([0.5, 0.7])
    assert result.mean == pytest.approx(0.6)
    assert result.population_std == pytest.approx(0.1)
    assert result.sample_std == pytest.approx(np.sqrt(0.02))
    assert result.n == 2


def test_spread_of_one_value_has_no_sample_deviation():
    assert spread([0.5]) == Spread(mean=0.5, sample_std=None, population_std=0.0, n=1)
    with pytest.raises(ValueError, match="no value"):
        spread([])


@pytest.mark.parametrize(
    ("folds", "population", "sample"),
    [
        ((62.7, 59.9, 61.7, 61.3, 65.7), 1.941, 2.170),  # mha
        ((62.7, 59.9, 62.9, 64.8, 66.6), 2.245, 2.509),  # mha-bn
        ((66.1, 60.0, 66.3, 65.2, 65.4), 2.337, 2.613),  # daam-v2
        ((66.5, 65.4, 68.7, 65.9, 66.8), 1.129, 1.262),  # gqdaam
    ],
)
def test_deviations_of_the_published_iemocap_folds(folds, population, sample):
    """docs/sources.md#means-and-standard-deviations; 2.245 and 2.613 are 2.2445 and 2.6125, rounded once more."""
    result = spread(folds)
    assert result.population_std == pytest.approx(population, abs=0.00055)
    assert result.sample_std == pytest.approx(sample, abs=0.00055)


def test_chance():
    result = chance(np.array([0, 1, 1, 1]), ["calm", "angry", "sad"])
    assert (result.majority_class, result.majority_fraction) == ("angry", 0.75)
    assert result.uniform_fraction == pytest.approx(1 / 3)
    assert result.uniform_log_loss == pytest.approx(np.log(3))
    assert result.share_log_loss == pytest.approx(-(0.25 * np.log(0.25) + 0.75 * np.log(0.75)))
    assert result.per_class == {"calm": 1, "angry": 3, "sad": 0}
    with pytest.raises(ValueError, match="no target"):
        chance(np.array([], dtype=int), ["calm"])
