"""The record of a comparison: its file is flat, and reading tells both kinds apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from daamctl.artifacts.comparison import (
    ComparisonReport,
    PairedResult,
    PrintedPair,
    PrintedResult,
    Row,
    SettingDifference,
    SettingDifferences,
    read_comparison,
)
from daamctl.artifacts.scores import Compared, Figure, Score
from daamctl.errors import ArtifactError
from daamctl.store.records import write_record

SETTINGS = SettingDifferences([SettingDifference("train.lr", 0.1, None, ["mha"])], [], None)
FIGURES = Compared(first="a/mha", second="b/mha", metric="accuracy", first_value=0.5, second_value=0.5, difference=0.0)
PAIRED = PairedResult(SETTINGS, 0.05, 0.002, [FIGURES], [], ["a note"])
ROW = Row("published:T/mha", "published:T/mha", "demo", "61.0", ["mean"])
FIGURE = Figure(method=ROW.name, unit="clip", metric="accuracy_best_on_test", mean=0.5, runs=1)
SCORE = Score(method=ROW.name, seed=1, test_group="R1", unit="clip", metric="accuracy_best_on_test", value=0.5)
PAIR = PrintedPair(ROW, replace(ROW, name="b/mha"), "columns are not sessions", "no test")
PRINTED = PrintedResult(SETTINGS, [FIGURE], [SCORE], [FIGURES], [PAIR], [], "printed")


def report(result: PairedResult | PrintedResult) -> ComparisonReport:
    return ComparisonReport("a", "b", "clip", "text", [("mha", "mha")], {"first": [], "second": ["none"]}, result)


@pytest.mark.parametrize("result", [PAIRED, PRINTED, replace(PRINTED, kind="both-printed")])
def test_both_kinds_survive_their_file(tmp_path: Path, result: PairedResult | PrintedResult) -> None:
    path = tmp_path / "comparison.json"
    write_record(path, report(result).as_json())
    assert read_comparison(path) == report(result)
    found = json.loads(path.read_text())
    assert (found["first"], found["kind"], found["settings"]["can_change"][0]["name"]) == ("a", result.kind, "train.lr")
    assert "result" not in found


def test_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    write_record(path, report(PAIRED).as_json() | {"kind": "of tomorrow"})
    with pytest.raises(ArtifactError, match="another version of daamctl"):
        read_comparison(path)
