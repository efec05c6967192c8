"""Tiers of methods that may be the best, and how many units tell a lead."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from daamctl.artifacts.scores import ALL_PAIRS, Compared, Scores, frame_of, tie_tiers
from daamctl.evaluation.statistics import minimal_detectable_difference


def pairs_of(values: dict[str, float], apart: set[str]) -> list[Compared]:
    """All pairs of methods, of which those in `apart`, as "a b", differ by a test of ten speakers, p = .002."""
    found = []
    for first, second in combinations(values, 2):
        row = {"first": first, "second": second, "metric": "accuracy", "first_value": values[first],
               "second_value": values[second], "difference": values[first] - values[second]}  # fmt: skip
        p = 0.00195 if {f"{first} {second}", f"{second} {first}"} & apart else 0.051
        found.append(Compared(family=ALL_PAIRS, p=p, **row))
    return found


def test_a_tier_holds_the_methods_that_may_be_the_best_of_those_left() -> None:
    """One that is shown to be worse than any other is not the best, whatever else it does not differ from."""
    values = {"d": 0.6, "a": 0.9, "c": 0.7, "b": 0.8}
    assert tie_tiers(pairs_of(values, {"a c", "a d"})) == [["a", "b"], ["c", "d"]]
    assert tie_tiers(pairs_of(values, set())) == [["a", "b", "c", "d"]]
    assert tie_tiers(pairs_of(values, {"a b", "b c", "c d"})) == [["a"], ["b"], ["c"], ["d"]]
    assert tie_tiers(pairs_of(values, {"b d"})) == [["a", "b", "c"], ["d"]]
    assert tie_tiers(pairs_of(values, {"a b"})) == [["a", "c", "d"], ["b"]]  # little is known of c and d
    assert tie_tiers(pairs_of({"y": 0.5, "x": 0.5}, set())) == [["x", "y"]]
    assert tie_tiers([]) == []


def test_many_methods_over_ten_speakers_can_be_told_apart() -> None:
    """The smallest p of ten speakers counts times the other methods, not times all pairs."""
    values = {f"m{number}": 0.9 - number / 100 for number in range(25)}
    worst = {f"m{number} m24" for number in range(24)}
    assert tie_tiers(pairs_of(values, worst)) == [[name for name in values if name != "m24"], ["m24"]]
    more = values | {"m25": 0.6, "m26": 0.6}
    assert tie_tiers(pairs_of(more, worst)) == [list(more)]  # 26 times .00195 is more than .05


def test_tiers_of_a_run_are_over_all_pairs() -> None:
    rows = pairs_of({"a": 0.9, "b": 0.8, "c": 0.7}, {"a c"})
    other = Compared(first="a", second="b", metric="accuracy", first_value=0.9, second_value=0.8, difference=0.1,
                     p=0.001)  # fmt: skip
    scores = Scores(frames={"comparisons": frame_of("comparisons", [*rows, other])})
    assert scores.tiers("accuracy") == {"a": 1, "b": 1, "c": 2}
    assert scores.tiers("balanced_accuracy") == {}


@pytest.mark.parametrize("level", [0.05, 0.05 / 4])
@pytest.mark.parametrize(("units", "effect"), [(5, 1.0), (6, 0.4), (10, 0.7), (20, 0.5), (6, 1.5)])
def test_as_many_units_as_told_find_the_lead_in_four_of_five_samples(units: int, effect: float, level: float) -> None:
    rng = np.random.default_rng(0)
    spread = rng.normal(size=units)
    spread /= spread.std(ddof=1)
    found = {"detectable": minimal_detectable_difference(spread), "difference": -effect, "units": units}
    lead = Compared(first="a", second="b", metric="accuracy", first_value=0.0, second_value=effect, **found)
    needed = lead.units_needed(level)
    assert needed is not None
    drawn = rng.normal(effect, 1.0, (2000, needed))
    if needed < 14:
        signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * needed)).reshape(needed, -1)
    else:
        signs = rng.choice([-1.0, 1.0], (needed, 4000))
    p = (np.abs(drawn @ signs) >= np.abs(drawn.sum(axis=1, keepdims=True)) - 1e-9).mean(axis=1)
    # whole numbers, and p-values of few signs, leave a little more
    assert 0.78 <= (p <= level).mean() <= (0.83 if needed > 20 else 0.9)
