"""Embeddings of a corpus as training data: held in memory or on a GPU, or streamed from disk in every pass.

A fold is trained on parts of them (training, dev, test), from which batches are drawn. A part on disk is shuffled
through a buffer: its shards are read in random order, a pool holds the clips of the last few, and batches are drawn
from the pool at random. The order depends only on the seed, the batch size and the shards, never on the machine.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.embeddings import EmbeddingsMetadata, StoredVectors, open_embeddings
from daamctl.artifacts.inputs import embeddings_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.splits import Split
from daamctl.compute.devices import free_memory, is_held, resolve_device
from daamctl.config import Config
from daamctl.methods.base import WHITENED, Standardize
from daamctl.methods.ridge import scaling_of

log = logging.getLogger(__name__)

POOL_CLIPS = 4096
"""Size of the pool from which batches of a part on disk are drawn: eight shards of the usual size. It determines the
order of batches, so it is fixed, however much memory there is."""
HELD_SHARE = 0.25  # of free memory: a dev or test part on disk up to this size is read once, not every epoch
GPU_HEADROOM = 8_000_000_000
"""Bytes of a GPU to leave free beside the features. The convolutional decoder keeps two maps of 512 channels for the
256 clips of an evaluation batch, which take 5.4 GB with 5120 features. On a small GPU, half of the memory is left
instead."""
STANDARDIZE_BATCH = 1024
WHITEN_CLIPS = 2048
"""Most clips from which the principal components of a layer are computed: every second, third, ... of a larger part."""
NEARLY_ALL = 0.95  # of the variance of a layer: 32 components hold 35 to 81 % in pretrained encoders of speech and text
WHITEN_RIDGE = 0.1  # of the mean variance of a component
Pairs = Iterator[tuple[Tensor, Tensor]]
"""Batches of clips (B, L, D) in the stored number format, and their class ids (B,)."""


@dataclass(frozen=True)
class Features:
    """Embeddings of a corpus.

    A tensor in memory is pickled as an array, which the worker processes of a machine can share.

    Args:
        x: (N, L, D) in the stored number format; vectors on disk are read on demand.
        stream: training reads them from disk in every epoch, in a different order than from memory.
        shard_clips: clips of a shard, which decide that order; None: the usual number.
    """

    head: EmbeddingsMetadata
    clips: pl.DataFrame
    x: Tensor | StoredVectors
    layers: tuple[int, ...]
    stream: bool = False
    shard_clips: int | None = None

    @property
    def table(self) -> ClipTable:
        """The clips; their groups are the folds."""
        head = self.head
        return ClipTable(head.corpus, head.classes, self.clips, head.settings, head.modality)

    def targets(self) -> Tensor:
        """Class ids (N,)."""
        index = {name: i for i, name in enumerate(self.head.classes)}
        return torch.tensor([index[label] for label in self.clips["label"]])

    def subset(self, layers: tuple[int, ...]) -> Features:
        """The same clips with fewer layers."""
        if isinstance(self.x, StoredVectors):
            return replace(self, x=self.x.subset(layers), layers=layers)
        rows = [self.layers.index(layer) for layer in layers]
        return replace(self, x=self.x[:, rows].contiguous(), layers=layers)

    def to_memory(self, config: Config) -> Features:
        """Read the features into memory if it is large enough (`is_held`); else every epoch streams them from disk."""
        stored = self.x
        if not isinstance(stored, StoredVectors):
            return self
        if is_held(stored.nbytes, config.train.features):
            return replace(self, x=torch.from_numpy(stored.load()), stream=False)
        log.info("the embeddings take %.1f GB in memory: every epoch reads them from disk", stored.nbytes / 1e9)
        return replace(self, stream=True)

    def to_gpu(self, config: Config, tasks: int = 1) -> Features:
        """Move all features to the training GPU if they fit; otherwise return them unchanged. All folds share them.

        Features on disk are read shard by shard, so they need not fit in main memory.

        Args:
            config: training settings; with `train.features=stream` nothing is held.
            tasks: number of processes that share the GPU, each with its own copy of the features.
        """
        device = resolve_device(config.train.device)
        if config.train.features == "stream" or self.x.nbytes > gpu_room(device, tasks):
            return self
        log.info("the embeddings take %.1f GB: held on %s", self.x.nbytes / 1e9, device)
        if isinstance(self.x, Tensor):
            return replace(self, x=self.x.to(device))
        whole = StreamedSplit(self.x, np.arange(len(self.x)), self.targets())
        return replace(self, x=whole.hold(device).x, stream=False)

    def part(self, rows: np.ndarray, device: str, *, evaluated: bool = False) -> Part:
        """The clips of the given ascending rows.

        Features in memory or on a GPU are not copied: the parts index them, so folds share them. Features on disk are
        streamed, except that a small part that is only `evaluated` is read once and held.
        """
        index = torch.from_numpy(rows)
        y = self.targets()[index]
        if isinstance(self.x, Tensor):
            pin = device.startswith("cuda") and self.x.device.type == "cpu"
            return InMemorySplit(self.x, y.to(self.x.device), index.to(self.x.device), pin=pin)
        assert self.stream, "`to_memory` decides it, because the key of the fold depends on it"
        part = StreamedSplit(self.x, rows, y, pin=device.startswith("cuda"))
        return part.hold() if evaluated and part.nbytes <= HELD_SHARE * free_memory() else part

    def parts(self, split: Split, device: str) -> tuple[Part, Part | None, Part]:
        """Training, held-out and test part."""
        dev = None if split.dev_group is None else self.part(split.dev, device, evaluated=True)
        return self.part(split.train, device), dev, self.part(split.test, device, evaluated=True)

    def __getstate__(self) -> dict[str, Any]:
        x = self.x.numpy() if isinstance(self.x, Tensor) else self.x
        return {**self.__dict__, "x": x}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["x"], np.ndarray):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes
                state = {**state, "x": torch.from_numpy(state["x"])}
        self.__dict__.update(state)


def open_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Open the embeddings on disk, without reading vectors; this suffices to tell which folds are finished.

    Raises:
        ArtifactError: they are missing or were made with other settings; names the settings and the command.
    """
    head = embeddings_of(layout, config)
    clips, stored = open_embeddings(layout.embeddings, layers)
    usual = min(Config().extract.shard_clips, len(stored) + len(head.unreadable))
    first = int(stored.starts[1])
    # unreadable clips are missing in their shards; nothing tells in which, so a little less counts as usual too
    is_usual = 0 <= usual - first <= len(head.unreadable)
    return Features(head, clips, stored, stored.layers, config.train.features == "stream", None if is_usual else first)


def load_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Open the embeddings and decide where training reads them from: `open_features`, then `to_memory`."""
    return open_features(layout, config, layers).to_memory(config)


def gpu_room(device: str, tasks: int) -> float:
    """Bytes of a GPU that one of `tasks` processes may use for features; 0 on other devices."""
    if not device.startswith("cuda"):
        return 0
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch, which reuses it
    ours = min(free, total / tasks)
    return max(ours - GPU_HEADROOM, ours / 2)


@dataclass(frozen=True, eq=False)
class InMemorySplit:
    """A part of N clips in memory, or on the device.

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

    def stream_rows(self, batch_size: int, seed: int, start: int) -> Pairs:
        """Like `stream`, with rows of `x` (B,) instead of clips."""
        first, skip = divmod(start * batch_size, len(self))
        return cut((self.order(pass_seed(seed, number)) for number in itertools.count(first)), batch_size, skip)

    def stream(self, batch_size: int, seed: int, start: int) -> Pairs:
        """Yield batches of exactly B clips, cut from endless shuffled passes, without the first `start` batches."""
        for rows, y in self.stream_rows(batch_size, seed, start):
            yield _pinned(self.x[rows], self.pin), _pinned(y, self.pin)

    def batches(self, batch_size: int, order_seed: int | None = None) -> Pairs:
        """Yield every clip once, in batches of equal size; the last one may be smaller.

        Args:
            order_seed: seed of a random order; None: the order of the part.
        """
        rows, y = (self.rows, self.y) if order_seed is None else self.order(order_seed)
        for start in range(0, len(self), batch_size):
            some = slice(start, start + batch_size)
            yield _pinned(self.x[some if rows is None else rows[some]], self.pin), _pinned(y[some], self.pin)


@dataclass(frozen=True, eq=False)
class StreamedSplit:
    """A part of N clips on disk, read again in every pass.

    Memory holds at most three shards, the current batch and, when shuffling, a pool of `POOL_CLIPS` clips.

    Args:
        rows: (N,) row numbers in the embeddings, ascending.
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

    def stream(self, batch_size: int, seed: int, start: int) -> Pairs:
        """See `InMemorySplit.stream`."""
        first, skip = divmod(start * batch_size, len(self))
        passes = (self.batches(batch_size, pass_seed(seed, number)) for number in itertools.count(first))
        for x, y in cut(itertools.chain.from_iterable(passes), batch_size, skip):
            yield _pinned(x, self.pin), _pinned(y, self.pin)

    def batches(self, batch_size: int, order_seed: int | None = None) -> Pairs:
        """Yield batches shard by shard; see `InMemorySplit.batches`.

        Raises:
            ArtifactError: a shard can no longer be read.
        """
        if order_seed is not None:
            yield from self._shuffled(batch_size, np.random.default_rng(order_seed))
            return
        given, rest = 0, self._empty(0)
        for _, block in self.stored.blocks(self.rows):
            rest = torch.cat([rest, torch.from_numpy(block)])
            del block  # free it before the next block is read
            while len(rest) >= min(batch_size, len(self) - given) > 0:
                batch, rest = rest[:batch_size], rest[batch_size:]
                yield _pinned(batch, self.pin), _pinned(self.y[given : given + len(batch)], self.pin)
                given += len(batch)

    def _shuffled(self, batch_size: int, rng: np.random.Generator) -> Pairs:
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
            # Only what exceeds the pool is drawn, in whole batches, so the order depends on nothing but its size.
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


Part = InMemorySplit | StreamedSplit


class BatchedPart:
    """A part as `FusionClassifier.choose` reads it, in batches that go to a device as float32: see `HeldOut`."""

    def __init__(self, part: Part, device: str) -> None:
        self.part, self.device = part, device

    def __len__(self) -> int:
        return len(self.part)

    def split(self, batch_size: int) -> Iterator[Tensor]:
        """Yield batches one at a time, like `Tensor.split`."""
        return (on_device(x, self.device) for x, _ in self.part.batches(batch_size))


def pass_seed(seed: int, number: int) -> int:
    """Seed of the order of a pass, counted from 0, and of dropout in it."""
    return seed * 1_000_003 + number + 1


def cut(pieces: Iterable[tuple[Tensor, Tensor]], batch_size: int, skip: int) -> Pairs:
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


def _pinned(x: Tensor, pin: bool) -> Tensor:
    return x.pin_memory() if pin else x


def on_device(x: Float[Tensor, "*B L D"], device: str) -> Float32[Tensor, "*B L D"]:
    """Move a batch (B, L, D), or one for each of several models (M, B, L, D), to the device as float32.

    It is converted there, so that only half as many bytes are copied. From page-locked memory the copy is asynchronous.
    """
    return x.to(device, non_blocking=device.startswith("cuda")).to(torch.float32)


def fit_standardize(part: Part, kind: str, device: str) -> Standardize:
    """Measure the mean and standard deviation of a training part, for `train.standardize`.

    Args:
        kind: layer: one mean and deviation per layer, over clips and features; feature: one per layer and feature;
            whiten: like feature, and the directions to shrink, see `_whiten`.
        device: where to compute; sums are in float64, so mps, which lacks it, falls back to the CPU.
    """
    where = "cpu" if device == "mps" else device
    mean, squares, clips = torch.zeros((), device=where), torch.zeros((), device=where), 0
    stride, sample = -(-len(part) // WHITEN_CLIPS), []
    for x, _ in part.batches(STANDARDIZE_BATCH):
        if kind == "whiten":
            sample.append(x[-clips % stride :: stride].cpu())  # every `stride`-th clip of the part
        wide = x.to(where, torch.float64)  # (B, L, D)
        clips, before = clips + len(wide), clips
        centre = wide.mean(0)
        shift = centre - mean
        # update of Chan, Golub and LeVeque: sums of squares would cancel if the mean is large compared to the spread
        squares = squares + (wide - centre).square().sum(0) + shift.square() * (before * len(wide) / clips)
        mean = mean + shift * (len(wide) / clips)
    variance = squares / clips
    if kind == "layer":
        overall = mean.mean(-1, keepdim=True)
        variance = (variance + (mean - overall).square()).mean(-1, keepdim=True)
        mean = overall
    deviation = variance.sqrt()
    deviation = torch.where(deviation > 1e-9 * mean.abs(), deviation, 0)  # 0: only the rounding error of a constant
    mean, deviation = mean.float().cpu(), deviation.float().cpu()
    return _whiten(mean, deviation, torch.cat(sample)) if kind == "whiten" else Standardize(mean, deviation)


def is_collinear(part: Part) -> bool:
    """Whether few principal components hold nearly all variance of the standardised layers, on average over layers.

    Few are a quarter of the clips, or of the features that are not constant, at most as many as whitening shrinks;
    nearly all is `NEARLY_ALL`.

    Args:
        part: some hundred clips of the training part.
    """
    x = torch.cat([x for x, _ in part.batches(STANDARDIZE_BATCH)]).cpu()
    shares = []
    for layer in x.unbind(1):  # (N, D)
        scaling = scaling_of(layer)
        z = scaling(layer)[:, scaling.scale > 0]
        few = min(WHITENED, len(z) // 4, z.shape[1] // 4)
        variances = torch.linalg.svdvals(z).square()
        shares.append((variances[:few].sum() / variances.sum()).item() if few else 0.0)
    return sum(shares) / len(shares) > NEARLY_ALL


def _whiten(mean: Float[Tensor, "L D"], deviation: Float[Tensor, "L D"], x: Float[Tensor, "N L D"]) -> Standardize:
    """Standardise, and shrink the first `WHITENED` principal components of every standardised layer.

    Features of a layer are correlated. Where a few components hold nearly all of its variance, gradient steps learn
    little from the others. So a component of variance v is multiplied by ((w + r) / (v + r))^(1/2), where w is the
    variance of the first one that is not shrunk, and r is `WHITEN_RIDGE`. Then all features are divided by
    (w + r)^(1/2). Removing such components altogether helps vectors of words (Mu and Viswanath, arXiv:1702.01417).

    Args:
        x: clips of the training part, in the stored number format.
    """
    plain = Standardize(mean, deviation)
    shrunk, known = min(WHITENED, mean.shape[1]), min(WHITENED + 1, mean.shape[1])  # number of components
    directions, divisor = torch.zeros(*mean.shape, shrunk), torch.ones(len(mean), 1)
    for layer in range(len(mean)):
        z = (x[:, layer].float() - mean[layer]) * plain.scale[layer]
        _, lengths, components = torch.linalg.svd(z, full_matrices=False)
        variances = torch.full((known,), WHITEN_RIDGE)  # of fewer clips, the last components have none of their own
        variances[: len(lengths)] += lengths[:known].square() / len(z)
        first = components[:shrunk]
        factors = (variances[-1] / variances[: len(first)]).sqrt()
        # z - v v'z is a projection; with (1 - f)^(1/2) v in place of v it shrinks to the factor f instead
        directions[layer, :, : len(first)] = first.mT * (1 - factors).sqrt()
        divisor[layer] = variances[-1].sqrt()
    return Standardize(mean, deviation * divisor, directions)
