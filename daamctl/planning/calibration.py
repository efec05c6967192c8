"""What is measured for a plan: a few training steps of every method, a few batches through the encoder and of tuning.

Where an encoder's own weights are not at hand, random ones of its shape stand in, which take the same time and memory.
Times are in seconds, on the devices that the settings name.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from daamctl.adapters.released import TEXT_LENGTH, is_published
from daamctl.artifacts.skipped import Obstacle
from daamctl.artifacts.terms import counted
from daamctl.artifacts.utterances import Modality
from daamctl.config import Config
from daamctl.corpora.sources import files_root
from daamctl.devices import release_memory, resolve_device, resolve_precision
from daamctl.encoders.base import Encoder
from daamctl.encoders.encoder_size import EncoderSize, weight_bytes
from daamctl.encoders.load import open_encoder
from daamctl.errors import CorpusError, EncoderError, MethodError, TrainingError
from daamctl.extraction.items import Items
from daamctl.extraction.timing import PeakMemory, RandomItems, Speed, items_to_time, time_embedding, why_not_timed
from daamctl.planning.finetune_size import FinetuneSize, empty_encoder, finetune_size
from daamctl.planning.resources import ResourceEstimate
from daamctl.planning.rows import Row, settle
from daamctl.training.search import may_stop, most_epochs, refits
from daamctl.training.timing import ADAM_BYTES, MethodSpeed, time_finetune, time_method
from daamctl.training.trials.adapter import adapter_grid

EMBEDDING_S, TUNING_S, TRAINING_S = 6.0, 8.0, 10.0
"""About how long the calibration of the encoder, of all ways of fine-tuning and of all methods may take, in seconds."""
LIMIT_S = 20.0
"""After so many seconds no further method is timed: over thousands of features a single step takes seconds."""
COPIES = 3
"""Encoders that must fit for one to be tuned here: it, its copy, and what training keeps."""
FORWARD_PASSES, FORWARD_PASSES_RECOMPUTED = 3, 4
"""A training step where it is not measured: a backward pass costs about two forward ones, and one more where it
recomputes the activations. Adapters take less: frozen weights need no gradient."""
UNITS = {"speech": "second of audio", "text": "token", "image": "image"}


class MethodTimes:
    """Speed of methods, each measured once.

    Args:
        needs: sizes.
        device: resolved device of training.
        calibrate: measure at all.

    Attributes:
        notes: of methods that could not be measured.
        slow: those that were not, as it would take too long.
    """

    def __init__(self, needs: ResourceEstimate, device: str, *, calibrate: bool) -> None:
        self.needs, self.config, self.device, self.calibrate = needs, needs.config, device, calibrate
        self.notes, self.slow = list[str](), list[str]()
        self._speeds: dict[tuple[str, int], tuple[MethodSpeed, int] | None] = {}
        self._taken_s = 0.0

    def speed(self, method: str, layers: int | None = None) -> tuple[MethodSpeed, int] | None:
        """Speed of a method over all layers or so many, and the memory it took; None where it is not measured."""
        sizes = self.needs.sizes
        if sizes is None or not self.calibrate:
            return None
        key = (method, layers or sizes[0])
        if key not in self._speeds and self._taken_s > LIMIT_S:
            self._speeds[key] = None
            self.slow.append(method if layers is None else f"{method} on {counted(layers, 'layer')}")
        if key not in self._speeds:
            started = time.monotonic()
            self._speeds[key] = self._measure(method, (key[1], *sizes[1:]))
            self._taken_s += time.monotonic() - started
        return self._speeds[key]

    def _measure(self, method: str, sizes: tuple[int, int, int]) -> tuple[MethodSpeed, int] | None:
        within_s = min(1.0, TRAINING_S / (len(self.config.methods) + 3))
        try:
            members = self.needs.members(method, sizes[0])
            with PeakMemory(self.device) as memory:
                speed = time_method(method, self.config, sizes, device=self.device, within_s=within_s, members=members)
        except (MethodError, TrainingError) as error:
            self.notes.append(f"{method}: not measured: {error.message}")
            return None
        return speed, memory.taken


class EncoderTimes:
    """Fills in memory and time of what runs the encoder.

    Args:
        needs: sizes.
        calibrate: measure; otherwise only memory that can be counted is filled in.

    Attributes:
        notes: what must be known of the figures.
    """

    def __init__(self, needs: ResourceEstimate, *, calibrate: bool) -> None:
        self.needs, self.config, self.calibrate = needs, needs.config, calibrate
        self.notes: list[str] = []
        self._sizes: dict[str, FinetuneSize | None] = {}

    def fill(self, extract: Row, tuned: Sequence[Row]) -> None:
        """Memory and time of what is not done.

        Args:
            extract: row of the extraction.
            tuned: rows of the ways of fine-tuning.
        """
        rows = [row for row in (extract, *tuned) if row.state != "done"]
        modality, config = self.needs.material.modality, self.config.extract
        if not rows or modality is None:
            return
        outline = self.needs.outline
        if outline is None:
            self.notes.append(f"the size of encoder '{config.encoder}' is known once its files are here")
            return
        device = resolve_device(config.device)
        precision = resolve_precision(config.precision, device, cpu_auto=True)
        weights = weight_bytes(outline, config, modality, device, precision)
        extract.memory_bytes = weights
        for row in rows:
            row.memory_on = "cuda" if config.min_gpu_memory_gb else device.partition(":")[0]
        fitting = self._count([row for row in rows if row is not extract], outline, modality)
        unknown = [row for row in fitting if row.basis != "recorded"]
        if not self.calibrate or (extract.state == "done" and not unknown):
            return
        if problem := why_not_timed(outline, weights, config, device):
            self.notes.append(f"{', '.join(dict.fromkeys(row.stage for row in rows))}: not measured: {problem}")
            return
        try:
            encoder = self._open(modality, device=device, precision=precision)
            items, scale = self._items_for(encoder)
            with PeakMemory(device) as memory:
                speed = time_embedding(encoder, items, storage=config.storage, within_s=EMBEDDING_S)
        except EncoderError as error:
            for row in rows:
                settle(row, Obstacle(error.message, error.fix))
            return
        if not outline.here:
            words = f"encoder '{config.encoder}' was timed with random weights of its shape, its own are not here"
            self.notes.append(f"{words}: speed and memory are the same")
        if extract.state != "done":
            extract.memory_bytes = weights + round(memory.taken * max(1.0, speed.largest / speed.tried))
            _fill_extract(extract, speed, scale, encoder)
        if unknown and scale is not None:
            sizes = items.sizes
            del encoder, items  # embedding has settled its weights for good, see `daamctl.encoders.frozen`
            release_memory()
            self._fill_tuned(unknown, outline, modality, sizes, speed)

    def _count(self, rows: Sequence[Row], outline: EncoderSize, modality: Modality) -> list[Row]:
        """Memory and disk of fine-tuning without what is kept for the backward pass; returns the rows that can be."""
        needs, fitting = self.needs, list[Row]()
        encoder = empty_encoder(self.config.extract, modality, needs.tuned_dtype) if rows else None
        for row in rows:
            size = None
            try:
                if encoder is not None:
                    size = finetune_size(str(row.method), copy.deepcopy(encoder), needs.material.classes or 2)
            except MethodError as error:
                settle(row, Obstacle(error.message, error.fix))
                continue
            row.memory_bytes = outline.num_parameters * needs.tuned_dtype.itemsize
            row.at_least_of.append("memory_bytes")
            if size is not None:
                row.memory_bytes = size.held_bytes + ADAM_BYTES * size.num_trained
                needs.fill_disk(row, needs.fold_bytes(4 * size.num_kept, "finetune"))
            self._sizes[str(row.method)] = size
            fitting.append(row)
        return fitting

    def _open(self, modality: Modality, *, device: str, precision: str, **changes: Any) -> Encoder:
        """The encoder, or one of random weights in its shape where its own are not here."""
        if self.needs.outline is not None and not self.needs.outline.here:
            changes["weights"] = "random"
        longest = self.config.segment.max_duration_s
        settings = self.config.extract.model_copy(update=changes)
        options: dict[str, Any] = {"max_duration_s": longest, "device": device, "precision": precision}
        return open_encoder(settings, modality=modality, **options).encoder

    def _items_for(self, encoder: Encoder) -> tuple[Items, float | None]:
        """Items to time, and how many there are in all for each of them; None: not known yet."""
        present, root = self.needs.present, None
        if present.clips is not None and encoder.modality == "text":
            root = present.layout.root
        elif present.clips is not None:
            with contextlib.suppress(CorpusError):  # the clips are known, but their files are gone
                root = files_root(present.layout.root, present.clips.corpus)
        return items_to_time(
            encoder,
            self.config,
            clips=None if present.clips is None else present.clips.rows,
            root=root,
            lengths=self.needs.material.lengths,
            own_tokens=self.needs.outline is not None and self.needs.outline.here,
        )

    def _fill_tuned(
        self, rows: Sequence[Row], outline: EncoderSize, modality: Modality, sizes: NDArray[np.int64], speed: Speed
    ) -> None:
        """Ways of fine-tuning: timed where there is room for it, on the device and in the format that they use."""
        config = self.config
        on, dtype = resolve_device(config.finetune.device), self.needs.tuned_dtype
        nbytes = COPIES * outline.num_parameters * dtype.itemsize
        if why_not_timed(outline, nbytes, config.extract, on) is not None:
            self._time_tuned(rows, None, on, modality, sizes, speed)
            return
        held = str(dtype).removeprefix("torch.")
        encoder = self._open(modality, device=on, precision="float32", weights_dtype=held)
        self._time_tuned(rows, encoder, on, modality, sizes, speed)

    def _time_tuned(
        self,
        rows: Sequence[Row],
        encoder: Encoder | None,
        on: str,
        modality: Modality,
        sizes: NDArray[np.int64],
        speed: Speed,
    ) -> None:
        """Fill in the ways of fine-tuning: timed while there is time, else from the forward pass alone.

        Args:
            rows: one per way.
            encoder: as fine-tuning holds it; None: there is no room for that.
            on: device.
            modality: what is read.
            sizes: cost of each item in extraction.
            speed: of embedding.
        """
        started, splits = time.monotonic(), self.needs.splits
        for row in rows:
            config = self.config.for_adapter(str(row.method))
            read = _as_tuned(sizes, str(row.method), config, modality)
            row.memory_on = on.partition(":")[0]
            rates = None
            if encoder is not None and time.monotonic() - started < TUNING_S:
                try:
                    rates = self._tune(row, encoder, read, on, TUNING_S / len(rows))
                except MethodError as error:
                    settle(row, Obstacle(error.message, error.fix))
                    continue
            if not splits:
                continue
            row.basis = "measured" if rates else "estimated"
            row.at_most = may_stop(config.finetune, config.train.selection)
            if rates is None:
                rates, note = _estimated(config, speed)
                row.notes.append(note)
            each = [rates[0] * len(one.train) + rates[1] * (len(one.dev) + len(one.test)) for one in splits]
            folds = len(self.needs.runs_of("finetune")) - row.done
            row.time_s = folds * tune_epochs(str(row.method), config) * float(np.mean(each)) * float(read.mean())

    def _tune(
        self, row: Row, encoder: Encoder, sizes: NDArray[np.int64], device: str, within_s: float
    ) -> tuple[float, float] | None:
        """Seconds of training and of evaluation for one unit of cost; None: not even one item fits in memory.

        Raises:
            MethodError: the encoder cannot be tuned in this way.
        """
        typical = int(np.sort(sizes)[len(sizes) // 2])
        item = RandomItems(encoder, np.array([typical]), 1).read(0)
        fresh, config = copy.deepcopy(encoder), self.config.for_adapter(str(row.method))
        try:
            with PeakMemory(device) as memory:
                timed = time_finetune(
                    str(row.method),
                    fresh,
                    item,
                    config,
                    num_classes=self.needs.material.classes or 2,
                    device=device,
                    within_s=within_s,
                )
        except torch.OutOfMemoryError:
            return None
        # what is kept for the backward pass grows with the batch, what is kept for each trained number does not
        kept = ADAM_BYTES * timed.num_trained
        batch = -(-config.finetune.batch_size // config.finetune.accumulate) * int(sizes.max())
        beside = round(max(0, memory.taken - kept) * max(1.0, batch / timed.tried))
        if self._sizes[str(row.method)] is None:
            beside += kept
            self.needs.fill_disk(row, self.needs.fold_bytes(4 * timed.num_trained, "finetune"))
        row.memory_bytes = (row.memory_bytes or 0) + beside
        row.at_least_of.remove("memory_bytes")
        del fresh
        release_memory()
        return timed.train_s, timed.predict_s


def tune_epochs(method: str, config: Config) -> int:
    """Most epochs that a fold of a way of fine-tuning is trained for, those of its search included.

    Args:
        method: a name from the table of ways of fine-tuning.
        config: all settings, as this way has them.
    """
    return most_epochs(adapter_grid(method, config), config.finetune.epochs, refit=refits(config.train))


def _as_tuned(sizes: NDArray[np.int64], method: str, config: Config, modality: Modality) -> NDArray[np.int64]:
    """Cost of each item as a way of fine-tuning reads it, from that in extraction."""
    if modality != "text":
        return sizes
    return np.full_like(sizes, TEXT_LENGTH) if is_published(method) else np.minimum(sizes, config.finetune.max_tokens)


def _estimated(config: Config, speed: Speed) -> tuple[tuple[float, float], str]:
    """Seconds of training and of evaluation for one unit of cost, from embedding alone; and what this rests on."""
    settings = config.finetune
    passes = FORWARD_PASSES_RECOMPUTED if settings.gradient_checkpointing else FORWARD_PASSES
    at_once = counted(-(-settings.batch_size // settings.accumulate), "item")
    note = (
        f"a training step on {at_once} is taken as {passes} forward passes, as fast as in the large batches of extract"
    )
    return (passes * speed.per_cost, speed.per_cost), f"not measured: {note}"


def _fill_extract(extract: Row, speed: Speed, scale: float | None, encoder: Encoder) -> None:
    if scale is not None and extract.total:
        extract.time_s = speed.seconds * scale * (1 - extract.done / extract.total)
        extract.basis = "measured"
        return
    rate = cast("Any", encoder).sampling_rate if encoder.modality == "speech" else 1
    each = f"{speed.per_cost * rate:.2g} s for each {UNITS[encoder.modality]}"
    extract.notes.append(f"{each}; how much there is, is known after download")
