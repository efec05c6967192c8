"""Embed items with an open encoder: read ahead, batch by size, pool and check. Shared by speech, text and images.

Threads read and batch items while the encoder computes, also across the boundary between two sets of items. On a GPU,
the next batch is copied and launched before the results of the previous one are awaited.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from daamctl.compute.devices import is_out_of_memory
from daamctl.compute.engine import Units
from daamctl.compute.threads import num_readers
from daamctl.encoders.base import Batch, Encoder, PooledBatch
from daamctl.errors import AudioError, CorpusError, EncoderError
from daamctl.extraction.batching import plan_batches
from daamctl.extraction.items import Items
from daamctl.extraction.parts import ShardParts

log = logging.getLogger(__name__)

BATCHES_AHEAD = 2
UNFINISHED, UNFINISHED_GPU = 1, 2
"""Batches whose results may be outstanding when the next one is launched."""
# modality -> the item that is too large for memory, how to make it smaller, the setting for smaller batches
TOO_LARGE = {
    "speech": ("clip of {} samples", ", or a lower segment.max_duration_s", "extract.max_batch_s"),
    "text": ("text of {} tokens", ", or a lower extract.max_tokens", "extract.max_batch_tokens"),
    "tokens": ("sentence of {} tokens", ", or a lower extract.max_tokens", "extract.max_batch_tokens"),
    "image": ("image {} pixels wide", "", "extract.max_batch_images"),
}


@dataclass
class EmbeddedClips:
    """Embeddings of some clips.

    Args:
        vectors: (N, L, D) in the stored format; rows of unreadable clips mean nothing.
        n_frames: (N,) frames, tokens or patches averaged; 0 for unreadable clips.
        unreadable: row -> reason.
        marks: warning (`silent`, `clipped`, `truncated`, `blank`) -> rows.
        kept: number of clips that an earlier process embedded.
    """

    vectors: np.ndarray
    n_frames: np.ndarray
    unreadable: dict[int, str] = field(default_factory=dict)
    marks: dict[str, list[int]] = field(default_factory=dict)
    kept: int = 0


Opener = Callable[[], tuple[Items, Sequence[str], ShardParts | None]]
"""Opens a set: returns its items, their names for messages, and where finished rows are kept until it is complete."""


@dataclass
class _Group:
    """Items that run together: their numbers, the items, and the batch collated from them."""

    numbers: list[int]
    items: list[Tensor]
    cost: int
    batch: Batch | None
    """None if main memory was too small for it."""


@dataclass
class _ClipSet:
    """A set being embedded.

    Args:
        parts: where finished rows are kept on disk until the set is complete; None: nowhere.
        batches: item numbers of each batch, without batches that an earlier process has finished.
        left: number of rows that are not finished.
    """

    items: Items
    names: Sequence[str]
    parts: ShardParts | None
    result: EmbeddedClips
    batches: list[np.ndarray]
    left: int

    def rows_of(self, numbers: Sequence[int]) -> list[int]:
        """Rows that items give vectors for."""
        return _rows_of(self.items, numbers)

    def note_stored(self, rows: Sequence[int]) -> None:
        """Note rows whose vectors are in the result."""
        self.left -= len(rows)
        if self.parts is not None:
            self.parts.add(rows)

    def save_if_due(self) -> None:
        """Write finished rows to disk, if the last time is long enough ago."""
        if self.parts is not None and self.left:
            self.parts.save_if_due(self.result.vectors, self.result.n_frames, self.result.marks)


def _rows_of(items: Items, numbers: Sequence[int]) -> list[int]:
    if items.members is None:
        return list(numbers)
    return [row for number in numbers for row in items.members[number]]


@dataclass
class _Limit:
    """Largest cost of a batch, lowered when memory runs out; read by all threads."""

    cost: float = float("inf")


@dataclass
class _ReadBatch:
    """A planned batch after reading: numbers of unreadable items, warnings, and the other items in groups."""

    unreadable: dict[int, str] = field(default_factory=dict)
    marks: dict[str, list[int]] = field(default_factory=dict)
    groups: list[_Group] = field(default_factory=list)


def embed_clips(
    encoder: Encoder,
    items: Items,
    clip_ids: Sequence[str],
    *,
    storage: str,
    strict: bool = True,
) -> EmbeddedClips:
    """Embed clips.

    Raises:
        EncoderError: the encoder gives values that are not finite, or too large for `storage`.
    """
    events = embed_sets(encoder, [lambda: (items, clip_ids, None)], storage=storage, strict=strict)
    (embedded,) = (event for event in events if not isinstance(event, Units))
    return embedded


def embed_sets(
    encoder: Encoder, sets: Iterable[Opener], *, storage: str, strict: bool = True
) -> Iterator[EmbeddedClips | Units]:
    """Embed sets of clips one after another, as one stream of batches; a batch never spans two sets.

    Args:
        encoder: open encoder; afterwards it can only pool (see `daamctl.encoders.frozen`).
        sets: openers, called in order by a thread, each before its predecessor is finished.
        storage: `float16` or `float32`.
        strict: raise an error for values that are not finite or too large; otherwise the clip counts as unreadable.

    Yields:
        The embeddings of each set, in order; after every batch the number of clips finished meanwhile, which may be 0.

    Raises:
        EncoderError: as `embed_clips`; or one clip does not fit in the device's memory.
    """
    encoder.prepare_for_inference()
    limit = _Limit()
    waiting: deque[_ClipSet] = deque()
    with ThreadPoolExecutor(1, "store") as storing:
        runner = _Runner(encoder, storage, limit, storing, strict)
        for clip_set, read in _read_ahead(sets, encoder, storage, limit):
            if not waiting or waiting[-1] is not clip_set:
                waiting.append(clip_set)
                kept = clip_set.result.kept
                # both need no batch, so no later event would count them
                runner.finished += len(clip_set.items.absent) + kept
                if kept:
                    log.info("%d of %d clips of an unfinished shard are kept", kept, len(clip_set.names))
            runner.run(clip_set, read)
            for unfinished in waiting:
                unfinished.save_if_due()
            yield runner.take_finished()
            while waiting and not waiting[0].left:
                yield waiting.popleft().result
        runner.wait()
    yield runner.take_finished()
    for clip_set in waiting:
        yield clip_set.result


def _compute_alone() -> None:
    """Limit torch to one thread in this reader: a thread pool per reader would compete with the encoder for cores.

    It also makes the normalisation of a clip independent of the number of threads.
    """
    torch.set_num_threads(1)  # applies to this thread and to threads created later, not to the caller's


def on_gpu(encoder: Encoder) -> bool:
    """Whether the encoder computes on an NVIDIA GPU."""
    return getattr(encoder, "device", "cpu").startswith("cuda")


def _read_ahead(
    sets: Iterable[Opener], encoder: Encoder, storage: str, limit: _Limit
) -> Iterator[tuple[_ClipSet, _ReadBatch]]:
    """Read every batch of every set in order, in threads a few batches ahead of the consumer."""
    threads = num_readers(getattr(encoder, "device", "cpu"))
    readers, opener = ThreadPoolExecutor(threads, "read", _compute_alone), ThreadPoolExecutor(1, "open", _compute_alone)
    ahead: deque[tuple[_ClipSet, Future[_ReadBatch]]] = deque()
    try:
        for clip_set in _open_ahead(sets, encoder, storage, opener):
            # A set without batches gets an empty one, so that the consumer knows of the set.
            for numbers in clip_set.batches or [np.empty(0, np.int64)]:
                ahead.append((clip_set, readers.submit(_read_batch, encoder, clip_set.items, numbers, limit)))
                if len(ahead) > max(BATCHES_AHEAD, threads):
                    earliest, future = ahead.popleft()
                    yield earliest, future.result()
        while ahead:
            earliest, future = ahead.popleft()
            yield earliest, future.result()
    finally:
        for pool in (readers, opener):
            pool.shutdown(cancel_futures=True)


def _open_ahead(
    sets: Iterable[Opener], encoder: Encoder, storage: str, thread: ThreadPoolExecutor
) -> Iterator[_ClipSet]:
    """Open each set (which tokenises texts) while the batches of the previous one are consumed."""
    following: Future[_ClipSet] | None = None
    for opener in sets:
        current, following = following, thread.submit(_open_set, opener, encoder, storage)
        if current is not None:
            yield current.result()
    if following is not None:
        yield following.result()


def planned(encoder: Encoder, items: Items) -> list[np.ndarray]:
    """Plan the batches in which items are embedded; see `plan_batches`."""
    equal = encoder.equal_length_batches
    return plan_batches(
        items.sizes, items.budget, equal_length=equal, max_useful=encoder.max_useful_batch, padded=encoder.padded
    )


def _open_set(opener: Opener, encoder: Encoder, storage: str) -> _ClipSet:
    """Open a set, plan its batches, and take those that an earlier process has finished from disk."""
    items, names, parts = opener()
    vectors = np.zeros((len(names), len(encoder.layers), encoder.embed_dim), storage)
    result = EmbeddedClips(vectors, np.zeros(len(names), np.int32), unreadable=dict(items.absent))
    batches = planned(encoder, items)
    if parts is not None:
        finished = parts.load(result.vectors, result.n_frames, result.marks)
        batches = [batch for batch in batches if not finished.issuperset(_rows_of(items, batch.tolist()))]
        # Rows of a batch that is not finished as a whole are embedded again, and then marked again.
        again = {row for batch in batches for row in _rows_of(items, batch.tolist())}
        for name, rows in result.marks.items():
            result.marks[name] = [row for row in rows if row not in again]
        result.kept = len(names) - len(items.absent) - len(again)
    left = len(names) - len(items.absent) - result.kept
    return _ClipSet(items, names, parts, result, batches, left)


def _read_batch(encoder: Encoder, items: Items, numbers: np.ndarray, limit: _Limit) -> _ReadBatch:
    """Read one planned batch. It is split if the encoder needs equal lengths and the items turn out to differ."""
    read = _ReadBatch()
    by_length: dict[int, list[tuple[int, Tensor]]] = {}  # 0: any length
    for number in numbers.tolist():
        try:
            item = items.read(number)
        except (AudioError, CorpusError) as error:
            read.unreadable[number] = error.message
            continue
        for mark in items.marks(item):
            read.marks.setdefault(mark, []).append(number)
        length = item.shape[-1] if encoder.equal_length_batches else 0
        by_length.setdefault(length, []).append((number, item))
    for found in by_length.values():
        read.groups += _collate(encoder, [number for number, _ in found], [item for _, item in found], limit)
    return read


def _collate(encoder: Encoder, numbers: list[int], items: list[Tensor], limit: _Limit) -> Iterator[_Group]:
    """Collate items into as few batches as the cost limit allows."""
    cost, most = _cost(encoder, items), limit.cost
    size = len(items)
    if cost > most:
        size = max(1, int(most * len(items) // cost))
    for start in range(0, len(items), size):
        part = items[start : start + size]
        try:
            batch = encoder.to_batch(part)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            batch = None
        yield _Group(numbers[start : start + size], part, _cost(encoder, part), batch)


def _cost(encoder: Encoder, items: list[Tensor]) -> int:
    return len(items) * encoder.padded(max(item.shape[-1] for item in items))


class _Runner:
    """Launches batches, with a few outstanding at a time, and lowers the limit when memory runs out.

    `finished` counts clips that are stored or cannot be read.

    Args:
        storing: a single thread that checks results and writes them to their rows.
    """

    def __init__(
        self,
        encoder: Encoder,
        storage: str,
        limit: _Limit,
        storing: ThreadPoolExecutor,
        strict: bool,
    ) -> None:
        self.strict, self.finished = strict, 0
        self.encoder, self.storage, self.limit, self.storing = encoder, storage, limit, storing
        self.format: torch.dtype = getattr(torch, storage)
        self.unfinished = UNFINISHED_GPU if on_gpu(encoder) else UNFINISHED
        self.running: deque[tuple[_ClipSet, list[int], Future[None]]] = deque()

    def run(self, clip_set: _ClipSet, read: _ReadBatch) -> None:
        """Run a batch of a set; its results may arrive later."""
        unreadable = {row: why for number, why in read.unreadable.items() for row in clip_set.rows_of([number])}
        clip_set.result.unreadable.update(unreadable)
        for mark, numbers in read.marks.items():
            clip_set.result.marks.setdefault(mark, []).extend(clip_set.rows_of(numbers))
        clip_set.left -= len(unreadable)
        self.finished += len(unreadable)
        for group in read.groups:
            self._run_group(clip_set, group)

    def wait(self, all_but: int = 0) -> None:
        """Wait for the outstanding batches, all but the last few."""
        while len(self.running) > all_but:
            clip_set, rows, stored = self.running.popleft()
            stored.result()
            clip_set.note_stored(rows)
            self.finished += len(rows)

    def take_finished(self) -> Units:
        """What has been finished since the last call."""
        finished, self.finished = Units(self.finished), 0
        return finished

    def _run_group(self, clip_set: _ClipSet, group: _Group) -> None:
        """Launch a group; if the device's memory is too small for it, launch it in parts."""
        if len(group.items) > 1 and group.cost > self.limit.cost:
            self._run_in_parts(clip_set, group)
            return
        get_pooled = self._launch(group)
        if get_pooled is not None:
            stored = self.storing.submit(self._store, clip_set, group, get_pooled)
            self.running.append((clip_set, clip_set.rows_of(group.numbers), stored))
            self.wait(all_but=self.unfinished)
            return
        # Out of memory. Outstanding batches hold memory, too: wait for them. Then run the group in halves, or a single
        # item once more.
        unit, smaller, setting = TOO_LARGE[self.encoder.modality]
        was_alone = not self.running
        self.wait()
        torch.cuda.empty_cache()
        if len(group.items) > 1:
            self.limit.cost = group.cost // 2
            log.warning("out of memory with %d clips in a batch; trying halves (lower %s)", len(group.items), setting)
        elif was_alone:
            raise EncoderError(
                f"one {unit.format(group.items[0].shape[-1])} does not fit in the device's memory",
                fix=f"use --device cpu{smaller}",
            )
        self._run_in_parts(clip_set, group)

    def _run_in_parts(self, clip_set: _ClipSet, group: _Group) -> None:
        """Run a group in parts that fit the current limit."""
        for part in _collate(self.encoder, group.numbers, group.items, self.limit):
            self._run_group(clip_set, part)

    def _launch(self, group: _Group) -> Callable[[], PooledBatch] | None:
        """Launch a group and return a function that waits for its results; None if memory has run out."""
        if group.batch is None:
            return None
        try:
            return self.encoder.run_async(group.batch, self.format)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None  # returned here, after the error and the memory it references are freed

    def _store(self, clip_set: _ClipSet, group: _Group, get_pooled: Callable[[], PooledBatch]) -> None:
        """Check the vectors of a batch and write them to their rows."""
        assert group.batch is not None
        pooled, rows = get_pooled(), clip_set.rows_of(group.numbers)
        for row, index in pooled.is_representable.logical_not().nonzero().tolist():
            why = f"the encoder gives values that are not finite, or beyond {self.storage}, in layer "
            why += f"{self.encoder.layers[index]} of clip '{clip_set.names[rows[row]]}'"
            if self.strict:
                raise EncoderError(why, fix="use --set extract.precision=float32 --set extract.storage=float32")
            clip_set.result.unreadable.setdefault(rows[row], why)
        clip_set.result.vectors[rows] = pooled.values.numpy()
        clip_set.result.n_frames[rows] = group.batch.n_frames.numpy()
