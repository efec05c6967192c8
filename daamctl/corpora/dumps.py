"""Vectors that other tools stored, rewritten as one file of embeddings (`vector_file`).

A dump is a folder with one file per item, perhaps with a JSON file beside each that says what it is, one file with one
entry per item, one with arrays whose first axis counts the items, a table (Parquet, CSV, JSON) with a column of
vectors, or one for each layer, or a column for each feature, a file of answers of OpenAI's batches, an archive of
Kaldi, or a task folder of HEAR's evaluation kit.
An item is one array, a list of arrays, one per layer, or arrays by name, of which those are taken that name a layer.
"""

from __future__ import annotations

import csv
import json
import logging
import re
import tarfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from daamctl.compute.progress import progress
from daamctl.corpora.files import (
    HEAR,
    JSON,
    alike,
    files_below,
    is_list,
    match_names,
    read_table,
    read_text,
    tell_unused,
)
from daamctl.corpora.kaldi_archive import ENDINGS, read_archive
from daamctl.corpora.unnamed import read_kaldi_labels
from daamctl.corpora.vector_file import BLOCK_BYTES, COLUMNS, VECTORS
from daamctl.errors import ArtifactError, CorpusError, first_few, listing
from daamctl.store.files import atomic_path, check_output, read_json

KINDS = (".npy", ".npz", ".safetensors", ".pt", ".pth")
AXES = ("D", "LD", "TD", "DT", "TLD", "LTD", "LDT")
"""Orders of the axes of an item: layers (L), time (T), features (D)."""
NAMES: tuple[tuple[str, int], ...] = (
    (r"blocks\.(0)\.hook_resid_pre", 0),
    (r"blocks\.(\d+)\.hook_resid_post", 1),
    (r"(?:.*\.)?(?:layers?|blocks|h)\.(\d+)", 1),
    (r"(?:.*[._])?(?:layer|hidden_states?)_?(\d+)", 0),
)
"""Pattern of a name -> what to add to its number. Modules count from 0, and give the hidden state after them."""
TABLES = (".parquet", ".csv", ".tsv", ".arff", *JSON)
STACKED = ("embeddings", "embedding", "features", "vectors", "x")
"""Names, in lower case, of arrays whose first axis counts the items."""
IDS = ("ids", "names", "keys", "files", "filenames")
SOURCES = ("groups", "speakers")
"""What scikit-learn calls the sources of items that no fold may divide, and speakers."""
LEAST_FEATURES, LEAST_NAMED = 4, 8
"""Numbered columns, and columns of any names, that make a vector."""
BESIDE = (
    "start", "end", "start_s", "end_s", "onset", "offset", "duration", "time", "frametime",
    "valence", "arousal", "activation", "dominance", "emoval", "emoact", "emodom", "rating", "agreement", "confidence",
    "score", "weight", "age",
)  # fmt: skip
"""Names, in lower case, of columns beside features: where an item is in its recording, and what people say of it."""
LOOKED_AT = 20
"""Items whose shapes tell the order of the axes."""
TABLE = "--table items.csv, with the columns id and label, optionally speaker, group, utterance and sentence"


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImportedVectors:
    """What was read from a dump.

    Attributes:
        shape: N, L, D.
        axes: order of the axes of an item, one of `AXES`.
        steps: fewest and most frames or tokens of an item; None without a time axis.
        unlisted: number of items that the table does not list; they are left out.
    """

    shape: tuple[int, int, int]
    layers: tuple[int, ...]
    axes: str
    steps: tuple[int, int] | None
    unlisted: int


def import_vectors(
    source: Path,
    out: Path,
    *,
    table: Path | None = None,
    axes: str | None = None,
    pool: Literal["mean", "last"] = "mean",
    layers: Sequence[int] | None = None,
    name: str | None = None,
) -> ImportedVectors:
    """Write the vectors of a dump, one per item and layer, as a Parquet file of embeddings.

    Args:
        table: columns id and label, optionally speaker, group, utterance and sentence; or a data folder of Kaldi. What
            the dump tells itself, as HEAR's tasks and Parquet files do, comes from there.
        axes: one of `AXES`; None: by layout, or by which axis differs between items.
        pool: what becomes of the time axis.
        layers: their numbers; None: those that the dump names, else from 1.
        name: what made the vectors, for the report.

    Raises:
        CorpusError: the dump cannot be read, its axes cannot be told, items differ in layers or features, or rows of
            the table have no vectors.
        ArtifactError: the output is the source, the table, or any file that this did not write.
    """
    if axes is not None and axes not in AXES:
        raise CorpusError(f"unknown axes {axes} (allowed: {', '.join(AXES)})")
    if layers is not None and list(layers) != sorted(set(layers)):
        raise CorpusError(f"the layers must ascend, got {', '.join(map(str, layers))}")
    if out.suffix != ".parquet":
        raise CorpusError(f"the output must be a .parquet file, got {out}")
    for given in (source, table):
        if given is not None and out.exists() and given.exists() and out.samefile(given):
            raise ArtifactError(f"{out} is what is read", fix="choose another file with --out")
    check_output(out, "a file that import-vectors wrote", _is_own)
    items, rows = _listed(source, table)
    names: list[str] = rows["id"].to_list()
    looked_at = [_array_of(items[item](), f"{source}: {item}") for item in names[:LOOKED_AT]]
    order = axes or looked_at[0][1] or _order([tuple(array.shape) for array, _, _ in looked_at], source)
    steps: list[int] = []
    made: list[NDArray[np.float32]] = []
    first: tuple[Any, ...] = ()
    with atomic_path(out) as temporary, progress(len(names), "importing", "items") as bar:
        writer: pq.ParquetWriter | None = None
        for at, item in enumerate(names, start=1):
            array, _, numbers = _array_of(items[item](), f"{source}: {item}")
            if array.ndim != len(order) or 0 in array.shape:
                raise CorpusError(f"{source}: {item} has the shape {tuple(array.shape)}, not the axes {order}")
            if "T" in order:
                axis = order.index("T")
                steps.append(array.shape[axis])
                array = array.mean(axis, dtype=np.float32) if pool == "mean" else array.take(-1, axis)
            vectors = np.asarray(array, np.float32).reshape(-1, array.shape[-1])  # (L, D)
            numbers = tuple(layers or numbers or range(1, len(vectors) + 1))
            first = first or (vectors.shape, numbers)
            if (vectors.shape, numbers) != first or len(numbers) != len(vectors):
                raise CorpusError(
                    f"{source}: {item} has {len(vectors)} layers of {vectors.shape[1]} features, expected are "
                    f"{first[0][1]} features of the layers {', '.join(map(str, first[1]))}",
                    fix="say how the axes are ordered (--axes), or which layers these are (--layers)",
                )
            made.append(vectors)
            if len(made) * vectors.nbytes >= BLOCK_BYTES or at == len(names):
                part = rows[at - len(made) : at].to_arrow().append_column(VECTORS, _column(np.stack(made)))
                told = {"layers": json.dumps(numbers), "name": name or source.name}
                writer = writer or pq.ParquetWriter(temporary, part.schema.with_metadata(told))
                writer.write_table(part)
                made = []
            bar.advance()
        assert writer is not None
        writer.close()
    (num_layers, width), numbers = first
    span = (min(steps), max(steps)) if steps else None
    return ImportedVectors((len(names), num_layers, width), numbers, order, span, len(items) - len(names))


def _is_own(out: Path) -> bool:
    """Whether a file is one that `import_vectors` wrote."""
    schema = pq.read_schema(out)
    told = {b"layers", b"name"} <= (schema.metadata or {}).keys()
    return told and VECTORS in schema.names and {*schema.names} <= {*COLUMNS, VECTORS}


Items = dict[str, Callable[[], Any]]
"""Name of each item -> function that reads it."""


def _listed(source: Path, table: Path | None) -> tuple[Items, pl.DataFrame]:
    """Items of a dump, and a row for each that has a label, as the dump itself or a table tells it."""
    rows: pl.DataFrame | None = None
    named = True  # else the items have an order alone
    if (source / HEAR).is_file():
        items, rows = _hear(source)
    elif source.suffix in TABLES and source.is_file():
        items, rows, named = _rows(source)
    else:
        items, rows, named = _items(source)
        if table is None and source.is_dir():  # a table counts more than JSON beside the files
            rows = _described(source, list(items))
    if table is not None:
        given = read_kaldi_labels(table) if table.is_dir() else read_table(table, fix=f"give {TABLE}")
        if not named:
            if len(given) != len(items):
                raise CorpusError(
                    f"{source} has {len(items)} items without names, and {table} {len(given)} rows",
                    fix="give a table with a row for each item, in the same order",
                )
            log.info("the items have no names: the rows of %s are taken in their order", table)
            given = given if "id" in given.columns else given.with_columns(id=pl.Series(list(items)))
            items = dict(zip(given["id"].cast(pl.String), items.values(), strict=True))
            rows = rows if rows is None else rows.with_columns(id=pl.Series(list(items)))
        if "id" not in given.columns:
            raise CorpusError(f"{table} has no column id; it has {first_few(given.columns, 8)}", fix=f"give {TABLE}")
        if "speaker" not in given.columns and (sources := _sources_in(given.columns)):
            given = given.rename({sources: "speaker"})
        tell_unused(table, given.columns, COLUMNS)
        given = given.select(pl.col(one).cast(pl.String) for one in COLUMNS if one in given.columns)
        given = given.with_columns(id=pl.Series(_matched(given["id"].to_list(), items, source), dtype=pl.String))
        if rows is not None:
            own = [name for name in rows.columns if name != "id"]
            # an item whose label nobody tells is left out
            kept: Literal["left", "inner"] = "left" if "label" in own else "inner"
            given = rows.join(given.drop(own, strict=False), on="id", how=kept, maintain_order="left")
        rows = given
    if rows is None or "label" not in rows.columns or rows.is_empty():
        fix = f"give {TABLE}" if named else "give --table items.csv, a row for each item in the same order, with label"
        raise CorpusError(f"{table or source} does not tell the labels of the items, in a column label", fix=fix)
    return items, rows


def _items(source: Path) -> tuple[Items, pl.DataFrame | None, bool]:
    """Items, the columns that say what they are, if a file of arrays has any, and whether they have names."""
    if source.is_dir():
        files = [path for path in files_below(source) if path.suffix in KINDS]
        found: Items = {path.relative_to(source).with_suffix("").as_posix(): partial(_read, path) for path in files}
        if len(found) < len(files) or not found:
            raise CorpusError(f"{source} has {'several files of an item' if found else f'no files {KINDS}'}")
        return found, None, True
    if source.is_file() and source.suffix in ENDINGS:
        return dict(read_archive(source)), None, True
    if source.is_file() and source.suffix not in KINDS and tarfile.is_tarfile(source):
        fix = f"unpack it: mkdir vectors && tar -xf {source} -C vectors; then daamctl import-vectors vectors"
        raise CorpusError(f"{source} is an archive", fix=fix)
    if source.suffix not in KINDS or not source.exists():
        allowed = f"a folder of files, or {', '.join((*KINDS, *ENDINGS, *TABLES))}"
        raise CorpusError(f"{source} {'is of an unknown kind' if source.exists() else 'does not exist'} ({allowed})")
    whole = _read(source)
    if (stacked := _stacked(whole, source)) is not None:
        return stacked
    if not isinstance(whole, Mapping) or not whole:
        raise CorpusError(f"{source} does not name its items", fix="see docs/embeddings.md for arrays of many items")
    return {str(item): partial(whole.get, item) for item in whole}, None, True


def _described(folder: Path, items: Sequence[str]) -> pl.DataFrame | None:
    """What items are by `ITEM.json` beside their files, as in archives of WebDataset; None if one has no such file."""
    files = [folder / f"{item}.json" for item in items]
    if not all(file.is_file() for file in files):
        return None
    told = [read_json(file) for file in files]
    if not all(isinstance(one, dict) for one in told):
        return None
    plain = [{name: str(one) for name, one in row.items() if isinstance(one, str | int)} for row in told]
    usual = _usual(list(dict.fromkeys(name for row in plain for name in row)), None)
    rows = [{role: row.get(name) for role, name in usual.items()} for row in plain]
    return pl.DataFrame(rows, dict.fromkeys(usual, pl.String)).select(pl.Series("id", items), pl.exclude("id"))


def _usual(names: Sequence[str], called: str | None) -> dict[str, str]:
    """Column of ours -> the one of some names that is it.

    Args:
        called: the one that names the items, if none is called id.
    """
    found = {role: role if role in names else alike(role, names) for role in COLUMNS}
    found["id"] = found["id"] or called
    found["speaker"] = found["speaker"] or _sources_in(names)
    return {role: name for role, name in found.items() if name is not None}


def _sources_in(names: Sequence[str]) -> str | None:
    """The one of some names that tells the sources of items; None: none does."""
    found = next((name for name in names if name.lower() in SOURCES), None)
    if found is not None:
        log.info("'%s' tells who an item comes from: it becomes the column speaker", found)
    return found


def _stacked(whole: Any, source: Path) -> tuple[Items, pl.DataFrame, bool] | None:
    """Items of arrays whose first axis counts them: one array, or one for each layer, and columns beside it.

    None: the file has an entry for each item.
    """
    arrays = whole if isinstance(whole, Mapping) else {STACKED[0]: whole}
    arrays = {str(name): np.array(one) if _is_column(one) else one for name, one in arrays.items()}
    arrays = {name: one for name, one in arrays.items() if isinstance(one, np.ndarray) and one.ndim}
    labelled = alike("label", [name for name, one in arrays.items() if one.ndim == 1]) is not None
    known = (*STACKED, "hidden_states") if labelled else STACKED  # else those of one item
    chosen = {name: one for name, one in arrays.items() if name.lower() in known and one.ndim > 1}
    layers = {
        name: one
        for name, one in arrays.items()
        if one.ndim == 2 and any(re.fullmatch(pattern, name) for pattern, _ in NAMES)
    }
    if not chosen and len({one.shape for one in layers.values()}) == 1:
        chosen = layers
    if not chosen or (len(chosen) > 1 and chosen is not layers):
        return None
    number = len(next(iter(chosen.values())))
    beside = {name: one.ravel() for name, one in arrays.items() if one.shape in ((number,), (number, 1))}
    usual = _usual(list(beside), next((name for name in beside if name in IDS), None))
    _tell_unused(source, [name for name in beside if name not in usual.values()], "array")
    columns = {role: [str(one) for one in beside[name].tolist()] for role, name in usual.items()}
    named = "id" in columns
    rows = pl.DataFrame({"id": _numbered(number), **columns})
    if rows["id"].n_unique() < number:
        raise CorpusError("two items of the arrays have the same id", fix="rename one of them")
    if chosen is layers:
        return {name: partial(_each, layers, at) for at, name in enumerate(rows["id"])}, rows, named
    (array,) = chosen.values()
    return {name: partial(array.__getitem__, at) for at, name in enumerate(rows["id"])}, rows, named


def _each(layers: Mapping[str, NDArray[Any]], at: int) -> dict[str, NDArray[Any]]:
    return {name: one[at] for name, one in layers.items()}


def _is_column(one: Any) -> bool:
    return isinstance(one, list) and bool(one) and all(isinstance(value, str | int) for value in one)


def _numbered(number: int) -> list[str]:
    """Names of items that have none."""
    return [f"item-{at:06d}" for at in range(1, number + 1)]


def _rows(path: Path) -> tuple[Items, pl.DataFrame, bool]:
    """Items of a table, each its vectors by name, the columns that say what they are, and whether they have names.

    A vector is a column of lists; or columns of numbers whose names differ in the last number alone, as feat_0, feat_1;
    or columns of decimals with any names, as openSMILE's.
    """
    table = _arff(path) if path.suffix == ".arff" else read_table(path)
    table = table.with_columns(pl.col(pl.String).str.replace(r"^'(.*)'$", "${1}"))  # as Weka and SMILExtract quote
    plain = [name for name, kind in table.schema.items() if not kind.is_nested()]
    called = alike("utterance_id", plain) or alike("path", plain) or ("name" if "name" in plain else None)
    called = called or next((name for name in plain if name in IDS and table[name].n_unique() == len(table)), None)
    table = table.rename({name: role for role, name in _usual(plain, called).items()})
    try:  # as pandas writes lists, and OpenAI the answers of a batch
        written = [name for name, kind in table.schema.items() if kind == pl.String and is_list(table[name])]
        table = table.with_columns(pl.col(written).str.json_decode(pl.List(pl.Float32)))
        if {"custom_id", "response"} <= set(table.columns):
            vectors = [one["body"]["data"][0]["embedding"] for one in table["response"].to_list()]
            table = pl.DataFrame({"id": table["custom_id"], "embedding": vectors})
    except (pl.exceptions.PolarsError, TypeError, LookupError) as error:
        raise CorpusError(f"{path}: a row has no vector: {str(error).splitlines()[0][:160]}") from error
    named = "id" in table.columns
    if not named:
        table = table.with_columns(id=pl.Series(_numbered(len(table))))
    nested = table.select(name for name, kind in table.schema.items() if kind.is_nested())
    features, used = ({}, set()) if nested.width else _features(table, path)
    lacks, fix = None, "rename the columns"
    if table["id"].has_nulls() or table["id"].n_unique() < len(table):
        lacks = "no column id of different names"
        fix += "; of several rows for an item, e.g. its frames, write one: their mean"
    elif not nested.width and not features:
        lacks = (
            "neither a column of lists nor numbered columns, as feat_0, feat_1, without gaps, nor "
            f"{LEAST_NAMED} columns of decimals"
        )
    if lacks is not None:
        raise CorpusError(f"{path} has {lacks}; it has {first_few(table.columns, 8)}", fix=fix)
    rows = table.select(pl.col(one).cast(pl.String) for one in COLUMNS if one in table.columns)
    _tell_unused(path, [name for name in table.columns if name not in {*COLUMNS, *nested.columns, *used}], "column")

    def read(number: int) -> dict[str, Any]:
        found = {name: values[number] for name, values in features.items()}
        for name, values in nested.row(number, named=True).items() if nested.width else ():
            with suppress(ValueError, TypeError):  # texts, or lists of different lengths
                found[name] = np.array(values, dtype=np.float32)
        return found

    return {name: partial(read, number) for number, name in enumerate(rows["id"].to_list())}, rows, named


def _tell_unused(path: Path, names: Sequence[str], what: str) -> None:
    """Tell which columns, or arrays with an entry for each item, are neither vectors nor used."""
    if names:
        told = "%s: the %s %s not used; one that tells who an item comes from must be named speaker"
        log.info(told, path.name, listing(what, names), "is" if len(names) == 1 else "are")


def _arff(path: Path) -> pl.DataFrame:
    """A table in Weka's format: the names of columns, a line each, then comma-separated rows; ? is missing."""
    head, *rest = re.split(r"(?im)^\s*@data\s*$", read_text(path), maxsplit=1)
    names = [name.strip("'\"") for name in re.findall(r"(?im)^\s*@attribute\s+('[^']*'|\"[^\"]*\"|\S+)", head)]
    lines = [line for line in "".join(rest).splitlines() if line.strip() and not line.startswith("%")]
    try:
        rows = list(csv.reader(lines, quotechar="'", escapechar="\\", skipinitialspace=True))
    except csv.Error:  # a cell of 100 kB
        rows = []
    if not rows or len(set(names)) < len(names) or any(len(row) != len(names) for row in rows):
        what = f"need different names of columns, found {len(names)}, and rows of as many values"
        raise CorpusError(f"{path} cannot be read: {what}", fix="save it as CSV")
    return pl.DataFrame(rows, dict.fromkeys(names, pl.String), orient="row").with_columns(pl.all().replace("?", None))


def _features(table: pl.DataFrame, path: Path) -> tuple[dict[str, NDArray[np.float32]], set[str]]:
    """Name -> vectors (N, D) in numbered columns: those of layers, or else the longest; and the columns told or used.

    If there are more than twice as many columns of decimals, all of these are one vector. Whole numbers are left out,
    because they may be the label in another form.

    Raises:
        CorpusError: a numbered column lacks a value.
    """
    plain = [name for name, kind in table.schema.items() if kind.is_numeric() or kind in (pl.String, pl.Boolean)]
    cells = table.select(pl.col(name).cast(pl.Float32, strict=False) for name in plain if name not in COLUMNS)
    values = cells.select(one for one in cells if not one.has_nulls())
    gaps = [one.name for one in cells if 0 < 2 * one.null_count() < len(one) and (one != one.round(0)).any()]
    found: dict[str, dict[int, str]] = {}
    for name in table.columns:
        if name not in COLUMNS and (hit := re.fullmatch(r"(.*?)[_. -]?(\d+)", name)):
            found.setdefault(hit[1], {})[int(hit[2])] = name
    vectors = {}
    for name, columns in found.items():
        numbers, whole = sorted(columns), set(columns.values()) <= {*values.columns, *gaps}
        if whole and len(numbers) >= LEAST_FEATURES and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            vectors[name] = cells.select(columns[number] for number in numbers).to_numpy()
    layers = {name: one for name, one in vectors.items() if any(re.fullmatch(pattern, name) for pattern, _ in NAMES)}
    longest = max(vectors, key=lambda name: vectors[name].shape[1], default=None)
    numbered = layers or ({} if longest is None else {longest: vectors[longest]})
    least = max(LEAST_NAMED, 1 + 2 * sum(one.shape[1] for one in numbered.values()))
    named = [one.name for one in values if one.name.lower() not in BESIDE and (one != one.round(0)).any()]
    if len(named) < least:
        if gap := next((one for name in numbered for one in found[name].values() if one in gaps), None):
            absent = cells[gap].is_null()
            item = table["id"].filter(absent)[0]
            raise CorpusError(
                f"{path}: {gap} has no number for {absent.sum()} of {len(table)} items, e.g. '{item}'",
                fix="complete the cells, or leave out these items or this column",
            )
        return numbered, {column for name in numbered for column in found[name].values()}
    left = first_few([name for name in table.columns if name not in (*COLUMNS, *named)]) or "none"
    log.info("a vector is the %d columns of decimals, %s; left out: %s", len(named), first_few(named, 3), left)
    return {"features": values.select(named).to_numpy()}, {one.name for one in cells if one.null_count() < len(one)}


def _hear(folder: Path) -> tuple[Items, pl.DataFrame]:
    """Items and labels of a task: `SPLIT/FILE.embedding.npy` beside `FILE.target-labels.json`."""
    facts = read_json(folder / HEAR)
    if not isinstance(facts, dict) or not isinstance(facts.get("splits"), list):
        fix = 'name the folders of the embeddings there, e.g. "splits": ["train", "test"]'
        raise CorpusError(f"{folder / HEAR} names no splits", fix=fix)
    kind = f"{facts.get('embedding_type')}, {facts.get('prediction_type')}"
    if kind != "scene, multiclass":
        raise CorpusError(f"{folder} is a task of the kind {kind}; of HEAR's tasks only scene, multiclass can be read")
    items: Items = {}
    rows = []
    for path in [path for split in facts["splits"] for path in sorted((folder / split).glob("*.embedding.npy"))]:
        file = path.with_name(path.name.removesuffix(".embedding.npy"))
        labels = read_json(file.with_name(f"{file.name}.target-labels.json"))
        if not isinstance(labels, list) or len(labels) != 1:
            raise CorpusError(f"{file}.target-labels.json must hold one label, got {labels}")
        items[name := f"{file.parent.name}/{file.name}"] = partial(_read, path)
        rows.append({"id": name, "label": str(labels[0]), "group": file.parent.name})
    if not rows:
        raise CorpusError(f"{folder} has no files SPLIT/FILE.embedding.npy")
    return items, pl.DataFrame(rows)


def _read(path: Path) -> Any:
    """What a file holds: an array, or lists or dictionaries of arrays; tensors become float32."""
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return _as_arrays(load_file(path))
        import torch

        return _as_arrays(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # every format has its own kinds
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        fix = None
        if type(error).__name__ == "UnpicklingError" or "pickle" in reason:  # both say how to load it unsafely
            reason = "it is damaged, or holds more than arrays, lists and dictionaries of arrays"
            fix = "store those alone, e.g. torch.save(dict(cache), path)"
        raise CorpusError(f"{path} cannot be read: {reason}", fix=fix) from error


def _as_arrays(value: Any) -> Any:
    """The same with arrays in place of tensors."""
    if isinstance(value, Mapping):
        return {name: _as_arrays(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_arrays(one) for one in value]
    if not hasattr(value, "detach"):
        return value
    return (value.float() if value.is_floating_point() else value).detach().numpy()


def _matched(ids: Sequence[str | None], items: Collection[str], source: Path) -> list[str]:
    """The item that each id names."""
    found = match_names(ids, items)
    lost = [str(given) for given, name in zip(ids, found, strict=True) if name is None]
    if lost or len(set(found)) < len(found):
        what = f"{len(lost)} of {len(ids)} name no item, or several: {first_few(lost)}" if lost else "some occur twice"
        raise CorpusError(
            f"the ids of the table do not fit {source}: {what}", fix=f"name them as there: {first_few(list(items), 3)}"
        )
    return [name for name in found if name is not None]


def _array_of(value: Any, what: str) -> tuple[NDArray[Any], str | None, tuple[int, ...] | None]:
    """An item as one array; the order of its axes and the numbers of its layers, if its layout tells them."""
    order, numbers = None, None
    if isinstance(value, Mapping):
        hits = [
            (int(hit[1]) + plus, hit[0], one)
            for name, one in value.items()
            for pattern, plus in NAMES
            if (hit := re.fullmatch(pattern, str(name)))
        ]
        if "hidden_states" in value:
            order = "TLD" if "token_ids" in value else None  # as vLLM stores them
            value = value["hidden_states"]
        elif hits:
            names: dict[int, str] = {}
            for number, name, _ in hits:
                if names.setdefault(number, name) != name:  # e.g. of an encoder and of a decoder
                    raise CorpusError(
                        f"{what}: '{names[number]}' and '{name}' are both layer {number}",
                        fix="store the layers of one of them alone",
                    )
            named = {number: one for number, _, one in hits}
            numbers = tuple(sorted(named))
            value = [named[number] for number in numbers]
        elif len(value) == 1:
            value = next(iter(value.values()))
    if isinstance(value, list | tuple) and value and all(isinstance(one, np.ndarray) for one in value):
        layers = [one[0] if one.ndim == 3 and len(one) == 1 else one for one in value]  # without the axis of a batch
        if len({one.shape for one in layers}) == 1 and layers[0].ndim in (1, 2):
            numbers = numbers or (tuple(range(len(layers))) if len(layers) > 1 else None)
            return np.stack(layers), "LTD" if layers[0].ndim == 2 else "LD", numbers
    if isinstance(value, np.ndarray):
        if value.ndim == 4 and 1 in value.shape[:2]:
            value = value.squeeze(value.shape.index(1))
        if 1 <= value.ndim <= 3 and value.dtype.kind in "fiu":
            return value, order if value.ndim == 3 else None, None
    raise CorpusError(
        f"{what} is not one item: it has no array of numbers of at most three axes, and no equal arrays for the layers",
        fix="store one array (layers x time x features), a list of layers, or a dictionary such as {layer_1: ...}",
    )


def _order(shapes: Sequence[tuple[int, ...]], source: Path) -> str:
    """The order of the axes: features are as many in every item, and so are layers; time differs."""
    shape = shapes[0]
    if {len(one) for one in shapes} == {len(shape)}:
        differ = [len({one[axis] for one in shapes}) > 1 for axis in range(len(shape))]
        orders = [order for order in AXES if [axis == "T" for axis in order] == differ]
        if len(orders) == 1 and (orders != ["LD"] or shape[0] == 1):  # else all items may be equally long
            return orders[0]
    options = " or ".join(order for order in AXES if len(order) == len(shape))
    raise CorpusError(
        f"{source} does not tell which axes are layers (L), time (T) and features (D); an item has the shape {shape}",
        fix=f"say it: --axes {options}",
    )


def _column(vectors: NDArray[np.float32]) -> pa.FixedSizeListArray:
    """(n, L, D) as a column of lists of lists."""
    rows = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[2])
    return pa.FixedSizeListArray.from_arrays(rows, vectors.shape[1])
