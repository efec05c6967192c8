"""Embed clips with an open encoder: decode ahead, batch by length, pool, check."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from daamctl import audio
from daamctl.encoders.base import Encoder
from daamctl.encoders.batching import plan_batches
from daamctl.errors import AudioError, EncoderError

log = logging.getLogger(__name__)

DECODE_THREADS = 2
BATCHES_AHEAD = 2


@dataclass
class Embedded:
    """Embeddings of some clips.

    Args:
        vectors: (N, L, D) in the stored format; rows of unreadable clips are zero.
        n_frames: (N,) frames averaged; 0 for unreadable clips.
        unreadable: row -> reason.
        silent: rows whose audio is silence.
        clipped: rows whose audio is clipped.
    """

    vectors: np.ndarray
    n_frames: np.ndarray
    unreadable: dict[int, str] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)


def embed_clips(
    encoder: Encoder,
    clips: pl.DataFrame,
    audio_root: Path,
    *,
    storage: str,
    max_batch_s: float,
    on_clips: Callable[[int], None] = lambda count: None,
) -> Embedded:
    """Embed clips.

    Args:
        encoder: open encoder.
        clips: rows of the clip table.
        audio_root: folder that the clips' paths are relative to.
        storage: `float16` or `float32`.
        max_batch_s: audio in one batch at most, in seconds, padding included.
        on_clips: called with the number of clips finished.

    Raises:
        EncoderError: the encoder gives values that are not finite, or too large for `storage`.
    """
    rate = encoder.sampling_rate
    lengths = clips.select(pl.max_horizontal("duration_s", pl.col("pad_to_s").fill_null(0.0)))
    num_samples = np.round(lengths.to_series().to_numpy() * rate).astype(np.int64)
    batches = plan_batches(num_samples, round(max_batch_s * rate), equal_length=encoder.equal_length_batches)
    shape = (len(clips), len(encoder.layers), encoder.embed_dim)
    result = Embedded(np.zeros(shape, storage), np.zeros(len(clips), np.int32))
    rows = clips.select("path", "start_s", "duration_s", "pad_to_s").to_dicts()
    for batch, waveforms in _decoded(batches, rows, audio_root, rate):
        readable: list[tuple[int, Tensor]] = []
        for row, waveform in zip(batch.tolist(), waveforms, strict=True):
            if isinstance(waveform, AudioError):
                result.unreadable[row] = waveform.message
                continue
            readable.append((row, waveform))
            marks = audio.describe(waveform)
            if "silent" in marks:
                result.silent.append(row)
            if "clipped" in marks:
                result.clipped.append(row)
        for group in _groups(readable, encoder.equal_length_batches):
            _pool_into(result, encoder, group, clips, storage)
        on_clips(len(batch))
    return result


def _decoded(
    batches: Sequence[np.ndarray], rows: list[dict[str, object]], audio_root: Path, rate: int
) -> Iterator[tuple[np.ndarray, list[Tensor | AudioError]]]:
    """Decode batches in threads, a few ahead of the one in use."""
    with ThreadPoolExecutor(DECODE_THREADS) as pool:
        waiting: list[list[Future[Tensor | AudioError]]] = []
        for index in range(len(batches) + BATCHES_AHEAD):
            if index < len(batches):
                waiting.append([pool.submit(_decode, rows[row], audio_root, rate) for row in batches[index].tolist()])
            if index >= BATCHES_AHEAD:
                yield batches[index - BATCHES_AHEAD], [future.result() for future in waiting.pop(0)]


def _decode(row: dict[str, object], audio_root: Path, rate: int) -> Tensor | AudioError:
    try:
        waveform = audio.load(
            audio_root / str(row["path"]),
            start_s=row["start_s"],  # type: ignore[arg-type]
            duration_s=row["duration_s"],  # type: ignore[arg-type]
            sampling_rate=rate,
        )
    except AudioError as error:
        return error
    pad_to = round(float(row["pad_to_s"] or 0.0) * rate)  # type: ignore[arg-type]
    return torch.nn.functional.pad(waveform, (0, max(0, pad_to - len(waveform))))


def _groups(clips: list[tuple[int, Tensor]], equal_length: bool) -> list[list[tuple[int, Tensor]]]:
    """Split a batch whose decoded lengths turned out unequal, where the encoder needs them equal."""
    if not equal_length:
        return [clips] if clips else []
    by_length: dict[int, list[tuple[int, Tensor]]] = {}
    for row, waveform in clips:
        by_length.setdefault(len(waveform), []).append((row, waveform))
    return list(by_length.values())


def _pool_into(
    result: Embedded, encoder: Encoder, group: list[tuple[int, Tensor]], clips: pl.DataFrame, storage: str
) -> None:
    rows = [row for row, _ in group]
    pooled, n_frames = _pool(encoder, [waveform for _, waveform in group])
    values = pooled.numpy()
    limit = float(np.finfo(np.dtype(storage)).max)
    bad = ~(np.abs(values) <= limit).all(axis=(1, 2))  # also catches NaN
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        layer = encoder.layers[int(np.flatnonzero(~(np.abs(values[row]) <= limit).all(axis=1))[0])]
        raise EncoderError(
            f"the encoder gives values that are not finite, or beyond {storage}, in layer {layer} of clip "
            f"'{clips['clip_id'][rows[row]]}'",
            fix="use --set extract.precision=float32 --set extract.storage=float32",
        )
    result.vectors[rows] = values.astype(storage)
    result.n_frames[rows] = n_frames.numpy()


def _pool(encoder: Encoder, waveforms: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pool a batch, in two halves when the device's memory is too small for the whole."""
    try:
        return encoder.pool(waveforms)
    except torch.OutOfMemoryError:
        if len(waveforms) == 1:
            raise EncoderError(
                f"one clip of {len(waveforms[0])} samples does not fit in the device's memory",
                fix="use --device cpu, or a lower segment.max_duration_s",
            ) from None
        torch.cuda.empty_cache()
        log.warning("out of memory with %d clips in a batch; trying halves (lower extract.max_batch_s)", len(waveforms))
    half = len(waveforms) // 2
    parts = [_pool(encoder, waveforms[:half]), _pool(encoder, waveforms[half:])]
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
