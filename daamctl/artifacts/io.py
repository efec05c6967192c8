"""Reading and writing artifacts: text, JSON, Parquet, folders; content hashes and locks. All writes are atomic."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daamctl.errors import ArtifactError
from daamctl.files import atomic_path

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order, two-space indent."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, *, fix: str | None = None) -> Any:
    """Read JSON.

    Args:
        path: the file.
        fix: command that creates it, for the error message.

    Raises:
        ArtifactError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ArtifactError(f"no file {path}", fix=fix) from error
    except ValueError as error:
        raise ArtifactError(f"{path} is not valid JSON: {error}", fix=fix) from error
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}", fix=fix) from error


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a Parquet file atomically (zstd), with a checksum per page. The same table gives the same bytes.

    Dictionary encoding is off for list columns: they hold vectors, for which it would only slow down reading.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", use_dictionary=plain, write_page_checksum=True)


def read_parquet(path: Path, *, columns: list[str] | None = None, fix: str | None = None) -> pa.Table:
    """Read a Parquet file.

    Raises:
        ArtifactError: the file is missing, damaged or not Parquet.
    """
    try:
        return read_columns(path, columns)
    except FileNotFoundError as error:
        raise ArtifactError(f"no file {path}", fix=fix) from error
    except Exception as error:  # a damaged file fails in many ways
        raise ArtifactError(f"{path} cannot be read as Parquet: {error}", fix=fix) from error


def read_columns(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file, or some columns in the given order; avoids `pq.read_table`, which imports pandas.

    Pages with a checksum are compared with it.

    Raises:
        OSError: the file is missing, cannot be read, or a page differs from its checksum.
        pyarrow.ArrowException: it is not Parquet.
        KeyError: it lacks a column.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(columns)
    table.validate(full=True)
    return table if columns is None else table.select(columns)


def to_polars(table: pa.Table) -> pl.DataFrame:
    """Convert a table without its metadata: Polars panics on metadata that are not UTF-8.

    Raises:
        ValueError: Polars cannot convert the table.
    """
    import polars as pl

    try:
        return pl.DataFrame(pl.from_arrow(table.replace_schema_metadata(None)))
    except pl.exceptions.PanicException as error:
        raise ValueError(f"Polars cannot read the table: {error}") from error


def replace_dir(new: Path, target: Path) -> None:
    """Replace the folder `target` by the finished folder `new` (same file system); the old one is deleted last."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        old = target.with_name(f".{target.name}-old-{uuid.uuid4().hex[:8]}")
        target.replace(old)
        new.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        new.replace(target)


def remove_others(folder: Path, kept: Collection[str]) -> None:
    """Remove the files of a folder that are not among the names: readers would take them for a part of the rest."""
    for old in folder.iterdir() if folder.is_dir() else ():
        if old.is_file() and old.name not in kept:
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


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def content_key(value: Any) -> str:
    """16-digit hash of a JSON-able value: equal values give equal keys on any machine."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold an exclusive lock file while the block runs; wait if another process holds it.

    Args:
        path: the lock file.
        what: name for the log line when it has to wait.
    """
    import logging

    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logging.getLogger(__name__).warning("another process is making %s; waiting for it", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
