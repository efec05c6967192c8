"""Names of classes in order."""

from __future__ import annotations

from itertools import permutations

from daamctl.artifacts.predictions import in_order


def test_numbers_are_in_order_of_their_size_whatever_the_order_of_the_names() -> None:
    for given in permutations(["10", "2", "nan", "-1", "joy"]):
        assert in_order(given) == ["-1", "joy", "nan", "2", "10"]
