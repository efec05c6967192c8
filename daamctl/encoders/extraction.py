"""Embed items with an open encoder: read ahead, batch by size, pool, check. The same for speech, text and images."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from daamctl.encoders.base import Encoder
from daamctl.encoders.batching import plan_batches
from daamctl.encoders.items import Items
from daamctl.errors import AudioError, CorpusError, EncoderError

log = logging.getLogger(__name__)

READ_THREADS = 2
BATCHES_AHEAD = 2
Unreadable = AudioError | CorpusError
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
        encoder: open encoder.
        items: the clips as the encoder reads them.
        clip_ids: their names, for messages.
        storage: `float16` or `float32`.
        on_clips: called with the number of clips finished.

    Raises:
        EncoderError: the encoder gives values that are not finite, or too large for `storage`.
    """
    batches = plan_batches(items.sizes, items.budget, equal_length=encoder.equal_length_batches)
    shape = (len(clip_ids), len(encoder.layers), encoder.embed_dim)
    result = Embedded(np.zeros(shape, storage), np.zeros(len(clip_ids), np.int32))
    for batch, read in _read_ahead(batches, items):
        readable: list[tuple[int, Tensor]] = []
        for row, item in zip(batch.tolist(), read, strict=True):
            if isinstance(item, Unreadable):
                result.unreadable[row] = item.message
                continue
            readable.append((row, item))
            for mark in items.marks(item):
                result.marks.setdefault(mark, []).append(row)
        for group in _groups(readable, encoder.equal_length_batches):
            _pool_into(result, encoder, group, clip_ids, storage)
        on_clips(len(batch))
    return result


def _read_ahead(batches: Sequence[np.ndarray], items: Items) -> Iterator[tuple[np.ndarray, list[Tensor | Unreadable]]]:
    """Read batches in threads, a few ahead of the one in use."""
    with ThreadPoolExecutor(READ_THREADS) as pool:
        waiting: list[list[Future[Tensor | Unreadable]]] = []
        for index in range(len(batches) + BATCHES_AHEAD):
            if index < len(batches):
                waiting.append([pool.submit(_read, items, row) for row in batches[index].tolist()])
            if index >= BATCHES_AHEAD:
                yield batches[index - BATCHES_AHEAD], [future.result() for future in waiting.pop(0)]


def _read(items: Items, row: int) -> Tensor | Unreadable:
    try:
        return items.read(row)
    except (AudioError, CorpusError) as error:
        return error


def _groups(clips: list[tuple[int, Tensor]], equal_length: bool) -> list[list[tuple[int, Tensor]]]:
    """Split a batch whose lengths, once read, turned out unequal, where the encoder needs them equal."""
    if not equal_length:
        return [clips] if clips else []
    by_length: dict[int, list[tuple[int, Tensor]]] = {}
    for row, item in clips:
        by_length.setdefault(len(item), []).append((row, item))
    return list(by_length.values())


def _pool_into(
    result: Embedded, encoder: Encoder, group: list[tuple[int, Tensor]], clip_ids: Sequence[str], storage: str
) -> None:
    rows = [row for row, _ in group]
    pooled, n_frames = _pool(encoder, [item for _, item in group])
    values = pooled.numpy()
    limit = float(np.finfo(np.dtype(storage)).max)
    bad = ~(np.abs(values) <= limit).all(axis=(1, 2))  # also catches NaN
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        layer = encoder.layers[int(np.flatnonzero(~(np.abs(values[row]) <= limit).all(axis=1))[0])]
        raise EncoderError(
            f"the encoder gives values that are not finite, or beyond {storage}, in layer {layer} of clip "
            f"'{clip_ids[rows[row]]}'",
            fix="use --set extract.precision=float32 --set extract.storage=float32",
        )
    result.vectors[rows] = values.astype(storage)
    result.n_frames[rows] = n_frames.numpy()


def _pool(encoder: Encoder, items: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pool a batch, in two halves when the device's memory is too small for the whole."""
    try:
        return encoder.pool(items)
    except torch.OutOfMemoryError:
        one, smaller, setting = TOO_LARGE[encoder.modality]
        if len(items) == 1:
            raise EncoderError(
                f"one {one.format(items[0].shape[-1])} does not fit in the device's memory",
                fix=f"use --device cpu{smaller}",
            ) from None
        torch.cuda.empty_cache()
        log.warning("out of memory with %d clips in a batch; trying halves (lower %s)", len(items), setting)
    half = len(items) // 2
    parts = [_pool(encoder, items[:half]), _pool(encoder, items[half:])]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
