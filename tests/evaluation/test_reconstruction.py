"""Arms compared over images: planted differences are found, and seeds are averaged first."""

from __future__ import annotations

import numpy as np
import pytest

from daamctl.artifacts.scores import Compared, Figure
from daamctl.evaluation.comparison import with_holm
from daamctl.evaluation.reconstruction import score_rows

IMAGES = [f"{number:02d}" for number in range(30) for _ in range(4)]


def planted(gap: float, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = 20 + np.repeat(rng.standard_normal(30), 4) + 0.1 * rng.standard_normal(120)
    noise = 0.05 * rng.standard_normal((2, 3, 120))
    return {"identity": base + noise[0], "daam": base + gap + noise[1], "third": base + noise[0][::-1]}


def compared(values: dict[str, np.ndarray]) -> dict[str, Compared]:
    """Every arm minus `identity`, corrected."""
    rows = score_rows("psnr", values, IMAGES, (1, 2, 3), "identity")["comparisons"]
    return {row.second: row.turned() for row in with_holm(rows)}


def test_a_planted_difference_is_found() -> None:
    values = planted(0.2)
    rows, found = score_rows("psnr", values, IMAGES, (1, 2, 3), "identity"), compared(values)
    by_seed = values["daam"].mean(1)
    assert [row.value for row in rows["scores"] if row.method == "daam"] == pytest.approx(by_seed)
    assert {(row.seed, row.items) for row in rows["scores"]} == {(1, 120), (2, 120), (3, 120)}
    figures: dict[str, Figure] = {row.method: row for row in rows["figures"]}
    assert figures["daam"].pooled == pytest.approx(values["daam"].mean())
    assert figures["daam"].std == pytest.approx(by_seed.std(ddof=1))
    assert (figures["daam"].units, figures["daam"].runs) == (30, 3)
    daam = found["daam"]
    assert daam.difference == pytest.approx((values["daam"] - values["identity"]).mean())
    assert daam.difference == pytest.approx(daam.first_value - daam.second_value)
    assert daam.low is not None
    assert daam.high is not None
    assert 0.1 < daam.low < 0.2 < daam.high < 0.3
    assert daam.p is not None
    assert daam.p_holm == pytest.approx(2 * daam.p)  # two comparisons
    assert (daam.unit, daam.units, daam.ahead, daam.behind, daam.runs) == ("image", 30, 3, 0, 3)
    assert daam.detectable is not None
    assert 0 < daam.detectable < 0.05
    assert set(found) == {"daam", "third"}


def test_no_difference_is_found_where_none_is() -> None:
    found = compared(planted(0.0, seed=1))["daam"]
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0 < found.high
    assert not found.is_significant


def test_equal_values_have_no_difference() -> None:
    assert compared(planted(0.0))["third"].difference == pytest.approx(0.0, abs=1e-9)
