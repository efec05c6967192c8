"""Atomic writes: a file or folder appears complete under its name, or not at all."""

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
