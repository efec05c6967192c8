"""Typed records: JSON files with the names and nesting of a dataclass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from daamctl.artifacts.io import read_json
from daamctl.errors import ArtifactError

Record = TypeVar("Record")


def read_record(path: Path, kind: type[Record], *, again: str) -> Record:
    """Read a JSON file into a dataclass. Names that the dataclass does not have are ignored.

    Args:
        path: the file.
        kind: the dataclass.
        again: command that makes the file, for errors.

    Raises:
        ArtifactError: the file is missing, is not JSON, or was made by an older version of daamctl.
    """
    return parse_record(read_json(path, fix=f"make it: {again}"), kind, path=path, again=again)


def parse_record(found: Any, kind: type[Record], *, path: Path, again: str) -> Record:
    """Like `read_record`, from the content of the file."""
    try:
        return TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ArtifactError(
            f"{path} was made by an older version of daamctl ({place}: {first['msg'].lower()})",
            fix=f"make it again: {again}",
        ) from error


def find_record(path: Path, kind: type[Record], *, again: str, hide: Path | None = None) -> Record | None:
    """Like `read_record`, but None if there is no file, or an empty one: a stage that was skipped on this machine.

    Args:
        path: the file.
        kind: the dataclass.
        again: command that makes the file, for errors.
        hide: folder to remove from paths in texts, because reports may be shared.

    Raises:
        ArtifactError: the file is not JSON, or was made by an older version of daamctl.
    """
    if not path.is_file() or not path.read_bytes().strip():
        return None
    found = read_json(path, fix=f"make it again: {again}")
    if hide is not None:
        found = json.loads(json.dumps(found).replace(f"{hide}/", ""))
    return parse_record(found, kind, path=path, again=again)
