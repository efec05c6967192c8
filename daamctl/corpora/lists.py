"""What kind of list a file or folder is, and lists in other forms as one table of items.

`daamctl new` reads them: tables of an official split, tables with usual names of columns, lists without names of
columns and data folders of Kaldi. Manifests, tagged words and embeddings are read by the corpora of their kind.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.config import EMBEDDINGS
from daamctl.config.corpus_keys import COLUMNS, CONLL, MANIFEST, TABLES, VECTORS, is_table
from daamctl.corpora.annotations import is_tagged_list, kind_of, read_classified
from daamctl.corpora.base import known_labels
from daamctl.corpora.beside import read_beside, read_cuts
from daamctl.corpora.conll import is_columns, part_files
from daamctl.corpora.file_names import COLUMNS as FIELDS
from daamctl.corpora.files import (
    ID,
    JSON,
    SUFFIXES,
    alike,
    check_named,
    is_file,
    lines_of,
    numbers_of_lines,
    one_hot,
    read_table,
    read_text,
    text_pair,
    with_templates,
)
from daamctl.corpora.groups import PARTS, shared, with_test_part
from daamctl.corpora.tags import split_tag
from daamctl.corpora.unnamed import kaldi_parts, read_class_files, read_kaldi, read_pairs, read_unnamed
from daamctl.corpora.vector_file import VECTORS as VECTOR_COLUMN
from daamctl.errors import CorpusError, first_few
from daamctl.store.tables import separator_of

FIRST_LINES = 200
DURATION = ("duration", "duration_s", "dur", "length")
TIME = r"^(?:(\d+) days? )?(\d+):(\d+):(\d+(?:\.\d+)?)$"
NAMED = ("path", "text", *FIELDS, "sentence", "start_s", "end_s")
"""Columns that `--columns` may name."""
LINE = "__line"
CORRECT = "correct it; a CSV file begins with a line such as path,label,speaker, or of texts text,label"


class ItemTable(NamedTuple):
    """A table of items, those of its columns that have other names (ours -> theirs), doubts, and if any has a name.

    `lines` says where its rows are in the file, see `numbers_of_lines`; empty if that is not known.
    """

    table: pl.DataFrame
    columns: Mapping[str, str]
    doubts: list[str]
    named: bool = True
    lines: Sequence[int] = ()

    @property
    def has(self) -> set[str]:
        """Columns that it has, under our names or its own."""
        return {*self.columns, *self.table.columns}


def corpus_of(source: Path) -> str | None:
    """The corpus that reads a list of items, or of tagged words; None: a folder of items, or nothing of these."""
    suffix = source.suffix.lower()
    if source.is_dir():
        parts = part_files(source).values()
        are_tagged = parts and all(corpus_of(path) == CONLL if is_table(path) else is_columns(path) for path in parts)
        return CONLL if kind_of(source) or are_tagged else None
    if not source.is_file() or suffix not in (*TABLES, *COLUMNS, *VECTORS):
        return None
    if suffix in VECTORS and suffix != ".parquet":
        return EMBEDDINGS
    if suffix in JSON and (kind := kind_of(source)):
        return CONLL if kind == "spans" else MANIFEST
    if suffix in (".parquet", *JSON):
        names = _columns_of(source)
        if suffix in VECTORS and VECTOR_COLUMN in names:
            return EMBEDDINGS
        tagged = alike("tags", names) or ("tokens" in names and not alike("label", names))
        return CONLL if alike("tokens", names) and tagged else MANIFEST
    if suffix == ".csv":
        return CONLL if is_tagged_list(source) else MANIFEST
    if suffix not in TABLES:
        return CONLL
    text = read_text(source)  # .txt and .tsv may be either
    first = next((line for line in lines_of(text) if not re.match("#( |$)", line)), "")
    names = [name.strip(' "\r') for name in first.split(separator_of(text))]
    words = first.split()
    is_text = "\t" not in first and len(words) > 4 and split_tag(words[-1]) is None  # unlike a line of tagged words
    if "\t" in first:  # a table has no tag in any cell, tagged words soon have one
        cells = (cell for line in lines_of(text)[:FIRST_LINES] for cell in line.split("\t"))
        is_text = not any(split_tag(cell.strip()) for cell in cells)
    return MANIFEST if is_text or alike("label", names) or alike("path", names) else CONLL


def _columns_of(source: Path) -> list[str]:
    """Columns of a Parquet file, of which only the schema is read, or of a JSON file.

    Empty if a Parquet file is damaged, which whoever reads it says.
    """
    import pyarrow.parquet as pq

    if source.suffix.lower() in JSON:
        return read_table(source, fix=CORRECT).columns
    try:
        return [name.strip() for name in pq.read_schema(source).names]
    except (OSError, ValueError, NotImplementedError):
        return []


def table_of(
    source: Path, corpus: str | None, columns: Mapping[str, str], labels: Collection[str] = ()
) -> ItemTable | None:
    """Items in a form that becomes a manifest; None: it is another kind of file or folder.

    That is: tables of an official split, a list whose columns have no names or other names, or data folders of Kaldi.

    Args:
        corpus: what reads it as it is, see `corpus_of`.
        columns: our columns -> those of the table; others are found by their usual names.
        labels: those that will get other names; a table with our columns becomes one of items then, too.

    Raises:
        CorpusError: a table cannot be read, or has no label.
    """
    if source.is_dir():
        if (split := _split_of(source, columns)) is not None:
            return _joined(*split, columns, source, labels)
        if (classes := read_class_files(source)) is not None:
            return ItemTable(classes, {}, [], named=False)
        table = read_pairs(source)
        if table is None and (kaldi := kaldi_parts(source)):
            table = read_kaldi(kaldi)
        if table is not None:
            table, doubts = with_test_part(table)
            return ItemTable(table, {}, doubts)
        if (beside := read_beside(source)) is None:
            return None
        items = _items_of(beside, columns, source, labels)
        return items if "label" in items.has else None  # the labels may be in the names of the files
    if (cuts := read_cuts(source)) is not None:
        items = _items_of(cuts, columns, source, labels)
        if "label" not in items.has:
            raise CorpusError(
                f"{source} has no column label; it has {first_few(cuts.columns, 20)}",
                fix="name it: --columns label=NAME",
            )
        return items
    if not columns and (unnamed := read_unnamed(source)) is not None:
        return ItemTable(unnamed, {}, [], named=False)
    if corpus != MANIFEST:
        return None
    if kind_of(source) == "classes":
        return ItemTable(read_classified(source), {}, [])
    table = read_table(source, fix=CORRECT)
    items = _items_of(table, columns, source, labels)
    usual = (items.columns or len(items.table) < len(table)) and items.has & {"path", "text"}
    paths = items.table["path"].cast(pl.String).drop_nulls() if "path" in items.table.columns else pl.Series()
    first = Path(paths[0].strip().replace("\\", "/")) if len(paths) else None
    elsewhere = first is not None and not is_file(source.parent / first)
    is_sound = first is not None and first.suffix.lower() in SUFFIXES["speech"]
    is_form = usual or elsewhere or (is_sound and "speaker" not in items.has)  # or it cannot be read as it is
    return items if columns or labels or ("label" in items.has and is_form) else None


def _items_of(table: pl.DataFrame, columns: Mapping[str, str], source: Path, labels: Collection[str]) -> ItemTable:
    """Items of a table: columns by their usual names, times in seconds, and groups unless they tell nothing."""
    lines = numbers_of_lines(table, source)
    table, found = _columns(table, columns, source)
    table, told = _labelled(table.with_columns(lines.alias(LINE)), found, source, labels)
    table, doubts = _with_times(table, found)
    doubts += [*told, *_owner_doubts(table, found)]
    if "group" in found and "group" not in columns:
        group = found["group"]
        named, told = with_test_part(table.select(group=group))
        if "group" not in named.columns:
            del found["group"]
        else:
            table = table.with_columns(named["group"].alias(group))
            doubts += told
    return ItemTable(table.drop(LINE), found, doubts, lines=table[LINE].to_list())


def _owner_doubts(table: pl.DataFrame, found: Mapping[str, str]) -> list[str]:
    """Which columns of ids may tell what items belong together, where none is the speaker."""
    label = found.get("label", "label")
    if "speaker" in (*found, *table.columns) or label not in table.columns:
        return []
    told, classes = [], table[label].n_unique()
    for name in table.columns:
        if name in found.values() or not ID.match(name) or table[name].dtype.is_nested():
            continue
        sizes = table[name].drop_nulls().value_counts()["count"]
        if len(sizes) > 2 * classes and 2 * sizes.filter(sizes > 1).sum() > len(table):
            told.append(
                f"items share the values of '{name}'; if one value stands for one source, which folds must not "
                f"divide them: --columns {quote(f'speaker={name}')}"
            )
    return told


def _labelled(
    table: pl.DataFrame, found: Mapping[str, str], source: Path, labels: Collection[str]
) -> tuple[pl.DataFrame, list[str]]:
    """The rows with a label, and how many had none."""
    if (label := found.get("label", "label")) not in table.columns:
        return table, []
    known, unknown = known_labels(table[label], labels)
    kept = table.filter(known.is_not_null())
    if kept.is_empty() and len(table):
        raise CorpusError(
            f"{source}: '{label}' is empty in all {len(table):,} rows", fix="name another: --columns label=NAME"
        )
    missing = len(table) - len(kept)
    return kept, [f"{counted(missing, 'item')} {unknown} left out"] if missing else []


def _split_of(folder: Path, given: Mapping[str, str]) -> tuple[dict[str, pl.DataFrame], bool] | None:
    """Group -> table of an official split, and whether their columns have names; None: there are no such tables."""
    paths = {part: path for part, path in part_files(folder).items() if path.suffix.lower() in TABLES}
    if not paths.keys() & {"test", "dev"}:
        return None
    unnamed = {part: read_unnamed(path) for part, path in paths.items()}
    first = next(iter(paths))  # the test part may have no labels
    if unnamed[first] is None and corpus_of(paths[first]) != MANIFEST:
        return None
    tables = {part: read_table(paths[part], fix=CORRECT) if table is None else table for part, table in unnamed.items()}
    # tables with longer names may be about anything, e.g. counts beside folders of recordings
    if not given and paths[first].stem.lower() not in PARTS and not alike("label", tables[first].columns):
        return None
    return tables, unnamed[first] is None


def _columns(table: pl.DataFrame, given: Mapping[str, str], source: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """A table with the columns of templates, and ours that it has (ours -> theirs): those given, others as usual."""
    check_named(given, NAMED, source, table.columns)
    table, found = with_templates(table, given), dict(given)
    for role in ("path", "text", "label", "speaker", "group", "sentence"):
        names = [name for name in table.columns if name not in found.values() and not table[name].dtype.is_nested()]
        if role in (*found, *names) or (role == "text" and {"path", "text"} & {*found, *names}):
            continue
        usual = [name for name in names if alike(role, [name])]
        if role == "text":  # rather texts than names, e.g. of utterances
            usual = [
                name for name in usual if 2 * table[name].cast(pl.String).str.contains(r"\S\s+\S").sum() > len(table)
            ]
        if role == "label" and len(usual) > 1:  # rather words than the number of a class
            usual.sort(key=lambda name: not table[name].cast(pl.String).str.contains(r"[^\W\d_]").any())
        if first := alike(role, usual):
            found[role] = first
    label = found.get("label", "label")
    if label not in table.columns and (classes := one_hot(table)) is not None:
        return table.with_columns(classes), found
    named = next((name for name in table.columns if name in (f"{label}_text", f"{label}_name")), None)
    if (
        named is not None and label in table.columns and "label" not in given
    ):  # of the classes whose numbers the other column has
        pairs = table.select(label, named).unique()
        if pairs[label].is_unique().all() and pairs[named].is_unique().all():
            found["label"] = named
    return table, found


def _with_times(table: pl.DataFrame, found: dict[str, str]) -> tuple[pl.DataFrame, list[str]]:
    """A table of recordings with `start_s` and `end_s` in seconds, if files occur several times; and doubts.

    Where every file occurs once, times may be those within the recording that it was cut from.
    """
    path, names = found.get("path", "path"), [name for name in table.columns if not table[name].dtype.is_nested()]
    free = sorted((name for name in names if name not in found.values()), key=lambda name: name.lower() == "offset")
    start = found.get("start_s") or alike("start_s", free)  # an offset is the end where another column has the start
    given = {found[role] for role in ("start_s", "end_s") if role in found}
    if path not in names or start is None or "start_s" in names or not given <= set(names):
        return table, []
    offset = next((name for name in names if name.lower() == "offset" and name != start), None)
    end = found.get("end_s") or alike("end_s", names) or offset
    length = next((name for name in names if name.lower() in DURATION), None) if end is None else None
    times = {name: _seconds(table[name]) for name in (start, end, length) if name is not None}
    if any(one is None for one in times.values()):
        return table, [f"the times in the column '{start}' are neither seconds nor 0 days 00:00:01.5"]
    known = {name: one for name, one in times.items() if one is not None}
    if not table[path].is_duplicated().any() and "start_s" not in found:
        if known[start].is_null().all() or (known[start] == 0).all():
            return table, []
        return table, [f"the column '{start}' is not used, since each file occurs once; else --columns start_s={start}"]
    found["start_s"], columns = start, [known[start].alias(start)]
    if last := end or length:
        found["end_s"] = last
        columns.append((known[last] if end else known[start] + known[last]).alias(last))
    return table.with_columns(columns), []


def _seconds(cells: pl.Series) -> pl.Series | None:
    """Seconds, also from `0 days 00:00:01.5` or 00:00:01.5; null where a cell is empty or NaT; None: other texts."""
    texts = cells.cast(pl.String).str.strip_chars().replace(["", "NaT", "nan", "NaN"], [None] * 4)
    parts = texts.str.extract_groups(TIME).struct.unnest().cast(pl.Float64, strict=False)
    found = parts.select(pl.col("1").fill_null(0) * 86_400 + pl.col("2") * 3600 + pl.col("3") * 60 + pl.col("4"))
    seconds = texts.cast(pl.Float64, strict=False).fill_null(found.to_series())
    return seconds if seconds.null_count() == texts.null_count() else None


def _joined(
    tables: Mapping[str, pl.DataFrame], named: bool, given: Mapping[str, str], source: Path, labels: Collection[str]
) -> ItemTable:
    """The tables of an official split as one."""
    table = pl.concat(
        [table.with_columns(group=pl.lit(part)) for part, table in tables.items()], how="diagonal_relaxed"
    )
    if "utterance_id" in table.columns and shared(table, "utterance_id"):  # each part counts its items anew
        table = table.with_columns(utterance_id=pl.format("{}-{}", "group", "utterance_id"))
    items = _items_of(table, given, source, labels)
    if "label" not in items.has:
        they = first_few(items.table.columns, 20)
        are_items = all(one.width == 1 for one in tables.values()) or any(len(name) > 60 for name in items.has)
        they += ", which look like items" if are_items else ""
        fix = CORRECT if are_items else "name it: --columns label=NAME"
        raise CorpusError(f"the tables in {source} have no label; they have {they}", fix=fix)
    if not {"path", "text"} & items.has:
        pair = text_pair(items.table.columns)
        columns = f"'text={{{pair[0]}}} {{{pair[1]}}}'" if pair else "text=NAME, or of files 'path={group}/{NAME}.wav'"
        raise CorpusError(
            f"the tables in {source} have neither a path nor a text; they have {first_few(items.table.columns, 20)}",
            fix=f"name it: --columns {columns}",
        )
    labelled, told = with_test_part(items.table)
    return items._replace(table=labelled, named=named, doubts=[*items.doubts, *told])
