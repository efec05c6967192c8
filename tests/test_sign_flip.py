"""The one-sided sign-flip test; the two-sided one is tested with the other statistics of the evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from daamctl.sign_flip import paired_sign_flip, sign_flip_floor


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
