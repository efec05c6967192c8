"""Data sets of the Hugging Face hub, downloaded with the datasets library or read from a local copy.

A copy is a folder written by `save_to_disk` (Arrow files), or one with Parquet files whose names or folders tell the
part: `data/train-00000-of-00001.parquet`, `test/0000.parquet`. Code in a data set is never run.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daamctl.corpora.fetch import is_whole, made_whole
from daamctl.errors import CorpusError, DownloadError, first_few

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("train", "test")
ROWS = 50_000
SAVED = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes."""
_SHARD = re.compile(r"(.+?)-\d+-of-\d+(-\w+)?")
"""Name of one of several files of a part."""


def obtain_dataset(hub_id: str, folder: Path, *, fix: str) -> Path:
    """Download the train and test part of a data set into `folder`, atomically, unless they are there.

    Raises:
        DownloadError: the hub cannot be reached, or does not have it.
    """
    if is_whole(folder):
        return folder
    from datasets import load_dataset  # type: ignore[import-untyped]
    from datasets.exceptions import DatasetsError  # type: ignore[import-untyped]

    try:
        with made_whole(folder, f"{hub_id} from the hub\n") as new:
            for part in PARTS:
                load_dataset(hub_id, split=part).to_parquet(new / f"{part}.parquet")
    except (OSError, ValueError, DatasetsError) as error:  # no network, offline mode; unknown part; damaged file
        reason = " ".join(str(error).split())
        raise DownloadError(
            f"cannot load '{hub_id}' from the Hugging Face hub: {reason}", fix="offline? " + fix
        ) from error
    return folder


def read_parts(folder: Path, *columns: tuple[str, ...]) -> dict[str, pa.Table]:
    """Read the parts `train` and `test` of a copy of a data set, those that have rows.

    Args:
        columns: for each column to read, its possible names; the first is its name in the result.

    Raises:
        CorpusError: a file is damaged, or lacks a column.
    """
    import pyarrow as pa

    found, chosen = {part.name.lower(): part for part in parts_of(folder)}, {}
    for part in (found[name] for name in PARTS if name in found and found[name].rows):
        names = [next((name for name in one if name in part.schema.names), "") for one in columns]
        if "" in names:
            shown, lacking = ", ".join(part.schema.names)[:200], " or ".join(columns[names.index("")])
            raise CorpusError(f"{folder}: a table lacks the column {lacking}; it has {shown}")
        table = pa.concat_tables(part.batches(names, ROWS))
        chosen[part.name.lower()] = table.select(names).rename_columns([one[0] for one in columns])
    return chosen


@dataclass(frozen=True)
class Part:
    """A part of a data set, e.g. `train`.

    Args:
        schema: its Arrow columns; features: what the hub says of them.
        batches: reads some columns, so many rows at once.
    """

    name: str
    rows: int
    schema: pa.Schema
    features: Mapping[str, Any]
    batches: Callable[[list[str], int], Iterator[pa.Table]]


def parts_of(source: Path) -> list[Part]:
    """The parts of a copy of a data set, which may also be a single Parquet file; nothing is read yet.

    Raises:
        CorpusError: a file is damaged, or the copy has several data sets.
    """
    import pyarrow.parquet as pq

    if any((source / name).is_file() for name in SAVED):
        return _saved(source)
    of_part: dict[str, list[Path]] = {}
    for path in [source] if source.is_file() else sorted(source.rglob("[!.]*.parquet")):
        shard = _SHARD.fullmatch(path.stem)
        name = shard[1] if shard else path.parent.name if path.stem.isdigit() else path.stem
        of_part.setdefault(name, []).append(path)
    parts = []
    for name, paths in of_part.items():
        if len({path.parent for path in paths}) > 1:
            places = first_few([str(path.parent) for path in paths])
            raise CorpusError(
                f"{source} holds several data sets with a part '{name}': {places}", fix="give one of them"
            )
        with reading(source):
            schema, rows = pq.read_schema(paths[0]), sum(pq.read_metadata(path).num_rows for path in paths)
            parts.append(Part(name, rows, schema, features_of(schema), partial(_batches, source, paths)))
    return parts


def features_of(schema: pa.Schema) -> dict[str, Any]:
    """What the hub says of the columns of a Parquet file, in its metadata; ValueError if that is no JSON."""
    stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    info = stored.get("info") if isinstance(stored, dict) else None
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def names_of(feature: Any) -> list[str] | None:
    """Names of the classes of a column, or of a column of lists; None: it has no classes."""
    if isinstance(feature, list):
        return names_of(feature[0]) if feature else None
    if not isinstance(feature, Mapping):
        return None
    names = feature.get("names")
    return list(map(str, names)) if isinstance(names, list) else names_of(feature.get("feature"))


def _batches(source: Path, paths: Sequence[Path], columns: list[str], rows: int) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in paths:
        with reading(source), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(rows, columns=columns):
                yield pa.table(batch)


def _saved(source: Path) -> list[Part]:
    """The parts that `save_to_disk` wrote."""
    from datasets import Dataset, load_from_disk

    with reading(source):
        found = load_from_disk(str(source))
    sets = {str(found.split or "all"): found} if isinstance(found, Dataset) else dict(found)

    def batches(one: Dataset, columns: list[str], rows: int) -> Iterator[pa.Table]:
        yield from one.select_columns(columns).with_format("arrow").iter(rows)

    return [
        Part(name, len(one), one.features.arrow_schema, one.features.to_dict(), partial(batches, one))
        for name, one in sets.items()
    ]


@contextmanager
def reading(source: Path) -> Iterator[None]:
    """Turn what a library raises for a damaged file into a CorpusError."""
    try:
        yield
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:  # ArrowInvalid is a ValueError
        reason = " ".join(str(error).split())[:300]
        raise CorpusError(f"{source} is not a complete copy of a data set: {reason}", fix="copy it again") from error
