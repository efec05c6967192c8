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

from daamctl.artifacts.utterances import SENTENCE
from daamctl.config import EMBEDDINGS
from daamctl.corpora.base import PREPARED_EMBEDDINGS, Corpus
from daamctl.corpora.files import tell_unused
from daamctl.corpora.groups import official_groups
from daamctl.corpora.rules import NAMED_AT_MOST, broken
from daamctl.corpora.vector_file import COLUMNS, DESCRIPTION, VectorFile, open_vectors
from daamctl.errors import CorpusError, first_few

log = logging.getLogger(__name__)


def prepare(root: Path) -> pl.DataFrame:
    """Read a file of embeddings and check its values; one row per item, in the order of the file.

    `sentence` is among the columns if the file has it.

    Raises:
        CorpusError: names every fault.
    """
    file = open_vectors(root)
    layers, rows = file.layers, file.columns()
    if problems := [*_row_problems(rows), *_value_problems(file, rows, layers)]:
        raise CorpusError(f"{root}: " + ("\n" + " " * 4).join(problems), fix="correct the file and run it again")
    tell_unused(root, file.names, COLUMNS)
    if "speaker" not in rows.columns:
        log.warning("%s has no column speaker: every utterance counts as its own speaker", root.name)
    rows = rows.rename({"id": "clip_id"}).with_columns(path=pl.lit(root.name), index=pl.int_range(pl.len()))
    rows = rows.with_columns(pl.col("utterance" if "utterance" in rows.columns else "clip_id").alias("utterance_id"))
    if "speaker" not in rows.columns:
        rows = rows.with_columns(speaker=pl.col("utterance_id"))
    if "group" not in rows.columns:
        rows = rows.with_columns(group=pl.lit(None, pl.String))
    rows = rows.select(*PREPARED_EMBEDDINGS, pl.col(f"^{SENTENCE}$")).cast(pl.Schema(PREPARED_EMBEDDINGS))
    return official_groups(rows)


def facts(root: Path) -> dict[str, Any]:
    """Facts of a file: name, source, sha256, made_by, licence, storage, layers and embed_dim."""
    return open_vectors(root).facts()


def _row_problems(rows: pl.DataFrame) -> Iterator[str]:
    """Empty values, ids that occur twice, and utterances whose items disagree."""
    names = [name for name in rows.columns if name != SENTENCE]
    empty = [(pl.col(name).is_null(), f"{name} is empty for item {{places}} (from 0)") for name in names]
    yield from broken(rows.with_row_index(), empty, pl.col("index"))
    twice = (pl.col("id").is_duplicated(), "{number} ids occur more than once: {places}")
    yield from broken(rows, [twice], pl.col("id"))
    for name in rows.select(pl.col("^(label|speaker|group)$")).columns if "utterance" in rows.columns else ():
        mixed = pl.col(name).n_unique().over("utterance") > 1
        phrase = f"the items of one utterance differ in their {name}: {{places}}"
        yield from broken(rows, [(mixed, phrase)], pl.col("utterance"))


def _value_problems(file: VectorFile, rows: pl.DataFrame, layers: tuple[int, ...]) -> Iterator[str]:
    """Items with values that are not numbers."""
    bad: list[str] = []
    start = 0
    for block in file.blocks():
        for row, layer in np.argwhere(~np.isfinite(block).all(axis=2)).tolist():
            bad.append(f"{rows['id'][start + row] or start + row} (layer {layers[layer]})")
        start += len(block)
    if bad:
        shown = first_few(bad, NAMED_AT_MOST)
        yield f"{len(bad)} vectors have values that are NaN, infinite or too large for {file.storage}: {shown}"


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
