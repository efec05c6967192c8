"""What to predict, as rows: files, folders, globs, tables and texts; `sentences.py` reads sentences.

Columns: item (name in the output), path (absolute; null for texts), text (null for files), start_s and duration_s
(seconds; null duration: to the end of the file), label (null if unknown).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.terms import listed
from daamctl.artifacts.utterances import Modality
from daamctl.corpora.files import (
    JSON,
    SUFFIXES,
    files_below,
    lines_of,
    named_columns,
    read_table,
    read_text,
    renames,
    renaming,
    with_templates,
)
from daamctl.data.task import task_of
from daamctl.errors import CorpusError
from daamctl.store.files import expanded, fitting, is_pattern

SCHEMA: dict[str, Any] = {
    "item": pl.String,
    "path": pl.String,
    "text": pl.String,
    "start_s": pl.Float64,
    "duration_s": pl.Float64,
    "label": pl.String,
}
TABLES = (".csv", ".tsv", ".parquet", *JSON)


def read_inputs(inputs: Sequence[str], modality: Modality, template: str | None = None) -> pl.DataFrame:
    """Find everything that the words of a command name.

    Args:
        inputs: files, folders, globs and tables. A table (CSV, Parquet or JSON) has a column `path`, relative to
            its folder, or `text`; optional are `label`, `utterance_id`, and for recordings `start_s` and `end_s`.
        modality: what the model reads. A file of texts holds one per line.
        template: what a text is made of in a table that has its columns, e.g. `{title}. {body}`.

    Returns:
        Rows with the columns of `SCHEMA`, in the given order; files of a folder or glob are sorted by name.

    Raises:
        CorpusError: there is no such file or folder, it is of another kind, or nothing is left to predict.
    """
    frames = [_of_file(file, modality, template) for word in inputs for file in files_of(word, SUFFIXES[modality])]
    rows = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    if rows.is_empty():
        raise CorpusError(f"there is no {task_of(modality).item} to predict", fix=_what_to_give(modality))
    return rows


def texts_as_rows(texts: Iterable[str]) -> pl.DataFrame:
    """Texts as rows, named by their number from 1."""
    found = list(texts)
    return _rows({"item": [str(number) for number in range(1, len(found) + 1)], "text": found})


def files_as_rows(paths: Iterable[Path]) -> pl.DataFrame:
    """Files as rows, named by their paths."""
    found = [str(path) for path in paths]
    return _rows({"item": found, "path": [str(Path(path).absolute()) for path in found]})


def files_of(word: str, suffixes: Sequence[str]) -> list[Path]:
    """Files that a word of a command names: itself, those of a folder with the given suffixes, or those of a glob.

    Raises:
        CorpusError: there is none.
    """
    path = expanded(word)
    if path.is_dir():
        found = [file for file in files_below(path) if file.suffix.lower() in suffixes]
        if not found:
            raise CorpusError(f"{path} holds no file that the model reads ({', '.join(suffixes)})")
    elif path.exists():
        found = [path]
    elif is_pattern(path):
        found = [file for file in fitting(path) if file.is_file()]
        if not found:
            raise CorpusError(f"no file matches {word}")
    else:
        raise CorpusError(f"no file or folder {word}")
    return found


def _of_file(path: Path, modality: Modality, template: str | None) -> pl.DataFrame:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return _of_table(path, modality, template)
    others = {end: kind for kind, ends in SUFFIXES.items() for end in ends if kind != modality}
    if suffix in others:
        given, read = (f"{task_of(kind).original}s" for kind in (others[suffix], modality))
        raise CorpusError(f"{path} looks like {given}, the model reads {read}", fix=_what_to_give(modality))
    # a single file is one item, except that a file of texts has one per line
    if modality != "text":
        return files_as_rows([path])
    lines = lines_of(read_text(path))
    return _rows({"item": [f"{path}:{number}" for number in range(1, len(lines) + 1)], "text": lines})


def _what_to_give(modality: Modality) -> str:
    read = f"{task_of(modality).original}s"
    return f"give {read} ({', '.join(SUFFIXES[modality])}), a folder of them, or a table of them ({', '.join(TABLES)})"


def _of_table(path: Path, modality: Modality, template: str | None) -> pl.DataFrame:
    table = read_table(path)
    needed = "text" if modality == "text" else "path"
    parts = named_columns(template, table.columns) if template and needed == "text" else []
    if template and parts and {*parts} <= {*table.columns}:  # also if one of them is called text
        table = with_templates(table, {needed: template}).with_columns(pl.col(template).alias(needed))
    if needed not in table.columns:
        original, other = task_of(modality).original, renames([needed], table.columns)
        what = "text" if needed == "text" else f"file of each {original}"
        fix = renaming(other) if other else f"name the column with the {what} '{needed}'"
        if parts:
            fix = f"name the columns {listed(parts)}, of which texts were made in training: '{template}'"
        raise CorpusError(
            f"{path} has no column '{needed}', which a table of {original}s needs; it has "
            f"{', '.join(table.columns)[:200]}",
            fix=fix,
        )
    known = [name for name in (needed, "label", "utterance_id") if name in table.columns]
    table = table.with_columns(pl.col(known).cast(pl.String))
    columns: dict[str, Any] = {needed: table[needed]}
    if needed == "path":
        folder = path.parent.absolute()
        columns["path"] = [str(folder / name.strip()) if name else None for name in table["path"]]
    numbers = [f"{path}:{number}" for number in range(1, len(table) + 1)]
    # an empty name is replaced by the number of the row below
    names = table["utterance_id"] if "utterance_id" in table.columns else table["path"] if needed == "path" else numbers
    columns["item"] = [name or number for name, number in zip(names, numbers, strict=True)]
    if "label" in table.columns:
        columns["label"] = table["label"].str.strip_chars().replace("", None)
    if modality == "speech":
        start, end = _seconds(table, "start_s", path), _seconds(table, "end_s", path)
        columns["start_s"], columns["duration_s"] = start.fill_null(0.0), end - start.fill_null(0.0)
    return _rows(columns)


def _seconds(table: pl.DataFrame, name: str, path: Path) -> pl.Series:
    """A column of times; null where it is missing or empty."""
    if name not in table.columns:
        return pl.Series(name, [None] * len(table), pl.Float64)
    text = table[name].cast(pl.String).str.strip_chars().replace("", None)
    number = text.cast(pl.Float64, strict=False)
    if (wrong := text.filter(number.is_null() & text.is_not_null())).len():
        raise CorpusError(f"{path}: {name} is not a number: '{wrong[0]}'")
    return number


def _rows(columns: dict[str, Any]) -> pl.DataFrame:
    frame = pl.DataFrame(columns)
    lacking = [pl.lit(None, kind).alias(name) for name, kind in SCHEMA.items() if name not in frame.columns]
    return frame.with_columns(lacking).select(list(SCHEMA)).cast(pl.Schema(SCHEMA))
