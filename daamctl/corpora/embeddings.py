"""Embeddings that other software made. A pipeline over them needs no encoder and starts at `train`.

The file is Parquet, npz or safetensors, see docs/embeddings.md. Every item has an id and a label. `speaker` is the
source of an item, the unit of independence. `group` is the unit of the folds, as in a manifest. Items with the same
`utterance` are clips of one utterance, which is scored as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from daamctl.config import EMBEDDINGS
from daamctl.corpora.base import PREPARED_EMBEDDINGS, Corpus
from daamctl.corpora.groups import official_groups
from daamctl.corpora.vector_file import DESCRIPTION, VectorFile, open_vectors
from daamctl.errors import CorpusError, first_few

log = logging.getLogger(__name__)

NAMED_AT_MOST = 3


def prepare(root: Path) -> pl.DataFrame:
    """Read a file of embeddings and check its values.

    Returns:
        One row per item, in the order of the file, with the columns of `PREPARED_EMBEDDINGS`.

    Raises:
        CorpusError: names every fault.
    """
    file = open_vectors(root)
    layers, rows = file.layers, file.columns()
    if problems := [*_row_problems(rows), *_value_problems(file, rows, layers)]:
        raise CorpusError(f"{root}: " + ("\n" + " " * 4).join(problems), fix="correct the file and run it again")
    if "speaker" not in rows.columns:
        log.warning("%s has no column speaker: every utterance counts as its own speaker", root.name)
    rows = rows.rename({"id": "clip_id"}).with_columns(path=pl.lit(root.name), index=pl.int_range(pl.len()))
    rows = rows.with_columns(pl.col("utterance" if "utterance" in rows.columns else "clip_id").alias("utterance_id"))
    if "speaker" not in rows.columns:
        rows = rows.with_columns(speaker=pl.col("utterance_id"))
    if "group" not in rows.columns:
        rows = rows.with_columns(group=pl.lit(None, pl.String))
    return official_groups(rows.select(list(PREPARED_EMBEDDINGS)).cast(pl.Schema(PREPARED_EMBEDDINGS)))


def facts(root: Path) -> dict[str, Any]:
    """Facts of a file: name, source, sha256, made_by, licence, storage, layers and embed_dim."""
    return open_vectors(root).facts()


def _row_problems(rows: pl.DataFrame) -> Iterator[str]:
    """Empty values, ids that occur twice, and utterances whose items disagree."""
    for name in rows.columns:
        empty = rows.with_row_index().filter(pl.col(name).is_null())["index"]
        if len(empty):
            yield f"{name} is empty for item {_some(empty.cast(pl.String))} (from 0)"
    twice = rows.filter(pl.col("id").is_duplicated())["id"].drop_nulls().unique(maintain_order=True)
    if len(twice):
        yield f"{len(twice)} ids occur more than once: {_some(twice)}"
    if "utterance" in rows.columns:
        for name in ("label", "speaker", "group"):
            if name in rows.columns:
                several = rows.group_by("utterance", maintain_order=True).agg(pl.col(name).n_unique())
                mixed = several.filter(pl.col(name) > 1)["utterance"].drop_nulls()
                if len(mixed):
                    yield f"the items of one utterance differ in their {name}: {_some(mixed)}"


def _value_problems(file: VectorFile, rows: pl.DataFrame, layers: tuple[int, ...]) -> Iterator[str]:
    """Items with values that are not numbers."""
    bad: list[str] = []
    start = 0
    for block in file.blocks():
        for row, layer in np.argwhere(~np.isfinite(block).all(axis=2)).tolist():
            bad.append(f"{rows['id'][start + row] or start + row} (layer {layers[layer]})")
        start += len(block)
    if bad:
        yield f"{len(bad)} vectors have values that are NaN, infinite or too large for {file.storage}: {_some(bad)}"


def _some(names: pl.Series | list[str]) -> str:
    return first_few(list(names), NAMED_AT_MOST)


CORPUS = Corpus(
    name=EMBEDDINGS,
    title="embeddings that other software made, in a Parquet, npz or safetensors file; no encoder is needed",
    licence="yours",
    classes=(),
    prepare=prepare,
    fingerprint=None,
    how_to_get=f"{DESCRIPTION}; register the file: daamctl download embeddings --from FILE",
    modality="embeddings",
    facts=facts,
)
