"""The back-off of every training when a device runs out of memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from daamctl.devices import is_out_of_memory

log = logging.getLogger(__name__)

T = TypeVar("T")


class Room:
    """How many items a device takes at once. The number is halved for good whenever memory runs out.

    Args:
        most: items to begin with.
        smallest: number that is not halved further.
    """

    def __init__(self, most: int, *, smallest: int = 1) -> None:
        self.most, self.smallest = most, smallest

    def attempt(self, work: Callable[[int], T], size: int) -> T:
        """Run `work` with the largest number of items at once, again with half of them after each failure.

        Args:
            work: takes the number; it must be harmless to run it again.

        Raises:
            OutOfMemoryError: not even the smallest number fits.
        """
        while True:
            try:
                return work(min(self.most, size))
            except (RuntimeError, MemoryError) as error:
                if min(self.most, size) <= self.smallest or not is_out_of_memory(error):
                    raise
            # retried outside the block above, which keeps the failed pass's tensors alive
            torch.cuda.empty_cache()
            self.most = max(min(self.most, size) // 2, self.smallest)
            log.warning("out of memory: from now on %d items at once", self.most)

    def in_pieces(self, work: Callable[[int, int], T], size: int) -> list[T]:
        """Run `work` on consecutive pieces of `size` items, from one position to another.

        Raises:
            OutOfMemoryError: as `attempt`.
        """
        found: list[T] = []
        start = 0
        while start < size:

            def piece(most: int, first: int = start) -> tuple[T, int]:
                return work(first, min(first + most, size)), min(first + most, size)

            result, start = self.attempt(piece, size - start)
            found.append(result)
        return found
