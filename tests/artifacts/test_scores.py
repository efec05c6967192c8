"""Tiers of methods that may be the best."""

from __future__ import annotations

from itertools import combinations

from daamctl.artifacts.scores import ALL_PAIRS, Compared, Scores, frame_of, tie_tiers


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
