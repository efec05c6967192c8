"""Typed records: JSON files with the names and nesting of a dataclass, sealed (see `integrity`)."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from daamctl.artifacts.integrity import check_file, check_seal, sealed
from daamctl.artifacts.io import read_json, write_json
from daamctl.errors import ArtifactError
from daamctl.stage_table import SKIPPED_FILE

Record = TypeVar("Record")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with its seal, atomically."""
    write_json(path, sealed(record))


def read_record(path: Path, kind: type[Record], *, again: str) -> Record:
    """Read a JSON file into a dataclass. Names that the dataclass does not have are ignored.

    Args:
        path: the file.
        kind: the dataclass.
        again: command that makes the file, for errors.

    Raises:
        ArtifactError: the file is missing, incomplete, changed, of another run or of an older version of daamctl.
    """
    return _parsed(read_json(path, fix=f"make it: {again}"), kind, path, again)


def find_record(path: Path, kind: type[Record], *, again: str, hide: Path | None = None) -> Record | None:
    """Like `read_record`, but None if there is no file, or an empty one beside the note of a skipped stage.

    Args:
        path: the file.
        kind: the dataclass.
        again: command that makes the file, for errors.
        hide: folder to remove from paths in texts, because reports may be shared.

    Raises:
        ArtifactError: as for `read_record`, except for a missing file.
    """
    if not path.exists():
        return None
    if (path.parent / SKIPPED_FILE).is_file() and not path.read_bytes().strip():
        return None
    return _parsed(read_json(path, fix=f"make it again: {again}"), kind, path, again, hide)


def find_whole_record(path: Path, kind: type[Record], *, again: str, hide: Path | None = None) -> Record | None:
    """Like `find_record`, for a record whose `files` holds the hashes of files beside it, which are checked.

    Raises:
        ArtifactError: as for `find_record`, or one of the files is missing or changed.
    """
    found = find_record(path, kind, again=again, hide=hide)
    for name, wanted in getattr(found, "files", {}).items():
        check_file(path.parent / name, wanted, fix=f"make it again: {again}")
    return found


def parse_record(found: Any, kind: type[Record], *, path: Path, again: str) -> Record:
    """Like `read_record`, from the content of the file, without comparing it with its seal."""
    try:
        return cast(Record, _adapter(cast(Hashable, kind)).validate_python(found))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{path} is incomplete or was made by an older version of daamctl ({place}: {first['msg'].lower()})",
            fix=f"make it again: {again}",
        ) from error


@lru_cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


def _parsed(found: Any, kind: type[Record], path: Path, again: str, hide: Path | None = None) -> Record:
    fix = f"make it again: {again}"
    check_seal(path, found, fix=fix)
    if hide is not None:
        found = json.loads(json.dumps(found).replace(f"{hide}/", ""))
    record = parse_record(found, kind, path=path, again=again)
    run = getattr(record, "run", None)
    if run is not None and run != path.parent.name:
        raise ArtifactError(f"{path} belongs to the run '{run}'", fix=fix)
    return record
