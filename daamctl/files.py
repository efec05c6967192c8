"""Writing files: complete under their names or not at all, and harmless when a spreadsheet opens them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daamctl.errors import ArtifactError


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
        raise ArtifactError(
            f"cannot write {path}: {error.strerror or error}", fix="free space or fix permissions, then run it again"
        ) from error
    finally:
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
