"""Writing files: complete under their names or not at all, and harmless when a spreadsheet opens them.

`repair_of` says what helps when the file system refuses.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from daamctl.errors import ArtifactError

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
