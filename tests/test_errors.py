"""Lists of names in messages."""

from __future__ import annotations

import pytest

from daamctl.errors import first_few


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], "none"), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_first_few(names: list[str], shown: str) -> None:
    assert first_few(names, 2) == shown


def test_the_number_of_further_lines_has_its_own_line() -> None:
    assert first_few(["a", "b", "c"], 2, separator="\n  ") == "a\n  b\n  and 1 more"
