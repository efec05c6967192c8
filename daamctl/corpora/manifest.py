"""Any collection of recordings, described by a table: `path,label,speaker[,group][,start_s,end_s][,utterance_id]`.

CSV or Parquet. Paths are relative to the table's folder; absolute ones are allowed, but tie the tables made from them
to this machine. `start_s` and `end_s` are seconds within the file; left empty: from its beginning, to its end.
`group` is the unit of the folds; without it, `assign_groups` forms speaker-disjoint ones. Further columns are kept (as
text when they come from CSV).
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from daamctl.corpora.base import Corpus
from daamctl.errors import CorpusError

REQUIRED = ("path", "label", "speaker")
OPTIONAL = ("group", "start_s", "end_s", "utterance_id")
# these are measured on the files
RESERVED = ("duration_s", "sampling_rate", "n_channels")
_LINE = "__line"
_SHOWN = 3

EXAMPLE = "path,label,speaker[,group][,start_s,end_s][,utterance_id]"
GET_IT = f"write a CSV file with the columns {EXAMPLE} and register it: daamctl download manifest --from FILE.csv"


def prepare(root: Path) -> pl.DataFrame:
    """Read a manifest file.

    Args:
        root: the CSV or Parquet file.

    Returns:
        One row per piece; `group` is null where the manifest gives none.

    Raises:
        CorpusError: everything wrong with one of the columns, with line numbers.
    """
    rows = _read(root)
    _check_columns(rows, root)
    rows = _texts(rows, root)
    rows = _times(rows, root)
    rows = rows.with_columns(path=_posix(root.parent))
    rows = rows.with_columns(utterance_id=_identity(rows))
    _refuse(rows, pl.col("utterance_id").is_duplicated(), root, "the same piece, or utterance_id, more than once")
    head = ["utterance_id", *REQUIRED, "group", "start_s", "duration_s"]
    further = [name for name in rows.columns if name not in (*head, "end_s", _LINE)]
    return rows.select(*head, *further)


def assign_groups(rows: pl.DataFrame, num_groups: int) -> pl.DataFrame:
    """Put every speaker into one of `group1` ... so that the groups hold about equally many rows.

    Largest speaker first, each into the smallest group so far: deterministic, whatever the order of the rows. With
    fewer speakers than groups, every speaker is a group.
    """
    counts = rows.group_by("speaker").len().sort(["len", "speaker"], descending=[True, False])
    sizes = [0] * min(num_groups, counts.height)
    groups = {}
    for speaker, count in counts.iter_rows():
        smallest = sizes.index(min(sizes))
        sizes[smallest] += count
        groups[speaker] = f"group{smallest + 1}"
    return rows.with_columns(group=pl.col("speaker").replace_strict(groups, return_dtype=pl.String))


def _read(path: Path) -> pl.DataFrame:
    if not path.is_file():
        raise CorpusError(f"no manifest file {path}", fix=GET_IT)
    try:
        # CSV: everything as text, because speaker 03 must not become 3
        rows = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path, infer_schema=False)
    except (pl.exceptions.PolarsError, OSError, UnicodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorpusError(f"{path} cannot be read as a CSV or Parquet table: {reason}", fix=GET_IT) from error
    rows = rows.rename({name: name.strip().removeprefix("\ufeff") for name in rows.columns})
    return rows.with_row_index(_LINE, offset=2 if path.suffix != ".parquet" else 1)


def _check_columns(rows: pl.DataFrame, path: Path) -> None:
    found = [name for name in rows.columns if name != _LINE]
    missing = [name for name in REQUIRED if name not in found]
    if missing:
        shown = ", ".join(found)[:200]
        if not shown.isprintable():
            raise CorpusError(f"{path} is not a text table", fix=GET_IT)
        commas = "; columns must be separated by commas" if any(mark in shown for mark in ";|") else ""
        raise CorpusError(f"{path} lacks the columns {', '.join(missing)}; it has {shown}{commas}", fix=GET_IT)
    reserved = [name for name in RESERVED if name in found]
    if reserved:
        raise CorpusError(
            f"{path} has the columns {', '.join(reserved)}, which are measured on the files",
            fix="remove or rename them; a piece of a file is given by start_s and end_s",
        )
    if rows.is_empty():
        raise CorpusError(f"{path} has no rows", fix=GET_IT)


def _texts(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """Columns of names, stripped; empty cells are null."""
    names = [name for name in (*REQUIRED, "group", "utterance_id") if name in rows.columns]
    stripped = pl.col(names).cast(pl.String).str.strip_chars()
    rows = rows.with_columns(stripped.replace("", None))
    for name in names:
        if name != "group":
            _refuse(rows, pl.col(name).is_null(), path, f"empty {name}")
    if "group" not in rows.columns:
        return rows.with_columns(group=pl.lit(None, pl.String))
    if rows["group"].null_count() < rows.height:
        _refuse(rows, pl.col("group").is_null(), path, "empty group (give all or none)")
    return rows


def _times(rows: pl.DataFrame, path: Path) -> pl.DataFrame:
    """`start_s` and `duration_s` from the optional columns `start_s` and `end_s`."""
    for name in ("start_s", "end_s"):
        if name not in rows.columns:
            rows = rows.with_columns(pl.lit(None, pl.Float64).alias(name))
        text = pl.col(name).cast(pl.String).str.strip_chars().replace("", None)
        number = text.cast(pl.Float64, strict=False)
        _refuse(rows, text.is_not_null() & ~number.is_finite().fill_null(False), path, f"{name} is not a number")
        rows = rows.with_columns(number.alias(name))
    rows = rows.with_columns(pl.col("start_s").fill_null(0.0))
    _refuse(rows, pl.col("start_s") < 0, path, "negative start_s")
    _refuse(rows, pl.col("end_s") <= pl.col("start_s"), path, "end_s is not after start_s")
    return rows.with_columns(duration_s=pl.col("end_s") - pl.col("start_s"))


def _posix(folder: Path) -> pl.Expr:
    """Paths with `/`, relative to the manifest's folder where they lie in it."""
    prefix = folder.absolute().as_posix().rstrip("/") + "/"
    return pl.col("path").str.replace_all("\\", "/", literal=True).str.strip_prefix(prefix)


def _identity(rows: pl.DataFrame) -> pl.Expr:
    """The given utterance_id, or one made from the path: its stem if no other file has it, else the whole path.

    Several pieces of one file are told apart by where they start.
    """
    if "utterance_id" in rows.columns:
        return pl.col("utterance_id")
    whole = pl.col("path").str.replace(r"\.[^./]*$", "")
    stem = whole.str.split("/").list.last()
    name = pl.when(pl.col("path").n_unique().over(stem) == 1).then(stem).otherwise(whole)
    start = "@" + (pl.col("start_s") * 1000).round().cast(pl.Int64).cast(pl.String) + "ms"
    return pl.when(pl.len().over("path") > 1).then(name + start).otherwise(name)


def _refuse(rows: pl.DataFrame, wrong: pl.Expr, path: Path, what: str) -> None:
    bad = rows.filter(wrong)
    if bad.is_empty():
        return
    unit = "row" if path.suffix == ".parquet" else "line"
    shown = [f"{unit} {row[_LINE]} ({row['path']})" for row in bad.head(_SHOWN).iter_rows(named=True)]
    more = f" and {bad.height - _SHOWN} more" if bad.height > _SHOWN else ""
    raise CorpusError(f"{path}: {what} in {', '.join(shown)}{more}", fix="correct the manifest and run it again")


CORPUS = Corpus(
    name="manifest",
    title="your own recordings, listed in a CSV or Parquet file",
    licence="yours",
    classes=(),
    prepare=prepare,
    fingerprint=None,
    how_to_get=GET_IT,
)
