"""Write shards of embeddings with an open encoder, one after another in this process.

While one shard is embedded, a thread writes the previous one and others read the next one; for a GPU, two write.
Finished rows of a shard are kept in parts until it is complete, so that an interruption costs little
(`daamctl.extraction.parts`). A task (`ShardTask`) and its result (`ShardResult`) can be pickled, so several processes
or machines can share the tasks of a corpus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from daamctl.artifacts.embeddings import EmbeddingsMetadata, write_shard
from daamctl.compute.engine import Units
from daamctl.config import Config
from daamctl.encoders.base import Encoder
from daamctl.extraction.items import ImageTables, Items, open_items
from daamctl.extraction.parts import ShardParts
from daamctl.extraction.stream import EmbeddedClips, Opener, embed_sets
from daamctl.store.files import content_key


@dataclass(frozen=True, eq=False)
class ShardTask:
    """A shard to write.

    Args:
        rows: rows of the clip table, in the order of the file.
        sentences: of words, all those of their sentences, which may reach into other shards; else None.
    """

    path: Path
    rows: pl.DataFrame
    sentences: pl.DataFrame | None = None


@dataclass(frozen=True)
class ShardResult:
    """A finished shard, with its file in place.

    Args:
        num_clips: number of clips in it.
        unreadable: clip_id -> reason, for clips left out.
        marks: warning (`silent`, `clipped`, `truncated`, `blank`) -> clip_ids.
        kept: number of its clips that an earlier process embedded.
    """

    path: Path
    num_clips: int
    unreadable: dict[str, str] = field(default_factory=dict)
    marks: dict[str, list[str]] = field(default_factory=dict)
    kept: int = 0


def make_shards(
    tasks: Iterable[ShardTask],
    encoder: Encoder,
    *,
    head: EmbeddingsMetadata,
    root: Path,
    config: Config,
    tables: ImageTables | None = None,
) -> Iterator[ShardResult | Units]:
    """Embed clips and write them as shards.

    Args:
        tasks: shards to write; taken one or two ahead.
        encoder: open encoder; afterwards it can only pool.
        root: folder that paths of recordings and images are relative to; unused for text.

    Yields:
        Results in the order of the tasks, each once its file is in place; meanwhile the number of clips finished,
        readable or not.

    Raises:
        ArtifactError: a shard cannot be written.
        EncoderError: the encoder gives values that are not finite, or too large for the storage, or one clip does not
            fit in the device's memory.
    """
    if tables is None:
        tables = ImageTables()  # for all shards, because neighbouring shards share row groups
    begun: deque[ShardTask] = deque()

    def openers() -> Iterator[Opener]:
        for task in tasks:
            begun.append(task)
            yield partial(_open_shard, task, encoder, head, root, config, tables)

    writers = config.extract.writers
    writing: deque[Future[ShardResult]] = deque()
    with ThreadPoolExecutor(writers, "write") as writer:
        for event in embed_sets(encoder, openers(), storage=config.extract.storage):
            if isinstance(event, Units):
                yield event
            else:
                writing.append(writer.submit(_write_shard, begun.popleft(), event, head))
            # Pass on shards whose files are in place; wait for one only if more are unfinished than writers.
            while writing and (len(writing) > writers or writing[0].done()):
                yield writing.popleft().result()
        for future in writing:
            yield future.result()


def _open_shard(
    task: ShardTask, encoder: Encoder, head: EmbeddingsMetadata, root: Path, config: Config, tables: ImageTables
) -> tuple[Items, Sequence[str], ShardParts]:
    """Open the clips of a shard; see `Opener`."""
    items = open_items(task.rows, head.modality, root, encoder, config, tables=tables, sentences=task.sentences)
    return items, task.rows["clip_id"].to_list(), _parts(task, head)


def _parts(task: ShardTask, head: EmbeddingsMetadata) -> ShardParts:
    return ShardParts(task.path, content_key({"vectors": head.vectors_key, "clips": task.rows["clip_id"].to_list()}))


def _write_shard(task: ShardTask, embedded: EmbeddedClips, head: EmbeddingsMetadata) -> ShardResult:
    """Write a shard atomically, without the unreadable clips."""
    ids = task.rows["clip_id"].to_list()
    readable = np.array([row not in embedded.unreadable for row in range(len(ids))], bool)
    facts = {
        "key": head.vectors_key,
        "encoder": head.encoder,
        "settings": {name: part for name, part in head.settings.items() if name != "download"},
        "unreadable": len(embedded.unreadable),
    }
    rows = task.rows.filter(pl.Series(readable))
    write_shard(task.path, rows, embedded.n_frames[readable], embedded.vectors[readable], head.layers, facts)
    _parts(task, head).remove()
    marks = {}
    for name, marked in embedded.marks.items():
        marks[name] = [ids[row] for row in marked]
    return ShardResult(
        path=task.path,
        num_clips=len(rows),
        unreadable={ids[row]: reason for row, reason in embedded.unreadable.items()},
        marks=marks,
        kept=embedded.kept,
    )
