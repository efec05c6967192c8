"""Files are compared with what was recorded when they were written; large ones once for each of their states."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daamctl.artifacts import integrity
from daamctl.artifacts.integrity import check_file, check_seal, has_hash, hashes_of, sealed
from daamctl.artifacts.io import sha256_file
from daamctl.errors import ArtifactError


def test_seal_survives_json_and_nothing_else() -> None:
    record = {"a": (1, 2.5), "b": {3: None, "é": "\ud800"}}
    found = {"b": {"é": "\ud800", "3": None}, "a": [1, 2.5], "sha256": sealed(record)["sha256"]}
    check_seal(Path("a.json"), found, fix=None)
    with pytest.raises(ArtifactError, match=r"^a\.json was changed after it was written: .*\n  make it$"):
        check_seal(Path("a.json"), {**found, "a": [1, 2]}, fix="make it")
    for unsealed in ({"a": 1}, [], None):
        check_seal(Path("a.json"), unsealed, fix=None)


def test_file_that_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "a.bin", tmp_path / "b.bin"
    path.write_bytes(b"one")
    other.write_bytes(b"two")
    files = hashes_of([path])
    assert check_file(path, files, fix=None) == path
    assert check_file(other, files, fix=None) == other  # recorded by an older version, which had no hashes
    path.write_bytes(b"two")
    with pytest.raises(ArtifactError, match=rf"^{path} is damaged or from elsewhere: .*\n  make it$"):
        check_file(path, files, fix="make it")
    path.unlink()
    with pytest.raises(ArtifactError, match=rf"^no file {path}\n  make it$"):
        check_file(path, files, fix="make it")


def counting(path: Path) -> tuple[list[Path], Callable[[], str]]:
    calls: list[Path] = []

    def compute() -> str:
        calls.append(path)
        return sha256_file(path)

    return calls, compute


def test_large_file_is_hashed_once_for_each_of_its_states(tmp_path: Path) -> None:
    path = tmp_path / "data" / "extract" / "toy" / "shard"
    path.parent.mkdir(parents=True)
    content = bytes(integrity.LARGE)
    path.write_bytes(content)
    wanted = sha256_file(path)
    calls, compute = counting(path)
    for _ in range(2):  # written just now: it may change again without another time stamp
        assert has_hash(path, wanted, compute)
    assert len(calls) == 2
    os.utime(path, ns=(10**18, 10**18))
    os.link(path, tmp_path / "data" / "link")
    for _ in range(3):
        assert has_hash(path, wanted, compute)
        assert has_hash(tmp_path / "data" / "link", wanted, compute)
    assert len(calls) == 3
    path.write_bytes(b"1" + content[1:])
    assert not has_hash(path, wanted, compute)
    assert not has_hash(path, wanted, compute)  # a hash that is wrong is not remembered
    (note,) = (tmp_path / "data" / ".work" / "hashes").iterdir()
    path.write_bytes(content)
    os.utime(path, ns=(10**18, 10**18))
    note.write_text("damaged")
    assert has_hash(path, wanted, compute)


def test_files_outside_a_project_are_always_hashed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(integrity.LARGE))
    calls, compute = counting(path)
    wanted = sha256_file(path)
    assert all(has_hash(path, wanted, compute) for _ in range(2))
    assert len(calls) == 2
