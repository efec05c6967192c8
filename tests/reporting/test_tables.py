"""Tables as CSV and LaTeX: every number in its own column, every sign escaped, every row as wide as its head."""

from __future__ import annotations

import csv
import re
from io import StringIO

import pytest

from daamctl.reporting.document import INTERVAL, UP, Cell, Linked, Number, Table
from daamctl.reporting.tables import LONG, SYMBOLS, escape, to_csv, to_latex

ROWS: list[list[Cell]] = [
    ["a_1 & b", Number(0.6464, std=0.026), Number(-0.031, "points", low=-0.1, high=0.02), "some words, a comma"],
    ["[b]", Number(0.5), "reference", "–"],
]
TABLE = Table(
    "key", "What 100 % of it shows", ["Method", f"Accuracy (WA)\u00a0{UP}", f"Minus none{INTERVAL}", "Words"], ROWS,
    frozenset({3}), note="δ ± 1.", foot=[["chance", Number(0.25), Number(None, "points"), "–"]],
)  # fmt: skip


def test_csv_splits_numbers_from_their_deviations_and_intervals() -> None:
    rows = list(csv.reader(StringIO(to_csv(TABLE))))
    assert rows == [
        ["Method", "Accuracy (WA) [%]", "Accuracy (WA), sample std [%]", "Minus none [points]",
         "Minus none, low [points]", "Minus none, high [points]", "Words"],
        ["a_1 & b", "64.64", "2.6", "-3.1", "-10", "2", "some words, a comma"],
        ["[b]", "50", "", "reference", "", "", ""],
        ["chance", "25", "", "", "", "", ""],
    ]  # fmt: skip


def test_csv_keeps_nine_digits_of_small_and_large_numbers() -> None:
    table = Table("k", "c", ["a", "p", "n"], [["x", Number(0.000775514128, "p"), Number(104_878_080, "count")]])
    assert to_csv(table).splitlines()[1] == "x,0.000775514128,104878080"


def test_csv_of_linked_cells_has_a_column_for_their_notes() -> None:
    ours: list[Cell] = [
        Linked(Number(0.5, std=0.25), "per clip", [("runs", "../runs")]),
        Linked("not run", "no GPU"),
        "–",
    ]
    table = Table(
        "k", "c", ["a", "Ours"], [[name, cell] for name, cell in zip("xyz", ours, strict=True)], frozenset({1})
    )
    assert to_csv(table).splitlines() == [
        'a,Ours [%],"Ours, sample std [%]","Ours, note"', "x,50,25,per clip; ../runs", "y,not run,,no GPU", "z,,,",
    ]  # fmt: skip
    assert body_of(to_latex(table, label="x"))[1] == r"x & 50.0 $\pm$ 25.0 (per clip) \\"


def test_csv_names_no_unit_where_rows_have_several() -> None:
    table = Table("k", "c", ["a", "Ours"], [["x", Number(0.5)], ["y, points", Number(0.01, "points")]])
    assert to_csv(table).splitlines() == ["a,Ours", "x,50", '"y, points",1']


def test_csv_of_an_empty_table_is_its_head() -> None:
    assert to_csv(Table("k", "c", ["a", "b"], [])) == "a,b\n"


def body_of(text: str) -> list[str]:
    """Rows between the rules."""
    return [line for line in text.splitlines() if line.endswith(r"\\") and not line.startswith(r"\label")]


def test_latex_is_a_booktabs_table() -> None:
    text = to_latex(TABLE, label="emo_db-key")
    lines = text.splitlines()
    assert lines[0] == "% needs the packages booktabs"
    assert r"\caption{What 100 \% of it shows.}" in lines
    assert r"\label{tab:emo-db-key}" in lines
    assert r"\begin{tabular}{@{}lrrl@{}}" in lines
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\midrule", r"\bottomrule"]
    assert body_of(text) == [
        r"Method & Accuracy (WA) $\uparrow$ & Minus none [95 \% interval] & Words \\",
        r"a\_1 \& b & 64.6 $\pm$ 2.6 & $-$3.1 [$-$10.0, +2.0] & some words, a comma \\",
        r"{}[b] & 50.0 & reference & -- \\",
        r"chance & 25.0 & -- & -- \\",
    ]
    assert r"{\footnotesize $\delta$ $\pm$ 1.}" in lines


@pytest.mark.parametrize("rows", [1, LONG, LONG + 1, 200])
@pytest.mark.parametrize("columns", [2, 14])
def test_latex_environments_are_closed_and_rows_are_regular(rows: int, columns: int) -> None:
    heads = [f"Heading {number}" for number in range(columns)]
    table = Table("k", "c", heads, [["name", *[Number(0.5, std=0.1)] * (columns - 1)]] * rows)
    text = to_latex(table, label="x")
    opened = re.findall(r"\\begin\{(\S+?)\}", text)
    assert opened == re.findall(r"\\end\{(\S+?)\}", text)[::-1]
    assert ("longtable" in opened) == (rows > LONG)
    assert ("table*" in opened) == (rows <= LONG and columns == 14) == ("resizebox" in text)
    assert ("graphicx" in text.splitlines()[0]) == ("resizebox" in text)
    assert {line.count(" & ") for line in body_of(text)} == {columns - 1}
    plain = re.sub(r"\\[{}%]", "", text.partition("\n")[2])
    assert plain.count("{") == plain.count("}")


def test_every_special_sign_is_escaped() -> None:
    assert escape(r"50 % of $x_1$ & #{~^}\ <a|b>") == (
        r"50 \% of \$x\_1\$ \& \#\{\textasciitilde{}\textasciicircum{}\}\textbackslash{} "
        r"\textless{}a\textbar{}b\textgreater{}"
    )
    assert escape("√") != "√"
    assert all(value.isascii() for value in SYMBOLS.values())
    assert escape("two\nlines\u00a0here") == "two lines here"
