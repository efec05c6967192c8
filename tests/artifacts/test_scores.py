"""Tiers of methods that cannot be told apart."""

from __future__ import annotations

from itertools import combinations

from daamctl.artifacts.scores import ALL_PAIRS, Compared, Scores, frame_of, tie_tiers


def pairs_of(values: dict[str, float], apart: set[str]) -> list[Compared]:
    """All pairs of methods, of which those in `apart`, as "a b", differ significantly."""
    found = []
    for first, second in combinations(values, 2):
        row = {"first": first, "second": second, "metric": "accuracy", "first_value": values[first],
               "second_value": values[second], "difference": values[first] - values[second]}  # fmt: skip
        p = 0.05 if {f"{first} {second}", f"{second} {first}"} & apart else 0.051
        found.append(Compared(family=ALL_PAIRS, p_holm=p, **row))
    return found


def test_a_tier_ends_before_the_first_that_is_significantly_worse() -> None:
    """`c` differs from neither neighbour, but from the best; what it does not differ from comes after it."""
    values = {"d": 0.6, "a": 0.9, "c": 0.7, "b": 0.8}
    assert tie_tiers(pairs_of(values, {"a c", "a d"})) == [["a", "b"], ["c", "d"]]
    assert tie_tiers(pairs_of(values, set())) == [["a", "b", "c", "d"]]
    assert tie_tiers(pairs_of(values, {"a b", "b c", "c d"})) == [["a"], ["b"], ["c"], ["d"]]
    assert tie_tiers(pairs_of(values, {"b d"})) == [["a", "b", "c", "d"]]
    assert tie_tiers(pairs_of({"y": 0.5, "x": 0.5}, set())) == [["x", "y"]]
    assert tie_tiers([]) == []


def test_tiers_of_a_run_are_over_all_pairs() -> None:
    rows = pairs_of({"a": 0.9, "b": 0.8, "c": 0.7}, {"a c"})
    other = Compared(first="a", second="b", metric="accuracy", first_value=0.9, second_value=0.8, difference=0.1,
                     p_holm=0.001)  # fmt: skip
    scores = Scores(frames={"comparisons": frame_of("comparisons", [*rows, other])})
    assert scores.tiers("accuracy") == {"a": 1, "b": 1, "c": 2}
    assert scores.tiers("balanced_accuracy") == {}
