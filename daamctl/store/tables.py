"""Parquet tables: a checksum per page, the same bytes for the same table, and JSON metadata for frames."""

from __future__ import annotations

import codecs
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daamctl.errors import ArtifactError
from daamctl.store.files import atomic_path

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

METADATA_KEY = b"daamctl"
ESCAPES = re.compile(r"(?P<kept>\\\\|\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|\\u[dD][89a-fA-F]\w\w")
"""In a JSON text a backslash, a character of two escapes, or half of one."""
SEPARATORS = ",;\t|"
"""What may separate the columns of a text file."""


def decoded(content: bytes, name: str = "OLD") -> str:
    """The text of a file in UTF-8, or in the UTF-16 of a spreadsheet's text files.

    Args:
        name: the file, for the command that converts it.

    Raises:
        ValueError: it is neither.
    """
    encoding = "utf-16" if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place = f"line {line}: byte {content[error.start]:#04x}"
        fix = f"save it as UTF-8, e.g. iconv -f latin1 -t utf-8 {name} > NEW"
        raise ValueError(f"it is not {encoding.removesuffix('-sig').upper()} ({place}); {fix}") from error


def separator_of(text: str) -> str:
    """What separates the columns of a text: the one of `SEPARATORS` that its heading has most often.

    Tabs, if the first lines have as many of them: cells may hold more of another, as the letters of FLEURS.
    """
    tabs = {line.count("\t") for line in text.split("\n", 20)[:20] if line.strip()}
    return "\t" if len(tabs) == 1 and tabs != {0} else max(SEPARATORS, key=text.partition("\n")[0].count)


LONE_QUOTE = re.compile(r'(?m)(?:^|\t)"[^"\t\n]*(?:\t|$)')
"""A cell that begins with a quotation mark which nothing in it closes."""
QUOTED = re.compile(r'(?m)(?:^|\t)"[^\t\n]*"(?=\t|\r?$)')
"""A cell that begins and ends with one."""


def quote_of(text: str) -> str | None:
    """What stands around cells of a text with separated columns; None: quotes belong to the cells.

    So it is in the tables of GLUE, with tabs, where a quote that is taken for that of a cell would swallow lines.
    """
    if separator_of(text) != "\t" or '"' not in text or (QUOTED.search(text) and not LONE_QUOTE.search(text)):
        return '"'
    # lines of other numbers of cells are parts of a quoted one
    return None if len({line.count("\t") for line in text.rstrip().split("\n")}) == 1 else '"'


def read_separated(text: str) -> pl.DataFrame:
    """Read a text with a heading and separated columns; all cells stay text (speaker 03 is not 3).

    Raises:
        polars.exceptions.PolarsError: it is no such table.
    """
    import polars as pl

    separator = separator_of(text)
    try:
        return pl.read_csv(io.StringIO(text), separator=separator, infer_schema=False, quote_char=quote_of(text))
    except pl.exceptions.ComputeError as error:
        # a quote within a cell that has none around it, as in 5" nails, is one of the text; polars takes it otherwise
        try:
            head, *rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        except (csv.Error, ValueError):  # a zero byte, a cell of 100 kB, no line
            raise error from None
        if any(len(row) > len(head) for row in rows):
            lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
            place, number = next((lines.line_num, len(row)) for row in lines if len(row) > len(head))
            what = (
                f"line {place} has {number} cells, the first line {len(head)}; a cell with {separator!r} needs quotes"
            )
            raise pl.exceptions.ComputeError(what) from None
        if len(set(head)) < len(head) or any(len(row) != len(head) for row in rows):
            raise
        return pl.DataFrame(rows, dict.fromkeys(head, pl.String), orient="row").with_columns(pl.all().replace("", None))


def read_any_parquet(path: Path) -> pl.DataFrame:
    """Read a Parquet file that anybody wrote. Damage to it may end the process in Polars' own reader.

    Raises:
        OSError: it is damaged.
        ValueError: it is no Parquet file, or has types that are not known here.
    """
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return to_polars(file.read(), validate=True)
    except NotImplementedError as error:
        raise ValueError(str(error)) from error


def whole_escapes(text: str) -> str:
    """A JSON text where half of an emoji, with which texts cut at a length end, is U+FFFD: no table holds the half."""
    if r"\ud" not in text and r"\uD" not in text:  # faster by far
        return text
    return ESCAPES.sub(lambda found: found["kept"] or r"\ufffd", text)


def parsed_json(text: str) -> Any:
    """The value of a JSON text, see `whole_escapes`.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(whole_escapes(text))


def parsed_json_lines(text: str) -> list[Any]:
    """Values of a text with one in each line.

    Raises:
        ValueError: a line is not JSON; it is named.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            found += [parsed_json(line)] if line.strip() else []
        except ValueError as error:
            raise ValueError(f"line {number} is not JSON: {error}") from error
    return found


def rows_of_json(content: Any) -> list[dict[str, Any]]:
    """The rows of a table that a JSON file holds, in one of the ways in which people write tables.

    A list of objects; an object with such a list; an object with a list per column, beside which may be figures and
    shorter lists, or with an object per column, as pandas writes it; an object with `columns` and `data`; an object per
    row, whose name becomes the column `id`.

    Raises:
        ValueError: it is none of these.
    """
    given = content if isinstance(content, dict) else {}
    lists = [one for one in given.values() if isinstance(one, list)]
    listed = [one for one in ([content] if isinstance(content, list) else lists) if one and isinstance(one[0], dict)]
    rows: list[Any] = []
    if isinstance(given.get("columns"), list) and isinstance(given.get("data"), list):
        rows = [dict(zip(given["columns"], row, strict=True)) for row in given["data"]]
    elif len(listed) == 1:
        rows = listed[0]
    elif given and all(isinstance(one, dict) for one in given.values()):
        inner = list(next(iter(given.values())))
        if len(inner) > max(20, len(given)) or all(name.isdecimal() for name in inner):  # columns, each row -> value
            rows = [{column: values[name] for column, values in given.items()} for name in inner]
        else:
            rows = [{"id": name, **row} for name, row in given.items()]
    elif not listed and (len(lists) > 1 or len(lists) == len(given) == 1):
        # as many lists as there may be of one length; beside them may be the names of classes
        size, number = max(Counter(map(len, lists)).items(), key=lambda pair: (pair[1], pair[0]))
        if number < min(2, len(lists)):
            told = ", ".join(f"{name} {len(one)}" for name, one in given.items() if isinstance(one, list))
            raise ValueError(f"lists of columns must have one length, got {told}")
        columns = {name: one for name, one in given.items() if isinstance(one, list) and len(one) == size}
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not rows or not all(isinstance(one, dict) for one in rows):
        raise ValueError("need a list of objects, one per item, or an object with a list per column")
    return rows


def table_of_rows(rows: Sequence[Mapping[str, Any]], *, flat: bool = False) -> pl.DataFrame:
    """A table of JSON objects.

    NaN is a missing value. In a column with values of several kinds, such as texts in some rows and lists in others,
    each becomes a list with one text, so that nobody takes it for a label.

    Args:
        flat: what is in an object gets both names; objects within it become texts.
    """
    import polars as pl

    if flat:
        given, rows = rows, []
        for row in given:
            plain = {name: value for name, value in row.items() if not isinstance(value, dict)}
            inner = {
                f"{name}_{key}": json.dumps(one) if isinstance(one, dict) else one
                for name, value in row.items() if isinstance(value, dict)
                for key, one in value.items()
            }  # fmt: skip
            rows.append(plain | inner)
    rows = [dict(zip(row, without_nan(row.values()), strict=True)) for row in rows]

    def frame(part: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        return pl.DataFrame(part, infer_schema_length=None, strict=False)

    try:
        return frame(rows)
    except pl.exceptions.PolarsError:
        columns = []
        for name in dict.fromkeys(name for row in rows for name in row):
            values = [row.get(name) for row in rows]
            try:
                columns.append(frame([{name: value} for value in values]))
            except pl.exceptions.PolarsError:
                texts = [one if one is None or isinstance(one, str) else json.dumps(one) for one in values]
                columns.append(pl.DataFrame({name: [None if text is None else [text] for text in texts]}))
        return pl.concat(columns, how="horizontal")


def without_nan(values: Iterable[Any]) -> list[Any]:
    """The values with None for NaN, which Polars would make the text "NaN" beside texts."""
    return [None if isinstance(one, float) and math.isnan(one) else one for one in values]


def written_name(column: str) -> str:
    """Name of a column as its file has it; polars numbers further columns of the same name."""
    return re.sub(r"_duplicated_\d+$", "", column)


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
        raise ArtifactError(f"no file {path}", fix=fix, path=path) from error
    except Exception as error:  # a damaged file fails in many ways
        raise ArtifactError(f"{path} cannot be read as Parquet: {error}", fix=fix, path=path) from error


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


def to_polars(table: pa.Table, *, validate: bool = False) -> pl.DataFrame:
    """Convert a table without its metadata: Polars panics on metadata that are not UTF-8.

    Args:
        validate: check each value first, of a file that others wrote: damaged ones are not defined in Polars.

    Raises:
        ValueError: the table is damaged, or Polars cannot convert it.
    """
    import polars as pl

    if validate:
        table.validate(full=True)
    try:
        return pl.DataFrame(pl.from_arrow(table.replace_schema_metadata(None)))
    except pl.exceptions.PanicException as error:
        raise ValueError(f"Polars cannot read the table: {error}") from error


def write_frame(path: Path, rows: pl.DataFrame, head: dict[str, Any]) -> None:
    """Write a Polars frame as Parquet, with JSON metadata in the file."""
    arrow = rows.to_arrow()
    metadata = {**(arrow.schema.metadata or {}), METADATA_KEY: json.dumps(head, sort_keys=True).encode()}
    write_parquet(path, arrow.replace_schema_metadata(metadata))


def read_frame(path: Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Read a frame written by `write_frame`: the rows and the metadata.

    Raises:
        ArtifactError: the file is missing, damaged or was not written by daamctl.
    """
    arrow = read_parquet(path)
    try:
        return to_polars(arrow), json.loads((arrow.schema.metadata or {})[METADATA_KEY])
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{path} was not written by daamctl, or is damaged", path=path) from error
