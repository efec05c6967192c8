"""Arms compared over images: planted differences are found, and seeds are averaged first."""

from __future__ import annotations

import numpy as np
import pytest

from daamctl.evaluation.reconstruction import compare_arms

IMAGES = [f"{number:02d}" for number in range(30) for _ in range(4)]


def planted(gap: float, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = 20 + np.repeat(rng.standard_normal(30), 4) + 0.1 * rng.standard_normal(120)
    noise = 0.05 * rng.standard_normal((2, 3, 120))
    return {"identity": base + noise[0], "daam": base + gap + noise[1], "third": base + noise[0][::-1]}


def test_a_planted_difference_is_found() -> None:
    values = planted(0.2)
    found = compare_arms(values, IMAGES, "identity")
    daam, reference = found["daam"], found["identity"]
    assert daam.value == pytest.approx(values["daam"].mean())
    assert daam.by_seed == pytest.approx(values["daam"].mean(1))
    assert daam.difference == pytest.approx((values["daam"] - values["identity"]).mean())
    assert daam.difference_by_seed == pytest.approx(values["daam"].mean(1) - values["identity"].mean(1))
    assert daam.difference_interval is not None
    assert 0.1 < daam.difference_interval.low < 0.2 < daam.difference_interval.high < 0.3
    assert daam.test is not None
    assert daam.test.p is not None
    assert daam.test.p_holm == pytest.approx(2 * daam.test.p)  # two comparisons
    assert daam.test.n == 30
    assert daam.detectable is not None
    assert 0 < daam.detectable < 0.05
    assert (reference.difference, reference.test) == (None, None)


def test_no_difference_is_found_where_none_is() -> None:
    found = compare_arms(planted(0.0, seed=1), IMAGES, "identity")["daam"]
    assert found.difference_interval is not None
    assert found.difference_interval.low < 0 < found.difference_interval.high
    assert found.test is not None
    assert found.test.p_holm is not None
    assert found.test.p_holm > 0.05


def test_equal_values_have_no_detectable_difference() -> None:
    found = compare_arms(planted(0.0), IMAGES, "identity")["third"]
    assert found.difference == pytest.approx(0.0, abs=1e-9)
