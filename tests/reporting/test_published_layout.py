"""Places of printed numbers: each has one, no other row holds it too, and the text of a row repeats the print."""

from __future__ import annotations

import re

import pytest

from daamctl.reporting.published import records
from daamctl.reporting.published_layout import RULES, SOURCES, Place, place, printed, printed_in, rows_of

SHOWN = [record for record in records() if record["source"] in SOURCES]


def test_every_table_of_the_papers_has_a_rule_and_every_rule_a_table() -> None:
    assert {(record["source"], record["table"]) for record in SHOWN} == set(RULES)


def test_rows_hold_every_number_once() -> None:
    tables = {place(record).table for record in SHOWN}
    found = [id(record) for table in tables for part in rows_of(table).values() for record in part]
    assert sorted(found) == sorted(map(id, SHOWN))


def test_printed_text_holds_every_number_of_its_row() -> None:
    for table in {place(record).table for record in SHOWN}:
        for row, part in rows_of(table).items():
            numbers = re.findall(r"-?\d+(?:\.\d+)?", printed(part).replace("−", "-"))
            assert {float(record["value"]) for record in part} <= set(map(float, numbers)), row


@pytest.mark.parametrize(
    ("table", "row", "text", "where"),
    [
        ("results-iemocap", "mha", "62.3 ± 2.00", "daam-v4 T2-iemocap"),
        ("first-agnews", "bi-sga", "94.5", "gaam-v1 T4"),
        ("learned", "IEMOCAP: δ lowest", "−0.06", "daam-v4 T2-modality-summary"),
        ("parameters", "gqa, total (millions)", "1.19 to 3.47", "daam-v4 T1; daam-blog T1"),
        ("best", "AG News: best DAAM minus best LoRA", "−0.1", "daam-blog T5"),
        ("repeated", "gaam-v1 T5: IEMOCAP, daam-best-g8", "δ −0.06 to 0.10; ξ 1.88 to 2.06", "gaam-v1 T5"),
        ("ablation", "CIFAR-100: high minus low (points)", "7.9", "daam-blog ablation-text-vision"),
    ],
)
def test_rows_as_text(table: str, row: str, text: str, where: str) -> None:
    part = rows_of(table)[row]
    assert (printed(part), printed_in(part)) == (text, where)


def test_different_prints_of_one_row_stand_side_by_side() -> None:
    part = rows_of("parameters")["gqa, total (millions)"]
    changed = [{**record, "value": "9.99"} if record["source"] == "daam-blog" else record for record in part]
    assert printed(changed) == "1.19 to 3.47 / 9.99 to 9.99"


def test_folds_have_columns_of_their_own() -> None:
    fold = next(r for r in SHOWN if (r["table"], r["method"], r["split"]) == ("T6", "mixture-daam", "R2"))
    assert place(fold) == Place("folds-agnews", "mixture-daam", "R2")
