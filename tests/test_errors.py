"""Lists of names and sizes in messages."""

from __future__ import annotations

import pytest

from daamctl.errors import first_few, suggest, two_sizes


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], "none"), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")],
)
def test_first_few(names: list[str], shown: str) -> None:
    assert first_few(names, 2) == shown


def test_names_stay_on_their_line() -> None:
    assert first_few(["a\nb", "\x1b[31mc", "\u202ed", "é ß", "x" * 300]) == (
        r"a\nb, \x1b[31mc, \u202ed, é ß, " + "x" * 199 + "…"
    )


def test_the_number_of_further_lines_has_its_own_line() -> None:
    assert first_few(["a", "b", "c"], 2, separator="\n  ") == "a\n  b\n  and 1 more"


@pytest.mark.parametrize(
    ("need", "there", "shown"),
    [
        (2_500_000_000, 300_000_000, ("2.5 GB", "300.0 MB")),
        (400_000, 300_000, ("400.0 kB", "300.0 kB")),
        (1_040_000_000, 1_010_000_000, ("1,040,000,000 bytes", "1,010,000,000 bytes")),
        (400, 0, ("400 bytes", "0 bytes")),
    ],
)
def test_two_sizes_differ_where_the_numbers_do(need: int, there: int, shown: tuple[str, str]) -> None:
    assert two_sizes(need, there) == shown


def test_a_message_proposes_three_names() -> None:
    known = [f"method-{number:02d}" for number in range(40)]
    assert suggest("metod-07", known) == "did you mean 'method-07'? similar: method-37, method-30"
    assert suggest("x", known).endswith("method-09 and 30 more")
    assert suggest("method-1", known[:2]) == "did you mean 'method-01'? known: method-00, method-01"
