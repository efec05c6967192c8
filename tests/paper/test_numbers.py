"""Printed numbers: each has one place, the text of a row repeats the print, and mistakes in the files are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from daamctl.config import pipeline_names
from daamctl.errors import ConfigError
from daamctl.paper.numbers import (
    COLUMNS,
    FOLDER,
    Claims,
    experiments,
    numbers,
    printed,
    printed_in,
    read_claims,
    read_data,
    read_numbers,
    rows_by_experiment,
    rows_of,
)
from tests.fixtures.projects import REPOSITORY

TABLES = {number.report_table for number in numbers()}


def test_rows_hold_every_number_once() -> None:
    found = [id(number) for table in TABLES for part in rows_of(table).values() for number in part]
    assert len(found) > 640
    assert sorted(found) == sorted(map(id, numbers()))


def test_printed_text_holds_every_number_of_its_row() -> None:
    for table in TABLES:
        for row, part in rows_of(table).items():
            shown = re.findall(r"-?\d+(?:\.\d+)?(?:e-\d+)?", printed(part).replace("−", "-"))
            assert {float(number.value) for number in part} <= set(map(float, shown)), row


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


def test_different_prints_of_one_row_are_side_by_side() -> None:
    part = rows_of("parameters")["gqa, total (millions)"]
    changed = [replace(number, value="9.99") if number.source == "daam-blog" else number for number in part]
    assert printed(changed) == "1.19 to 3.47 / 9.99 to 9.99"


def test_folds_have_columns_of_their_own() -> None:
    fold = next(n for n in numbers() if (n.table, n.method, n.split) == ("T6", "mixture-daam", "R2"))
    assert (fold.report_table, fold.report_row, fold.report_column) == ("folds-agnews", "mixture-daam", "R2")


def test_experiments_are_pipelines_with_a_twin() -> None:
    names = pipeline_names(REPOSITORY)
    assert {number.pipeline for number in numbers()} - {""} == set(read_claims().experiments)
    for key, one in read_claims().experiments.items():
        assert one.key == key
        assert {key, f"{key}-as-published"} <= set(names)


def test_facts_of_experiments() -> None:
    assert [(one.key, one.encoder, one.modality) for one in experiments()] == [
        ("iemocap", "wavlm-large", "speech"),
        ("cifar100", "beit-large", "vision"),
        ("agnews", "llama2-13b", "text"),
    ]
    assert [one.layers("high") for one in experiments()] == [(9,), (10, 11, 12), (19, 20, 21)]
    assert [one.layers("low") for one in experiments()] == [(23,), (22, 23, 24), (37, 38, 39)]
    number = next(number for number in numbers() if number.full_table == "gaam-v1/T3")
    assert read_claims().experiments[number.pipeline].title == "CIFAR-100"


def test_rows_by_experiment_leave_out_rows_of_none() -> None:
    rows = [(one.key, row) for one, row, _ in rows_by_experiment("best")]
    assert len(rows) == len(rows_of("best")) - 1
    assert [key for key, _ in rows] == sorted((key for key, _ in rows), key=list(read_claims().experiments).index)


def test_tables_that_claims_name_exist() -> None:
    claims, tables = read_claims(), {number.full_table for number in numbers()}
    named = [table for one in claims.experiments.values() for table in (*one.tables, one.first)]
    named += [table for name, repeated in claims.repeats.items() for table in (name, *repeated)]
    assert set(named) <= tables
    assert {part[0].full_table for part in rows_of("repeated").values()} <= set(claims.repeats)
    assert set(claims.sizes) <= set(rows_of("parameters"))
    assert {claim.row for claim in claims.claims} == set(rows_of("claims"))
    assert set(claims.dwatt) == set(rows_of("dwatt"))


def lines_of(**cells: str) -> str:
    """A file with one good line and a changed copy of it."""
    good = dict.fromkeys(COLUMNS, "x") | {"source": "daam-v4", "value": "1.5", "pipeline": "agnews"}
    changed = good | cells
    return "\n".join(",".join(line) for line in (COLUMNS, good.values(), changed.values()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,table\n", "line 1: the columns must be source, table, .*, got source, table"),
        ("", "line 1: the columns must be"),
        (lines_of(split="F1", value="1,5"), "line 3: 14 cells are needed, got 15"),
        (lines_of(split="F1", value="l.5"), "line 3: value 'l.5' is not a number"),
        (lines_of(split="F1", report_row=""), "line 3: report_table, report_row and report_column must say where"),
        (lines_of(split="F1", pipeline="ag-news"), "line 3: unknown pipeline 'ag-news'\n  did you mean 'agnews'"),
        (lines_of(value="2.5"), "line 3: the same number is in line 2"),
    ],
)
def test_mistakes_in_numbers_are_named_with_their_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"numbers\.csv {message}"):
        read_numbers(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["claims"][1].update(leest=2), r"claims\.2\.leest: unknown key"),
        (lambda tree: tree["claims"][0].pop("least"), r"claims\.1: give either least or verdict"),
        (lambda tree: tree["experiments"]["agnews"].pop("title"), r"experiments\.agnews\.title: missing"),
        (lambda tree: tree.pop("groups"), "groups: missing"),
    ],
)
def test_mistakes_in_claims_are_named_with_their_key(
    change: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    tree = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    change(tree)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"claims\.yaml: {message}"):
        read_data(path, Claims)
