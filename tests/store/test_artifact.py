"""A folder and its record: made whole, kept under its key, refused after any change."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact
from daamctl.store.files import read_json
from daamctl.store.records import write_record
from tests.fixtures.damage import damages


@dataclass(frozen=True)
class Result:
    key: str
    value: int
    run: str | None = None
    files: dict[str, str] = field(default_factory=dict)


def artifact_in(root: Path, key: str = "k", **more: Any) -> Artifact[Result]:
    options = {"keys": [key], "work": root / "work" / "one", "what": "the one", **more}
    return Artifact(root / "data" / "one" / "result.json", Result, "make it", **options)


def make(root: Path, value: int = 1, key: str = "k") -> Artifact[Result]:
    artifact = artifact_in(root, key)
    with artifact.lock(), artifact.make() as new:
        (new / "inner").mkdir()
        (new / "inner" / "table").write_text(f"{value}")
        (new / "note").write_text("words")
        artifact.seal(new, Result(key, value))
    return artifact


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_it_is_kept_under_its_key_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert artifact_in(tmp_path).keep() is artifact_in(tmp_path).find() is None
    made = make(tmp_path)
    found = artifact_in(tmp_path).keep()
    assert found == made.open() == made.find()
    assert found is not None
    assert (found.value, sorted(found.files)) == (1, ["inner/table", "note"])
    assert artifact_in(tmp_path, "another").keep() is None
    assert artifact_in(tmp_path, keys=["another", "k"]).keep() == found
    (made.folder / "mine").write_text("a file of the user's own is no damage")
    assert artifact_in(tmp_path).keep() == found
    assert names(tmp_path / "data/one") == ["inner/table", "mine", "note", "result.json"]
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["result.json", "inner/table", "note"])
def test_any_flip_or_cut_is_seen(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    path = make(tmp_path).folder / name
    whole = path.read_bytes()
    for damaged in damages(whole):
        if (name, damaged) == ("result.json", whole[:-1]):  # without the last line break it says the same
            continue
        path.write_bytes(damaged)
        os.utime(path, ns=(10**18, 10**18))
        assert artifact_in(tmp_path).keep() is None
        with pytest.raises(ArtifactError) as error:
            artifact_in(tmp_path).open()
        assert error.value.fix == "make it"
    path.unlink()
    assert artifact_in(tmp_path).keep() is None
    assert caplog.messages
    assert all(line.startswith("the one is not kept: ") for line in caplog.messages)


def test_a_record_that_says_something_else_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path).path
    record = {name: value for name, value in read_json(path).items() if name != "sha256"}
    for changes, message in (
        ({"files": {"../other": "0"}}, "names a file outside the folder: ../other"),
        ({"run": "two"}, "belongs to the run 'two'"),
        ({"value": "many"}, r"incomplete or was made by another version of daamctl \(value: "),
    ):
        write_record(path, {**record, **changes})
        with pytest.raises(ArtifactError, match=message):
            artifact_in(tmp_path).open()
    write_record(path, {**record, "run": "two"})
    assert artifact_in(tmp_path, owner="").open().run == "two"


def test_a_failure_leaves_the_old_one_and_the_unfinished_work(tmp_path: Path) -> None:
    make(tmp_path)
    artifact = artifact_in(tmp_path)
    assert artifact.work is not None
    with pytest.raises(KeyError), artifact.lock(), artifact.make() as new:  # noqa: PT012
        (new / "table").write_text("half")
        (artifact.work / "resume").write_text("so far")
        raise KeyError
    found = artifact_in(tmp_path).keep()
    assert found is not None
    assert found.value == 1
    assert names(artifact.work) == ["resume"]
    with artifact.lock():
        pass
    assert not artifact.work.exists()


def test_whichever_call_fails_the_next_run_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, calls = [0], [0]

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, "no space left")
            return function(*arguments, **options)

        return call

    make(tmp_path, 0)
    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "mkdir"), (Path, "write_text")):
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
    calls[0] = 0
    make(tmp_path, 1)
    for which in range(1, calls[0] + 1):
        left[0] = which
        with pytest.raises((ArtifactError, OSError)):
            make(tmp_path, which + 1)
        left[0] = 0
        found = artifact_in(tmp_path).keep()
        assert found is not None
        assert found.value in (which, which + 1)
        assert make(tmp_path, which + 1).open().value == which + 1
        assert names(tmp_path / "data") == ["one/inner/table", "one/note", "one/result.json"]


def test_what_another_process_finishes_meanwhile_is_found(tmp_path: Path) -> None:
    make(tmp_path, 1)
    first, second = artifact_in(tmp_path), artifact_in(tmp_path)
    with first.lock() as found:
        assert found is None  # it was there before, so it was to be made again
    make(tmp_path, 2)
    with second.lock() as found:
        assert found is not None
        assert found.value == 2
    third = artifact_in(tmp_path)
    make(tmp_path, 3, key="another")
    with third.lock() as found:
        assert found is None


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    folder = make(tmp_path).folder
    left = [folder.with_name(name) for name in (".one-old-0123abcd", ".one-old-mine", ".ones-old-0123abcd")]
    for path in left:
        shutil.copytree(folder, path)
    with artifact_in(tmp_path).lock():
        assert [path.exists() for path in left] == [False, True, True]


def test_whoever_reads_the_record_reads_the_tensors(tmp_path: Path) -> None:
    artifact = artifact_in(tmp_path)
    with artifact.lock(), artifact.make() as new:
        save_file({"a": torch.zeros(2)}, new / "tensors.safetensors")
        artifact.seal(new, Result("k", 1))
    modes = {path.stat().st_mode for path in artifact.folder.iterdir()}
    assert modes == {artifact.path.stat().st_mode}


def test_what_this_user_may_not_read_is_not_taken_for_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)

    def refuse(path: Path, **_: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(PermissionError):
        artifact_in(tmp_path).keep()
