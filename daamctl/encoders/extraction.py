"""Embed items with an open encoder: read ahead, batch by size, pool, check. The same for speech, text and images.

Threads read and batch items while the encoder computes, over the borders between sets of items. On a GPU a batch is
copied and launched before the results of the one before are waited for.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from daamctl.encoders.base import Batch, Encoder
from daamctl.encoders.batching import plan_batches
from daamctl.encoders.items import Items
from daamctl.errors import AudioError, CorpusError, EncoderError

log = logging.getLogger(__name__)

READ_THREADS = 2
"""Threads that read while the CPU computes."""
READ_THREADS_GPU = 8
"""At most so many where it has little else to do."""
BATCHES_AHEAD = 2
# modality -> an item that is too large for the memory, what makes it smaller, the setting for smaller batches
TOO_LARGE = {
    "speech": ("clip of {} samples", ", or a lower segment.max_duration_s", "extract.max_batch_s"),
    "text": ("text of {} tokens", ", or a lower extract.max_tokens", "extract.max_batch_tokens"),
    "image": ("image {} pixels wide", "", "extract.max_batch_images"),
}


@dataclass
class Embedded:
    """Embeddings of some clips.

    Args:
        vectors: (N, L, D) in the stored format; rows of unreadable clips are zero.
        n_frames: (N,) frames, tokens or patches averaged; 0 for unreadable clips.
        unreadable: row -> reason.
        marks: doubt (`silent`, `clipped`, `truncated`, `blank`) -> rows.
    """

    vectors: np.ndarray
    n_frames: np.ndarray
    unreadable: dict[int, str] = field(default_factory=dict)
    marks: dict[str, list[int]] = field(default_factory=dict)


Opener = Callable[[], tuple[Items, Sequence[str]]]
"""Opens a set: its items, and their names for messages."""


@dataclass
class _Group:
    """Items that run together: their rows, themselves, and the batch made of them."""

    rows: list[int]
    items: list[Tensor]
    batch: Batch

    @property
    def cost(self) -> int:
        return len(self.items) * max(item.shape[-1] for item in self.items)


@dataclass
class _Set:
    """A set that is being embedded."""

    items: Items
    names: Sequence[str]
    result: Embedded
    batches: list[np.ndarray]
    left: int


@dataclass
class _Read:
    """A planned batch, read: what cannot be, doubts, and the rest in groups."""

    unreadable: dict[int, str] = field(default_factory=dict)
    marks: dict[str, list[int]] = field(default_factory=dict)
    groups: list[_Group] = field(default_factory=list)


def embed_clips(
    encoder: Encoder,
    items: Items,
    clip_ids: Sequence[str],
    *,
    storage: str,
    on_clips: Callable[[int], None] = lambda count: None,
) -> Embedded:
    """Embed clips.

    Args:
        encoder: open encoder; see `embed_sets`.
        items: the clips as the encoder reads them.
        clip_ids: their names, for messages.
        storage: `float16` or `float32`.
        on_clips: called with the number of clips finished.

    Raises:
        EncoderError: the encoder gives values that are not finite, or too large for `storage`.
    """
    sets = embed_sets(encoder, [lambda: (items, clip_ids)], storage=storage, on_clips=on_clips)
    (embedded,) = (done for done in sets if done is not None)
    return embedded


def embed_sets(
    encoder: Encoder, sets: Iterable[Opener], *, storage: str, on_clips: Callable[[int], None]
) -> Iterator[Embedded | None]:
    """Embed sets of clips one after another, as one stream of batches; a batch never spans two sets.

    Args:
        encoder: open encoder; from here on it can do nothing but pool (see `daamctl.encoders.frozen`).
        sets: called in their order, in a thread, each before its predecessor is finished.
        storage: `float16` or `float32`.
        on_clips: called with the number of clips finished.

    Yields:
        What each set gives, in order; None after a batch that completes none.

    Raises:
        EncoderError: see `embed_clips`; or one clip does not fit in the device's memory.
    """
    encoder.settle()
    runner = _Runner(encoder, storage, on_clips)
    waiting: deque[_Set] = deque()
    for one, read in _read_ahead(sets, encoder, storage):
        if not waiting or waiting[-1] is not one:
            waiting.append(one)
        runner.take(one, read)
        yield None
        while waiting and not waiting[0].left:
            yield waiting.popleft().result
    runner.finish()
    for one in waiting:
        yield one.result


def _read_ahead(sets: Iterable[Opener], encoder: Encoder, storage: str) -> Iterator[tuple[_Set, _Read]]:
    """Every batch of every set, in order, read in threads a few ahead of the one in use."""
    on_gpu = getattr(encoder, "device", "cpu").startswith("cuda")
    threads = min(READ_THREADS_GPU, os.cpu_count() or 1) if on_gpu else READ_THREADS
    readers, opener = ThreadPoolExecutor(threads, "read"), ThreadPoolExecutor(1, "open")
    ahead: deque[tuple[_Set, Future[_Read]]] = deque()
    try:
        for one in _open_ahead(sets, encoder, storage, opener):
            for rows in one.batches or [np.empty(0, np.int64)]:
                ahead.append((one, readers.submit(_read, encoder, one.items, rows)))
                if len(ahead) > max(BATCHES_AHEAD, threads):
                    earliest, future = ahead.popleft()
                    yield earliest, future.result()
        while ahead:
            earliest, future = ahead.popleft()
            yield earliest, future.result()
    finally:
        for pool in (readers, opener):
            pool.shutdown(cancel_futures=True)


def _open_ahead(sets: Iterable[Opener], encoder: Encoder, storage: str, thread: ThreadPoolExecutor) -> Iterator[_Set]:
    """The sets, each opened (texts are tokenised then) while the batches of the one before are in use."""
    following: Future[_Set] | None = None
    for opener in sets:
        current, following = following, thread.submit(_open, opener, encoder, storage)
        if current is not None:
            yield current.result()
    if following is not None:
        yield following.result()


def planned(encoder: Encoder, items: Items) -> list[np.ndarray]:
    """The batches that items are embedded in, see `plan_batches`."""
    equal = encoder.equal_length_batches
    return plan_batches(items.sizes, items.budget, equal_length=equal, enough=encoder.enough)


def _open(opener: Opener, encoder: Encoder, storage: str) -> _Set:
    items, names = opener()
    number = len(names)
    vectors = np.zeros((number, len(encoder.layers), encoder.embed_dim), storage)
    return _Set(items, names, Embedded(vectors, np.zeros(number, np.int32)), planned(encoder, items), number)


def _read(encoder: Encoder, items: Items, rows: np.ndarray) -> _Read:
    """Read one planned batch. Lengths, once read, may turn out unequal where the encoder needs them equal."""
    read = _Read()
    together: dict[int, list[tuple[int, Tensor]]] = {}
    for row in rows.tolist():
        try:
            item = items.read(row)
        except (AudioError, CorpusError) as error:
            read.unreadable[row] = error.message
            continue
        for mark in items.marks(item):
            read.marks.setdefault(mark, []).append(row)
        together.setdefault(len(item) if encoder.equal_length_batches else 0, []).append((row, item))
    for found in together.values():
        alike = [item for _, item in found]
        read.groups.append(_Group([row for row, _ in found], alike, encoder.stage(alike)))
    return read


class _Runner:
    """Runs batches, at most one of them unfinished when it comes back; remembers what the memory cannot hold.

    Args:
        encoder: see `embed_sets`.
        storage: see `embed_sets`.
        on_clips: see `embed_sets`.
    """

    def __init__(self, encoder: Encoder, storage: str, on_clips: Callable[[int], None]) -> None:
        self.encoder, self.storage, self.on_clips = encoder, storage, on_clips
        self.limit: float = float("inf")
        self.running: deque[tuple[_Set, _Group, Callable[[], Tensor]]] = deque()

    def take(self, one: _Set, read: _Read) -> None:
        """Run a batch of a set."""
        one.result.unreadable.update(read.unreadable)
        for mark, rows in read.marks.items():
            one.result.marks.setdefault(mark, []).extend(rows)
        one.left -= len(read.unreadable)
        if read.unreadable:
            self.on_clips(len(read.unreadable))
        for group in read.groups:
            self._run(one, group)

    def finish(self, but: int = 0) -> None:
        """Wait for the batches that run, `but` the last so many."""
        while len(self.running) > but:
            self._store(*self.running.popleft())

    def _run(self, one: _Set, group: _Group) -> None:
        """Launch a group, in parts when the device's memory is too small for the whole."""
        if len(group.items) > 1 and group.cost > self.limit:
            self._run_parts(one, group)
            return
        try:
            wait = self.encoder.launch(group.batch)
        except torch.OutOfMemoryError:
            wait = None
        if wait is not None:
            self.running.append((one, group, wait))
            self.finish(but=1)
            return
        unit, smaller, setting = TOO_LARGE[self.encoder.modality]
        alone = not self.running
        self.finish()  # what still runs holds memory
        torch.cuda.empty_cache()
        if len(group.items) > 1:
            self.limit = group.cost // 2
            log.warning("out of memory with %d clips in a batch; trying halves (lower %s)", len(group.items), setting)
            self._run_parts(one, group)
        elif not alone:
            self._run(one, group)
        else:
            raise EncoderError(
                f"one {unit.format(group.items[0].shape[-1])} does not fit in the device's memory",
                fix=f"use --device cpu{smaller}",
            )

    def _run_parts(self, one: _Set, group: _Group) -> None:
        size = max(1, int(self.limit * len(group.items) // group.cost))
        for start in range(0, len(group.items), size):
            rows, items = group.rows[start : start + size], group.items[start : start + size]
            self._run(one, _Group(rows, items, self.encoder.stage(items)))

    def _store(self, one: _Set, group: _Group, wait: Callable[[], Tensor]) -> None:
        """Check the vectors of a batch and put them into their rows."""
        values = wait().numpy()
        limit = float(np.finfo(np.dtype(self.storage)).max)
        bad = ~(np.abs(values) <= limit).all(axis=(1, 2))  # also catches NaN
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            layer = self.encoder.layers[int(np.flatnonzero(~(np.abs(values[row]) <= limit).all(axis=1))[0])]
            raise EncoderError(
                f"the encoder gives values that are not finite, or beyond {self.storage}, in layer {layer} of clip "
                f"'{one.names[group.rows[row]]}'",
                fix="use --set extract.precision=float32 --set extract.storage=float32",
            )
        one.result.vectors[group.rows] = values.astype(self.storage)
        one.result.n_frames[group.rows] = group.batch.n_frames.numpy()
        one.left -= len(group.rows)
        self.on_clips(len(group.rows))
