"""Batches of items of unequal length: who shares one, and how they are read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from torch import Tensor

BLOCK_BATCHES = 32  # batches whose items are sorted among themselves: little padding, still near a free shuffle
READ_THREADS = 2
BATCHES_AHEAD = 2


def shuffled_batches(sizes: np.ndarray, batch_size: int, seed: int) -> list[np.ndarray]:
    """One pass over all items in random order, neighbours in length together.

    The items are shuffled and cut into blocks; within a block they are sorted by length and cut into batches, and
    these are shuffled again. The result depends on nothing but the arguments.

    Args:
        sizes: (N,) length of each item.
        batch_size: items per batch; the last one may have fewer.
        seed: of the shuffle.

    Returns:
        Positions (at most `batch_size`,) of each batch; each of the N stands in exactly one.
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
    """Cut a batch into what goes through the encoder at once.

    Args:
        items: B items, of length len(item).
        most: items in a piece at most.
        equal_length: only items of one length may share a piece.

    Returns:
        Positions in the batch; each of the B stands in exactly one piece.
    """
    groups: dict[int, list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault(len(item) if equal_length else 0, []).append(position)
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]


def read_ahead(
    batches: Iterable[np.ndarray], read: Callable[[int], Tensor]
) -> Iterator[tuple[np.ndarray, list[Tensor]]]:
    """Read batches of rows in threads, a few ahead of the one in use; what `read` raises ends it."""
    with ThreadPoolExecutor(READ_THREADS) as pool:
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
