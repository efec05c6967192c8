"""Parts of a split (training, dev, test) in memory or on disk, from which the training loop draws batches.

A part on disk is shuffled through a buffer: its shards are read in random order, a pool holds the clips of the last
few, and batches are drawn from the pool at random. The order depends only on the seed, the batch size and the shards,
never on the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor

from daamctl.artifacts.embeddings import StoredVectors

POOL_CLIPS = 4096
"""Size of the pool from which batches of a part on disk are drawn: eight shards of the usual size. It determines the
order of batches, so it is fixed, however much memory there is."""


class Part(Protocol):
    """One part of a split, N clips."""

    @property
    def y(self) -> Tensor:
        """(N,) class ids."""

    def __len__(self) -> int: ...

    def batches(self, batch_size: int, order_seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every clip once, in batches of equal size; the last one may be smaller.

        Args:
            batch_size: B.
            order_seed: seed of a random order; None: the order of the part.

        Yields:
            (B, L, D) in the stored number format, and (B,) class ids.
        """

    def stream(self, batch_size: int, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of exactly B clips, cut from endless shuffled passes.

        Args:
            batch_size: B.
            start: number of batches to leave out.

        Yields:
            as `batches`.
        """


def pass_seed(seed: int, number: int) -> int:
    """Seed of the order of a pass, counted from 0, and of dropout in it."""
    return seed * 1_000_003 + number + 1


def cut(pieces: Iterable[tuple[Tensor, Tensor]], batch_size: int, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut pairs of tensors into pairs of exactly `batch_size` rows, without the first `skip` rows."""
    rest: tuple[Tensor, Tensor] | None = None
    for more in pieces:
        x, y = more if rest is None else (torch.cat(both) for both in zip(rest, more, strict=True))
        left_out = min(skip, len(y))
        x, y, skip = x[left_out:], y[left_out:], skip - left_out
        while len(y) >= batch_size:
            yield x[:batch_size], y[:batch_size]
            x, y = x[batch_size:], y[batch_size:]
        rest = (x, y) if len(y) else None


@dataclass(frozen=True, eq=False)
class InMemorySplit:
    """A part in memory, or on the device.

    Args:
        x: (M, L, D) pooled layers in the stored number format.
        y: (N,) class ids, on the same device.
        rows: (N,) rows of `x` that belong to the part, on the same device; None: all, in order.
        pin: yield batches in page-locked memory, from which a GPU copies asynchronously.
    """

    x: Tensor
    y: Tensor
    rows: Tensor | None = None
    pin: bool = False

    def __len__(self) -> int:
        return len(self.y)

    def order(self, seed: int) -> tuple[Tensor, Tensor]:
        """A random order: rows of `x` (N,), and their class ids (N,)."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).to(self.x.device)
        return order if self.rows is None else self.rows[order], self.y[order]

    def stream_rows(self, batch_size: int, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Like `stream`, with rows of `x` (B,) instead of clips."""
        first, skip = divmod(start * batch_size, len(self))
        return cut((self.order(pass_seed(seed, number)) for number in itertools.count(first)), batch_size, skip)

    def stream(self, batch_size: int, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Part`."""
        for rows, y in self.stream_rows(batch_size, seed, start):
            yield _pinned(self.x[rows], self.pin), _pinned(y, self.pin)

    def batches(self, batch_size: int, order_seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches by indexing the tensor; see `Part`."""
        if order_seed is None and self.rows is None:
            for x, targets in zip(self.x.split(batch_size), self.y.split(batch_size), strict=True):
                yield _pinned(x, self.pin), _pinned(targets, self.pin)
            return
        rows, y = (self.rows, self.y) if order_seed is None else self.order(order_seed)
        assert rows is not None
        for some, targets in zip(rows.split(batch_size), y.split(batch_size), strict=True):
            yield _pinned(self.x[some], self.pin), _pinned(targets, self.pin)


@dataclass(frozen=True, eq=False)
class StreamedSplit:
    """A part on disk, read again in every pass.

    Memory holds at most three shards, the current batch and, when shuffling, a pool of `POOL_CLIPS` clips.

    Args:
        rows: (N,) row numbers in the embeddings, ascending.
        y: (N,) class ids.
        pin: yield batches in page-locked memory, from which a GPU copies asynchronously.
    """

    stored: StoredVectors
    rows: NDArray[np.int64]
    y: Tensor
    pin: bool = False

    def __post_init__(self) -> None:
        if (np.diff(self.rows) <= 0).any():
            raise ValueError("rows must ascend: shards are read once, in their order")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes that the part takes once in memory."""
        return len(self) * (self.stored.nbytes // max(len(self.stored), 1))

    def hold(self, device: str = "cpu") -> InMemorySplit:
        """Read the part once, into memory or onto a device."""
        x = self._empty(len(self), device)
        for places, block in self.stored.blocks(self.rows):
            x[places[0] : places[-1] + 1] = torch.from_numpy(block)
        return InMemorySplit(x, self.y.to(device), pin=self.pin and device == "cpu")

    def batches(self, batch_size: int, order_seed: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches shard by shard; see `Part`.

        Raises:
            ArtifactError: a shard can no longer be read.
        """
        if order_seed is None:
            return self._in_order(batch_size)
        return self._shuffled(batch_size, np.random.default_rng(order_seed))

    def stream(self, batch_size: int, seed: int, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Part`."""
        first, skip = divmod(start * batch_size, len(self))
        passes = (self.batches(batch_size, pass_seed(seed, number)) for number in itertools.count(first))
        for x, y in cut(itertools.chain.from_iterable(passes), batch_size, skip):
            yield _pinned(x, self.pin), _pinned(y, self.pin)

    def _in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        given, rest = 0, self._empty(0)
        for _, block in self.stored.blocks(self.rows):
            rest = torch.cat([rest, torch.from_numpy(block)])
            del block  # free it before the next block is read
            while len(rest) >= min(batch_size, len(self) - given) > 0:
                batch, rest = rest[:batch_size], rest[batch_size:]
                yield _pinned(batch, self.pin), _pinned(self.y[given : given + len(batch)], self.pin)
                given += len(batch)

    def _shuffled(self, batch_size: int, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        largest = int(np.diff(self.stored.starts).max(initial=0))
        pool = self._empty(min(len(self), POOL_CLIPS + batch_size + largest))
        clip = np.zeros(len(pool), np.int64)  # for each slot of the pool, the position of its clip in the part
        free, filled, seen = np.arange(len(pool)), np.empty(0, np.int64), 0
        for places, block in self.stored.blocks(self.rows, rng):
            slots, free = free[: len(places)], free[len(places) :]
            pool[slots], clip[slots] = torch.from_numpy(block), places
            del block
            seen += len(places)
            filled = rng.permutation(np.concatenate([filled, slots]))
            spare = len(filled) if seen == len(self) else (len(filled) - POOL_CLIPS) // batch_size * batch_size
            drawn, filled = np.split(filled, [max(spare, 0)])
            for start in range(0, len(drawn), batch_size):
                chosen = drawn[start : start + batch_size]
                batch = torch.empty((len(chosen), *pool.shape[1:]), dtype=pool.dtype, pin_memory=self.pin)
                torch.index_select(pool, 0, torch.from_numpy(chosen), out=batch)
                yield batch, _pinned(self.y[torch.from_numpy(clip[chosen])], self.pin)
            free = np.concatenate([free, drawn])

    def _empty(self, number: int, device: str = "cpu") -> Tensor:
        dtype = torch.from_numpy(np.empty(0, self.stored.dtype)).dtype
        return torch.empty((number, *self.stored.shape[1:]), dtype=dtype, device=device)


def _pinned(x: Tensor, pin: bool) -> Tensor:
    return x.pin_memory() if pin else x


class InBatches:
    """A part of a split as `FusionClassifier.choose` reads it, in batches: see `HeldOut`.

    Args:
        device: where the batches go, as float32.
    """

    def __init__(self, part: Part, device: str) -> None:
        self.part, self.device = part, device

    def __len__(self) -> int:
        return len(self.part)

    def split(self, batch_size: int) -> Iterator[Tensor]:
        """Yield batches one at a time, like `Tensor.split`."""
        return (on_device(x, self.device) for x, _ in self.part.batches(batch_size))


def on_device(x: Float[Tensor, "*B L D"], device: str) -> Float32[Tensor, "*B L D"]:
    """Move a batch (B, L, D), or one for each of several models (M, B, L, D), to the device as float32.

    It is converted there, so that only half as many bytes are copied. From page-locked memory the copy is asynchronous.
    """
    return x.to(device, non_blocking=device.startswith("cuda")).to(torch.float32)
