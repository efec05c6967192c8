"""What kind of list a file or folder is, and lists in other forms as one table of items.

`daamctl new` reads them: tables of an official split, tables with usual names of columns, lists without names of
columns and data folders of Kaldi. Manifests, tagged words and embeddings are read by the corpora of their kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import polars as pl

from daamctl.artifacts.terms import counted
from daamctl.config import EMBEDDINGS
from daamctl.config.corpus_keys import COLUMNS, CONLL, MANIFEST, TABLES, VECTORS
from daamctl.corpora.annotations import is_tagged_table, kind_of, read_classified
from daamctl.corpora.conll import part_files
from daamctl.corpora.files import JSON, alike, read_table, read_text
from daamctl.corpora.groups import with_test_part
from daamctl.corpora.tags import split_tag
from daamctl.corpora.unnamed import kaldi_parts, read_kaldi, read_pairs, read_unnamed
from daamctl.corpora.vector_file import VECTORS as VECTOR_COLUMN
from daamctl.errors import CorpusError, first_few
from daamctl.store.tables import separator_of

NO_TEST_PART = "no test part with labels, so the validation part is the test part"


class ItemTable(NamedTuple):
    """A table of items, those of its columns that have other names (ours -> theirs), doubts, and if any has a name."""

    table: pl.DataFrame
    columns: Mapping[str, str]
    doubts: list[str]
    named: bool = True


def corpus_of(source: Path) -> str | None:
    """The corpus that reads a list of items, or of tagged words; None: a folder of items, or nothing of these."""
    suffix = source.suffix.lower()
    if source.is_dir():
        parts = part_files(source).values()
        return CONLL if kind_of(source) or (parts and {corpus_of(path) for path in parts} == {CONLL}) else None
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
        return CONLL if "tokens" in names or (alike("tokens", names) and alike("tags", names)) else MANIFEST
    if suffix == ".csv":
        return CONLL if is_tagged_table(read_table(source)) else MANIFEST
    text = read_text(source)  # .txt and .tsv may be either
    first = text.partition("\n")[0]
    names = [name.strip(' "\r') for name in first.split(separator_of(text))]
    words = first.split()
    is_text = "\t" not in first and len(words) > 4 and split_tag(words[-1]) is None  # unlike a line of tagged words
    return MANIFEST if is_text or alike("label", names) or alike("path", names) else CONLL


def _columns_of(source: Path) -> list[str]:
    """Columns of a Parquet file, of which only the schema is read, or of a JSON file.

    None if a Parquet file is damaged, which whoever reads it says.
    """
    if source.suffix.lower() in JSON:
        return read_table(source).columns
    try:
        return [name.strip() for name in pl.read_parquet_schema(source)]
    except (OSError, pl.exceptions.PolarsError):
        return []


def table_of(source: Path, corpus: str | None, columns: Mapping[str, str]) -> ItemTable | None:
    """Items in a form that becomes a manifest; None: it is another kind of file or folder.

    That is: tables of an official split, a list whose columns have no names or other names, or data folders of Kaldi.

    Args:
        corpus: what reads it as it is, see `corpus_of`.
        columns: our columns -> those of the table; others are found by their usual names.

    Raises:
        CorpusError: a table cannot be read, or has no label.
    """
    if source.is_dir():
        if (split := _split_of(source)) is not None:
            return _joined(*split, columns, source)
        if (pairs := read_pairs(source)) is not None:
            pairs, instead = with_test_part(pairs)
            return ItemTable(pairs, {}, [NO_TEST_PART] if instead else [])
        if kaldi := kaldi_parts(source):
            table, instead = with_test_part(read_kaldi(kaldi))
            return ItemTable(table, {}, [NO_TEST_PART] if instead else [])
        return None
    if not columns and (unnamed := read_unnamed(source)) is not None:
        return ItemTable(unnamed, {}, [], named=False)
    if corpus != MANIFEST:
        return None
    if kind_of(source) == "classes":
        return ItemTable(read_classified(source), {}, [])
    table, doubts = read_table(source), list[str]()
    found = _usual(table, columns)
    has = {*found, *table.columns}
    if not columns and not (found and "label" in has and has & {"path", "text"}):
        return None
    if "group" in found and "group" not in columns:
        group = found["group"]
        named, instead = with_test_part(table.select(group=pl.col(group).cast(pl.String).fill_null("")))
        if "group" not in named.columns or "" in named["group"]:  # one part, or not of all items
            del found["group"]
        else:
            table = table.with_columns(named["group"].alias(group))
            doubts += [NO_TEST_PART] if instead else []
    return ItemTable(table, found, doubts)


def _split_of(folder: Path) -> tuple[dict[str, pl.DataFrame], bool] | None:
    """Group -> table of an official split, and whether their columns have names; None: there are no such tables."""
    paths = {part: path for part, path in part_files(folder).items() if path.suffix.lower() in TABLES}
    if not paths.keys() & {"test", "dev"}:
        return None
    unnamed = {part: read_unnamed(path) for part, path in paths.items()}
    first = next(iter(paths))  # the test part may have no labels
    if unnamed[first] is None and corpus_of(paths[first]) != MANIFEST:
        return None
    tables = {part: read_table(paths[part]) if table is None else table for part, table in unnamed.items()}
    return tables, unnamed[first] is None


def _usual(table: pl.DataFrame, given: Mapping[str, str]) -> dict[str, str]:
    """Our columns that a table has under usual names (ours -> theirs), besides those that are given."""
    found = dict(given)
    for role in ("path", "text", "label", "speaker", "group", "sentence"):
        names = [name for name in table.columns if name not in found.values() and not table[name].dtype.is_nested()]
        if role in (*found, *names) or (role == "text" and {"path", "text"} & {*found, *names}):
            continue
        usual = [name for name in names if alike(role, [name])]
        if role == "label" and len(usual) > 1:  # rather words than the number of a class
            usual.sort(key=lambda name: not table[name].cast(pl.String).str.contains(r"[^\W\d_]").any())
        if usual:
            found[role] = usual[0]
    return found


def _joined(tables: Mapping[str, pl.DataFrame], named: bool, given: Mapping[str, str], source: Path) -> ItemTable:
    """The tables of an official split as one."""
    table = pl.concat(
        [table.with_columns(group=pl.lit(part)) for part, table in tables.items()], how="diagonal_relaxed"
    )
    found = _usual(table, given)
    if (label := found.get("label", "label")) not in table.columns:
        they = first_few(table.columns, 20)
        raise CorpusError(
            f"the tables in {source} have no label; they have {they}", fix="name it: --columns label=NAME"
        )
    labelled = table.filter(pl.col(label).is_not_null())
    missing = len(table) - len(labelled)
    doubts = [f"{counted(missing, 'item')} without a label left out"] if missing else []
    labelled, instead = with_test_part(labelled)
    return ItemTable(labelled, found, [*doubts, NO_TEST_PART] if instead else doubts, named)
