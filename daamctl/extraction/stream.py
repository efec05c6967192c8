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

from daamctl.encoders.base import Batch, Encoder, Pooled
from daamctl.errors import AudioError, CorpusError, EncoderError
from daamctl.extraction.batching import plan_batches
from daamctl.extraction.items import Items

log = logging.getLogger(__name__)

READ_THREADS = 2
"""Threads that read while the CPU computes."""
READ_THREADS_GPU = 8
"""At most so many where it has little else to do."""
BATCHES_AHEAD = 2
UNFINISHED, UNFINISHED_GPU = 1, 2
"""Batches whose results may be outstanding when the next one is launched."""
OUT_OF_MEMORY = ("ALLOC_FAILED", "CUDA error: out of memory", "CUDA out of memory", "can't allocate memory")
"""Words of torch's RuntimeErrors: of cuBLAS and cuDNN, the driver (pinned memory too), and DefaultCPUAllocator."""
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
    cost: int
    batch: Batch | None
    """None: main memory has no room for it."""


@dataclass
class _Set:
    """A set that is being embedded."""

    items: Items
    names: Sequence[str]
    result: Embedded
    batches: list[np.ndarray]
    left: int


@dataclass
class _Limit:
    """The most cost that a batch may have, once memory has run out; read by all threads."""

    cost: float = float("inf")


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
    limit = _Limit()
    waiting: deque[_Set] = deque()
    with ThreadPoolExecutor(1, "store") as storing:
        runner = _Runner(encoder, storage, on_clips, limit, storing)
        for one, read in _read_ahead(sets, encoder, storage, limit):
            if not waiting or waiting[-1] is not one:
                waiting.append(one)
            runner.take(one, read)
            yield None
            while waiting and not waiting[0].left:
                yield waiting.popleft().result
        runner.finish()
    for one in waiting:
        yield one.result


def _compute_alone() -> None:
    """Have torch use this thread only: a team for every reader would take the cores that the encoder computes on.

    What a clip is normalised by then does not depend on the number of threads either.
    """
    torch.set_num_threads(1)  # of this thread, and of threads that are yet to come; the caller keeps its own


def _on_gpu(encoder: Encoder) -> bool:
    return getattr(encoder, "device", "cpu").startswith("cuda")


def _read_ahead(sets: Iterable[Opener], encoder: Encoder, storage: str, limit: _Limit) -> Iterator[tuple[_Set, _Read]]:
    """Every batch of every set, in order, read in threads a few ahead of the one in use."""
    threads = min(READ_THREADS_GPU, os.cpu_count() or 1) if _on_gpu(encoder) else READ_THREADS
    readers, opener = ThreadPoolExecutor(threads, "read", _compute_alone), ThreadPoolExecutor(1, "open", _compute_alone)
    ahead: deque[tuple[_Set, Future[_Read]]] = deque()
    try:
        for one in _open_ahead(sets, encoder, storage, opener):
            for rows in one.batches or [np.empty(0, np.int64)]:
                ahead.append((one, readers.submit(_read, encoder, one.items, rows, limit)))
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
    return plan_batches(items.sizes, items.budget, equal_length=equal, enough=encoder.enough, padded=encoder.padded)


def _open(opener: Opener, encoder: Encoder, storage: str) -> _Set:
    items, names = opener()
    number = len(names)
    vectors = np.zeros((number, len(encoder.layers), encoder.embed_dim), storage)
    return _Set(items, names, Embedded(vectors, np.zeros(number, np.int32)), planned(encoder, items), number)


def _read(encoder: Encoder, items: Items, rows: np.ndarray, limit: _Limit) -> _Read:
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
        read.groups += _groups(encoder, [row for row, _ in found], [item for _, item in found], limit)
    return read


def _groups(encoder: Encoder, rows: list[int], items: list[Tensor], limit: _Limit) -> Iterator[_Group]:
    """Batches of items, as few as the limit allows."""
    cost, most = _cost(encoder, items), limit.cost
    size = len(items) if cost <= most else max(1, int(most * len(items) // cost))
    for start in range(0, len(items), size):
        part = items[start : start + size]
        try:
            batch = encoder.stage(part)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            batch = None
        yield _Group(rows[start : start + size], part, _cost(encoder, part), batch)


def _cost(encoder: Encoder, items: list[Tensor]) -> int:
    return len(items) * encoder.padded(max(item.shape[-1] for item in items))


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of the device, pinned or main: only some of torch's libraries have a class for that."""
    told = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return told or any(words in str(error) for words in OUT_OF_MEMORY)


class _Runner:
    """Runs batches, some of them unfinished when it comes back; remembers what the memory cannot hold.

    Args:
        encoder: see `embed_sets`.
        storage: see `embed_sets`.
        on_clips: see `embed_sets`.
        limit: lowered when memory runs out.
        storing: one thread, which checks results and puts them into their rows.
    """

    def __init__(
        self,
        encoder: Encoder,
        storage: str,
        on_clips: Callable[[int], None],
        limit: _Limit,
        storing: ThreadPoolExecutor,
    ) -> None:
        self.encoder, self.storage, self.on_clips, self.limit, self.storing = encoder, storage, on_clips, limit, storing
        self.format: torch.dtype = getattr(torch, storage)
        self.unfinished = UNFINISHED_GPU if _on_gpu(encoder) else UNFINISHED
        self.running: deque[tuple[_Set, int, Future[None]]] = deque()

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
            one, number, stored = self.running.popleft()
            stored.result()
            one.left -= number
            self.on_clips(number)

    def _run(self, one: _Set, group: _Group) -> None:
        """Launch a group, in parts when the device's memory is too small for the whole."""
        if len(group.items) > 1 and group.cost > self.limit.cost:
            self._run_anew(one, group)
            return
        wait = self._launched(group)
        if wait is not None:
            self.running.append((one, len(group.rows), self.storing.submit(self._store, one, group, wait)))
            self.finish(but=self.unfinished)
            return
        unit, smaller, setting = TOO_LARGE[self.encoder.modality]
        alone = not self.running
        self.finish()  # what still runs holds memory
        torch.cuda.empty_cache()
        if len(group.items) > 1:
            self.limit.cost = group.cost // 2
            log.warning("out of memory with %d clips in a batch; trying halves (lower %s)", len(group.items), setting)
        elif alone:
            raise EncoderError(
                f"one {unit.format(group.items[0].shape[-1])} does not fit in the device's memory",
                fix=f"use --device cpu{smaller}",
            )
        self._run_anew(one, group)

    def _run_anew(self, one: _Set, group: _Group) -> None:
        for part in _groups(self.encoder, group.rows, group.items, self.limit):
            self._run(one, part)

    def _launched(self, group: _Group) -> Callable[[], Pooled] | None:
        """What waits for the results of a group; None: memory has run out."""
        if group.batch is None:
            return None
        try:
            return self.encoder.launch(group.batch, self.format)
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
        return None  # only here has the error, and with it what it holds of memory, gone

    def _store(self, one: _Set, group: _Group, wait: Callable[[], Pooled]) -> None:
        """Check the vectors of a batch and put them into their rows."""
        assert group.batch is not None
        pooled = wait()
        if not bool(pooled.fits.all()):
            row, index = pooled.fits.logical_not().nonzero()[0].tolist()
            raise EncoderError(
                f"the encoder gives values that are not finite, or beyond {self.storage}, in layer "
                f"{self.encoder.layers[index]} of clip '{one.names[group.rows[row]]}'",
                fix="use --set extract.precision=float32 --set extract.storage=float32",
            )
        one.result.vectors[group.rows] = pooled.values.numpy()
        one.result.n_frames[group.rows] = group.batch.n_frames.numpy()
