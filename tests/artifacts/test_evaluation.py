"""The record of an evaluation: its file, and what its parts say about themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from daamctl.artifacts.evaluation import (
    AdapterEffect,
    Evaluation,
    IdenticalPredictions,
    find_evaluation,
    read_evaluation,
)
from daamctl.artifacts.scores import LAST
from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact
from daamctl.store.records import write_record
from daamctl.store.tables import read_frame, write_frame
from tests.fixtures.records import evaluation_of, fairness_of, method_of, parsed, split, write_evaluation


def content(**changes: Any) -> dict[str, Any]:
    methods = {"none": method_of(0.5, label="none"), "sga": method_of(0.6, label="sga (reconstructed)")}
    return evaluation_of(methods, **changes)


def test_the_file_has_the_layout_of_the_classes(tmp_path: Path) -> None:
    found = parsed(content())
    write_evaluation(tmp_path / "toy", content())
    read = read_evaluation(tmp_path / "toy")
    for table, frame in found.scores.frames.items():
        assert_frame_equal(read.scores.frames[table], frame)
    assert replace(read, scores=found.scores, files={}) == found
    Artifact(tmp_path / "toy" / "evaluation.json", Evaluation).seal(tmp_path / "toy", found.as_json(), [])
    expected, _ = split(content())
    for entry in expected["fairness"]["methods"].values():
        entry["mark"] = ""
    written = json.loads((tmp_path / "toy" / "evaluation.json").read_text())
    assert written.pop("sha256")
    assert written == expected


@pytest.mark.parametrize("part", ["modality", "fairness", "provenance"])
def test_an_evaluation_that_lacks_a_part_is_refused(tmp_path: Path, part: str) -> None:
    found, _ = split(content())
    del found[part]
    write_record(tmp_path / "toy" / "evaluation.json", found)
    with pytest.raises(ArtifactError, match=rf"another version of daamctl \({part}: field required\)") as error:
        find_evaluation(tmp_path / "toy")
    assert error.value.path == tmp_path / "toy" / "evaluation.json"


def test_tables_of_other_columns_and_tables_without_a_hash_are_refused(tmp_path: Path) -> None:
    """Also if somebody seals the record again: figures are nowhere else."""
    folder = tmp_path / "toy"
    write_evaluation(folder, content())
    artifact, path = Artifact(folder / "evaluation.json", Evaluation), folder / "figures.parquet"
    record = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    tables = sorted(folder.glob("*.parquet"))
    unsealed = {name: value for name, value in record.items() if name not in ("files", "sha256")}
    artifact.seal(folder, unsealed, [one for one in tables if one != path])
    with pytest.raises(ArtifactError, match=r"evaluation\.json has no hash of figures\.parquet"):
        read_evaluation(folder)
    write_frame(path, read_frame(path)[0].rename({"std": "sd"}), {})
    artifact.seal(folder, unsealed, tables)
    with pytest.raises(ArtifactError, match=r"figures\.parquet has other columns than this version"):
        read_evaluation(folder)


def test_scores_in_the_main_unit() -> None:
    found = parsed(content(main_unit="clip"))
    assert found.accuracy("sga") == found.scores.figure("sga", unit="clip") == found.primary("sga")
    assert (found.accuracy("sga").mean, found.accuracy("sga").high) == (0.6, 0.65)
    assert found.scores.figure("sga", unit="utterance").high is None
    assert found.main_chance.majority_class == "a"
    assert found.scores.runs("sga", LAST)[3, 1].value == 0.6
    assert found.ranked == ["sga", "none"]


def test_methods_that_are_not_trained_well_have_a_mark() -> None:
    found = content()
    found["fairness"]["methods"]["none"] = {**fairness_of("undertrained"), "reasons": ["late", "low"]}
    found["fairness"]["identical"] = [{"methods": ["none", "sga"], "reason": None}]
    fairness = parsed(found).fairness
    assert [one.mark for one in fairness.methods.values()] == ["undertrained", ""]
    same = "the predictions of none and sga are identical in every fold: the reason is unknown"
    assert fairness.notes == ["none: undertrained: late; low", same]
    assert IdenticalPredictions(["a", "b"], "one layer").text.endswith("in every fold: one layer")


@pytest.mark.parametrize(("reached", "change", "active"), [(4, 0.1, True), (0, 0.0, False), (4, 0.0, False)])
def test_adapters_act_if_a_gradient_reaches_them_and_the_output_changes(
    reached: int, change: float, active: bool
) -> None:
    assert AdapterEffect(4, reached, change, []).is_active is active


def test_settings_of_older_folds_have_no_recipe() -> None:
    made = parsed(content()).provenance
    assert (made.corpus, made.recipe) == ("demo", "published")
