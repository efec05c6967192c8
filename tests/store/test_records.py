"""Typed records: what is read, and the one line that names an older or damaged file."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.importance import Importance, find_importance
from daamctl.errors import ArtifactError
from daamctl.store import records
from daamctl.store.artifact import Artifact
from daamctl.store.files import sha256_file
from daamctl.store.records import (
    LARGE,
    check_file,
    hashes_of,
    read_sealed,
    seal_of,
    write_record,
)
from tests.fixtures.records import importance_of, maps_of, write_importance

AGAIN = "daamctl importance toy"


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    return {**content, "sha256": seal_of(content)}


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    content = importance_of({"daam-v1": maps_of([2, 1])}, run=tmp_path.name, note="Two layers.")
    path = written(tmp_path / "summary.json", json.dumps(sealed({**content, "of_tomorrow": 1})))
    found = Artifact(path, Importance, AGAIN).read()
    assert (found.methods["daam-v1"].ranking, found.methods["daam-v1"].folds, found.note) == (
        [2, 1], [(1, 1)], "Two layers.",
    )  # fmt: skip
    written(path, json.dumps(sealed(asdict(found))))
    assert replace(Artifact(path, Importance, AGAIN).read(), rows=(), tests=()) == found


def test_an_older_file_names_its_first_fault_and_the_command(tmp_path: Path) -> None:
    content = importance_of({"daam-v1": maps_of([1], num_heads="many")})
    path = written(tmp_path / "a.json", json.dumps(sealed(content)))
    with pytest.raises(
        ArtifactError,
        match=r"a\.json is incomplete or was made by another version .* \(methods\.daam-v1\.num_heads: ",
    ) as error:
        Artifact(path, Importance, AGAIN).read()
    assert "\n" not in error.value.message
    assert error.value.fix == AGAIN


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError, match="is not valid JSON" if text == "{" else "has no seal"):
        Artifact(written(tmp_path / "a.json", text), Importance, AGAIN).read()


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ArtifactError, match="no file") as error:
        Artifact(path, Importance, AGAIN).read()
    assert error.value.fix == AGAIN
    assert Artifact(path, Importance, AGAIN).find() is None
    written(path, "\n")
    with pytest.raises(ArtifactError, match="is not valid JSON"):
        Artifact(path, Importance, AGAIN).find()
    written(tmp_path / "skipped.json", "{}")
    assert Artifact(path, Importance, AGAIN).find() is None


def test_a_sealed_record_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "summary.json"
    write_importance(path.parent, importance_of({"daam-v1": maps_of([2, 1])}, note="Two."))
    text = path.read_text()
    assert find_importance(path.parent, hide=tmp_path) is not None
    for before, after in (("0.25", "0.26"), ('"ranking"', '"rangking"'), ('"Two."', "null"), ("[]", "[1]")):
        if before in text:
            written(path, text.replace(before, after, 1))
            with pytest.raises(ArtifactError, match=rf"^{path} was changed after it was written: "):
                find_importance(path.parent)
    found = json.loads(text)
    del found["sha256"]
    written(path, json.dumps(found))
    with pytest.raises(ArtifactError, match=rf"^{path} has no seal: "):
        find_importance(path.parent)
    written(path, json.dumps(json.loads(text)))  # the layout of the text does not matter
    assert find_importance(path.parent) is not None


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy" / "summary.json"
    write_record(path, importance_of({}, run="demo"))
    with pytest.raises(ArtifactError, match=rf"^{path} belongs to the run 'demo'$"):
        find_importance(path.parent)


@pytest.mark.parametrize("name", ["plain", "Jürgen B"])
def test_local_paths_are_hidden_on_request(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    note = f"no embeddings in {root}/data/extract/toy"
    root.mkdir()
    path = written(root / "a.json", json.dumps(sealed(importance_of({}, run=name, note=note))))
    found = Artifact(path, Importance, AGAIN, hide=root).find()
    assert found is not None
    assert found.note == "no embeddings in data/extract/toy"


def test_seal_survives_json_and_nothing_else(tmp_path: Path) -> None:
    record = {"a": (1, 2.5), "b": {3: None, "é": "\ud800"}}
    found = {"b": {"é": "\ud800", "3": None}, "a": [1, 2.5], "sha256": seal_of(record)}
    path = written(tmp_path / "a.json", json.dumps(found))
    assert read_sealed(path, fix=None) == found
    written(path, json.dumps({**found, "a": [1, 2]}))
    with pytest.raises(ArtifactError, match=r"a\.json was changed after it was written: .*\n  make it$"):
        read_sealed(path, fix="make it")


def test_file_that_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"one")
    wanted = hashes_of(tmp_path, [path])["a.bin"]
    assert check_file(path, wanted, fix=None) == path
    with pytest.raises(ArtifactError, match=rf"^{path} is not among the recorded files\n  make it$"):
        check_file(path, None, fix="make it")
    path.write_bytes(b"two")
    with pytest.raises(ArtifactError, match=rf"^{path} is damaged or from elsewhere: .*\n  make it$"):
        check_file(path, wanted, fix="make it")
    path.unlink()
    with pytest.raises(ArtifactError, match=rf"^no file {path}\n  make it$"):
        check_file(path, wanted, fix="make it")


def flip_quietly(path: Path) -> None:
    """Change a bit; size and time stamp stay as they are."""
    state, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("size", [10, 2 * LARGE])
def test_a_bit_that_rots_is_seen(tmp_path: Path, size: int) -> None:
    path = tmp_path / "data" / "train" / "weights"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(size))
    os.utime(path, ns=(10**18, 10**18))
    wanted = sha256_file(path)
    check_file(path, wanted, fix=None)
    flip_quietly(path)
    with pytest.raises(ArtifactError, match="damaged"):
        check_file(path, wanted, fix=None)


def test_a_shard_is_hashed_once_for_each_of_its_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data" / "extract" / "toy" / "shard"
    path.parent.mkdir(parents=True)
    content = bytes(LARGE)
    path.write_bytes(content)
    wanted = sha256_file(path)
    hashed: list[Path] = []
    monkeypatch.setattr(records, "sha256_file", lambda path: (hashed.append(path), sha256_file(path))[1])

    def check(path: Path) -> None:
        check_file(path, wanted, fix=None, remember=True)

    for _ in range(2):  # written just now: it may change again without another time stamp
        check(path)
    assert len(hashed) == 2
    os.utime(path, ns=(10**18, 10**18))
    os.link(path, tmp_path / "data" / "link")
    for _ in range(3):
        check(path)
        check(tmp_path / "data" / "link")
    assert len(hashed) == 3
    path.write_bytes(b"1" + content[1:])
    for _ in range(2):  # a hash that is wrong is not remembered
        with pytest.raises(ArtifactError, match="damaged"):
            check(path)
    (note,) = (tmp_path / "data" / ".work" / "hashes").iterdir()
    path.write_bytes(content)
    os.utime(path, ns=(10**18, 10**18))
    note.write_text("damaged")
    check(path)
    outside = tmp_path / "file"
    outside.write_bytes(content)
    os.utime(outside, ns=(10**18, 10**18))
    hashed.clear()
    for _ in range(2):  # there is no project that could remember
        check(outside)
    assert len(hashed) == 2
