"""Plan a pipeline before it runs: what is left to do on this machine, and its disk, memory and time.

The artifacts show what is finished (`daamctl.planning.artifact_status`). Disk and memory follow from the numbers of
items, layers and parameters (`daamctl.planning.estimate`), times from finished work of the same kind
(`daamctl.planning.recorded`). Nothing is written.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daamctl.analysis.ablation import LayerGroup, choose_groups
from daamctl.analysis.audit import steps
from daamctl.artifacts.ablation import find_ablation
from daamctl.artifacts.evaluation import find_evaluation
from daamctl.artifacts.importance import find_importance
from daamctl.artifacts.results import Fold, intact_folds
from daamctl.artifacts.skipped import Obstacle
from daamctl.artifacts.terms import counted, encoder_label
from daamctl.config import Config, TrainingStage
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.devices import free_memory, free_on, resolve_device, resolve_precision
from daamctl.encoders.encoder_size import weight_bytes
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.fit.trial import clips_of_fold, steps_of_training, trainings
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM
from daamctl.planning.ablation import choose_method, choose_ranking, layer_scores, ranked
from daamctl.planning.artifact_status import ArtifactStatus
from daamctl.planning.estimate import ADAM_BYTES, MethodSize, ResourceEstimate
from daamctl.planning.finetune_size import empty_encoder, finetune_size
from daamctl.planning.reconstruction import ReconstructionPlan
from daamctl.planning.recorded import MEASURED, Rate, Recorded
from daamctl.planning.rows import Blockers, Row, set_state, train_seconds
from daamctl.provenance import device_name
from daamctl.store.records import Record

PICTURES_BYTES = 500_000
"""Approximate size of a method's pictures in `importance`."""
RANKED = ("highest", "lowest")
"""Kinds of layer groups that a ranking chooses."""
QUICK_BYTES = {"evaluate": 1_000_000, "report": 10_000_000}
QUICK_PREDICTIONS = 500_000
"""Above this number of test predictions, evaluate and report take minutes rather than seconds."""
FORWARD_PASSES, FORWARD_PASSES_RECOMPUTED = 3, 4
"""Cost of a training step in forward passes: a backward pass costs about two, and gradient checkpointing adds one."""


def run(layout: Layout, config: Config, *, blockers: Blockers, measured: Layout | None = None) -> dict[str, Any]:
    """Make the plan.

    Args:
        blockers: `corpus` and `encoder` -> what is missing on this machine, or None.
        measured: where the pipeline was tried on a few clips, for times that finished work does not tell.

    Returns:
        JSON-able: pipeline; encoder: its name for readers, None if the embeddings are given; machine: device,
        disk_free_bytes, memory_available_bytes, gpu_free_bytes (None: no GPU); stages: see `Row`; totals of what is not
        done: disk_bytes, memory_bytes, gpu_memory_bytes, time_s, joules (of GPUs whose driver tells), at_least (not all
        items are known), at_least_of (single totals that are lower bounds), about, possible; notes.

    Raises:
        UnknownNameError: there is no such corpus or method.
        ConfigError: a device of the settings is not on this machine.
        ArtifactError: an artifact is damaged.
    """
    planner: ReconstructionPlan | _Planner
    if config.task == "reconstruct":
        planner = ReconstructionPlan(layout, config, blockers)
    else:
        planner = _Planner(layout, config, blockers, measured)
    rows = planner.rows()
    gpus = free_on("cuda") if torch.cuda.is_available() else []
    return {
        "pipeline": layout.run_name,
        "encoder": encoder_label({}, config.section("extract")) if config.has_encoder else None,
        "machine": {
            "device": device_name(planner.device),
            "disk_free_bytes": shutil.disk_usage(layout.root).free,
            "memory_available_bytes": free_memory(),
            "gpu_free_bytes": sum(gpus) if gpus else None,
        },
        "stages": [asdict(row) for row in rows],
        "totals": _totals(rows),
        "notes": planner.notes(rows),
    }


def _totals(rows: Sequence[Row]) -> dict[str, Any]:
    todo = [row for row in rows if not row.is_done]
    on_gpu = [row for row in todo if row.memory_on == "cuda"]
    on_cpu = [row for row in todo if row.memory_on != "cuda"]
    lower_bounds = {
        "memory_bytes": any(row.memory_at_least for row in on_cpu),
        "gpu_memory_bytes": any(row.memory_at_least for row in on_gpu),
        "time_s": any(row.basis == "not known" for row in todo),
        "joules": any(row.joules is None and row.basis != "quick" for row in on_gpu),
    }
    return {
        "disk_bytes": sum(row.disk_left_bytes or 0 for row in todo),
        "memory_bytes": max((row.memory_bytes or 0 for row in on_cpu), default=0),
        "gpu_memory_bytes": max((row.memory_bytes or 0 for row in on_gpu), default=0),
        "time_s": sum(row.time_s or 0.0 for row in todo),
        "joules": sum(row.joules or 0.0 for row in todo),
        "at_least": any(row.at_least for row in todo),
        "at_least_of": [name for name, is_lower in lower_bounds.items() if is_lower],
        "about": any(row.about for row in todo),
        "possible": all(row.state != "not possible" for row in todo),
    }


class _Planner:
    """Builds the rows stage by stage, each from the rows before it."""

    def __init__(self, layout: Layout, config: Config, blockers: Blockers, measured: Layout | None) -> None:
        self.layout, self.config, self.blockers = layout, config, blockers
        self.device = resolve_device(config.train.device)
        self.status = ArtifactStatus(layout, config)
        self.needs = ResourceEstimate(self.status)
        self.recorded = Recorded(layout, config, measured)

    def rows(self) -> list[Row]:
        """Every row, in the order of the stages."""
        download = self._download()
        segment = self._segment(download)
        extract = self._extract(segment)
        trained = [self._train(name, extract) for name in self.config.methods]
        finetuned = self._finetune_all(segment)
        evaluate = self._evaluate([*trained, *finetuned])
        ablate = self._ablate(extract, trained)
        importance = self._importance(trained, ablate)
        report = self._report([evaluate, ablate, importance])
        return [download, segment, extract, *trained, *finetuned, evaluate, ablate, importance, report]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Notes on the estimates that concern more than one row."""
        needs, config, notes = self.needs, self.config, list[str]()
        todo = [row for row in rows if not row.is_done]
        stages = {row.stage for row in todo}
        known = needs.encoder_size is not None or needs.stats.modality is None or not config.has_encoder
        if stages & {"extract", "finetune"} and not known:
            notes.append(f"the size of encoder '{config.extract.encoder}' is known once its files are here")
        source = needs.feature_source()
        if "train" in stages and source is not None and needs.num_items is not None:
            how = {
                "memory": "held in memory",
                "device": "copied to the GPU once per method",
                "stream": "read from disk in every epoch, which times scaled from smaller runs do not include",
            }[source]
            size = f"{needs.num_items * needs.vector_bytes / 1e6:,.1f} MB"
            notes.append(f"train: the features take {size}, {how} (train.features={config.train.features})")
        if needs.copies > 1 and stages & {"train", "finetune"}:
            notes.append("train, finetune: MLflow keeps a second copy of every fold, which is included under disk")
        if self.recorded.measured is None and any(
            row.basis == "not known" and row.stage in ("extract", "train", "finetune") for row in todo
        ):
            command = f"daamctl plan {self.layout.pipeline} --measure"
            notes.append(f"?: no finished work of the same kind tells the time; measure it: {command}")
        if any(row.about for row in todo):
            notes.append("≈: estimated from the published durations of the corpus until it is downloaded")
        return notes

    def _download(self) -> Row:
        corpus: Corpus = CORPORA.load(self.config.download.corpus)
        row = Row("download", work=f"corpus {corpus.name}", unit="tables", total=1, basis="quick")
        row.done, row.reason = int(self.status.utterances is not None), self.status.old_utterances
        if corpus.url is not None and not row.done and not (self.layout.corpora / corpus.name).exists():
            row.basis = "not known"
            row.notes.append("the download time depends on the network")
        set_state(row, self.blockers.get("corpus"))
        return self.needs.fill_disk(row, self.needs.table_bytes())

    def _segment(self, download: Row) -> Row:
        row = self._row("segment", work=self.needs.items(), unit="tables", total=1, basis="quick")
        row.done, row.reason = int(self.status.clips is not None), self.status.old_clips
        set_state(row, None, [download])
        return self.needs.fill_disk(row, self.needs.table_bytes())

    def _extract(self, segment: Row) -> Row:
        needs, config = self.needs, self.config.extract
        row = self._row("extract", work=needs.items(), unit="clips", total=needs.num_items)
        row.reason = self.status.old_head
        if self.status.head is not None:
            row.total = row.done = self.status.head.num_clips
        else:
            row.done = self.status.extracted_clips()
        set_state(row, self._encoder_obstacle(), [segment])
        needs.fill_disk(row, needs.embeddings_bytes())
        if row.is_done:
            return row
        if not self.config.has_encoder:
            row.basis = "quick"
            row.notes.append("given embeddings are stored as they are; no encoder is opened")
            return row
        device = resolve_device(config.device)
        row.memory_on = self._encoder_on(device)
        if needs.encoder_size is not None and needs.stats.modality is not None:
            precision = resolve_precision(config.precision, device, work="encoder")
            row.memory_bytes = weight_bytes(needs.encoder_size, config, needs.stats.modality, device, precision)
            row.memory_at_least = True
        rate = self.recorded.extraction()
        if rate is not None and row.total:
            self._set_time(row, rate, row.total - row.done)
        return row

    def _train(self, method: str, extract: Row) -> Row:
        needs, config = self.needs, self.config
        row = self._folds("train", method, config)
        kept = self.status.trained(method, needs.runs)
        row.done, row.took_s, row.memory_on = len(kept), train_seconds(kept), self.device.partition(":")[0]
        if self.status.features is None and (existing := len(intact_folds(self.layout.method(method)))):
            row.reason = f"{existing} folds are kept if the embeddings do not change"
        size, problem = needs.method(method)
        set_state(row, problem or needs.no_split, [extract])
        if size is None:
            return needs.fill_disk(row, None)
        row.memory_bytes = needs.training_bytes(needs.state_bytes(method, size))
        maps = 8 * needs.vector_numbers if size.density else 0
        needs.fill_disk(row, needs.fold_bytes(4 * size.num_parameters + maps))
        if not row.is_done:
            self._set_training_time(row, kept, config)
        return row

    def _finetune_all(self, segment: Row) -> list[Row]:
        modality, encoder = self.needs.stats.modality, None
        if modality is not None and self.config.finetunes:
            encoder = empty_encoder(self.config.extract, modality, self.needs.finetune_dtype)
        return [self._finetune(name, segment, copy.deepcopy(encoder)) for name in self.config.finetunes]

    def _finetune(self, name: str, segment: Row, encoder: Any | None) -> Row:
        """Row of a fine-tuning method.

        Args:
            segment: the row that it depends on.
            encoder: on the meta device; it is modified. None: its size is not known.
        """
        needs, config = self.needs, self.config.for_adapter(name)
        row = self._folds("finetune", name, config)
        kept = self.status.finetuned(name, needs.splits, needs.stats.modality)
        row.done, row.took_s = len(kept), train_seconds(kept)
        row.memory_on = self._encoder_on(resolve_device(config.finetune.device))
        size, problem = None, None
        if encoder is not None:
            try:
                size = finetune_size(name, encoder, needs.stats.classes or 2)
            except MethodError as error:
                problem = Obstacle(error.message, error.fix)
        set_state(row, problem or self._encoder_obstacle() or needs.no_split, [segment])
        needs.fill_disk(row, None if size is None else needs.fold_bytes(4 * size.num_kept, "finetune"))
        if row.is_done:
            return row
        rate = self.recorded.training(name, needs.sizes)
        if rate is not None and rate.peak_memory_bytes is not None:
            row.memory_bytes = rate.peak_memory_bytes
        elif size is not None:
            row.memory_bytes, row.memory_at_least = size.held_bytes + ADAM_BYTES * size.num_trained, True
        elif needs.encoder_size is not None:
            row.memory_bytes = needs.encoder_size.num_parameters * needs.finetune_dtype.itemsize
            row.memory_at_least = True
        if rate is not None:
            self._set_training_time(row, kept, config)
        elif (extraction := self.recorded.extraction()) is not None and needs.splits:
            passes = FORWARD_PASSES_RECOMPUTED if config.finetune.gradient_checkpointing else FORWARD_PASSES
            row.time_s = self._clips_left(row, kept, config) * passes * extraction.seconds
            row.basis = "estimated"
            row.notes.append(f"a training step is taken as {passes} forward passes, as fast as in extract")
        return row

    def _evaluate(self, trained: list[Row]) -> Row:
        row = Row("evaluate", work=counted(len(trained), "method"), unit="tables", total=1)
        fresh = self._is_fresh(row, [self.layout.method(name) for name in self.config.trained])
        if fresh and all(one.is_done for one in trained):
            made = self._read(row, find_evaluation)
            if made is not None:
                same_methods = set(made.methods) == set(self.config.trained)
                same_margin = made.fairness.margin == self.config.evaluate.margin
                row.done = int(same_methods and same_margin and made.main_unit == self.config.evaluate.unit)
        set_state(row, None, trained, any_upstream=True)
        return self._quick(row)

    def _ablate(self, extract: Row, trained: list[Row]) -> Row:
        needs, settings = self.needs, self.config.ablate
        row = self._row("ablate", work="layer groups", unit="folds", memory_on=self.device.partition(":")[0])
        rank_by = choose_ranking(self.layout, self.config, needs.sizes).name if needs.sizes else settings.rank_by
        ranking = [one for one in trained if one.method == rank_by]
        fresh = self._is_fresh(row, [self.layout.method(str(one.method)) for one in ranking])
        fresh = fresh and self._read(row, find_ablation) is not None
        unlisted = "; ".join(self.config.unlisted().values())
        set_state(row, Obstacle(unlisted) if unlisted else None, [extract, *ranking])
        if needs.sizes is None or not needs.runs or unlisted:
            return needs.fill_disk(row, None)
        order = self._order(ranking)
        fresh = fresh and (order is None or self._recorded_order() == order)
        try:
            groups = self._groups(order)
        except ConfigError as error:
            set_state(row, Obstacle(error.message, error.fix))
            return row
        method = choose_method(self.layout, self.config, needs.sizes, {group.k for group in groups}).name
        if method is None:
            groups = []
        row.work = f"{counted(len(groups), 'group')} × {counted(len(needs.runs), 'fold')}"
        row.total = max(1, len(groups) * len(needs.runs))
        if method is None or not groups:
            row.work = "nothing to train"
            row.done, row.basis = int(fresh), "quick"
            set_state(row, None, [extract, *ranking])
            return needs.fill_disk(row, 0)
        settled = [group for group in groups if order is not None or group.kind not in RANKED]
        kept = self.status.ablated(method, settled, needs.runs)
        row.took_s = train_seconds(kept)
        row.done = len(kept) if fresh else min(len(kept), row.total - 1)  # the table is still to be written
        if len(settled) < len(groups):
            row.notes.append(f"which layers it trains on is known once '{rank_by}' is trained")
        sizes, problem = self._sizes_on(method, groups)
        set_state(row, problem, [extract, *ranking])
        needs.fill_disk(row, sum(needs.fold_bytes(4 * size.num_parameters) or 0 for size in sizes))
        if row.is_done or problem is not None:
            return row
        if len(kept) == row.total:
            row.basis = "quick"
            return row
        state = [needs.state_bytes(method, size, group.k) for size, group in zip(sizes, groups, strict=True)]
        row.memory_bytes = needs.training_bytes(max(state))
        rate = self.recorded.training(method, needs.sizes)
        if rate is not None:
            each = float(
                np.mean(
                    [clips_of_fold(method, self.config, len(split.train), len(split.dev)) for split in needs.splits]
                )
            )
            row.time_s = (row.total - row.done) * each * rate.seconds
            row.basis = "estimated"
            row.notes.append(f"a fold on few layers is taken to last as long as a fold of '{method}' on all layers")
        return row

    def _order(self, ranking: Sequence[Row]) -> list[int] | None:
        """Layers as `ablate` will rank them; empty if it will not rank them; None: known after training."""
        if not ranking:
            return []
        method = str(ranking[0].method)
        size = self.needs.method(method)[0]
        if size is not None and not size.density:
            return []
        return ranked(layer_scores(intact_folds(self.layout.method(method)))) if ranking[0].is_done else None

    def _recorded_order(self) -> list[int] | None:
        """Layers as the last ablation ranked them; None without a readable one."""
        try:
            found = find_ablation(self.layout.stage("ablate"))
        except ArtifactError:
            return None
        return None if found is None else found.ranking

    def _groups(self, order: Sequence[int] | None) -> list[LayerGroup]:
        """Layer groups of the ablation.

        Args:
            order: ranked layers; None: not known yet, so any layers stand for the highest and lowest.

        Raises:
            ConfigError: the settings name layers that are not stored.
        """
        settings, sizes = self.config.ablate, self.needs.sizes
        assert sizes is not None
        stored = self.status.head.layers if self.status.head else range(1, sizes[0] + 1)
        layers = [layer for layer in stored if layer > 0]
        return choose_groups(layers if order is None else order, settings.k, settings.layers, layers, settings.presets)

    def _sizes_on(self, method: str, groups: Sequence[LayerGroup]) -> tuple[list[MethodSize], Obstacle | None]:
        """Size of a method on each layer group, or why it cannot be built on one of them."""
        sizes = []
        for group in groups:
            size, problem = self.needs.method(method, group.k)
            if size is None:
                return [], problem
            sizes.append(size)
        return sizes, None

    def _importance(self, trained: list[Row], ablate: Row) -> Row:
        row = self._row("importance", work="maps", unit="tables", total=1, memory_on=self.device.partition(":")[0])
        needs, settings = self.needs, self.config.importance
        folders = [self.layout.method(str(one.method)) for one in trained]
        fresh = self._is_fresh(row, [*folders, self.layout.stage("ablate")])
        if fresh and all(one.is_done for one in (*trained, ablate)):
            made = self._read(row, find_importance)
            row.done = int(made is not None and {*made.scores, *made.without_score} == {*self.config.methods})
        set_state(row, None, trained, any_upstream=True)
        if needs.sizes is None or not needs.runs:
            return needs.fill_disk(row, None)
        found = {str(one.method): needs.method(str(one.method))[0] for one in trained}
        maps = sum(size.density for size in found.values() if size) * (len(needs.runs) + 1)
        needs.fill_disk(row, maps * 8 * needs.vector_numbers + len(found) * PICTURES_BYTES)
        scored = [name for name, size in found.items() if size and size.scored]
        if not (settings.audit and scored):
            return self._quick(row)
        row.work = f"maps, {counted(len(scored), 'audit')}"
        if row.is_done:
            return row
        row.memory_bytes = needs.training_bytes(0)
        rates = [rate.seconds for name in scored if (rate := self.recorded.training(name, needs.sizes)) is not None]
        if len(rates) == len(scored):
            # deletion and insertion in order of the score, of the untrained score, and at random; they share both ends
            masked = 2 * (2 + settings.audit_orders) * (len(steps(needs.sizes[0])) - 2) + 2
            clips = np.mean([min(settings.audit_clips, len(split.test)) for split in needs.splits])
            row.time_s = float(len(needs.runs) * masked * clips * sum(rates) / FORWARD_PASSES)
            row.basis = "estimated"
            row.notes.append(
                f"a prediction is taken as 1/{FORWARD_PASSES} of a training step; the linear probes of the audit are "
                "not included"
            )
        return row

    def _report(self, upstream: list[Row]) -> Row:
        row = Row("report", work="one page", unit="pages", total=1)
        fresh = self._is_fresh(row, [self.layout.stage(one.stage) for one in upstream])
        row.done = int(fresh and all(one.is_done for one in upstream))
        set_state(row, None, upstream[:1])
        return self._quick(row)

    def _row(self, stage: str, method: str | None = None, **fields: Any) -> Row:
        """A row whose estimates are as certain as the number of items."""
        return Row(stage, method, at_least=self.needs.stats.at_least, about=self.needs.stats.about, **fields)

    def _folds(self, stage: TrainingStage, method: str, config: Config) -> Row:
        """A row of training, with the number of trainings and of their steps; of a probe neither."""
        row = self._row(stage, method, unit="folds", total=len(self.needs.runs_of(stage)) or None)
        seeds = len(self.config.seeds_of(stage))
        parts = [counted(len(self.needs.splits), "fold")] if self.needs.splits else []
        if seeds > 1:
            parts.append(f"{seeds} seeds")
        if method not in CLOSED_FORM:
            if (number := trainings(method, config)) > 1:
                parts.append(counted(number, "training"))
            counts = {
                steps_of_training(method, config, len(split.train), len(split.dev)) for split in self.needs.splits
            }
            if counts:
                low, high = min(counts), max(counts)
                parts.append(counted(low, "step") if low == high else f"{low:,} to {high:,} steps")
        row.work = " × ".join(parts)
        return row

    def _encoder_obstacle(self) -> Obstacle | None:
        """What keeps this machine from running the encoder on the corpus."""
        return self.blockers.get("encoder") or self.blockers.get("corpus")

    def _encoder_on(self, device: str) -> str:
        """Kind of device whose memory the encoder needs."""
        return "cuda" if self.config.extract.min_gpu_memory_gb else device.partition(":")[0]

    def _clips_left(self, row: Row, kept: Sequence[Fold], config: Config) -> int:
        """Clips in the steps of all folds that are not finished."""
        finished = {(fold.fold, fold.seed) for fold in kept}
        seeds = self.config.seeds_of("finetune" if row.stage == "finetune" else "train")
        total = 0
        for split in self.needs.splits:
            missing = [seed for seed in seeds if (split.fold, seed) not in finished]
            total += len(missing) * clips_of_fold(str(row.method), config, len(split.train), len(split.dev))
        return total

    def _set_training_time(self, row: Row, kept: Sequence[Fold], config: Config) -> None:
        """Fill in the time of training from recorded folds: trainings x steps x clips of a step."""
        rate = self.recorded.training(str(row.method), self.needs.sizes)
        if rate is not None and self.needs.splits:
            self._set_time(row, rate, self._clips_left(row, kept, config))

    def _set_time(self, row: Row, rate: Rate, units: int) -> None:
        row.time_s, row.basis = rate.seconds * units, "measured" if rate.source == MEASURED else "recorded"
        row.joules = None if rate.joules is None else rate.joules * units
        if rate.source not in (MEASURED, self.layout.run_name):
            row.notes.append(f"time scaled from '{rate.source}'")

    def _is_fresh(self, row: Row, folders: Sequence[Path]) -> bool:
        """Whether the last output of a stage exists and is newer than the results it depends on."""
        if self.status.finished_file(row.stage) is None:
            return False
        if self.status.is_outdated(row.stage, folders):
            row.reason = "older than its inputs"
            return False
        return True

    def _read(self, row: Row, find: Callable[..., Record | None]) -> Record | None:
        """The record of a stage; None if it is damaged."""
        try:
            return find(self.layout.stage(row.stage))
        except ArtifactError as error:
            row.reason = error.message
            return None

    def _quick(self, row: Row) -> Row:
        """Fill in a stage that takes seconds, or minutes if there are many predictions."""
        config = self.config
        runs = len(config.train.seeds) * len(config.methods) + len(config.seeds_of("finetune")) * len(config.finetunes)
        predictions = (self.needs.num_items or 0) * runs
        if not row.is_done:
            row.basis = "quick"
            if predictions > QUICK_PREDICTIONS:
                row.notes.append("takes minutes rather than seconds because of the number of predictions")
        return self.needs.fill_disk(row, QUICK_BYTES.get(row.stage, row.disk_bytes))
