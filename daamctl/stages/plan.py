"""Plan a pipeline before anything runs: what is left to do on this machine, and its disk, memory and time.

The artifacts show what is finished (`daamctl.planning.artifact_status`). Times come from folds trained here earlier, or
from a short calibration (`daamctl.planning.calibration`). Sizes come from the clip table, or from the known counts of
the corpus (`daamctl.planning.resources`). The command writes no files.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daamctl.analysis.ablation import choose_groups
from daamctl.analysis.audit import steps
from daamctl.artifacts.io import read_json
from daamctl.artifacts.results import read_folds
from daamctl.artifacts.skipped import Obstacle
from daamctl.artifacts.splits import Split
from daamctl.artifacts.terms import counted
from daamctl.config import Config, TrainingStage
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.devices import free_memory, free_on, resolve_device
from daamctl.errors import ConfigError
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM
from daamctl.planning.ablation import choose_method, choose_ranking
from daamctl.planning.artifact_status import ArtifactStatus
from daamctl.planning.calibration import EncoderTimes, MethodTimes, tune_epochs
from daamctl.planning.reading import Reading
from daamctl.planning.resources import ResourceEstimate, Way
from daamctl.planning.rows import Lacking, Row, settle, took
from daamctl.provenance import device_name
from daamctl.stage_table import STAGES
from daamctl.training.search import grid_of, may_stop, most_epochs, refits
from daamctl.training.timing import MethodSpeed

PICTURES_BYTES = 500_000
"""Approximate size of a method's pictures in `importance`."""
QUICK_BYTES = {"evaluate": 1_000_000, "report": 10_000_000}
QUICK_PREDICTIONS = 500_000
"""Above this number of test predictions, evaluate and report take minutes rather than seconds."""


def run(layout: Layout, config: Config, *, lacking: Lacking, calibrate: bool = True) -> dict[str, Any]:
    """Work out the plan.

    Args:
        layout: where artifacts lie.
        config: all settings.
        lacking: `corpus` and `encoder` -> what is missing on this machine, or None.
        calibrate: measure the speed; otherwise times come only from folds trained here earlier.

    Returns:
        JSON-able: pipeline; calibrated; seconds (time of planning); machine: device, disk_free_bytes,
        memory_available_bytes, gpu_free_bytes (None: no GPU); stages: see `Row`; totals of what is not done:
        disk_bytes, memory_bytes, gpu_memory_bytes, time_s, at_least, at_least_of, at_most, about, possible; notes.

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

    def on(gpu: bool) -> list[Row]:
        return [row for row in todo if (row.memory_on == "cuda") is gpu]

    least = {"time_s": todo, "memory_bytes": on(gpu=False), "gpu_memory_bytes": on(gpu=True)}
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
            "memory_bytes": max((row.memory_bytes or 0 for row in on(gpu=False)), default=0),
            "gpu_memory_bytes": max((row.memory_bytes or 0 for row in on(gpu=True)), default=0),
            "time_s": sum(row.time_s or 0.0 for row in todo),
            "at_least": any(row.at_least or row.basis == "not known" for row in todo),
            "at_least_of": [
                name for name, own in least.items() if any(name.removeprefix("gpu_") in row.at_least_of for row in own)
            ],
            "at_most": any(row.at_most for row in todo),
            "about": any(row.about for row in todo),
            "possible": all(row.state != "not possible" for row in todo),
        },
        "notes": planner.notes(rows),
    }


class _Planner:
    """Builds the rows stage by stage, each from the rows before it."""

    def __init__(self, layout: Layout, config: Config, lacking: Lacking, calibrate: bool) -> None:
        self.layout, self.config, self.lacking = layout, config, lacking
        self.device = resolve_device(config.train.device)
        self.kind = self.device.partition(":")[0]
        self.present = ArtifactStatus(layout, config)
        self.needs = ResourceEstimate(self.present)
        self.methods = MethodTimes(self.needs, self.device, calibrate=calibrate)
        self.reading = Reading(self.needs, calibrate=calibrate)
        self.encoder = EncoderTimes(self.needs, calibrate=calibrate)

    def rows(self) -> list[Row]:
        """Every row, in the order of the stages."""
        download = self._download()
        segment = self._segment(download)
        extract = self._extract(segment)
        tuned = [self._finetune(name, segment) for name in self.config.finetunes]
        self.encoder.fill(extract, tuned)
        for row in tuned:
            self.needs.fill_disk(row, None)
        trained = [self._train(name, extract) for name in self.config.methods]
        evaluate = self._evaluate([*trained, *tuned])
        ablate = self._ablate(extract, trained)
        importance = self._importance(trained, ablate)
        report = self._report([evaluate, ablate, importance])
        return [download, segment, extract, *trained, *tuned, evaluate, ablate, importance, report]

    def notes(self, rows: Sequence[Row]) -> list[str]:
        """Notes on the estimates that concern more than one row."""
        needs, config = self.needs, self.config
        notes = [*self.encoder.notes, *self.methods.notes]
        left = {row.stage for row in rows if row.state != "done"}
        if (way := needs.way()) is not None and needs.number is not None and "train" in left:
            size = f"{needs.number * (needs.vector_bytes or 0) / 1e6:,.1f} MB"
            set_to = f"(train.features={config.train.features})"
            notes.append(f"train: the features take {size}, {self._how_read(way)} {set_to}")
        if slow := dict.fromkeys(self.methods.slow):
            notes.append(f"not measured, because it would take too long: {', '.join(slow)}")
        if needs.copies > 1 and left & {"train", "finetune"}:
            notes.append("train, finetune: MLflow keeps a second copy of every fold, which is included under disk")
        if any(row.at_most for row in rows):
            notes.append(
                "≤: assumes the maximum number of epochs; training stops early if the held-out group stops improving"
            )
        if any(row.about for row in rows):
            notes.append("≈: estimated from the published durations of the corpus until it is downloaded")
        return notes

    def _how_read(self, way: Way) -> str:
        if way == "memory":
            return "held in memory"
        how = "copied to the GPU once per method" if way == "device" else "read from disk in every epoch"
        if not self.methods.calibrate:
            return how
        rate = self.reading.rate
        return (
            f"{how}, which the times do not include" if rate is None else f"{how}, at {rate / 1e6:,.0f} MB per second"
        )

    def _download(self) -> Row:
        corpus: Corpus = CORPORA.load(self.config.download.corpus)
        row = Row("download", work=f"corpus {corpus.name}", unit="tables", total=1, basis="quick")
        row.done, row.reason = int(self.present.utterances is not None), self.present.old_utterances
        if corpus.url is not None and not row.done and not (self.layout.corpora / corpus.name).exists():
            row.basis = "not known"
            row.notes.append("the download time depends on the network")
        settle(row, self.lacking.get("corpus"))
        return self.needs.fill_disk(row, self.needs.table_bytes())

    def _segment(self, download: Row) -> Row:
        row = self._row("segment", work=self.needs.items(), unit="tables", total=1, basis="quick")
        row.done, row.reason = int(self.present.clips is not None), self.present.old_clips
        settle(row, None, [download])
        return self.needs.fill_disk(row, self.needs.table_bytes())

    def _extract(self, segment: Row) -> Row:
        row = self._row("extract", work=self.needs.items(), unit="clips", total=self.needs.number)
        row.reason, whole = self.present.old_head, None
        if self.present.head is not None:
            row.total = row.done = self.present.head.num_clips
        elif (whole := self.needs.embeddings_bytes()) is not None:
            row.done = self.present.shards()
        settle(row, self.lacking.get("encoder") or self.lacking.get("corpus"), [segment])
        return self.needs.fill_disk(row, whole)

    def _train(self, method: str, extract: Row) -> Row:
        train, closed = self.config.train, method in CLOSED_FORM
        epochs = None if closed else most_epochs(grid_of(train), train.epochs, refit=refits(train))
        stops = not closed and may_stop(train, train.selection)
        needs, row = self.needs, self._folds("train", method, epochs, stops=stops)
        kept = self.present.trained(method, needs.runs)
        if self.present.features is None and (lying := len(read_folds(self.layout.method(method)))):
            row.reason = f"{lying} folds are kept if the embeddings do not change"
        row.done, row.took_s, row.memory_on = len(kept), took(kept), self.kind
        found, problem = needs.method(method)
        settle(row, problem or needs.no_split, [extract])
        if found is None:
            return needs.fill_disk(row, None)
        maps = 8 * needs.vector_numbers if found.density else 0
        row.memory_bytes = needs.training_bytes(needs.state_bytes(method, found))
        needs.fill_disk(row, needs.fold_bytes(4 * found.num_parameters + maps))
        left = len(needs.runs) - len(kept)
        alike = [fold for fold in kept if fold.result["meta"]["device"] == device_name(self.device)]
        if row.state == "done" or not needs.runs:
            return row
        if alike:
            row.time_s, row.basis = left * (took(alike) or 0.0) / len(alike), "recorded"
        elif (timed := self.methods.speed(method)) is not None:
            each = [self._fold_s(timed[0], split, density=found.density) for split in needs.splits]
            row.time_s, row.basis = left * float(np.mean(each)), "measured"
            row.memory_bytes = needs.training_bytes(needs.state_bytes(method, found, taken=timed[1]))
            row.at_least_of += ["time_s"] if self.reading.is_unknown() else []
            row.at_most = stops
        return row

    def _fold_s(self, speed: MethodSpeed, split: Split, *, density: bool, layers: int | None = None) -> float:
        return speed.fold_s(split, self.config, density=density, read=self.reading.times(split, layers))

    def _finetune(self, name: str, segment: Row) -> Row:
        config = self.config.for_adapter(name)
        stops = may_stop(config.finetune, config.train.selection)
        row = self._folds("finetune", name, tune_epochs(name, config), stops=stops)
        kept = self.present.tuned(name, self.needs.splits, self.needs.material.modality)
        row.done, row.took_s = len(kept), took(kept)
        lacking = self.lacking.get("encoder") or self.lacking.get("corpus")
        settle(row, lacking or self.needs.no_split, [segment])
        device = device_name(resolve_device(self.config.finetune.device))
        alike = [fold for fold in kept if fold.result["meta"]["device"] == device]
        if alike and row.state != "done":
            row.time_s = (len(self.needs.runs_of("finetune")) - len(kept)) * (took(alike) or 0.0) / len(alike)
            row.basis = "recorded"
        return row

    def _evaluate(self, trained: list[Row]) -> Row:
        row = Row("evaluate", work=counted(len(trained), "method"), unit="tables", total=1)
        fresh = self._is_fresh(row, [self.layout.method(name) for name in self.config.trained])
        if fresh and all(one.state == "done" for one in trained):
            made = read_json(self.layout.stage("evaluate") / STAGES["evaluate"].finished)
            same_methods = set(made["methods"]) == set(self.config.trained)
            same_margin = made.get("fairness", {}).get("margin") == self.config.evaluate.margin
            row.done = int(same_methods and same_margin and made["main_unit"] == self.config.evaluate.unit)
        settle(row, None, trained, any_will_do=True)
        return self._quick(row)

    def _ablate(self, extract: Row, trained: list[Row]) -> Row:
        needs, settings = self.needs, self.config.ablate
        rank_by = choose_ranking(self.layout, self.config, needs.sizes).name if needs.sizes else settings.rank_by
        ranking = [row for row in trained if row.method == rank_by]
        row = self._row("ablate", work="layer groups", unit="folds", memory_on=self.kind)
        fresh = self._is_fresh(row, [self.layout.method(str(one.method)) for one in ranking])
        unlisted = "; ".join(self.config.unlisted().values())
        settle(row, Obstacle(unlisted) if unlisted else None, [extract, *ranking])
        if needs.sizes is None or not needs.runs or unlisted:
            return needs.fill_disk(row, None)
        ranks = any((found := needs.method(str(one.method))[0]) is None or found.density for one in ranking)
        stored = self.present.head.layers if self.present.head else range(1, needs.sizes[0] + 1)
        layers = [layer for layer in stored if layer > 0]
        try:
            groups = choose_groups(layers if ranks else [], settings.k, settings.layers, layers, settings.presets)
        except ConfigError as error:
            settle(row, Obstacle(error.message, error.fix))
            return row
        method = choose_method(self.layout, self.config, needs.sizes, {group.k for group in groups}).name or ""
        groups = groups if method else []
        wanted = [(group.name, group.k) for group in groups]
        sized = [needs.method(method, k) for _, k in wanted]
        problem = next((problem for _, problem in sized if problem), None)
        row.work = f"{counted(len(groups), 'group')} × {counted(len(needs.runs), 'fold')}"
        kept = self.present.alone(method, [name for name, _ in wanted], needs.runs)
        row.total, row.done, row.took_s = max(1, len(wanted) * len(needs.runs)), len(kept), took(kept)
        if not fresh:
            row.done = min(row.done, row.total - 1)  # the table is not written yet
        elif not wanted:
            row.done = row.total
        settle(row, problem, [extract, *ranking])
        needs.fill_disk(row, sum(needs.fold_bytes(4 * found.num_parameters) or 0 for found, _ in sized if found))
        if row.state == "done" or problem is not None:
            return row
        timed = [(one, k) for _, k in wanted if (one := self.methods.speed(method, k)) is not None]
        if not wanted:
            row.basis = "quick"
        elif len(timed) == len(wanted):
            folds = [
                self._fold_s(one, split, density=False, layers=k) for (one, _), k in timed for split in needs.splits
            ]
            share = 1 - row.done / row.total
            row.time_s, row.basis = sum(folds) * len(self.config.train.seeds) * share, "measured"
            held = [
                needs.state_bytes(method, found, k, taken=taken)
                for (found, _), ((_, taken), k) in zip(sized, timed, strict=True)
                if found
            ]
            row.memory_bytes = needs.training_bytes(max(held, default=0))
            row.at_most = method not in CLOSED_FORM and may_stop(self.config.train, self.config.train.selection)
            row.at_least_of += ["time_s"] if any(self.reading.is_unknown(k) for _, k in timed) else []
        return row

    def _importance(self, trained: list[Row], ablate: Row) -> Row:
        row = self._row("importance", work="maps", unit="tables", total=1, memory_on=self.kind)
        needs, settings = self.needs, self.config.importance
        folders = [self.layout.method(str(one.method)) for one in trained]
        fresh = self._is_fresh(row, [*folders, self.layout.stage("ablate")])
        if fresh and all(one.state == "done" for one in (*trained, ablate)):
            made = read_json(self.layout.stage("importance") / STAGES["importance"].finished)
            row.done = int({*made["scores"], *made["without_score"]} == {*self.config.methods})
        settle(row, None, trained, any_will_do=True)
        found = {str(one.method): needs.method(str(one.method))[0] for one in trained}
        if needs.sizes is None or not needs.runs:
            return needs.fill_disk(row, None)
        maps = sum(one.density for one in found.values() if one) * (len(needs.runs) + 1)
        needs.fill_disk(row, maps * 8 * needs.vector_numbers + len(found) * PICTURES_BYTES)
        scored = [name for name, one in found.items() if one and one.scored]
        if not (settings.audit and scored):
            return self._quick(row)
        row.work = f"maps, {counted(len(scored), 'audit')}"
        if row.state == "done":
            return row
        row.memory_bytes = needs.training_bytes(0)
        timed = [one for name in scored if (one := self.methods.speed(name)) is not None]
        if len(timed) == len(scored):
            # deletion and insertion in order of the score, of the untrained score, and at random; they share both ends
            tried = 2 * (2 + settings.audit_orders) * (len(steps(needs.sizes[0])) - 2) + 2
            clips = np.mean([min(settings.audit_clips, len(split.test)) for split in needs.splits])
            row.time_s = float(len(needs.runs) * tried * clips * sum(one.clip_s for one, _ in timed))
            row.basis = "measured"
            row.notes.append("the time does not include the linear probes of the audit")
        return row

    def _report(self, upstream: list[Row]) -> Row:
        row = Row("report", work="one page", unit="pages", total=1)
        fresh = self._is_fresh(row, [self.layout.stage(one.stage) for one in upstream])
        row.done = int(fresh and all(one.state == "done" for one in upstream))
        settle(row, None, upstream[:1])
        return self._quick(row)

    def _row(self, stage: str, method: str | None = None, **fields: Any) -> Row:
        """A row whose estimates are as certain as the number of items."""
        material = self.needs.material
        return Row(stage, method, at_least=material.at_least, about=material.about, **fields)

    def _folds(self, stage: TrainingStage, method: str, epochs: int | None, *, stops: bool) -> Row:
        row = self._row(stage, method, unit="folds", total=len(self.needs.runs_of(stage)) or None)
        seeds = len(self.config.seeds_of(stage))
        parts = [counted(len(self.needs.splits), "fold")] if self.needs.splits else []
        parts += [f"{seeds} seeds"] if seeds > 1 else []
        parts += [f"{'at most ' if stops else ''}{counted(epochs, 'epoch')}"] if epochs is not None else []
        row.work = " × ".join(parts)
        return row

    def _is_fresh(self, row: Row, folders: Sequence[Path]) -> bool:
        """Whether the last output of a stage exists and is newer than the results it depends on."""
        if self.present.made(row.stage) is None:
            return False
        if self.present.is_outdated(row.stage, folders):
            row.reason = "older than its inputs"
            return False
        return True

    def _quick(self, row: Row) -> Row:
        """Fill in a stage that takes seconds, or minutes if there are many predictions."""
        config = self.config
        runs = len(config.train.seeds) * len(config.methods) + len(config.seeds_of("finetune")) * len(config.finetunes)
        predictions = (self.needs.number or 0) * runs
        if row.state != "done":
            row.basis = "quick"
            if predictions > QUICK_PREDICTIONS:
                row.notes.append("takes minutes rather than seconds because of the number of predictions")
        return self.needs.fill_disk(row, QUICK_BYTES.get(row.stage, row.disk_bytes))
