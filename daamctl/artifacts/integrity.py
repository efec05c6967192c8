"""Whether a file is what was written: hashes that writers record and readers compare.

- A JSON record is *sealed*: its field `sha256` is a hash of its other fields.
- A record that finishes a folder also has `files`: the SHA-256 of every other file of the folder. So `result.json`
  vouches for the files of a fold, `embeddings.json` for the shards, `evaluation.json` and `summary.json` for tables and
  pictures.
- A Parquet table that stands alone (utterances, clips) is sealed in its metadata.

A file that was cut, changed or taken from elsewhere is refused, and the message names the command that makes it again.
Files of versions that recorded no hashes are read as they are. A large file is hashed once: the hash is remembered in
`data/.work/hashes/` until the file's size, time stamp or inode changes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from daamctl.artifacts.io import sha256_file, write_text
from daamctl.errors import ArtifactError

SEAL = "sha256"
LARGE = 1_000_000
"""Size in bytes from which hashes are remembered."""
SETTLED_NS = 2_000_000_000
"""A file that changed less than this time ago may change again without another time stamp."""


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-able record with its seal."""
    return {**record, SEAL: _seal_of(record)}


def check_seal(path: Path, record: Any, *, fix: str | None) -> None:
    """Compare a record with its seal.

    Args:
        path: file of the record, for the message.
        record: content of the file; anything but an object with a seal is accepted.
        fix: how to make the file again.

    Raises:
        ArtifactError: the record was changed after it was written.
    """
    if isinstance(record, dict) and SEAL in record and record[SEAL] != _seal_of(record):
        raise ArtifactError(f"{path} was changed after it was written: its content does not match its hash", fix=fix)


def hashes_of(paths: Iterable[Path]) -> dict[str, str]:
    """Name -> SHA-256 of files of one folder, sorted by name."""
    return {path.name: sha256_file(path) for path in sorted(paths)}


def check_file(path: Path, files: Mapping[str, str], *, fix: str | None) -> Path:
    """Compare a file with its recorded hash.

    Args:
        path: the file.
        files: recorded hashes by name; a file without one need only exist.
        fix: how to make the file again.

    Returns:
        The path.

    Raises:
        ArtifactError: the file is missing, or is not the one that was recorded.
    """
    if not path.is_file():
        raise ArtifactError(f"no file {path}", fix=fix)
    wanted = files.get(path.name)
    if wanted is not None and not has_hash(path, wanted, lambda: sha256_file(path)):
        raise ArtifactError(f"{path} is damaged or from elsewhere: its SHA-256 is not the one recorded", fix=fix)
    return path


def has_hash(path: Path, wanted: str, compute: Callable[[], str]) -> bool:
    """Whether a hash of a file is as recorded. A large file is hashed once for each of its states.

    Args:
        path: the file.
        wanted: the recorded hash.
        compute: computes the hash that the file has now.
    """
    state = path.stat()
    known = f"{state.st_size} {state.st_mtime_ns} {wanted}"
    work = next((parent / ".work" for parent in path.absolute().parents if parent.name == "data"), None)
    if work is None or state.st_size < LARGE:
        return compute() == wanted
    note = work / "hashes" / f"{state.st_dev}-{state.st_ino}"  # hard links share it
    with suppress(OSError, ValueError):
        if note.read_text(encoding="utf-8") == known:
            return True
    same = compute() == wanted
    if same and time.time_ns() - state.st_mtime_ns > SETTLED_NS:
        with suppress(ArtifactError, OSError):  # if it cannot be remembered, it is computed again
            write_text(note, known)
    return same


def _seal_of(record: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps({name: value for name, value in record.items() if name != SEAL}))
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
