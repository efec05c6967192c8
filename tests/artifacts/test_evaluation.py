"""The record of an evaluation: its file, and what its parts say about themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.evaluation import AdapterEffect, Identical, find_evaluation, read_evaluation
from daamctl.errors import ArtifactError
from daamctl.store.records import write_record
from tests.fixtures.records import evaluation_of, fairness_of, method_of, parsed


def content(**changes: Any) -> dict[str, Any]:
    methods = {"none": method_of(0.5, label="none"), "sga": method_of(0.6, label="sga (reconstructed)")}
    return evaluation_of(methods, **changes)


def test_the_file_has_the_layout_of_the_classes(tmp_path: Path) -> None:
    found = parsed(content())
    write_record(tmp_path / "toy" / "evaluation.json", found.as_json())
    assert read_evaluation(tmp_path / "toy") == found
    expected = content()
    for entry in expected["fairness"]["methods"].values():
        entry["mark"] = ""
    written = json.loads((tmp_path / "toy" / "evaluation.json").read_text())
    assert written.pop("sha256")
    assert written == expected


@pytest.mark.parametrize("part", ["modality", "fairness", "provenance"])
def test_an_evaluation_that_lacks_a_part_is_refused(tmp_path: Path, part: str) -> None:
    found = content()
    del found[part]
    write_record(tmp_path / "toy" / "evaluation.json", found)
    with pytest.raises(ArtifactError, match=rf"another version of daamctl \({part}: field required\)") as error:
        find_evaluation(tmp_path / "toy")
    assert error.value.path == tmp_path / "toy" / "evaluation.json"


def test_scores_in_the_main_unit() -> None:
    found = parsed(content(main_unit="clip"))
    assert found.accuracy("sga").mean == found.summary("sga")["accuracy"].mean == 0.6
    assert found.main_chance.majority_class == "a"
    row = found.methods["sga"].per_fold[2]
    assert (row.run, row.scores("utterance")["n"], row.scores("clip")["n"]) == ((3, 1), 20, 30)
    assert row.at_epoch("accuracy_last") == 0.6


def test_methods_that_are_not_trained_well_have_a_mark() -> None:
    found = content()
    found["fairness"]["methods"]["none"] = {**fairness_of("undertrained"), "reasons": ["late", "low"]}
    found["fairness"]["identical"] = [{"methods": ["none", "sga"], "reason": None}]
    fairness = parsed(found).fairness
    assert [one.mark for one in fairness.methods.values()] == ["undertrained", ""]
    same = "the predictions of none and sga are identical in every fold: the reason is unknown"
    assert fairness.notes == ["none: undertrained: late; low", same]
    assert Identical(["a", "b"], "one layer").text.endswith("in every fold: one layer")


@pytest.mark.parametrize(("reached", "change", "active"), [(4, 0.1, True), (0, 0.0, False), (4, 0.0, False)])
def test_adapters_act_if_a_gradient_reaches_them_and_the_output_changes(
    reached: int, change: float, active: bool
) -> None:
    assert AdapterEffect(4, reached, change, []).is_active is active


def test_settings_of_older_folds_have_no_recipe() -> None:
    made = parsed(content()).provenance
    assert (made.corpus, made.recipe) == ("demo", "published")
