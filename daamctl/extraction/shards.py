"""Make shards of embeddings with an open encoder, one after the other in this process.

While one shard is embedded, a thread writes the one before, and others read on into the one behind.
What a shard is made of (`ShardTask`) and what is told of it (`ShardResult`) can be pickled, so that several processes
or machines may share the tasks of a set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from daamctl.artifacts.embeddings import EmbeddingsMetadata, write_shard
from daamctl.config import Config
from daamctl.encoders.base import Encoder
from daamctl.extraction.items import ImageTables, Items, open_items
from daamctl.extraction.stream import Embedded, Opener, embed_sets


@dataclass(frozen=True, eq=False)
class ShardTask:
    """A shard to make.

    Args:
        path: its file.
        rows: rows of the clip table, in the order of the file.
    """

    path: Path
    rows: pl.DataFrame


@dataclass(frozen=True)
class ShardResult:
    """A shard whose file is in place.

    Args:
        path: its file.
        num_clips: clips in it.
        unreadable: clip_id -> reason, for clips left out.
        marks: doubt (`silent`, `clipped`, `truncated`, `blank`) -> clip_ids.
    """

    path: Path
    num_clips: int
    unreadable: dict[str, str] = field(default_factory=dict)
    marks: dict[str, list[str]] = field(default_factory=dict)


def make_shards(
    tasks: Iterable[ShardTask],
    encoder: Encoder,
    *,
    head: EmbeddingsMetadata,
    root: Path,
    config: Config,
    on_clips: Callable[[int], None],
    tables: ImageTables | None = None,
) -> Iterator[ShardResult]:
    """Embed and write shards.

    Args:
        tasks: what to make; taken one or two ahead.
        encoder: open encoder; from here on it can do nothing but pool.
        head: facts of the whole set.
        root: folder that paths of recordings and images are relative to; not looked at for text.
        config: all settings.
        on_clips: called with the number of clips finished, readable or not.
        tables: tables of images that are open already.

    Yields:
        What was made, in the order of the tasks, once its file is in place.

    Raises:
        ArtifactError: a shard cannot be written.
        EncoderError: the encoder gives values that are not finite, or too large for the storage, or one clip does not
            fit in the device's memory.
    """
    made: deque[ShardTask] = deque()
    opened = ImageTables() if tables is None else tables  # neighbouring shards share row groups

    def openers() -> Iterator[Opener]:
        for task in tasks:
            made.append(task)
            yield partial(_open, task, encoder, head, root, config, opened)

    writing: deque[Future[ShardResult]] = deque()
    with ThreadPoolExecutor(1, "write") as writer:
        for done in embed_sets(encoder, openers(), storage=config.extract.storage, on_clips=on_clips):
            if done is not None:
                writing.append(writer.submit(_write, made.popleft(), done, head))
            while writing and (len(writing) > 1 or writing[0].done()):
                yield writing.popleft().result()
        for future in writing:
            yield future.result()


def _open(
    task: ShardTask, encoder: Encoder, head: EmbeddingsMetadata, root: Path, config: Config, tables: ImageTables
) -> tuple[Items, Sequence[str]]:
    items = open_items(task.rows, head.modality, root, encoder, config, tables=tables)
    return items, task.rows["clip_id"].to_list()


def _write(task: ShardTask, done: Embedded, head: EmbeddingsMetadata) -> ShardResult:
    """Put the file in place, without the unreadable clips."""
    ids = task.rows["clip_id"].to_list()
    keep = np.array([row not in done.unreadable for row in range(len(ids))], bool)
    facts = {
        "key": head.key,
        "encoder": head.encoder,
        "settings": head.settings,
        "classes": list(head.classes),
        "unreadable": len(done.unreadable),
    }
    rows = task.rows.filter(pl.Series(keep))
    write_shard(task.path, rows, done.n_frames[keep], done.vectors[keep], head.layers, facts)
    return ShardResult(
        task.path,
        len(rows),
        {ids[row]: reason for row, reason in done.unreadable.items()},
        {name: [ids[row] for row in marked] for name, marked in done.marks.items()},
    )
