"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import pytest
from packaging.version import Version

from daamctl.errors import ArtifactError
from daamctl.store import files
from daamctl.store.files import (
    SaveTimer,
    atomic_path,
    csv_text,
    expanded,
    fitting,
    is_pattern,
    kept_path,
    locked,
    open_kept,
    put,
)
from tests.fixtures.damage import damages


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_failure_inside_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="crash"), atomic_path(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError("crash")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_killed_process_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    script = (
        "import os, sys; from pathlib import Path; from daamctl.store.files import atomic_path, csv_text\n"
        "with atomic_path(Path(sys.argv[1])) as t:\n    t.write_text('half'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    assert path.read_text() == "old"


@pytest.mark.parametrize("begin", ["t.write_text('half')", "t.mkdir(); (t / 'b').touch()"])
def test_what_killed_processes_have_left_is_removed_by_the_next(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "a.txt"
    script = (
        "import os, sys; from pathlib import Path; from daamctl.store.files import atomic_path\n"
        f"with atomic_path(Path(sys.argv[1])) as t:\n    {begin}; os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 9
    (left,) = names(tmp_path)
    stem, machine, pid, end = left.rsplit("-", 3)
    elsewhere = f"{stem}-000000-{pid}-{end}"
    running = f"{stem}-{machine}-{os.getpid()}-{end}"
    others = [".a-20240101.txt", f".b{left}", ".a.txt-old-12345678"]
    for name in (elsewhere, running, *others):
        (tmp_path / name).write_text("kept")
    write(path)
    assert names(tmp_path) == sorted(["a.txt", elsewhere, running, *others])
    days_ago = time.time() - 2 * 86400
    for name in (elsewhere, running, *others):
        os.utime(tmp_path / name, (days_ago, days_ago))
    write(path)
    assert names(tmp_path) == sorted(["a.txt", running, *others])


def test_success_makes_folders_and_keeps_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "x/y/a.parquet"
    with atomic_path(path) as temporary:
        assert temporary.parent == path.parent
        assert temporary.suffix == ".parquet"
        assert temporary != path
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert names(path.parent) == ["a.parquet"]


def test_folder_may_be_written_too(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "a").write_text("1")
    assert names(tmp_path / "folder") == ["a"]
    with pytest.raises(KeyError), atomic_path(tmp_path / "other") as temporary:  # noqa: PT012
        temporary.mkdir()
        raise KeyError
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "free space"), (errno.EROFS, "fix permissions"), (errno.ETXTBSY, "free space or fix permissions")],
)
def test_file_system_that_refuses_is_an_artifact_error(tmp_path: Path, code: int, advice: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ArtifactError) as caught, atomic_path(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise OSError(code, os.strerror(code))
    assert str(caught.value) == f"cannot write {path}: {os.strerror(code)}\n  {advice}, then run it again"
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    for path in (tmp_path / "data/a.txt", tmp_path / "data/b/a.txt"):
        with pytest.raises(ArtifactError, match="\n  a file is where a folder should be: move it away, then run"):
            write(path)
    assert (tmp_path / "data").read_text() == "mine"


def test_a_folder_where_a_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "a.txt/b").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="\n  a folder is where a file should be: move it away, then run"):
        write(tmp_path / "a.txt")
    assert names(tmp_path) == ["a.txt"]


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="File name too long\n  choose a shorter name"):
        write(tmp_path / ("x" * 250))
    assert names(tmp_path) == []


def write(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text("new")


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@sum", "\t=1", "\r=1"])
def test_no_text_of_a_csv_file_is_a_formula(text: str) -> None:
    assert csv_text(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "anger", "-1.5", "+2", "1e-3", "a=b", "–"])
def test_other_text_stays_as_it_is(text: str) -> None:
    assert csv_text(text) == text


def test_kept_work_is_read_back_under_its_key_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "part"
    with open_kept(path, "a") as file:
        assert file is None
    for content in (b"", b"some work\n", bytes(3 << 20)):
        with kept_path(path, "a") as temporary:
            temporary.write_bytes(content)
        with open_kept(path, "a") as file:
            assert file is not None
            assert file.read(len(content)) == content
        with open_kept(path, "b") as file:
            assert file is None
    assert (names(tmp_path), caplog.text) == (["part"], "")  # that of another key may still be of use


def test_kept_work_is_removed_after_any_flip_or_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "part"
    with kept_path(path, "a") as temporary:
        temporary.write_bytes(b"unfinished")
    for damaged in (several := damages(path.read_bytes())):
        path.write_bytes(damaged)
        with open_kept(path, "a") as file:
            assert file is None
        assert not path.exists()
    assert len(several) == len(caplog.messages)
    assert set(caplog.messages) == {f"{path} is damaged, or of an earlier version of daamctl: its work is done again"}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_whichever_call_fails_the_old_content_is_intact(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left, calls = tmp_path / "a", [0], [0]

    def write(text: str) -> None:
        with atomic_path(path) as temporary:
            if kind == "folder":
                temporary.mkdir()
            (temporary / "b" if kind == "folder" else temporary).write_text(text)

    def content() -> str:
        return (path / "b" if kind == "folder" else path).read_text()

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls[0] += 1
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.EIO, "input/output error")
            return function(*arguments)

        return call

    write("old")
    monkeypatch.setattr(os, "fsync", failing(os.fsync))
    monkeypatch.setattr(Path, "replace", failing(Path.replace))
    write("older")
    number = calls[0]
    assert number >= 3  # the content, the rename, the folder
    for which in range(1, number + 1):
        left[0] = which
        with pytest.raises(ArtifactError, match="input/output error"):
            write("new")
        assert content() in ("older", "new")
        assert content() == "older" or which >= number - 1  # only waiting for the rename has failed
        assert names(tmp_path) == ["a"] or which >= number - 1
        left[0] = 0
        write("older")


def test_saving_is_as_seldom_as_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now, saved = [0.0], list[float]()
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def save() -> None:
        saved.append(now[0])
        now[0] += 2.0  # which is a twentieth of 40 s

    timer = SaveTimer(every_s=5.0, fraction=0.05)
    for _ in range(200):
        now[0] += 1.0
        timer.save_if_due(save)
    assert saved == [5.0, 47.0, 89.0, 131.0, 173.0]


@pytest.mark.filterwarnings("ignore:flock not supported")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    if number == errno.ENOSYS and Version(filelock.__version__) < Version("4.1"):
        pytest.skip("without the call, filelock before 4.1 removes the lock of another process")
    monkeypatch.setattr(fcntl, "flock", refused)
    order = []

    def second() -> None:
        with locked(tmp_path / "x.lock", what="a fold"):
            order.append("second")

    with locked(tmp_path / "x.lock", what="a fold"):
        other = threading.Thread(target=second)
        other.start()
        while "another process is making a fold; waiting for it" not in caplog.text:
            time.sleep(0.01)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def _two_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renames work within a folder alone, as if every folder were on a disk of its own."""
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("existed", [False, True])
def test_to_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool, existed: bool) -> None:
    def make(path: Path, text: str) -> Path:
        path.parent.mkdir(exist_ok=True)
        if is_folder:
            path.mkdir()
        (path / "inner" if is_folder else path).write_text(text)
        return path

    _two_disks(monkeypatch)
    new, target = make(tmp_path / "work" / "a", "new"), tmp_path / "data" / "a"
    if existed:
        make(target, "old")
    put(new, target)
    assert (target / "inner" if is_folder else target).read_text() == "new"
    assert (names(tmp_path / "work"), names(tmp_path / "data")) == ([], ["a"])


def test_a_home_folder_is_named_by_a_tilde_if_somebody_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USERPROFILE", "/home/me")
    assert expanded("~/a") == Path("/home/me/a")
    assert expanded(Path("b/~")) == Path("b/~")
    assert expanded("~nobody-of-this-name/a") == Path("~nobody-of-this-name/a")


@pytest.mark.parametrize("refused", [False, True])
def test_a_folder_of_a_lower_layer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool) -> None:
    """As overlayfs has it: folders of a container's image cannot be renamed, those made in the container can."""
    for name in ("new", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inner").write_text(name)
    lower, rename = (tmp_path / "a").stat().st_ino, os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(source).stat().st_ino == lower:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        if refused and Path(source).name == "new":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    if refused:
        with pytest.raises(PermissionError):
            put(tmp_path / "new", tmp_path / "a")
        assert (tmp_path / "a" / "inner").read_text() == "a"
        assert names(tmp_path) == ["a", "new"]
    else:
        put(tmp_path / "new", tmp_path / "a")
        assert (tmp_path / "a" / "inner").read_text() == "new"
        assert names(tmp_path) == ["a"]


def test_a_folder_of_a_lower_layer_stays_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("new", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "inner").write_text(name)

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def full(source: Path, target: Path, **_: object) -> None:
        Path(target).mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(OSError, match="No space left"):
        put(tmp_path / "new", tmp_path / "a")
    assert (tmp_path / "a" / "inner").read_text() == "a"
    assert names(tmp_path) == ["a", "new"]


def test_a_full_disk_beside_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        Path(target).write_text("ha")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "work").mkdir()
    (tmp_path / "old").write_text("old")
    _two_disks(monkeypatch)
    monkeypatch.setattr(shutil, "copy2", full)
    with (
        pytest.raises(ArtifactError, match="No space left on device\n  free space"),
        atomic_path(tmp_path / "old", at=tmp_path / "work" / "new") as temporary,
    ):
        temporary.write_text("new")
    assert (tmp_path / "old").read_text() == "old"
    assert names(tmp_path) == ["old", "work"]


def test_a_pattern_is_what_has_a_mark_and_no_file(tmp_path: Path) -> None:
    for name in ("b1.csv", "b2.csv", "a[1].csv"):
        (tmp_path / name).touch()
    below = tmp_path / "below"
    below.mkdir()
    (below / "b3.csv").touch()
    assert [one.name for one in fitting(tmp_path / "b?.csv")] == ["b1.csv", "b2.csv"]
    assert [one.name for one in fitting(tmp_path / "**/b*.csv")] == ["b1.csv", "b2.csv", "b3.csv"]
    assert fitting(tmp_path / "a[1].csv") == [tmp_path / "a[1].csv"]  # called so
    assert fitting(tmp_path / "c*") == fitting(tmp_path / "c") == []
    assert is_pattern(tmp_path / "c*")
    assert not any(is_pattern(tmp_path / name) for name in ("a[1].csv", "b1.csv", "c"))
