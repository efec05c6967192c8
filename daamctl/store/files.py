"""Writing files and folders: complete under their names or not at all, also after a power failure.

Unfinished work and caches (`kept_path`, `open_kept`) end in a SHA-256, which is checked before they are used: no record
vouches for them yet. `repair_of` says what helps when the file system refuses.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from daamctl.errors import ArtifactError

log = logging.getLogger(__name__)

BLOCK = 1 << 20
HEX = 64
"""Characters of a SHA-256."""
LONGEST_S = 50.0
"""Seconds without a checkpoint after which `fraction` no longer counts: a kill is to cost at most a minute."""
MOST_FRACTION = 0.25
"""Largest share of the time to spend on saving for that end."""
DAY_S = 86400.0
"""Age at which a temporary path is taken for that of a process that was killed on another machine."""
REPAIRS = {
    errno.ENOSPC: "free space",
    errno.EDQUOT: "free space",
    errno.EROFS: "fix permissions",
    errno.EACCES: "fix permissions",
    errno.EPERM: "fix permissions",
    errno.ENOTDIR: "a file is where a folder should be: move it away",
    errno.EEXIST: "a file is where a folder should be: move it away",
    errno.EISDIR: "a folder is where a file should be: move it away",
    errno.ENAMETOOLONG: "choose a shorter name, or move the project to a shorter path",
    errno.ELOOP: "remove the links that point to each other",
    errno.EMFILE: "allow more open files: ulimit -n",
    errno.EIO: "check the disk",
}
"""What helps against an error of the file system, by its number."""
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""What a file system without locks says, e.g. NFS without their service; of ENOSYS the library takes care."""


def repair_of(error: BaseException) -> str | None:
    """What helps if the file system refused; None if the error is of another kind. Libraries wrap it differently."""
    number = getattr(error, "errno", None)
    if number is None and f"os error {errno.ENOSPC}" in str(error):
        number = errno.ENOSPC
    if "usable temporary directory" in str(error):  # the FileNotFoundError of `tempfile`
        return "name a folder that can be written (export TMPDIR=FOLDER), then run it again"
    advice = REPAIRS.get(number) if number is not None else None
    return f"{advice}, then run it again" if advice else None


@contextmanager
def atomic_path(path: Path, *, at: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path; rename what the block wrote there to `path` on success, remove it on failure.

    The block writes a file, or makes a folder. Everything is on the disk before the rename, and the rename before this
    returns, so a power failure leaves the old content or the new one.

    Args:
        path: the file or folder; an existing one is replaced.
        at: the temporary path, on the same file system; what an earlier call has left there is removed. None: a new
            path beside `path`, which keeps its suffix, because libraries choose formats by it. What processes that
            were killed have left there is removed.

    Raises:
        ArtifactError: the file system refuses the write (disk full, read-only, no permission).
    """
    temporary = at or path.with_name(f".{path.stem}-{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        if at is not None:
            shutil.rmtree(at, ignore_errors=True)
        else:
            with suppress(OSError):  # a folder may be writable but not readable
                _remove_left(path)
        yield temporary
        put(temporary, path)
    except ConnectionError:  # the block read from a server
        raise
    except OSError as error:
        advice = repair_of(error) or "free space or fix permissions, then run it again"
        raise ArtifactError(f"cannot write {path}: {error.strerror or error}", fix=advice) from error
    finally:
        _remove(temporary)


def _machine() -> str:
    """Six digits of a machine; of a container its own, because it numbers its processes itself."""
    with suppress(OSError):  # elsewhere than on Linux
        return content_key([platform.node(), os.stat("/proc/self/ns/pid").st_ino])[:6]  # noqa: PTH116
    return content_key(platform.node())[:6]


def _remove_left(path: Path) -> None:
    """Remove the temporary files and folders of processes that were killed while they wrote `path`."""
    parts = re.compile(rf"\.{re.escape(path.stem)}-([0-9a-f]{{6}})-(\d+)-[0-9a-f]{{8}}{re.escape(path.suffix)}")
    for left in path.parent.iterdir():
        if found := parts.fullmatch(left.name):
            import psutil  # type: ignore[import-untyped]

            with suppress(OSError):  # its process may end at this moment
                if found[1] == _machine():
                    ended = not psutil.pid_exists(int(found[2]))
                else:
                    ended = time.time() - left.stat().st_mtime > DAY_S
                if ended:
                    _remove(left)


def _remove(path: Path) -> None:
    """Remove a file or folder, if it is there and the file system allows it."""
    with suppress(OSError):  # the path itself may be what is refused
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def put(new: Path, target: Path) -> None:
    """Rename a finished file or folder to `target`; a replaced folder is deleted last.

    To another disk, to which people link a part of the data folder, it is copied first.
    """
    try:
        _rename(new, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        near = target.with_name(f".{target.name}-old-{uuid.uuid4().hex[:8]}")  # which the next command removes
        copy, remove = (shutil.copytree, shutil.rmtree) if new.is_dir() else (shutil.copy2, os.unlink)
        try:
            copy(new, near)
            _rename(near, target)
        except BaseException:
            if near.exists():
                remove(near)
            raise
        remove(new)


def _rename(new: Path, target: Path) -> None:
    folder = new.is_dir()
    shared = new.stat().st_mode & 0o666
    for path in (*new.rglob("*"), new) if folder else (new,):
        if folder and path.suffix == ".safetensors" and path.stat().st_mode & 0o777 != shared:
            path.chmod(shared)  # safetensors lets only the owner read what it writes
        sync(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if folder and target.is_dir():  # a folder cannot replace another one in one step
        old = target.with_name(f".{target.name}-old-{uuid.uuid4().hex[:8]}")
        try:
            target.replace(old)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # an overlay file system does not rename folders of a lower layer, such as those in a container's image
            try:
                shutil.copytree(target, old)
            except BaseException:
                shutil.rmtree(old, ignore_errors=True)
                raise
            shutil.rmtree(target)
        try:
            new.replace(target)
        except OSError:
            old.replace(target)
            raise
        sync(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    else:
        new.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file or the entries of a folder are on the disk; where the system has no such call, do nothing."""
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        os.close(number)


def check_output(
    path: Path, what: str, is_own: Callable[[Path], object], *, option: str = "--out", folder: bool = False
) -> None:
    """Check that a command may write to a path that the user named: it replaces only its own output, or what is empty.

    Args:
        is_own: whether a file, or a folder if `folder`, is such an output, `what` in words; an error means no.

    Raises:
        ArtifactError: there is something else.
    """
    with suppress(Exception):  # files of strangers fail in many ways
        empty = not any(path.iterdir()) if folder else path.is_file() and not path.stat().st_size
        if empty or is_own(path):
            return
    if path.exists():
        fix = f"choose another {'folder' if folder else 'file'} with {option}"
        raise ArtifactError(f"{path} exists and is not {what}", fix=fix)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def check_writable(folder: Path) -> None:
    """Refuse before long work, not after it, where a file cannot be written. Raises ArtifactError as `atomic_path`."""
    write_text(folder / ".check", "")
    (folder / ".check").unlink(missing_ok=True)  # of another process that checks, too


def write_bytes(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, each atomically."""
    for name, data in files.items():
        with atomic_path(folder / name) as temporary:
            temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order, two-space indent."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, *, fix: str | None = None) -> Any:
    """Read JSON.

    Args:
        fix: command that creates it, for the error message.

    Raises:
        ArtifactError: the file is missing or is not JSON.
        PermissionError: this user may not read it, which does not mean that it is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"no file {path}", fix=fix, path=path) from error
    except ValueError as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}", fix=fix, path=path) from error
    except PermissionError:
        raise
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}", fix=fix, path=path) from error


def expanded(path: Path | str) -> Path:
    """A path with the home folder for a ~ at its start, unless nobody has that name."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises


def is_pattern(path: Path) -> bool:
    """Whether a path is a pattern with *, ? or [, and no file or folder is called so."""
    return any(mark in str(path) for mark in "*?[") and not path.exists()


def fitting(pattern: Path) -> list[Path]:
    """Files and folders that fit a pattern from any root, sorted, or are called so; ** is folders in any depth."""
    if pattern.exists():
        return [pattern]
    return [Path(name) for name in sorted(glob.glob(str(pattern), recursive=True))]  # noqa: PTH207 (see above)


def remove_others(folder: Path, kept: Collection[str], pattern: str = "*", *, folders: bool = False) -> None:
    """Remove the files, or the folders, of a pattern that are not among the names: the settings no longer have them.

    Readers would take them for a part of the rest.
    """
    for old in folder.glob(pattern):
        if old.name in kept or old.is_dir() != folders:
            continue
        if folders:
            log.info("%s: removed, the settings no longer have it", old.name)
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()


def link_or_copy(source: Path, target: Path) -> None:
    """Give a finished file a second name: a hard link if the file system supports it, else a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)


def sha256_file(*paths: Path) -> str:
    """SHA-256 of a file's bytes, or of those of several, one after the other, as hex."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()


def content_key(value: Any) -> str:
    """16-digit hash of a JSON-able value: equal values give equal keys on any machine."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold an exclusive lock file while the block runs; wait if another process holds it.

    Args:
        what: name for the log line when it has to wait.
    """
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            lock = SoftFileLock(f"{path}ed")  # whose presence is the lock
            lock.acquire(timeout=0)
    except Timeout:
        log.warning("another process is making %s; waiting for it", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def kept_path(path: Path, key: str) -> Iterator[Path]:
    """Like `atomic_path`, for unfinished work, which `open_kept` reads.

    The content is followed by two SHA-256: one of its key, one of all before. Archives, JSON lines and Arrow streams
    ignore what follows them.

    Args:
        key: content key of what the work depends on.
    """
    with atomic_path(path) as temporary:
        yield temporary
        with temporary.open("r+b") as file:
            digest, of_key = hashlib.file_digest(file, "sha256"), hashlib.sha256(key.encode()).hexdigest().encode()
            digest.update(of_key)
            file.write(of_key + digest.hexdigest().encode())


@contextmanager
def open_kept(path: Path, key: str) -> Iterator[BinaryIO | None]:
    """Open a file that `kept_path` has written; None if it is missing, has another key, or is damaged.

    A damaged file is removed, with a warning: it costs only the work that it would have saved.

    Args:
        key: content key that it must have.
    """
    try:
        file = path.open("rb")
    except OSError:
        yield None
        return
    with file:
        size = max(path.stat().st_size - HEX, 0)
        digest = hashlib.sha256()
        for start in range(0, size, BLOCK):
            digest.update(file.read(min(BLOCK, size - start)))
        whole = file.read() == digest.hexdigest().encode()
        if not whole:
            log.warning("%s is damaged, or of an earlier version of daamctl: its work is done again", path)
            path.unlink(missing_ok=True)
        file.seek(max(size - HEX, 0))
        same = file.read(HEX) == hashlib.sha256(key.encode()).hexdigest().encode()
        file.seek(0)
        yield file if whole and same else None


def keep_json(path: Path, key: str, value: Any) -> None:
    """Keep what was found out for `kept_json`; where the file system refuses, it will be found out again."""
    with suppress(ArtifactError, OSError), kept_path(path, key) as temporary:
        temporary.write_text(json.dumps(value) + "\n", encoding="utf-8")


def kept_json(path: Path, key: str) -> Any:
    """What `keep_json` has written under a key; None if it is missing, has another key, or is damaged."""
    with open_kept(path, key) as file:
        return None if file is None else json.loads(file.readline())


def csv_text(text: str) -> str:
    """Text for a cell of a CSV file.

    Spreadsheets run text that begins with =, +, -, @, a tab or a carriage return as a formula. Such text gets an
    apostrophe in front, unless it is a number.
    """
    if not text.startswith(("=", "+", "-", "@", "\t", "\r")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


class SaveTimer:
    """Rate-limited saving of unfinished work.

    Args:
        every_s: shortest time between two checkpoints, in seconds.
        fraction: share of the time to spend on saving; some states take gigabytes.
    """

    def __init__(self, *, every_s: float, fraction: float = float("inf")) -> None:
        self.every_s, self.fraction = every_s, fraction
        self.last, self.took_s = time.monotonic(), 0.0

    def save_if_due(self, save: Callable[[], None]) -> None:
        """Call `save` if the interval has passed."""
        started = time.monotonic()
        most = max(self.fraction, MOST_FRACTION)
        seldom = max(min(self.took_s / self.fraction, LONGEST_S), self.took_s / most)
        if started - self.last >= max(self.every_s, seldom):
            save()
            self.last = time.monotonic()
            self.took_s = self.last - started
