"""Records: sealed JSON files that say what lies beside them, so that whatever was changed, cut or moved is refused.

- A record is *sealed*: its field `sha256` is a hash of its other fields. A record without a seal is refused.
- A record that finishes a folder also has `files`: the SHA-256 of every other file of the folder. So `result.json`
  vouches for the files of a fold, `embeddings.json` for the shards, `evaluation.json` and `summary.json` for tables and
  pictures. `check_file` hashes a file whenever it is used.
- Shards are larger than everything else, and each of their pages has a checksum that is compared when it is read
  (`tables`). Their hash, which tells a shard from one of another encoder, is therefore computed once for each state of
  the file: it is remembered in `data/.work/hashes/` until size, time stamp or inode change.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from daamctl.errors import ArtifactError
from daamctl.store.files import read_json, sha256_file, write_json, write_text

Record = TypeVar("Record")

SEAL = "sha256"
SKIPPED_FILE = "skipped.json"
"""Note in the folder of a stage that was left out on this machine; the stage's record is then an empty file."""
LARGE = 1_000_000
"""Size in bytes from which hashes of shards are remembered."""
SETTLED_NS = 2_000_000_000
"""A file that changed less than this time ago may change again without another time stamp."""


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with its seal, atomically."""
    write_json(path, {**record, SEAL: seal_of(record)})


def seal_of(record: Mapping[str, Any]) -> str:
    """The seal of a JSON-able record: a hash of all of its fields but the seal."""
    plain = json.loads(json.dumps({name: value for name, value in record.items() if name != SEAL}))
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def read_sealed(path: Path, *, fix: str | None = None) -> dict[str, Any]:
    """Read a JSON object and compare it with its seal.

    Raises:
        ArtifactError: the file is missing, is not JSON, has no seal, or was changed after it was written.
    """
    found = read_json(path, fix=fix)
    if not isinstance(found, dict) or SEAL not in found:
        raise ArtifactError(f"{path} has no seal: it is not a record of this version of daamctl", fix=fix, path=path)
    if found[SEAL] != seal_of(found):
        raise ArtifactError(
            f"{path} was changed after it was written: its content does not match its hash", fix=fix, path=path
        )
    return found


def parse_record(found: Any, kind: type[Record], *, path: Path, fix: str | None = None) -> Record:
    """Convert the content of a file, without comparing it with its seal.

    Raises:
        ArtifactError: a field is missing or has another type.
    """
    try:
        return cast(Record, _adapter(cast(Hashable, kind)).validate_python(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{path} is incomplete or was made by another version of daamctl ({place}: {first['msg'].lower()})",
            fix=fix,
            path=path,
        ) from error


@lru_cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


def hashes_of(folder: Path, files: Iterable[Path] | None = None) -> dict[str, str]:
    """Path within the folder -> SHA-256, sorted, of some of its files; None: of all."""
    chosen = folder.rglob("*") if files is None else files
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(chosen) if not path.is_dir()}


def check_file(path: Path, wanted: str | None, *, fix: str | None = None, remember: bool = False) -> Path:
    """Compare a file with its recorded hash.

    Args:
        wanted: its recorded SHA-256; None: the record does not name the file.
        fix: how to make the file again.
        remember: whether an earlier comparison counts if the file's size, time stamp and inode are still the same.

    Returns:
        The path.

    Raises:
        ArtifactError: the file is missing, is not the one that was recorded, or none was recorded.
    """
    if not path.is_file():
        raise ArtifactError(f"no file {path}", fix=fix, path=path)
    if wanted is None:
        raise ArtifactError(f"{path} is not among the recorded files", fix=fix, path=path)
    if not (_same_as_before(path, wanted) if remember else sha256_file(path) == wanted):
        raise ArtifactError(
            f"{path} is damaged or from elsewhere: its SHA-256 is not the one recorded", fix=fix, path=path
        )
    return path


def _same_as_before(path: Path, wanted: str) -> bool:
    """Whether a file has a hash; a large file in a project is hashed once for each of its states."""
    state = path.stat()
    known = f"{state.st_size} {state.st_mtime_ns} {wanted}"
    work = next((parent / ".work" for parent in path.absolute().parents if parent.name == "data"), None)
    if work is None or state.st_size < LARGE:
        return sha256_file(path) == wanted
    note = work / "hashes" / f"{state.st_dev}-{state.st_ino}"  # hard links share it
    with suppress(OSError, ValueError):
        if note.read_text(encoding="utf-8") == known:
            return True
    same = sha256_file(path) == wanted
    if same and time.time_ns() - state.st_mtime_ns > SETTLED_NS:
        with suppress(ArtifactError, OSError):  # if it cannot be remembered, it is computed again
            write_text(note, known)
    return same
