"""What files beside recordings, images and texts tell of them, and the cuts of Lhotse.

a/1.wav, a/1.json               values of an item, as the shards of WebDataset are unpacked; `.cls`, `.lab`: its label
meta/test.txt                   the files of a part, one a line, as Food-101 and Speech Commands have them
metadata.csv                    a table that names the files in one of its columns
cuts.jsonl.gz                   a cut a line: a piece of a recording, with one supervision
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any, NamedTuple

import polars as pl

from daamctl.config.corpus_keys import TABLES
from daamctl.corpora.conll import part_files
from daamctl.corpora.file_names import LIST_THEM
from daamctl.corpora.files import SUFFIXES, alike, files_below, lines_of, match_names, one_hot, read_table, read_text
from daamctl.corpora.groups import part_of
from daamctl.errors import CorpusError
from daamctl.store.tables import parsed_json

BESIDE = (".json", ".cls", ".lab", ".label")
CUTS = (".jsonl", ".jsonl.gz")
MOST_TABLES, LARGEST = 20, 50_000_000
"""Tables that are looked at, and their bytes."""


class NamingTable(NamedTuple):
    """A table that names files: what it tells, and how to read it, or the folder of its split."""

    told: str
    read: str


def read_beside(folder: Path) -> pl.DataFrame | None:
    """Recordings or images of a folder that all have a file with their values beside them; None: they have not.

    Returns:
        Columns path (relative to the folder), and label, or the values of the JSON files that are no lists or objects.

    Raises:
        CorpusError: a `.json` file beside an item is no JSON object.
    """
    known = {*SUFFIXES["speech"], *SUFFIXES["image"]}
    rows = []
    for item in files_below(folder):
        if item.suffix.lower() not in known:
            continue
        told = next((path for end in BESIDE if (path := item.with_suffix(end)).is_file()), None)
        if told is None:
            return None
        content = read_text(told).strip()
        values: Any = {"label": content}
        if told.suffix != ".json" and "\n" in content:  # e.g. times of phones
            return None
        if told.suffix == ".json":
            try:
                values = parsed_json(content)
            except ValueError as error:
                raise CorpusError(f"{told} cannot be read as JSON: {error}") from error
            if not isinstance(values, Mapping):
                raise CorpusError(f"{told} is no JSON object with the values of {item.name}")
        plain = {name: one for name, one in values.items() if not isinstance(one, list | Mapping)}
        place = item.relative_to(folder)
        part = part_of(place.parts[0]) if len(place.parts) > 1 else None
        rows.append({**plain, "path": place.as_posix(), **({"group": part} if part else {})})
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else None


def listed_parts(lists: Sequence[Path], paths: Sequence[str]) -> tuple[dict[str, str], list[Path]]:
    """Path -> its part, by text files that are named for a part and begin each line with a path, and these files.

    Empty if none is of a test or dev part, or two are of the same.
    """
    found: dict[str, tuple[Path, list[str]]] = {}
    for file in lists:
        part = part_of(file.stem)
        if part is None or file.suffix.lower() != ".txt" or file.stat().st_size > LARGEST:
            continue
        try:
            lines = [line for line in lines_of(read_text(file)) if line.strip()]
        except CorpusError:
            continue
        named_first = [word for word in (lines or [""])[0].split() if "/" in word or PurePosixPath(word).suffix]
        if len({*match_names(named_first, paths)} - {None}) > 1:  # pairs of items, as VoxCeleb's trials
            continue
        for names in (lines, [line.split()[0] for line in lines]):
            named = [one for one in match_names(names, paths) if one is not None]
            if 10 * len(named) >= 9 * len(lines) > 0:
                if part in found:
                    return {}, []
                found[part] = file, named
                break
    if not found.keys() & {"test", "dev"}:
        return {}, []
    parts = {path: part for part, (_, named) in found.items() for path in named}
    return parts, [file for file, _ in found.values()]


def naming_table(files: Sequence[Path], paths: Sequence[str]) -> NamingTable | None:
    """The table that names most of some paths, in a column of their names; None: none names a third of them.

    It has another column that may be the label. One with a row for each file comes before others.
    """
    keys = {key for path in map(PurePosixPath, paths) for key in (path.name, path.stem)}
    best, most = None, (False, 0)
    for file in [one for one in files if one.suffix.lower() in TABLES][:MOST_TABLES]:
        try:
            table = read_table(file) if file.stat().st_size <= LARGEST else pl.DataFrame()
            split = part_files(file.parent).values()
        except CorpusError:
            continue
        spaced = table.width == 1 and " " in table.columns[0].strip() and part_of(file.stem) is None
        if spaced:  # as lists of RAF-DB and CUB
            lines = pl.Series([*table.columns, *table.to_series()], dtype=pl.String)
            table = lines.str.extract_groups(r"^\s*(\S+).*\s(\S+)\s*$").struct.unnest()
        plain = table.select(name for name, kind in table.schema.items() if not kind.is_nested())
        for column in plain.select(pl.col(pl.String)):
            names = column.unique().drop_nulls()
            hits = sum(PurePosixPath(name).name in keys for name in names)
            others = [name for name in plain.columns if name != column.name]
            may_label = alike("label", others) or any(2 * plain[name].n_unique() <= len(plain) for name in others)
            rank = 10 * len(names) >= 9 * len(table), hits
            if (may_label or spaced) and rank > most and 3 * hits > len(paths) and 2 * hits > len(names):
                where = file.parent if len(split) > 1 and file in split else file
                read = LIST_THEM if spaced else f"--from {where}{_columns_of(column.name, plain, paths)}"
                if PurePosixPath(column.name).name in keys:
                    each = "" if where == file else " of each part"
                    read = f"write the names of the columns into the first line{each}; then --from {where}"
                place = ", and spaces separate its columns" if spaced else f" in '{column.name}'"
                best, most = NamingTable(f"{file} names {hits:,} of the files{place}", read), rank
    return best


def _columns_of(column: str, table: pl.DataFrame, paths: Sequence[str]) -> str:
    """The option that names the columns of a table that have no usual names: of the files, and of the labels.

    Where others have the same names, the files are those of the folder that has them all.
    """
    names = table[column].unique().drop_nulls().to_list()
    read = {} if alike("path", [column]) else {"path": column}
    if any(one is None for one in match_names(names, paths)):
        forms = Counter((path.parent, path.suffix) for path in map(PurePosixPath, paths) if path.stem in set(names))
        whole = [f"{parent}/{{{column}}}{suffix}" for (parent, suffix), count in forms.items() if count == len(names)]
        read |= {"path": whole[0]} if len(whole) == 1 and len(forms) > 1 else {}
    if not alike("label", table.columns) and one_hot(table) is None:
        read["label"] = "NAME"
    named = ",".join(f"{role}={name}" for role, name in read.items())
    return f" --columns {quote(named)}" if named else ""


def read_cuts(path: Path) -> pl.DataFrame | None:
    """Cuts of Lhotse, with the columns path, start_s, end_s, and what the supervisions tell; None: it is another file.

    Paths begin where the recipe ran; they stay as they are.

    Raises:
        CorpusError: a cut has several supervisions, or no file, or is damaged.
    """
    if not path.name.lower().endswith(CUTS) or not path.is_file():
        return None
    rows: list[dict[str, Any]] = []
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for line in lines:
                cut = parsed_json(line)
                if not rows and not (isinstance(cut, dict) and {"supervisions", "recording"} <= cut.keys()):
                    return None
                rows.append(_of_cut(cut, f"{path}:{len(rows) + 1}"))
    except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError) as error:
        if not rows:  # perhaps a table; whoever reads it says what is wrong
            return None
        raise CorpusError(f"{path}:{len(rows) + 1}: no cut of Lhotse: {str(error)[:160]}") from error
    return pl.DataFrame(rows, infer_schema_length=None, strict=False) if rows else None


def _of_cut(cut: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Path, times and values of a cut."""
    told, files = cut["supervisions"], [one for one in cut["recording"]["sources"] if one.get("type") == "file"]
    if len(told) != 1 or len(files) != 1:
        raise CorpusError(
            f"{place}: a cut with {len(told)} supervisions and {len(files)} files; one of each is expected",
            fix="cut the recordings: cuts.trim_to_supervisions()",
        )
    start = cut["start"] + told[0]["start"]
    values = {
        **(told[0].get("custom") or {}),
        **{name: told[0].get(name) for name in ("speaker", "gender", "language")},
    }
    plain = {name: one for name, one in values.items() if one is not None and not isinstance(one, list | Mapping)}
    ends = {"start_s": start, "end_s": start + told[0]["duration"]}
    return {"utterance_id": cut["id"], "path": files[0]["source"], **plain, **ends}
