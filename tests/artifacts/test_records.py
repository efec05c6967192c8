"""Typed records: what is read, and the one line that names an older or damaged file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daamctl.artifacts.ablation import Ablation, find_ablation
from daamctl.artifacts.records import find_record, read_record, write_record
from daamctl.errors import ArtifactError
from tests.fixtures.records import ablation_of, group_of

AGAIN = "daamctl ablate --pipeline toy"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    content = ablation_of([group_of([9], 0.5)], notes=["Layers are ranked."])
    path = written(tmp_path / "ablation.json", json.dumps({**content, "of_tomorrow": 1}))
    found = read_record(path, Ablation, again=AGAIN)
    assert (found.groups[0].layers, found.groups[0].per_fold[4].fold, found.notes) == ([9], 5, ["Layers are ranked."])
    written(path, json.dumps(found.as_json()))
    assert find_ablation(tmp_path, again=AGAIN) == found


def test_an_older_file_names_its_first_fault_and_the_command(tmp_path: Path) -> None:
    content = ablation_of([{**group_of([9], 0.5), "mean": "high"}])
    path = written(tmp_path / "a.json", json.dumps(content))
    with pytest.raises(
        ArtifactError, match=r"a\.json is incomplete or was made by an older version of daamctl \(groups\.0\.mean: "
    ) as error:
        read_record(path, Ablation, again=AGAIN)
    assert "\n" not in error.value.message
    assert error.value.fix == f"make it again: {AGAIN}"


@pytest.mark.parametrize(("text", "message"), [("{", "is not valid JSON"), ("[]", "older version")])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_record(written(tmp_path / "a.json", text), Ablation, again=AGAIN)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ArtifactError, match="no file") as error:
        read_record(path, Ablation, again=AGAIN)
    assert error.value.fix == f"make it: {AGAIN}"
    assert find_record(path, Ablation, again=AGAIN) is None
    written(path, "\n")
    with pytest.raises(ArtifactError, match="is not valid JSON"):
        find_record(path, Ablation, again=AGAIN)
    written(tmp_path / "skipped.json", "{}")
    assert find_record(path, Ablation, again=AGAIN) is None


def test_a_sealed_record_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "ablation.json"
    write_record(path, ablation_of([group_of([9], 0.5)], run="toy"))
    text = path.read_text()
    assert find_ablation(path.parent, again=AGAIN, hide=tmp_path) is not None
    for before, after in (("0.5", "0.6"), ('"group"', '"groop"'), ('"daam-v1"', "null"), ("[]", "[1]")):
        if before in text:
            written(path, text.replace(before, after, 1))
            with pytest.raises(ArtifactError, match=rf"^{path} was changed after it was written: .*\n.*{AGAIN}$"):
                find_ablation(path.parent, again=AGAIN)
    written(path, json.dumps(json.loads(text)))  # the layout of the text does not matter
    assert find_ablation(path.parent, again=AGAIN) is not None


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "ablation.json"
    write_record(path, ablation_of([], run="demo"))
    with pytest.raises(ArtifactError, match=rf"^{path} belongs to the run 'demo'\n  make it again: {AGAIN}$"):
        find_ablation(path.parent, again=AGAIN)


def test_local_paths_are_hidden_on_request(tmp_path: Path) -> None:
    note = f"no embeddings in {tmp_path}/data/extract/toy"
    path = written(tmp_path / "a.json", json.dumps(ablation_of([], notes=[note])))
    found = find_record(path, Ablation, again=AGAIN, hide=tmp_path)
    assert found is not None
    assert found.notes == ["no embeddings in data/extract/toy"]
