"""How long training takes to read features from disk, where they do not fit in memory.

The rate is that of the reader itself, over shards that are there or over a small one that is written to be read. Where
the system cannot keep the features in its own cache, neither may the trial. Rates are in bytes of vectors per second.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from daamctl.artifacts.embeddings import CLIP_COLUMNS, StoredVectors, shard_path, write_shard
from daamctl.artifacts.splits import Split
from daamctl.devices import free_memory
from daamctl.errors import ArtifactError
from daamctl.planning.resources import ResourceEstimate
from daamctl.training.features import HELD_SHARE
from daamctl.training.timing import ReadTimes

READING_S = 2.0
"""About how long the trial may take, in seconds; one shard is read at least."""
SAMPLE_BYTES = 64_000_000
"""Vectors of the shard that is written where there are none."""


class Reading:
    """What reading adds to training.

    Args:
        needs: sizes.
        calibrate: measure the rate at all.
    """

    def __init__(self, needs: ResourceEstimate, *, calibrate: bool) -> None:
        self.needs, self.calibrate = needs, calibrate

    @functools.cached_property
    def rate(self) -> float | None:
        """Bytes per second; None: not measured, or it cannot be."""
        if not self.calibrate or self.needs.sizes is None:
            return None
        with contextlib.suppress(ArtifactError, OSError), self._shards() as stored:
            cached = self._nbytes(self.needs.sizes[0]) < free_memory()
            return reading_rate(stored, cached=cached, within_s=READING_S)
        return None

    def is_unknown(self, layers: int | None = None) -> bool:
        """Whether features of all layers or so many are read from disk, nobody knows how fast."""
        return self.needs.way(layers) in ("device", "stream") and self.rate is None

    def times(self, split: Split, layers: int | None = None) -> ReadTimes:
        """Of a fold over all layers or so many; nothing where they are held in memory, or the rate is not known.

        To a GPU features are read once for all folds of a method, so each has its part of that.
        """
        way, sizes, runs = self.needs.way(layers), self.needs.sizes, len(self.needs.runs)
        if way not in ("device", "stream") or sizes is None or self.rate is None:
            return ReadTimes()
        number = layers or sizes[0]
        if way == "device":
            return ReadTimes(once_s=self._nbytes(number) / self.rate / runs)
        each = {part: self._read_bytes(getattr(split, part), number) / self.rate for part in ("train", "dev", "test")}
        held = [part for part in ("dev", "test") if self._is_held(getattr(split, part), number)]
        passes = {f"{part}_s": seconds for part, seconds in each.items() if part not in held}
        return ReadTimes(once_s=sum(each[part] for part in held), **passes)

    def _nbytes(self, layers: int, clips: int | None = None) -> int:
        needs = self.needs
        if needs.sizes is None or needs.vector_bytes is None or needs.number is None:
            return 0
        return (needs.number if clips is None else clips) * needs.vector_bytes * layers // needs.sizes[0]

    def _is_held(self, rows: NDArray[np.int64], layers: int) -> bool:
        """Whether a part to evaluate is read once and kept."""
        return self._nbytes(layers, len(rows)) <= HELD_SHARE * free_memory()

    def _read_bytes(self, rows: NDArray[np.int64], layers: int) -> int:
        """Bytes of one pass over rows: a shard is read whole, whatever is needed of it."""
        number, size = self.needs.number or 0, self.needs.config.extract.shard_clips
        shards = np.unique(rows // size)
        return self._nbytes(layers, int(np.minimum(size, number - shards * size).sum()))

    @contextlib.contextmanager
    def _shards(self) -> Iterator[StoredVectors]:
        """Those of the pipeline, or one that is gone afterwards; it lies on the same disk."""
        needs, features = self.needs, self.needs.present.features
        if features is not None and isinstance(features.x, StoredVectors):
            yield features.x
            return
        assert needs.sizes is not None
        place = needs.present.layout.embeddings
        while not place.exists():
            place = place.parent
        clips = max(1, min(needs.config.extract.shard_clips, SAMPLE_BYTES // max(needs.vector_bytes or 0, 1)))
        with TemporaryDirectory(prefix=".plan-", dir=place) as folder:
            yield write_sample(Path(folder), (clips, *needs.sizes[:2]), needs.config.extract.storage)


def write_sample(folder: Path, shape: tuple[int, int, int], storage: str) -> StoredVectors:
    """Write one shard of random vectors.

    Args:
        folder: where to.
        shape: (N, L, D).
        storage: `float16` or `float32`.
    """
    number, num_layers, dim = shape
    vectors = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(storage)
    clips = pl.DataFrame({name: [str(row) for row in range(number)] for name in CLIP_COLUMNS})
    layers, path = tuple(range(1, num_layers + 1)), shard_path(folder, 0)
    write_shard(path, clips, np.ones(number, np.int32), vectors, layers, {})
    kind = pa.list_(pa.from_numpy_dtype(vectors.dtype), dim)
    return StoredVectors((path,), np.array([0, number]), layers, kind)


def reading_rate(stored: StoredVectors, *, cached: bool, within_s: float) -> float | None:
    """Bytes of vectors per second.

    Args:
        stored: at least one shard.
        cached: read the first shard twice, and count the second time; else each comes from the disk itself.
        within_s: about how long this may take, in seconds; one shard is read at least.

    Returns:
        None where the system has no way to forget what it keeps of a file.

    Raises:
        ArtifactError: a shard cannot be read.
    """
    if cached:
        stored.read(0)
    elif not hasattr(os, "posix_fadvise"):
        return None
    nbytes, seconds = 0, 0.0
    for shard in range(1 if cached else len(stored.paths)):
        if not cached:
            _forget(stored.paths[shard])
        started = time.perf_counter()
        nbytes += stored.read(shard).nbytes
        seconds += time.perf_counter() - started
        if seconds > within_s:
            break
    return nbytes / seconds


def _forget(path: Path) -> None:
    """Have the system drop what it keeps of a file in memory; only what has reached the disk can be dropped."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
