"""Writing files: complete under their names or not at all, and harmless when a spreadsheet opens them.

Unfinished work and caches (`kept_path`, `open_kept`) end in a SHA-256, which is checked before they are used: no record
vouches for them yet. `repair_of` says what helps when the file system refuses.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from daamctl.errors import ArtifactError

log = logging.getLogger(__name__)

BLOCK = 1 << 20
HEX = 64
"""Characters of a SHA-256."""
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


def repair_of(error: BaseException) -> str | None:
    """What helps if the file system refused; None if the error is of another kind. Libraries wrap it differently."""
    number = getattr(error, "errno", None)
    if number is None and f"os error {errno.ENOSPC}" in str(error):
        number = errno.ENOSPC
    advice = REPAIRS.get(number) if number is not None else None
    return f"{advice}, then run it again" if advice else None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on failure.

    The temporary path keeps the suffix of `path`, because libraries choose formats by it.

    Raises:
        ArtifactError: the file system refuses the write (disk full, read-only, no permission).
    """
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        advice = repair_of(error) or "free space or fix permissions, then run it again"
        raise ArtifactError(f"cannot write {path}: {error.strerror or error}", fix=advice) from error
    finally:
        with suppress(OSError):  # the path itself may be what is refused
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


@contextmanager
def kept_path(path: Path, key: str) -> Iterator[Path]:
    """Like `atomic_path`, for unfinished work, which `open_kept` reads.

    The content is followed by two SHA-256: one of its key, one of all before. Archives, JSON lines and Arrow streams
    ignore what follows them.

    Args:
        path: the file.
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
        path: the file.
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
