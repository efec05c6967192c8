"""Measure how fast an open encoder embeds items on this machine: time a few batches, then extrapolate.

Batches of the longest, medium and shortest items are timed, truncated if a whole one would take too long. The time per
unit of cost (sample, token, image; padding included) is interpolated by the length of the batch: it grows with length
in attention, and falls with length if an encoder pads everything to one size.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import polars as pl
import psutil  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from torch import Tensor

from daamctl.config import Config, ExtractConfig
from daamctl.devices import free_on
from daamctl.encoders.base import Encoder
from daamctl.encoders.encoder_size import EncoderSize
from daamctl.encoders.load import HEADROOM
from daamctl.errors import EncoderError
from daamctl.extraction.items import Items, open_items
from daamctl.extraction.stream import embed_clips, planned

POLL_S = 0.005
TOKEN = 7
"""A token id that exists in every vocabulary."""
STAND_IN_BYTES = 8_000_000_000
"""Weights up to this size are generated at random for timing; larger ones take minutes to generate."""
CHARACTERS_PER_TOKEN = 4
"""Approximate for English, used if the tokenizer is not available."""
SAMPLE_TEXTS = 2000
"""Number of texts to tokenise to estimate lengths."""
TYPICAL_NUMBER = 64
"""Number of items to time if their total number is unknown."""
TYPICAL_CHARACTERS = 400.0


@dataclass(frozen=True)
class Speed:
    """Extrapolated speed of embedding.

    Args:
        seconds: time to embed all items.
        cost: total cost of all items, padding included.
        largest: largest cost of a planned batch.
        tried: largest cost of a timed batch.
    """

    seconds: float
    cost: int
    largest: int
    tried: int

    @property
    def per_cost(self) -> float:
        """Seconds per sample, token or image."""
        return self.seconds / max(self.cost, 1)


class Chosen:
    """A selection of the items, by row; see `Items`."""

    def __init__(self, items: Items, rows: np.ndarray) -> None:
        self.items, self.rows = items, rows.tolist()
        self.sizes, self.budget = items.sizes[rows], items.budget

    def read(self, row: int) -> Tensor:
        """Read an item by its row in the selection."""
        return self.items.read(self.rows[row])

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """Warnings about an item; see `Items`."""
        return self.items.marks(item)


class RandomItems:
    """Random items of given sizes, if the real ones are missing or cannot be read without the tokenizer.

    Args:
        encoder: the encoder that will read them.
        sizes: (N,) samples, tokens, or 1 per image.
        budget: largest cost of a batch.
    """

    def __init__(self, encoder: Encoder, sizes: np.ndarray, budget: int) -> None:
        self.encoder: Any = encoder
        self.sizes, self.budget = sizes, budget

    def read(self, row: int) -> Tensor:
        """Generate a random item of the row's size."""
        if self.encoder.modality == "image":
            return torch.randn(3, *self.encoder.image_size)
        if self.encoder.modality == "text":
            return torch.full((int(self.sizes[row]),), TOKEN)
        return 0.1 * torch.randn(int(self.sizes[row]))

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """No warnings."""
        return ()


class PeakMemory:
    """Peak memory of a `with` block beyond what was in use before, on the GPU if `device` is one, else in RAM."""

    def __init__(self, device: str) -> None:
        self.device, self.peak, self.before = device, 0, 0
        self._ended = threading.Event()

    def __enter__(self) -> PeakMemory:
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(self.device)
            self.before = torch.cuda.memory_allocated(self.device)
        else:
            self._process = psutil.Process()
            self.before = self._process.memory_info().rss
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.startswith("cuda"):
            self.peak = torch.cuda.max_memory_allocated(self.device)
        else:
            self._ended.set()
            self._thread.join()

    @property
    def taken(self) -> int:
        """Peak memory, in bytes."""
        return max(0, self.peak - self.before)

    def _poll(self) -> None:
        while True:
            self.peak = max(self.peak, self._process.memory_info().rss)
            if self._ended.wait(POLL_S):
                return


def why_not_timed(size: EncoderSize, nbytes: int, config: ExtractConfig, device: str) -> str | None:
    """Reason not to load weights for timing: they need too much memory or take too long to generate; None if none.

    Args:
        size: size of the encoder.
        nbytes: memory that the weights take.
        config: the extract settings.
        device: resolved device.
    """
    takes = f"its weights take {nbytes / 1e9:.1f} GB"
    gpus = [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]
    if sum(gpus) < 1e9 * config.min_gpu_memory_gb:
        return f"it needs {config.min_gpu_memory_gb:g} GB of GPU memory ({takes})"
    free = free_on(device)
    room = sum(free) - len(free) * HEADROOM if device.startswith("cuda") else sum(free) / 2
    if nbytes > room:
        return f"{takes}, {sum(free) / 1e9:.1f} GB are free on {device}"
    if not size.here and nbytes > STAND_IN_BYTES:
        return f"its weights are not here, and {nbytes / 1e9:.1f} GB of random ones take minutes to make"
    return None


def items_to_time(
    encoder: Encoder,
    config: Config,
    *,
    clips: pl.DataFrame | None,
    root: Path | None,
    lengths: NDArray[np.float64] | None,
    own_tokens: bool,
) -> tuple[Items, float | None]:
    """Items for timing: the pipeline's own if readable, else random ones of the same lengths, else of typical length.

    Args:
        encoder: the encoder that will read them.
        config: settings of the pipeline.
        clips: the clip table; None: not written yet.
        root: folder that its paths are relative to; None: it does not exist.
        lengths: (N,) seconds, characters, or 1 per image; None: unknown.
        own_tokens: whether the encoder has its real tokenizer rather than a stand-in.

    Returns:
        the items, and the number of real items that each stands for (None: unknown).
    """
    modality, reader = encoder.modality, _as_any(encoder)
    if clips is not None and root is not None and (modality != "text" or own_tokens):
        rows = clips
        if modality == "text" and len(rows) > SAMPLE_TEXTS:
            rows = rows[np.linspace(0, len(rows) - 1, SAMPLE_TEXTS).astype(int)]
        return open_items(rows, modality, root, encoder, config), len(clips) / len(rows)
    settings = config.extract
    typical = {"speech": config.segment.max_duration_s, "text": TYPICAL_CHARACTERS, "image": 1.0}[modality]
    known = np.full(TYPICAL_NUMBER, typical) if lengths is None else lengths
    if modality == "speech":
        sizes, budget = known * reader.sampling_rate, settings.max_batch_s * reader.sampling_rate
    elif modality == "text":
        sizes, budget = np.clip(known / CHARACTERS_PER_TOKEN, 1, reader.max_tokens), settings.max_batch_tokens
    else:
        sizes, budget = known, settings.max_batch_images
    items = RandomItems(encoder, np.maximum(1, np.round(sizes)).astype(np.int64), round(budget))
    return items, None if lengths is None else 1.0


def time_embedding(encoder: Encoder, items: Items, *, storage: str, within_s: float) -> Speed:
    """Time a few batches.

    Args:
        encoder: open encoder.
        items: all items, N > 0, or a sample of them.
        storage: `float16` or `float32`.
        within_s: approximate time limit in seconds; at least one item is tried.

    Raises:
        EncoderError: the encoder can read none of the items tried, or returns values that cannot be stored.
    """
    batches = planned(encoder, items)
    longest = np.array([int(items.sizes[batch].max()) for batch in batches])
    costs = longest * np.array([len(batch) for batch in batches])

    def seconds(rows: np.ndarray) -> float:
        started = time.perf_counter()
        names = [f"item {row}" for row in rows.tolist()]
        done = embed_clips(encoder, Chosen(items, rows), names, storage=storage)
        if len(done.unreadable) == len(rows):
            raise EncoderError(f"none of {len(rows)} items tried can be read: {next(iter(done.unreadable.values()))}")
        return time.perf_counter() - started

    one = batches[-1][:1]
    size = max(int(items.sizes[one[0]]), 1)
    took = seconds(one)  # includes one-time preparation
    if took < within_s / 2:
        took = seconds(one)
    per_cost = took / size
    if took >= within_s / 2:
        return Speed(per_cost * int(costs.sum()), int(costs.sum()), int(costs.max()), size)
    found: dict[int, float] = {}
    tried = 0
    chosen = sorted({0, len(batches) // 2, len(batches) - 1}, reverse=True)
    for number in chosen:
        most = int(within_s / len(chosen) / per_cost / max(longest[number], 1))
        rows = batches[number][: max(1, most)]
        cost = len(rows) * int(longest[number])
        found[int(longest[number])] = per_cost = seconds(rows) / max(cost, 1)
        tried = max(tried, cost)
    lengths = sorted(found)
    rates = np.interp(longest, lengths, [found[length] for length in lengths])
    return Speed(float((costs * rates).sum()), int(costs.sum()), int(costs.max()), tried)


def _as_any(encoder: Encoder) -> Any:
    """The encoder typed as Any, for attributes that only its modality has."""
    return encoder
