"""What a pipeline still has to do on this machine, and what it will take: disk, memory and time, before anything runs.

What is finished is told as the stages tell it: folds of methods by their content keys, tables, embeddings and tuned
encoders by the settings they were made with, and what rests on trained folds by whether it is newer than they are.
Times come from folds trained here before, or from a short calibration (a few batches through the encoder, a few
training steps); where an encoder's own weights are not at hand, random ones of its shape stand in, which take the same
time and memory. Sizes come from the clip table, else from the corpus's known counts. Nothing is written.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from daamctl.analysis.ablation import choose_groups
from daamctl.analysis.audit import steps
from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.embeddings import (
    EmbeddingsHead,
    check_settings,
    free_memory,
    is_held,
    open_embeddings,
    read_head,
)
from daamctl.artifacts.io import read_json
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.skipped import FINISHED, Obstacle, folder_of
from daamctl.artifacts.utterances import METADATA_KEY, CorpusTable, Modality, read_utterances
from daamctl.artifacts.words import words_of
from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.corpora.material import material_of
from daamctl.corpora.sources import files_root, key_of
from daamctl.devices import resolve_device, resolve_precision
from daamctl.encoders.base import Encoder
from daamctl.encoders.items import Items
from daamctl.encoders.load import free_memory as free_on
from daamctl.encoders.load import open_encoder
from daamctl.encoders.outline import Outline, outline_of, weight_bytes
from daamctl.encoders.timing import PeakMemory, RandomItems, Speed, items_to_time, time_embedding, why_not_timed
from daamctl.errors import ArtifactError, ConfigError, CorpusError, EncoderError, MethodError, TrainingError
from daamctl.evaluation.consistency import differences
from daamctl.layout import Layout
from daamctl.provenance import device_name
from daamctl.training.finetune_fold import FREE_EXTRACT
from daamctl.training.fold import Features, FoldSpec, kept_fold
from daamctl.training.parts import POOL_CLIPS
from daamctl.training.splits import Split, fold_groups, split_of
from daamctl.training.timing import ADAM_BYTES, MethodSize, MethodSpeed, method_size, time_finetune, time_method

State = Literal["done", "partly", "to do", "not possible"]
Basis = Literal["measured", "recorded", "upper limit", "quick", "not known"]
Lacking = Mapping[str, Obstacle | None]

EMBEDDING_S, TUNING_S, TRAINING_S = 6.0, 8.0, 10.0
"""About how long the calibration of the encoder, of all ways of fine-tuning and of all methods may take, in seconds."""
LIMIT_S = 20.0
"""After so many seconds no further method is timed: over thousands of features a single step takes seconds."""
COPIES = 3
"""Encoders that must fit for one to be tuned here: it, its copy, and what training keeps."""
FORWARD_PASSES = 3
"""A backward pass costs about two forward ones, so a training step takes at most so many."""
ROW_BYTES = 150
"""About, of a clip in a table, or of its predictions beside the logits."""
PICTURES_BYTES = 500_000
"""About, of a method in `importance`."""
QUICK_BYTES = {"evaluate": 1_000_000, "report": 10_000_000}
QUICK_PREDICTIONS = 500_000
"""Above so many test predictions, evaluate and report take minutes rather than seconds."""
UNITS = {"speech": "second of audio", "text": "token", "image": "image"}


@dataclass
class Row:
    """One stage, of `train` and `finetune` one method.

    Args:
        stage: the stage.
        method: of `train` and `finetune`.
        state: whether it is done, and if not, whether it can be.
        done: how much of it is finished.
        total: how much there is; None: not known yet.
        unit: what is counted, in the plural.
        reason: why it is not possible, or what is wrong with what is there.
        fix: what repairs that.
        work: what it works on, in words.
        disk_bytes: of all its results.
        disk_left_bytes: of those still to be written.
        memory_bytes: at its peak.
        memory_on: kind of device that has this memory: cpu, cuda or mps.
        time_s: still to go; 0 where it is done or takes next to nothing.
        took_s: of what is done, where that was recorded.
        basis: where `time_s` comes from. quick: seconds, or few minutes, that are not counted.
        at_least: the figures count only what is known yet.
        notes: what must be known of the figures.
    """

    stage: str
    method: str | None = None
    state: State = "to do"
    done: int = 0
    total: int | None = None
    unit: str = ""
    reason: str | None = None
    fix: str | None = None
    work: str = ""
    disk_bytes: int | None = None
    disk_left_bytes: int | None = None
    memory_bytes: int | None = None
    memory_on: str = "cpu"
    time_s: float | None = None
    took_s: float | None = None
    basis: Basis = "not known"
    at_least: bool = False
    notes: list[str] = field(default_factory=list)


def run(layout: Layout, config: Config, *, lacking: Lacking, calibrate: bool = True) -> dict[str, Any]:
    """Work out the plan.

    Args:
        layout: where artifacts lie.
        config: all settings.
        lacking: what the `corpus` and the `encoder` lack on this machine, or None.
        calibrate: measure; otherwise times come only from what was trained here before.

    Returns:
        JSON-able: pipeline; calibrated; seconds (that this took); machine: device, disk_free_bytes,
        memory_available_bytes, gpu_free_bytes (None: no GPU); stages: see `Row`; totals of what is not done:
        disk_bytes, memory_bytes, gpu_memory_bytes, time_s, at_least, possible; notes.

    Raises:
        UnknownNameError: there is no such corpus or method.
        ConfigError: a device of the settings is not on this machine.
        ArtifactError: an artifact is damaged.
    """
    started = time.monotonic()
    planner = _Planner(layout, config, lacking, calibrate)
    rows = planner.rows()
    todo = [row for row in rows if row.state != "done"]
    gpus = free_on("cuda") if torch.cuda.is_available() else []

    def most(on_gpu: bool) -> int:
        return max((row.memory_bytes or 0 for row in todo if (row.memory_on == "cuda") is on_gpu), default=0)

    return {
        "pipeline": layout.run_name,
        "calibrated": calibrate,
        "seconds": round(time.monotonic() - started, 1),
        "machine": {
            "device": device_name(planner.device),
            "disk_free_bytes": shutil.disk_usage(layout.root).free,
            "memory_available_bytes": free_memory(),
            "gpu_free_bytes": sum(gpus) if gpus else None,
        },
        "stages": [asdict(row) for row in rows],
        "totals": {
            "disk_bytes": sum(row.disk_left_bytes or 0 for row in todo),
            "memory_bytes": most(False),
            "gpu_memory_bytes": most(True),
            "time_s": sum(row.time_s or 0.0 for row in todo),
            "at_least": any(row.at_least or row.basis == "not known" for row in todo),
            "possible": all(row.state != "not possible" for row in todo),
        },
        "notes": planner.notes,
    }


class _Planner:
    """Builds the rows stage by stage, each from those before it."""

    def __init__(self, layout: Layout, config: Config, lacking: Lacking, calibrate: bool) -> None:
        self.layout, self.config, self.lacking, self.calibrate = layout, config, lacking, calibrate
        self.device = resolve_device(config.train.device)
        self.kind = self.device.partition(":")[0]
        self.copies = 1 if os.environ.get("MLFLOW_TRACKING_URI") else 2  # the local store has a copy of every fold
        self.notes: list[str] = []
        self.speeds: dict[tuple[str, int], tuple[MethodSpeed, int] | None] = {}
        self.timing_s, self.slow = 0.0, list[str]()
        self.utterances, self.old_utterances = _table(layout, config, "download")
        self.clips, self.old_clips = _table(layout, config, "segment")
        self.material = material_of(config, self.utterances, self.clips)
        self.head, self.old_head = self._read_head()
        self.splits, self.no_split = self._make_splits()

    # what is known

    def _read_head(self) -> tuple[EmbeddingsHead | None, str | None]:
        """Facts of the embeddings, if they are those that the settings ask for; else why they are not."""
        folder = self.layout.embeddings
        if not (folder / FINISHED["extract"]).exists():
            return None, None
        try:
            head = read_head(folder)
            check_settings(head.settings, self.config, head.modality, what="embeddings", fix="")
        except ArtifactError as error:
            return None, error.message
        number = head.num_clips + len(head.unreadable)
        if self.clips is not None and number != len(self.clips.rows):
            return None, f"the embeddings are of {number} clips, the clip table has {len(self.clips.rows)}"
        return head, None

    def _make_splits(self) -> tuple[list[Split], Obstacle | None]:
        """The split of every fold; none where the items are not known or cannot be split."""
        rows = self.material.rows
        if rows is None:
            return [], None
        numbers = range(1, len(fold_groups(rows["group"])) + 1)
        try:
            return [split_of(rows, number, self.config.train) for number in numbers], None
        except TrainingError as error:
            return [], Obstacle(error.message, error.fix)

    @functools.cached_property
    def outline(self) -> Outline | None:
        """Size of the encoder; None: not known here."""
        return None if self.material.modality is None else outline_of(self.config.extract, self.material.modality)

    @functools.cached_property
    def features(self) -> Features | None:
        """The embeddings, left on disk, to tell which folds are finished."""
        if self.head is None:
            return None
        clips, stored = open_embeddings(self.layout.embeddings)
        return Features(self.head, clips, stored, stored.layers, self.config.train.features == "stream")

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int] | None:
        """L (without layer 0), D and C; None: not known yet."""
        if self.head is not None:
            return sum(layer > 0 for layer in self.head.layers), self.head.embed_dim, len(self.head.classes)
        if self.outline is None or self.material.classes is None:
            return None
        return self.outline.num_layers, self.outline.embed_dim, self.material.classes

    @functools.cached_property
    def number(self) -> int | None:
        """Clips, texts or images; None: not known yet."""
        return None if self.material.rows is None else len(self.material.rows)

    @functools.cached_property
    def vector_bytes(self) -> int | None:
        """Bytes that the layers of one clip take in training."""
        if self.sizes is None:
            return None
        return self.sizes[0] * self.sizes[1] * np.dtype(self.config.extract.storage).itemsize

    @functools.cached_property
    def held(self) -> bool | None:
        """Whether training holds the features in memory; None: not known yet."""
        if self.number is None or self.vector_bytes is None:
            return None
        return is_held(self.number * self.vector_bytes, self.config.train.features)

    # the rows

    def rows(self) -> list[Row]:
        """Every row, in the order of the stages."""
        download = self._download()
        segment = self._segment(download)
        extract = self._extract(segment)
        tuned = [self._finetune(name, segment) for name in self.config.finetunes]
        self._time_encoder(extract, tuned)
        for row in tuned:
            self._size(row, None)
        trained = [self._train(name, extract) for name in self.config.methods]
        evaluate = self._evaluate([*trained, *tuned])
        ablate = self._ablate(extract, trained)
        importance = self._importance(trained, ablate)
        report = self._report([evaluate, ablate, importance])
        if self.held is not None and self.number is not None and any(row.state != "done" for row in trained):
            how = "held in memory" if self.held else "read from disk in every epoch, which is not counted in the times"
            size = f"{self.number * (self.vector_bytes or 0) / 1e6:,.1f} MB"
            self.notes.append(f"train: the features take {size}, {how} (train.features={self.config.train.features})")
        if self.slow:
            self.notes.append(f"not measured, as it would take too long: {', '.join(dict.fromkeys(self.slow))}")
        if self.copies > 1 and any(row.state != "done" for row in (*trained, *tuned)):
            self.notes.append("train, finetune: MLflow keeps a second copy of each fold, counted under disk")
        return [download, segment, extract, *trained, *tuned, evaluate, ablate, importance, report]

    def _download(self) -> Row:
        corpus: Corpus = CORPORA.load(self.config.download.corpus)
        row = Row("download", work=f"corpus {corpus.name}", unit="tables", total=1, basis="quick")
        row.done, row.reason = int(self.utterances is not None), self.old_utterances
        if corpus.url is not None and not row.done and not (self.layout.corpora / corpus.name).exists():
            row.basis = "not known"
            row.notes.append("the time to fetch it depends on the network")
        _settle(row, self.lacking.get("corpus"))
        return self._size(row, None if self.number is None else self.number * ROW_BYTES)

    def _segment(self, download: Row) -> Row:
        row = Row("segment", work=self._items(), unit="tables", total=1, basis="quick")
        row.done, row.reason, row.at_least = int(self.clips is not None), self.old_clips, self.material.at_least
        _settle(row, None, [download])
        return self._size(row, None if self.number is None else self.number * ROW_BYTES)

    def _extract(self, segment: Row) -> Row:
        row = Row("extract", work=self._items(), unit="clips", total=self.number, at_least=self.material.at_least)
        row.reason, whole = self.old_head, None
        if self.head is not None:
            row.total = row.done = self.head.num_clips
        elif self.outline is not None and self.number is not None:
            row.done = _unfinished(self.layout, self.config, self.clips)
            layers = self.outline.num_layers + self.config.extract.layer_00
            whole = self.number * layers * self.outline.embed_dim * np.dtype(self.config.extract.storage).itemsize
        _settle(row, self.lacking.get("encoder") or self.lacking.get("corpus"), [segment])
        return self._size(row, whole)

    def _train(self, method: str, extract: Row) -> Row:
        row, folder = self._folds("train", method, self.config.train.epochs), self.layout.method(method)
        kept: list[Fold] = []
        if self.features is not None:
            specs = [FoldSpec(self.layout.run_name, method, *run, self.config) for run in self._runs]
            kept = [fold for spec in specs if (fold := kept_fold(folder, spec, self.features))]
        elif lying := len(read_folds(folder)):
            row.reason = f"{lying} folds are kept if the embeddings come out as they were"
        row.done, row.took_s, row.memory_on = len(kept), _took(kept), self.kind
        found, problem = self._method(method)
        _settle(row, problem or self.no_split, [extract])
        if found is None:
            return self._size(row, None)
        maps = 8 * self.vector_numbers if found.density else 0
        row.memory_bytes = self._in_training((4 + ADAM_BYTES) * found.num_parameters)
        self._size(row, self._fold_bytes(4 * found.num_parameters + maps))
        left = len(self._runs) - len(kept)
        alike = [fold for fold in kept if fold.result["meta"]["device"] == device_name(self.device)]
        if row.state == "done" or not self._runs:
            return row
        if alike:
            row.time_s, row.basis = left * (_took(alike) or 0.0) / len(alike), "recorded"
        elif (timed := self._speed(method)) is not None:
            each = [timed[0].fold_s(split, self.config, density=found.density) for split in self.splits]
            row.time_s, row.basis = left * float(np.mean(each)), "measured"
            row.memory_bytes = self._in_training(timed[1])
        return row

    def _finetune(self, name: str, segment: Row) -> Row:
        row = self._folds("finetune", name, self.config.finetune.epochs)
        kept = [fold for fold in read_folds(self.layout.method(name)) if self._is_current(fold)]
        row.done, row.took_s = len(kept), _took(kept)
        lacking = self.lacking.get("encoder") or self.lacking.get("corpus")
        _settle(row, lacking or self.no_split, [segment])
        device = device_name(resolve_device(self.config.finetune.device))
        alike = [fold for fold in kept if fold.result["meta"]["device"] == device]
        if alike and row.state != "done":
            row.time_s = (len(self._runs) - len(kept)) * (_took(alike) or 0.0) / len(alike)
            row.basis = "recorded"
        return row

    def _evaluate(self, trained: list[Row]) -> Row:
        row = Row("evaluate", work=_count(len(trained), "method"), unit="tables", total=1)
        fresh = self._is_fresh(row, [self.layout.method(name) for name in self.config.trained])
        if fresh and all(one.state == "done" for one in trained):
            made = read_json(self.layout.stage("evaluate") / FINISHED["evaluate"])
            same_methods = set(made["methods"]) == set(self.config.trained)
            row.done = int(same_methods and made["main_unit"] == self.config.evaluate.unit)
        _settle(row, None, trained, any_will_do=True)
        return self._quick(row)

    def _ablate(self, extract: Row, trained: list[Row]) -> Row:
        settings, method = self.config.ablate, self.config.ablate.method
        ranking = [row for row in trained if row.method == settings.rank_by]
        row = Row("ablate", work="layer groups", unit="folds", at_least=extract.at_least, memory_on=self.kind)
        fresh = self._is_fresh(row, [self.layout.method(settings.rank_by)] if ranking else [])
        _settle(row, None, [extract, *ranking])
        if self.sizes is None or not self._runs:
            return self._size(row, None)
        ranks = bool(ranking) and ((found := self._method(settings.rank_by)[0]) is None or found.density)
        layers = [layer for layer in (self.head.layers if self.head else range(1, self.sizes[0] + 1)) if layer > 0]
        try:
            groups = choose_groups(layers if ranks else [], settings.k, settings.layers, layers, settings.presets)
        except ConfigError as error:
            _settle(row, Obstacle(error.message, error.fix))
            return row
        wanted = [(group.name, group.k) for group in groups]
        if groups and method not in self.config.methods:
            wanted.append(("all", self.sizes[0]))
        sized = [self._method(method, k) for _, k in wanted]
        problem = next((problem for _, problem in sized if problem), None)
        row.work = f"{_count(len(groups), 'group')} × {_count(len(self._runs), 'fold')}"
        kept = self._kept_alone([name for name, _ in wanted])
        row.total, row.done, row.took_s = max(1, len(wanted) * len(self._runs)), len(kept), _took(kept)
        if not fresh:
            row.done = min(row.done, row.total - 1)  # the table is still to be made
        elif not wanted:
            row.done = row.total
        _settle(row, problem, [extract, *ranking])
        self._size(row, sum(self._fold_bytes(4 * found.num_parameters) or 0 for found, _ in sized if found))
        if row.state == "done" or problem is not None:
            return row
        timed = [one for _, k in wanted if (one := self._speed(method, k)) is not None]
        if not wanted:
            row.basis = "quick"
        elif len(timed) == len(wanted):
            folds = [one.fold_s(split, self.config, density=False) for one, _ in timed for split in self.splits]
            share = 1 - row.done / row.total
            row.time_s, row.basis = sum(folds) * len(self.config.train.seeds) * share, "measured"
            row.memory_bytes = self._in_training(max(taken for _, taken in timed))
        return row

    def _importance(self, trained: list[Row], ablate: Row) -> Row:
        row = Row("importance", work="maps", unit="tables", total=1, at_least=ablate.at_least, memory_on=self.kind)
        folders = [self.layout.method(str(one.method)) for one in trained]
        fresh = self._is_fresh(row, [*folders, self.layout.stage("ablate")])
        if fresh and all(one.state == "done" for one in (*trained, ablate)):
            made = read_json(self.layout.stage("importance") / FINISHED["importance"])
            row.done = int({*made["scores"], *made["without_score"]} == {*self.config.methods})
        _settle(row, None, trained, any_will_do=True)
        found = {str(one.method): self._method(str(one.method))[0] for one in trained}
        if self.sizes is None or not self._runs:
            return self._size(row, None)
        maps = sum(one.density for one in found.values() if one) * (len(self._runs) + 1)
        self._size(row, maps * 8 * self.vector_numbers + len(found) * PICTURES_BYTES)
        scored = [name for name, one in found.items() if one and one.scored]
        settings = self.config.importance
        if not (settings.audit and scored):
            return self._quick(row)
        row.work = f"maps, {_count(len(scored), 'audit')}"
        if row.state == "done":
            return row
        row.memory_bytes = self._in_training(0)
        timed = [one for name in scored if (one := self._speed(name)) is not None]
        if len(timed) == len(scored):
            # deletion and insertion in order of the score, of the untrained score, and at random; they share both ends
            tried = 2 * (2 + settings.audit_orders) * (len(steps(self.sizes[0])) - 2) + 2
            clips = np.mean([min(settings.audit_clips, len(split.test)) for split in self.splits])
            row.time_s = float(len(self._runs) * tried * clips * sum(one.clip_s for one, _ in timed))
            row.basis = "measured"
            row.notes.append("the audit's linear probes are not counted")
        return row

    def _report(self, upstream: list[Row]) -> Row:
        row = Row("report", work="one page", unit="pages", total=1)
        fresh = self._is_fresh(row, [self.layout.stage(one.stage) for one in upstream])
        row.done = int(fresh and all(one.state == "done" for one in upstream))
        _settle(row, None, upstream[:1])
        return self._quick(row)

    # parts of rows

    @property
    def _runs(self) -> list[tuple[int, int]]:
        """Fold and seed of everything that is trained; none where folds are not known yet."""
        return [(split.fold, seed) for split in self.splits for seed in self.config.train.seeds]

    @property
    def vector_numbers(self) -> int:
        """L x D."""
        return self.sizes[0] * self.sizes[1] if self.sizes else 0

    def _items(self) -> str:
        """What there is, in words."""
        material = self.material
        if self.number is None or material.modality is None:
            return "not known yet"
        text = f"{'≥ ' if material.at_least else ''}{self.number:,} {words_of(material.modality).clip}s"
        if material.modality == "speech" and material.lengths is not None:
            text += f", {material.lengths.sum() / 3600:.2f} h"
        return text

    def _folds(self, stage: str, method: str, epochs: int) -> Row:
        row = Row(stage, method, unit="folds", total=len(self._runs) or None, at_least=self.material.at_least)
        seeds = len(self.config.train.seeds)
        parts = [_count(len(self.splits), "fold")] if self.splits else []
        row.work = " × ".join([*parts, *([f"{seeds} seeds"] if seeds > 1 else []), _count(epochs, "epoch")])
        return row

    def _is_current(self, fold: Fold) -> bool:
        """Whether a tuned encoder was trained with the settings of now, on as many clips, for a fold that there is."""
        made, meta = fold.result["run"]["config"], fold.result["meta"]
        now = self.config.section("extract")
        sections = {stage: made[stage] for stage in ("download", "segment", "extract")}
        sections["extract"] = {**made["extract"], **{name: now[name] for name in FREE_EXTRACT}}
        try:
            check_settings(sections, self.config, self.material.modality or "speech", what="folds", fix="")
        except ArtifactError:
            return False
        sizes = {split.fold: (len(split.train), len(split.dev), len(split.test)) for split in self.splits}
        counts = (meta["num_train_clips"], meta["num_dev_clips"], meta["num_test_clips"])
        wanted = fold.seed in self.config.train.seeds and sizes.get(fold.fold) == counts
        return wanted and not differences(fold, self.config)

    def _kept_alone(self, names: list[str]) -> list[Fold]:
        """Finished folds of groups of the ablation, whatever layers a ranking chose for them then."""
        if self.features is None:
            return []
        method, kept = self.config.ablate.method, []
        for name in names:
            folder = self.layout.stage("ablate") / f"{name}-{method}"
            for fold in read_folds(folder):
                layers = tuple(fold.result["run"]["layers"])
                if (fold.fold, fold.seed) in self._runs and set(layers) <= set(self.features.layers):
                    spec = FoldSpec(self.layout.run_name, method, fold.fold, fold.seed, self.config)
                    kept += [fold] if kept_fold(folder, spec, self.features.subset(layers)) else []
        return kept

    def _method(self, method: str, layers: int | None = None) -> tuple[MethodSize | None, Obstacle | None]:
        """Size of a method over all layers or so many, or why it cannot be built."""
        if self.sizes is None:
            return None, None
        try:
            return method_size(method, self.config, (layers or self.sizes[0], *self.sizes[1:])), None
        except MethodError as error:
            return None, Obstacle(error.message, error.fix)

    def _speed(self, method: str, layers: int | None = None) -> tuple[MethodSpeed, int] | None:
        """Speed of a method and the memory it took; None where it is not to be measured, or cannot be."""
        if not self.calibrate or self.sizes is None:
            return None
        key = (method, layers or self.sizes[0])
        if key not in self.speeds and self.timing_s > LIMIT_S:
            self.speeds[key] = None
            self.slow.append(method if layers is None else f"{method} on {_count(layers, 'layer')}")
        if key not in self.speeds:
            started, within_s = time.monotonic(), min(1.0, TRAINING_S / (len(self.config.methods) + 3))
            sizes = (key[1], *self.sizes[1:])
            try:
                with PeakMemory(self.device) as memory:
                    speed = time_method(method, self.config, sizes, device=self.device, within_s=within_s)
                self.speeds[key] = speed, memory.taken
            except (MethodError, TrainingError) as error:
                self.notes.append(f"{method}: not measured: {error.message}")
                self.speeds[key] = None
            self.timing_s += time.monotonic() - started
        return self.speeds[key]

    def _in_training(self, beside: int) -> int | None:
        """Memory of the features as training takes them, and of what is beside them."""
        if self.held is None or self.number is None or self.vector_bytes is None:
            return None
        pool = min(self.number, POOL_CLIPS + 2 * self.config.extract.shard_clips)
        return beside + self.vector_bytes * (2 * self.number if self.held else pool)  # a fold's parts are copies

    def _fold_bytes(self, weights: int) -> int | None:
        """Disk of all folds with so many bytes of weights each."""
        if not self._runs or self.material.classes is None:
            return None
        tested = sum(len(split.test) for split in self.splits) * len(self.config.train.seeds)
        return self.copies * (len(self._runs) * weights + tested * (ROW_BYTES + 4 * self.material.classes))

    def _is_fresh(self, row: Row, folders: list[Path]) -> bool:
        """Whether what a stage writes last is there, and newer than the results in the folders that it rests on."""
        file = folder_of(self.layout, row.stage) / FINISHED[row.stage]
        if not file.is_file() or not file.stat().st_size:
            return False
        inputs = [path for folder in folders for path in (*folder.glob("*.json"), *folder.glob("fold*/result.json"))]
        if file.stat().st_mtime < max((path.stat().st_mtime for path in inputs), default=0.0):
            row.reason = "older than what it rests on"
            return False
        return True

    def _quick(self, row: Row) -> Row:
        """A stage that takes seconds, or minutes where much is predicted."""
        predictions = (self.number or 0) * len(self.config.train.seeds) * len(self.config.trained)
        if row.state != "done":
            row.basis = "quick"
            if predictions > QUICK_PREDICTIONS:
                row.notes.append("minutes rather than seconds, with so many predictions")
        return self._size(row, QUICK_BYTES.get(row.stage, row.disk_bytes))

    def _size(self, row: Row, whole: int | None) -> Row:
        """Disk: what is there if it is done, else what all of it will take, and what is still to be written."""
        if row.state == "done":
            folder = folder_of(self.layout, row.stage, row.method)
            row.disk_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            row.disk_left_bytes = 0
        elif whole is not None:
            row.disk_bytes = whole
            row.disk_left_bytes = round(whole * (1 - row.done / row.total)) if row.total else whole
        return row

    # the encoder

    def _time_encoder(self, extract: Row, tuned: list[Row]) -> None:
        """Fill in memory and time of what runs the encoder and is not done."""
        rows = [row for row in (extract, *tuned) if row.state != "done"]
        tuned = [row for row in rows if row is not extract and row.basis != "recorded"]
        modality, config = self.material.modality, self.config.extract
        if not rows or modality is None:
            return
        if self.outline is None:
            self.notes.append(f"the size of encoder '{config.encoder}' is known once its files are here")
            return
        device = resolve_device(config.device)
        precision = resolve_precision(config.precision, device, cpu_auto=True)
        weights = weight_bytes(self.outline, config, modality, device, precision)
        for row in rows:
            row.memory_bytes = weights if row is extract else self.outline.num_parameters * self._tuned_dtype.itemsize
            row.memory_on = "cuda" if config.min_gpu_memory_gb else device.partition(":")[0]
        if not self.calibrate or (extract.state == "done" and not tuned):
            return
        if problem := why_not_timed(self.outline, weights, config, device):
            self.notes.append(f"{', '.join(dict.fromkeys(row.stage for row in rows))}: not measured: {problem}")
            return
        try:
            encoder = self._open(modality, device=device, precision=precision)
            items, scale = self._items_for(encoder)
            with PeakMemory(device) as memory:
                speed = time_embedding(encoder, items, storage=config.storage, within_s=EMBEDDING_S)
        except EncoderError as error:
            for row in rows:
                _settle(row, Obstacle(error.message, error.fix))
            return
        if not self.outline.here:
            words = f"encoder '{config.encoder}' was timed with random weights of its shape, its own are not here"
            self.notes.append(f"{words}: speed and memory are the same")
        if extract.state != "done":
            extract.memory_bytes = weights + round(memory.taken * max(1.0, speed.largest / speed.tried))
            self._time_extract(extract, speed, scale, encoder)
        if not tuned or scale is None:
            return
        sizes = np.minimum(items.sizes, self.config.finetune.max_tokens) if modality == "text" else items.sizes
        on, dtype = resolve_device(self.config.finetune.device), self._tuned_dtype
        nbytes = COPIES * self.outline.num_parameters * dtype.itemsize
        if why_not_timed(self.outline, nbytes, config, on) is not None:
            self._time_tuned(tuned, None, on, sizes, speed)
            return
        if on != device or encoder.model.dtype != dtype:
            del encoder, items
            _free(device)
            held = str(dtype).removeprefix("torch.")
            encoder = self._open(modality, device=on, precision="float32", weights_dtype=held)
        self._time_tuned(tuned, encoder, on, sizes, speed)

    @property
    def _tuned_dtype(self) -> torch.dtype:
        """Number format in which fine-tuning holds the weights."""
        held = self.config.extract.weights_dtype
        dtype: torch.dtype = getattr(torch, "float32" if held == "auto" else held)
        return dtype

    def _open(self, modality: Modality, *, device: str, precision: str, **changes: Any) -> Encoder:
        """The encoder, or one of random weights in its shape where its own are not here."""
        if self.outline is not None and not self.outline.here:
            changes["weights"] = "random"
        longest = self.config.segment.max_duration_s
        settings = self.config.extract.model_copy(update=changes)
        options: dict[str, Any] = {"max_duration_s": longest, "device": device, "precision": precision}
        return open_encoder(settings, modality=modality, **options).encoder

    def _items_for(self, encoder: Encoder) -> tuple[Items, float | None]:
        """Items to time, and how many there are in all for each of them; None: not known yet."""
        root = None
        if self.clips is not None and encoder.modality == "text":
            root = self.layout.root
        elif self.clips is not None:
            with contextlib.suppress(CorpusError):  # the clips are known, but their files are gone
                root = files_root(self.layout.root, self.clips.corpus)
        return items_to_time(
            encoder,
            self.config,
            clips=None if self.clips is None else self.clips.rows,
            root=root,
            lengths=self.material.lengths,
            own_tokens=self.outline is not None and self.outline.here,
        )

    def _time_extract(self, extract: Row, speed: Speed, scale: float | None, encoder: Encoder) -> None:
        if scale is not None and extract.total:
            extract.time_s = speed.seconds * scale * (1 - extract.done / extract.total)
            extract.basis = "measured"
            return
        rate = cast("Any", encoder).sampling_rate if encoder.modality == "speech" else 1
        each = f"{speed.per_cost * rate:.2g} s for each {UNITS[encoder.modality]}"
        extract.notes.append(f"{each}; how much there is, is known after download")

    def _time_tuned(
        self, rows: list[Row], encoder: Encoder | None, on: str, sizes: NDArray[np.int64], speed: Speed
    ) -> None:
        """Fill in the ways of fine-tuning: timed while there is time, else from the forward pass alone.

        Args:
            rows: one per way.
            encoder: as fine-tuning holds it; None: there is no room for that.
            on: device.
            sizes: cost of each item.
            speed: of embedding.
        """
        typical, started = int(np.sort(sizes)[len(sizes) // 2]), time.monotonic()
        for row in rows:
            row.memory_on = on.partition(":")[0]
            rates = None
            if encoder is not None and time.monotonic() - started < TUNING_S:
                try:
                    rates = self._tune(row, encoder, typical, int(sizes.max()), on, TUNING_S / len(rows))
                except MethodError as error:
                    _settle(row, Obstacle(error.message, error.fix))
                    continue
            if not self.splits:
                continue
            row.basis = "measured" if rates else "upper limit"
            if rates is None:
                row.notes.append(f"not measured: a training step is taken as {FORWARD_PASSES} forward passes")
            train_s, predict_s = rates or (FORWARD_PASSES * speed.per_cost, speed.per_cost)
            each = [train_s * len(one.train) + predict_s * (len(one.dev) + len(one.test)) for one in self.splits]
            epochs = (len(self._runs) - row.done) * self.config.finetune.epochs
            row.time_s = epochs * float(np.mean(each)) * float(sizes.mean())

    def _tune(
        self, row: Row, encoder: Encoder, typical: int, longest: int, device: str, within_s: float
    ) -> tuple[float, float] | None:
        """Seconds of training and of evaluation for one unit of cost; None: not even one item fits in memory.

        Raises:
            MethodError: the encoder cannot be tuned in this way.
        """
        item = RandomItems(encoder, np.array([typical]), 1).read(0)
        fresh = copy.deepcopy(encoder)
        try:
            with PeakMemory(device) as memory:
                timed = time_finetune(
                    str(row.method),
                    fresh,
                    item,
                    self.config,
                    num_classes=self.material.classes or 2,
                    device=device,
                    within_s=within_s,
                )
        except torch.OutOfMemoryError:
            return None
        # what is kept for the backward pass grows with the batch, what is kept for each trained number does not
        kept = ADAM_BYTES * timed.num_trained
        batch = -(-self.config.finetune.batch_size // self.config.finetune.accumulate) * longest
        row.memory_bytes = (row.memory_bytes or 0) + kept
        row.memory_bytes += round(max(0, memory.taken - kept) * max(1.0, batch / timed.tried))
        self._size(row, self._fold_bytes(4 * timed.num_trained))
        del fresh
        _free(device)
        return timed.train_s, timed.predict_s


def _table(
    layout: Layout, config: Config, stage: Literal["download", "segment"]
) -> tuple[CorpusTable | None, str | None]:
    """The table of a stage, if it is the one that the settings ask for; else what is wrong with the one there."""
    read, path = (read_utterances, layout.utterances) if stage == "download" else (read_clips, layout.clips)
    if not path.exists():
        return None, None
    try:
        table: CorpusTable = read(path)
        made = {"download": table.settings} if stage == "download" else table.settings
        check_settings(made, config, table.modality, what=f"{stage} table", fix="")
    except ArtifactError as error:
        return None, error.message
    source = config.download.source
    if source is not None and (key := key_of(config.download.corpus, Path(source))) != table.corpus:
        return None, f"the table is of '{table.corpus}', asked for '{key}'"
    return table, None


def _unfinished(layout: Layout, config: Config, clips: CorpusTable | None) -> int:
    """Clips in shards that an interrupted extraction with the settings of now has left."""
    if clips is None:
        return 0
    found = [0]
    for folder in (layout.work / "extract").glob(f"*-{config.extract.shard_clips}"):
        done = 0
        for path in folder.glob("embeddings-*.parquet"):
            try:
                file = pq.ParquetFile(path)
                head = json.loads(file.metadata.metadata[METADATA_KEY])
                check_settings(head["settings"], config, clips.modality, what="shards", fix="")
            except (OSError, ValueError, KeyError, TypeError, ArtifactError):
                continue
            ids = pl.Series(file.read(columns=["clip_id"])["clip_id"].to_pylist(), dtype=pl.String)
            done += len(ids) if ids.is_in(clips.rows["clip_id"].implode()).all() else 0
        found.append(done)
    return max(found)


def _settle(row: Row, obstacle: Obstacle | None, upstream: Sequence[Row] = (), *, any_will_do: bool = False) -> None:
    """State of a row from what is finished and what stands in its way.

    Args:
        row: with the counts of what is finished.
        obstacle: of its own.
        upstream: rows that it reads the results of.
        any_will_do: it can run once one of them is possible, otherwise it needs all of them.
    """
    if row.total and row.done >= row.total:
        row.state, row.reason, row.time_s, row.basis = "done", None, 0.0, "recorded"
        return
    row.state = "partly" if row.done else "to do"
    blocked = [one for one in upstream if one.state == "not possible"]
    if obstacle is None and blocked and (not any_will_do or len(blocked) == len(upstream)):
        obstacle = Obstacle(blocked[0].reason or "", blocked[0].fix)
    if obstacle is not None:
        row.state, row.reason, row.fix = "not possible", obstacle.reason, obstacle.fix


def _took(folds: list[Fold]) -> float | None:
    """Seconds that folds took to train; None without any."""
    return sum(fold.result["meta"]["train_s"] for fold in folds) if folds else None


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _free(device: str) -> None:
    """Give back the memory of an encoder that is no longer needed."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
