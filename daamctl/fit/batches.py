"""Batches of items of unequal length: how to group them, and how to read them ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from torch import Tensor

from daamctl.threads import num_readers

BLOCK_BATCHES = 32  # a block of this many batches is sorted by length: little padding, yet close to a full shuffle
BATCHES_AHEAD = 2


def shuffled_batches(sizes: np.ndarray, batch_size: int, seed: int) -> list[np.ndarray]:
    """Shuffle all items into batches of similar length, for one pass.

    The items are shuffled and cut into blocks. Each block is sorted by length and cut into batches, and the batches are
    shuffled again. The result depends only on the arguments.

    Args:
        sizes: (N,) length of each item.
        batch_size: items per batch; the last one may have fewer.

    Returns:
        Positions (at most `batch_size`,) of each batch; each of the N is in exactly one.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sizes))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), BLOCK_BATCHES * batch_size):
        block = order[start : start + BLOCK_BATCHES * batch_size]
        block = block[np.argsort(sizes[block], kind="stable")]
        cut = [block[first : first + batch_size] for first in range(0, len(block), batch_size)]
        batches += [cut[index] for index in rng.permutation(len(cut))]
    return batches


def pieces(items: Sequence[Tensor], most: int, *, equal_length: bool) -> list[list[int]]:
    """Cut a batch into pieces that go through the encoder one at a time.

    Args:
        items: B items, whose last axis is their length.
        most: largest number of items in a piece.
        equal_length: only items of one length may share a piece.

    Returns:
        Positions in the batch; each of the B is in exactly one piece.
    """
    groups: dict[int, list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault(item.shape[-1] if equal_length else 0, []).append(position)
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]


def read_ahead(
    batches: Iterable[np.ndarray], read: Callable[[int], Tensor], device: str
) -> Iterator[tuple[np.ndarray, list[Tensor]]]:
    """Read batches of rows in threads, a few ahead of the current one; exceptions from `read` are raised here.

    Args:
        batches: row numbers of each batch.
        read: reads a row; called from several threads at once.
    """
    with ThreadPoolExecutor(num_readers(device)) as pool:
        waiting: deque[tuple[np.ndarray, list[Future[Tensor]]]] = deque()

        def first() -> tuple[np.ndarray, list[Tensor]]:
            rows, futures = waiting.popleft()
            return rows, [future.result() for future in futures]

        try:
            for rows in batches:
                waiting.append((rows, [pool.submit(read, row) for row in rows.tolist()]))
                if len(waiting) > BATCHES_AHEAD:
                    yield first()
            while waiting:
                yield first()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
