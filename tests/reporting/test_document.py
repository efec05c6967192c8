"""How numbers are written, and that a document finds every part of itself."""

from __future__ import annotations

import pytest

from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.terms import listed
from daamctl.reporting.document import (
    Document,
    Files,
    Folded,
    Linked,
    Number,
    Plot,
    Section,
    Table,
    Text,
    count,
    layers_text,
    number_of,
    p_value,
    plural,
    points,
    spread,
)
from daamctl.reporting.figure_spec import Figure, Picture


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(0.6464, std=0.026), "64.6 ± 2.6"),
        (Number(0.84, low=0.775, high=0.9), "84.0 [77.5, 90.0]"),
        (Number(-0.0312, "points", low=-0.1, high=0.021), "−3.1 [−10.0, +2.1]"),
        (Number(0.05, "points", std=0.012), "+5.0 ± 1.2"),
        (Number(-0.0001, "points"), "−0.0"),
        (Number(65.3361, "score", low=61.7, high=0.0004), "65.336 [61.700, 0.0004]"),
        (Number(-2.9649e-4, "score"), "−0.000296"),
        (Number(8.95e-3, "score-signed", low=0.0, high=0.01), "+0.00895 [0.000, +0.010]"),
        (Number(-2e-4, "signed"), "−0.000"),
        (Number(0.027, "points", low=1e-17, high=0.0001), "+2.7 [0.0, +0.0]"),
        (Number(-0.00001), "0.0"),
        (Number(0.031, "size"), "3.1"),
        (Number(1.3862, "nats", std=0.05), "1.386 ± 0.050"),
        (Number(0.0004, "p"), "<0.001"),
        (Number(0.001, "p"), "0.001"),
        (Number(1.0, "p"), "1.000"),
        (Number(336412, "count"), "336,412"),
        (Number(3 * 2**20, "mib"), "3"),
        (Number(None, "p"), "–"),
        (Number(None, std=0.1), "–"),
    ],
)
def test_numbers_as_shown(number: Number, text: str) -> None:
    assert str(number) == text


def test_parts_are_in_the_unit_shown() -> None:
    number = Number(1 / 3, "points", std=0.01, low=-0.2, high=0.5)
    assert number.parts == {"": 33.3333333, "sample std": 1.0, "low": -20.0, "high": 50.0}
    assert Number(None).parts == {"": None}
    assert Number(0.0123456789012, "p").parts[""] == pytest.approx(0.0123456789)


def test_spread_of_one_run_has_no_deviation() -> None:
    assert str(spread(over_runs([0.5]))) == "50.0"
    assert str(spread(None)) == "–"


def test_a_linked_cell_says_where_it_comes_from() -> None:
    number = Number(0.6464, std=0.026)
    cell = Linked(number, "per clip, n = 5", [("runs", "../runs"), ("report", "../report.html")])
    assert str(cell) == "64.6 ± 2.6 (per clip, n = 5)"
    assert str(Linked("not run", "no corpus")) == "not run (no corpus)"
    assert number_of(cell) is number_of(number) is number
    assert number_of("64.6") is number_of(Linked("not run", "no corpus")) is None


def test_words() -> None:
    assert (points(0.031), points(None), count(12345), p_value(0.0002), p_value(0.0123)) == (
        "+3.1", "–", "12,345", "p < 0.001", "p = 0.012",
    )  # fmt: skip
    assert (plural(1, "fold"), plural(5, "fold")) == ("1 fold", "5 folds")
    assert (listed([]), listed(["a"]), listed(["a", "b", "c"])) == ("", "a", "a, b and c")
    assert (layers_text(range(1, 25)), layers_text([1, 2, 3]), layers_text([9])) == ("1–24", "1, 2, 3", "9")
    assert layers_text([1, 2, 4, 5, 6, 7, 9]) == "1, 2, 4–7, 9"


def test_document_finds_what_is_folded_away() -> None:
    tables = [Table(key, "caption", ["a"], [["x"]], foot=[["y"]]) for key in ("one", "two")]
    pictures = [Picture(f"{name}.png", "alt", b"") for name in "abcd"]
    plot = Plot(Figure("p", "label", {}), pictures[1:3])
    inner = Folded("more", [tables[1], Folded("deeper", [plot])])
    section = Section("s", "S", [Text("t"), pictures[0], tables[0], inner, Files("files", pictures[3:])])
    document = Document("D", "run", [section])
    assert document.tables == tables
    assert document.plots == [plot]
    assert document.pictures == pictures
    assert tables[0].all_rows == [["x"], ["y"]]
