"""Data sets of the Hugging Face hub that hold their recordings or images: written out as files and a table of them.

A data set is a Parquet file, a folder of them as the hub has it (`data/train-00000-of-00002.parquet`), or a folder
written by `save_to_disk`. The table is one that `corpora.manifest` reads, or `corpora.conll` for tagged words. Integers
that stand for classes get their names. Code in a data set is never run. Images as arrays (`arrays.py`) are written out
likewise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.compute.progress import progress
from daamctl.corpora.arrays import array_parts
from daamctl.corpora.base import known_labels
from daamctl.corpora.files import SUFFIXES, alike, check_named, files_below, filled, named_columns, relabelled
from daamctl.corpora.groups import with_test_part
from daamctl.corpora.hub import SAVED, Part, features_of, names_of, parts_of
from daamctl.data.item_names import speakers_in_names
from daamctl.errors import CorpusError, first_few
from daamctl.store.files import atomic_path

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 64
"""Rows that are read at once: recordings are large."""
ROLES = ("label", "speaker", "group", "sentence")
TAKEN = ("path", "text", "utterance_id", "index", "start_s", "end_s", "duration_s", "sampling_rate", "n_channels")
"""Columns that mean something else to a manifest."""
NAME = "_name"
"""Column of the names that files have in a data set, until the speakers are known."""
STARTS = {
    b"RIFF": ".wav", b"FORM": ".aiff", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3", b"\xff\xfb": ".mp3",
    b"\xff\xf3": ".mp3", b"\x89PNG": ".png", b"\xff\xd8": ".jpg", b"GIF8": ".gif",
    b"BM": ".bmp", b"II*": ".tif", b"MM\x00*": ".tif",
}  # fmt: skip
"""First bytes of a file -> its suffix, where the data set names none."""


def is_dataset(path: Path) -> bool:
    """Whether a path is a data set: Parquet files in a folder or alone, a folder of `save_to_disk`, or arrays."""
    import pyarrow.parquet as pq

    if array_parts(path):
        return True
    if path.is_dir():
        endings = {file.suffix.lower() for file in files_below(path)}
        held = {*SUFFIXES["speech"], *SUFFIXES["image"]} & endings
        return any((path / name).is_file() for name in SAVED) or (".parquet" in endings and not held)
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return False
    try:
        schema = pq.read_schema(path)
        features = features_of(schema)
    except (OSError, ValueError, NotImplementedError):
        return False  # whoever reads it says what is wrong
    if any(map(_holds_files, schema)):
        return True
    return "path" not in schema.names and any(names_of(feature) for feature in features.values())


def unpack(
    source: Path, folder: Path, columns: Mapping[str, str], labels: Mapping[str, str] | None = None
) -> tuple[Path, dict[str, str], list[str]]:
    """Write the items of a data set to a new folder: a table of the same name, and the files that they hold.

    Args:
        folder: replaced if it exists.
        columns: column of the table -> column of the data set; the others are found by their names.
        labels: other names of classes, see `relabelled`.

    Returns:
        The table (.csv, or .parquet for tagged words), column of the table -> column of the data set, and doubts.

    Raises:
        CorpusError: a file is damaged, columns are missing, or an item has no file.
    """
    parts = array_parts(source) or parts_of(source)
    first = parts[0]
    if unlike := next((part.name for part in parts if set(part.schema.names) != set(first.schema.names)), None):
        raise CorpusError(f"{source}: the parts {first.name} and {unlike} have different columns")
    taken = _columns(source, first.schema, columns, one_part=len(parts) == 1)
    columns_of = {role: named_columns(name, first.schema.names) for role, name in taken.items()}
    read = [name for found in columns_of.values() for name in found]
    free = set(first.schema.names) - set(read) - {*TAKEN, *taken, "group"}
    kept = [field.name for field in first.schema if field.name in free and not _is_nested(field.type)]
    names = {name: names_of(first.features.get(name)) for name in (*read, *kept)}
    label = "tags" if "tokens" in taken else "label"
    rows: list[dict[str, Any]] = []
    several = 0
    with atomic_path(folder) as new, progress(sum(part.rows for part in parts), f"reading {source}", "items") as bar:
        new.mkdir()
        for part in parts:
            start = re.sub(r"[^\w.-]", "_", part.name)  # no folder
            for number, values in enumerate(_rows(part, [*read, *kept]), 1):
                row: dict[str, Any] = {}
                for role, found in columns_of.items():
                    if role == "path":
                        continue
                    told = {name: _told(values[name], names[name]) for name in found}
                    row[role] = told[taken[role]] if taken[role] in told else filled(taken[role], told)
                if isinstance(row.get("label"), list):  # of several classes, none is that of the item
                    several += len(row["label"]) > 1
                    row["label"] = row["label"][0] if len(row["label"]) == 1 else None
                if "path" in taken and row[label] is not None:
                    content, suffix, name = _file(values[taken["path"]], f"{source}: item {number} of {part.name}")
                    row["path"] = f"{start}-{number:06d}{suffix}"
                    (new / row["path"]).write_bytes(content)
                    if suffix in SUFFIXES["speech"] and "speaker" not in taken:  # everybody may be another one
                        row |= {"speaker": row["path"], NAME: name}
                rows.append(row | {name: _told(values[name], names[name]) for name in kept})
                if len(parts) > 1 and "group" not in taken:
                    rows[-1]["group"] = part.name
                bar.advance(1)
        known, unknown = known_labels(pl.Series([row[label] for row in rows]), labels or {})
        labelled = [row for row, one in zip(rows, known, strict=True) if one is not None]
        table = pl.DataFrame(labelled, infer_schema_length=None)
        if table.is_empty():
            what = "has one label alone" if several else "has a label"
            raise CorpusError(f"no item of {source} {what}", fix="name its column: --columns label=NAME")
        if NAME in table.columns:
            if named := speakers_in_names(table[NAME], table["label"]):
                table = table.with_columns(named[1])
                taken |= {"speaker": f"the names of {named[0]}"}
            table = table.drop(NAME)
        missing = len(rows) - len(table) - several
        doubts = [f"{counted(missing, 'item')} {unknown} left out"] if missing else []
        doubts += [f"{counted(several, 'item')} with several labels left out: an item has one here"] if several else []
        table = relabelled(table, labels or {})
        table, renamed = with_test_part(table)
        doubts += renamed
        if label == "tags" and "id" in table.columns and table["id"].is_duplicated().any():
            table = table.drop("id")  # numbers that begin anew in every part
        file = new / f"{folder.name}{'.parquet' if label == 'tags' else '.csv'}"
        (table.write_parquet if label == "tags" else table.write_csv)(file)
    return folder / file.name, taken, doubts


def _rows(part: Part, columns: list[str]) -> Iterator[dict[str, Any]]:
    for table in part.batches(list(dict.fromkeys(columns)), ROWS):
        yield from table.to_pylist()


def _columns(source: Path, schema: pa.Schema, given: Mapping[str, str], *, one_part: bool) -> dict[str, str]:
    """Column of the table -> column of the data set."""
    shown = ", ".join(schema.names)[:200]
    known = ("path", "text", "tokens", "tags", *ROLES)
    check_named(given, known, source, schema.names)
    held = [field.name for field in schema if _holds_files(field)]
    taken = dict(given)
    if "path" in taken and taken["path"] not in held:
        raise CorpusError(f"{source}: '{taken['path']}' holds no files; those that do: {first_few(held) or 'none'}")
    if not taken.keys() & {"path", "text", "tokens"}:
        if len(held) > 1:
            raise CorpusError(f"{source} holds files in {first_few(held)}", fix=f"choose: --columns path={held[0]}")
        role = "path" if held else "tokens" if _found("tokens", schema.names) else "text"
        content = held[0] if held else _found(role, schema.names)
        if content is None:
            raise CorpusError(
                f"{source} has no recordings, images, texts or words; its columns are {shown}",
                fix="name the one to read: --columns text=NAME",
            )
        taken[role] = content
    wanted = ("tags", "sentence") if "tokens" in taken else ROLES
    if "tokens" not in taken:
        taken.pop("tags", None)
    for role in wanted:
        found = _found(role, [name for name in schema.names if name not in taken.values()])
        if role not in taken and found is not None and (role != "group" or one_part):
            taken[role] = found
    if wanted[0] not in taken:
        raise CorpusError(
            f"{source} has no column {wanted[0]}; its columns are {shown}", fix=f"name it: --columns {wanted[0]}=NAME"
        )
    single = [name for role, found in taken.items() if role not in ("path", "tokens", "tags")
              for name in named_columns(found, schema.names)]  # fmt: skip
    single = [name for name in single if name != taken.get("label") or not _is_list(schema.field(name).type)]
    if several := next((name for name in single if _is_nested(schema.field(name).type)), None):
        raise CorpusError(f"{source}: an item has several values in '{several}'; one is expected")
    return taken


def _found(role: str, names: list[str]) -> str | None:
    return role if role in names else alike(role, names)


def _told(value: Any, names: list[str] | None) -> Any:
    """A value, or the names of the classes that it stands for; None for NaN, and for -1, a class that is not known."""
    if isinstance(value, list):
        return [_told(one, names) for one in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if names is None or not isinstance(value, int):
        return value if value is None or isinstance(value, (str, int, float)) else str(value)  # e.g. a date
    return names[value] if 0 <= value < len(names) else None


def _holds_files(field: pa.Field) -> bool:
    """Whether a column holds files: as the library `datasets` keeps them, or as bytes under a usual name."""
    import pyarrow as pa

    if pa.types.is_struct(field.type):
        return {"bytes", "path"} <= {part.name for part in field.type}
    name = field.name.lower().removesuffix("_bytes")
    return _is_binary(field.type) and (name == "bytes" or _found("path", [name]) is not None)


def _is_list(kind: pa.DataType) -> bool:
    """Whether values are lists of single values."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and not _is_nested(kind.value_type)


def _is_nested(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_nested(kind) or _is_binary(kind))


def _is_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _file(held: Mapping[str, Any] | bytes | None, item: str) -> tuple[bytes, str, str]:
    """Content, suffix and name of the file of an item, which may be beside the data set and have no name."""
    held = {"bytes": held} if isinstance(held, bytes) else held
    name = (held or {}).get("path") or ""
    path = Path(name)
    known = path.suffix.lower() in (*SUFFIXES["speech"], *SUFFIXES["image"])
    content = (held or {}).get("bytes") or (path.read_bytes() if known and path.is_file() else None)
    if not content:
        raise CorpusError(f"{item} holds no file, and there is none at '{path}'", fix="save it with its files in it")
    if known:
        return content, path.suffix.lower(), name
    if content[8:12] == b"WEBP":
        return content, ".webp", name
    return content, next((suffix for start, suffix in STARTS.items() if content.startswith(start)), ".bin"), name
