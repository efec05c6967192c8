"""What the papers say of their own tables: summaries agree, claims hold where they hold, repetitions are the same."""

from __future__ import annotations

import pytest

from daamctl.paper.claims import best, in_text, parameters, repeated
from daamctl.paper.numbers import experiments
from daamctl.paper.reproduced import ReproducedResults
from daamctl.reporting.document import Linked, Section, Table, number_of

LARGEST = "Largest of the three: best DAAM minus MHA"
NONE = {
    one.key: (
        ReproducedResults("p", one, True, why={"evaluate": "no corpus"}),
        ReproducedResults("p", one, False, why={"evaluate": "no corpus"}),
    )
    for one in experiments()
}


def rows(section: Section) -> dict[str, list[str]]:
    table = next(block for block in section.blocks if isinstance(block, Table))
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}


def test_summaries_agree_with_the_main_tables() -> None:
    table = next(block for block in best(NONE).blocks if isinstance(block, Table))
    found = {str(row[0]): row for row in table.rows}
    assert all("agrees" in str(row[2]) for name, row in found.items() if name != LARGEST)
    assert str(found[LARGEST][2]) == "+18.9 (CIFAR-100)"
    assert str(found[LARGEST][3]) == "not run (none of p, p and p has both)"
    number = number_of(found["IEMOCAP: best DAAM minus best LoRA"][2])
    assert number is not None
    assert number.value == pytest.approx(0.141)


@pytest.mark.parametrize(
    ("start", "computed", "holds"),
    [
        ("Parameters of LoRA over those of DAAM,", "speech 24.06, vision 30.26, text 40.00", "yes"),
        ("Parameters of LoRA over those of DAT", "speech 1.17, vision 0.18, text 2.58", "total: text only"),
        ("Parameters that DAT has fewer", "speech 43 %, vision 43 %, text 88 %", "total: text only"),
        ("Parameters that GQDAAM adds to GQA (%)", "speech 1.66 %, vision 1.66 %, text 2.66 %", "text only"),
        ("Parameters that GQDAAM adds to GQA, as", "speech 1.36 %, vision 1.36 %, text 2.37 %", "no: "),
    ],
)
def test_claims_beside_the_counts(start: str, computed: str, holds: str) -> None:
    _, shown, verdict = next(row for name, row in rows(in_text()).items() if name.startswith(start))
    assert computed in shown
    assert verdict.startswith(holds)


def test_repetitions_agree() -> None:
    found = rows(repeated())
    assert len(found) > 40
    odd = {name: row[-1] for name, row in found.items() if row[-1] != "yes"}
    assert set(odd.values()) == {"std is printed only here: ✓ population std of its folds"}
    assert len(odd) == 2


def test_printed_counts_and_what_they_are() -> None:
    found = rows(parameters())
    assert found["mixture-daam, attention part"][1:3] == ["64; 64; 64", "✓ attention part"]
    assert found["gqdaam, DAAM part (millions)"][1] == "16,384; 16,384; 81,920"
    assert found["daam-v1, total (millions)"][2:] == [
        "✗ none; nearest 0.238: without fc (speech)", "✓ without fc (text)",
    ]  # fmt: skip
    assert found["lora-r1, total (millions)"][2:] == ["✓ total (text)", "–"]


def test_printed_cells_say_where() -> None:
    table = next(block for block in parameters().blocks if isinstance(block, Table))
    assert all(isinstance(row[1], Linked) and row[1].note.startswith(("daam-", "gaam-")) for row in table.rows)
