"""The record of the importance stage: maps and scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from daamctl.artifacts.importance import find_importance
from daamctl.errors import ArtifactError
from daamctl.store.records import write_record
from tests.fixtures.records import importance_of, maps_of

STABLE = {"tau_mean": None, "tau_min": None, "pairs": 0}
SCORE = {
    "label": "DAAM", "kind": "importance", "folds": [[1, 1]], "layers": [1, 2], "trained": {"1": 0.5, "2": 0.4},
    "untrained": {"1": 0.5, "2": 0.4}, "ranking": [1, 2], "ranking_untrained": [1, 2], "stability": STABLE,
    "stability_untrained": STABLE, "tau_with_untrained": 1.0, "band": "b.png", "replacement": None,
}  # fmt: skip


def test_pictures_are_those_of_maps_and_scores(tmp_path: Path) -> None:
    curves = {**SCORE, "replacement": "r.png"}
    write_record(
        tmp_path / "toy" / "summary.json", importance_of({"daam-v1": maps_of([2, 1])}, scores={"a": SCORE, "b": curves})
    )
    found = find_importance(tmp_path / "toy")
    assert found is not None
    assert found.pictures == ["h.png", "l.png", "b.png", "b.png", "r.png"]
    assert found.methods["daam-v1"].folds == [(1, 1)]


def test_a_summary_of_an_older_version_leads_to_the_command(tmp_path: Path) -> None:
    assert find_importance(tmp_path) is None
    content = importance_of({})
    del content["audit"]["steps"]
    write_record(tmp_path / "toy" / "summary.json", content)
    with pytest.raises(ArtifactError, match=r"another version of daamctl \(audit.steps: field required\)") as error:
        find_importance(tmp_path / "toy")
    assert error.value.path == tmp_path / "toy" / "summary.json"
