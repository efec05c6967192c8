"""Store given embeddings as shards, in the form of those that an encoder makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.embeddings import EmbeddingsMetadata, shard_path, write_shard
from daamctl.compute.engine import Units
from daamctl.corpora.vector_file import open_vectors
from daamctl.errors import CorpusError
from daamctl.extraction.shards import ShardResult
from daamctl.store.files import sha256_file


def store(
    numbers: Collection[int],
    *,
    path: Path,
    rows: pl.DataFrame,
    head: EmbeddingsMetadata,
    folder: Path,
    size: int,
    fix: str,
) -> Iterator[ShardResult | Units]:
    """Write shards of the vectors of a file.

    Args:
        numbers: shards to write, from 0.
        rows: rows of the clip table; `index` is the row in the file, ascending.
        fix: command that reads the file again.

    Raises:
        CorpusError: the file has changed since it was read, or cannot be read.
    """
    if not path.is_file() or sha256_file(path) != head.encoder["sha256"]:
        what = "has changed since it was read" if path.is_file() else "does not exist"
        raise CorpusError(f"{path} {what}", fix=f"read it again: {fix}")
    facts = {"key": head.vectors_key, "encoder": head.encoder, "settings": {}, "unreadable": 0}
    for number, vectors in enumerate(_in_shards(path, rows["index"].to_numpy(), size)):
        if number not in numbers:
            continue
        shard, part = shard_path(folder, number), rows[number * size : number * size + len(vectors)]
        write_shard(shard, part, np.ones(len(part)), vectors, head.layers, facts)
        yield Units(len(part))
        yield ShardResult(shard, len(part))


def _in_shards(path: Path, kept: NDArray[np.int64], size: int) -> Iterator[NDArray[Any]]:
    """The vectors of some rows of a file, `size` at a time."""
    waiting: list[NDArray[Any]] = []
    start = 0
    for block in open_vectors(path).blocks():
        first, last = np.searchsorted(kept, [start, start + len(block)])
        waiting.append(block[kept[first:last] - start])
        start += len(block)
        if sum(map(len, waiting)) >= size:
            vectors = np.concatenate(waiting)
            whole = len(vectors) // size * size
            yield from np.split(vectors[:whole], whole // size)
            waiting = [vectors[whole:]]
    rest = np.concatenate(waiting)
    if len(rest):
        yield rest
