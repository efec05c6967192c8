"""The record of a comparison: its file is flat, and reading tells both kinds apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from daamctl.artifacts.comparison import (
    ComparisonReport,
    FoldAccuracy,
    PairedResult,
    PairFigures,
    PrintedPair,
    PrintedResult,
    RowFigures,
    SettingDifference,
    SettingDifferences,
    Unmatched,
    read_comparison,
)
from daamctl.artifacts.evaluation import Spread
from daamctl.artifacts.statistics import Family
from daamctl.errors import ArtifactError
from daamctl.store.records import write_record

SETTINGS = SettingDifferences([SettingDifference("train.lr", 0.1, None, ["mha"])], [], None)
PAIRED = PairedResult(SETTINGS, Family(["mha"], 1, 0.05, "holm", 0.002, 0.002), [], ["a note"])
ROW = RowFigures("a/mha", "a/mha", "demo", None, None, Spread(0.5, None, 0.0, 1), None, [FoldAccuracy("R1", None, 0.5)])
PAIR = PrintedPair(
    "a/mha", "b/mha", PairFigures(ROW, ROW), 0.0, None, "columns are not sessions", False, None, "no test"
)
PRINTED = PrintedResult(SETTINGS, None, [PAIR], [], "printed")


def report(result: PairedResult | PrintedResult) -> ComparisonReport:
    return ComparisonReport("a", "b", "clip", "text", [("mha", "mha")], Unmatched([], ["none"]), result)


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
