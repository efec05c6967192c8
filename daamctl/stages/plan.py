"""Plan a pipeline before it runs: what is left to do on this machine, and its disk, memory and time.

The tasks are those of `daamctl run`, in the same order (`steps_of`); what is finished is asked of the functions by
which the stages keep it. Disk and memory follow from the numbers of items, layers and parameters
(`daamctl.planning.expected`), times from finished work of the same kind (`daamctl.planning.recorded`). Nothing is
written.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch

from daamctl.adapters import stage_of
from daamctl.artifacts.clips import AUDIO_DIR
from daamctl.artifacts.evaluation import find_evaluation
from daamctl.artifacts.importance import find_importance, folds_and_key
from daamctl.artifacts.inputs import inputs_of_report
from daamctl.artifacts.layer_sets import find_ablation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, intact_folds
from daamctl.artifacts.skipped import Obstacle, folder_of, is_finished
from daamctl.artifacts.terms import counted, encoder_label
from daamctl.compute.devices import autocast, free_memory, free_on, resolve_device, resolve_precision
from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.corpora.sources import source_of
from daamctl.data.spans import are_words, sentence_of
from daamctl.data.stage_table import STAGES, steps_of
from daamctl.encoders.encoder_size import weight_bytes
from daamctl.errors import ArtifactError, ConfigError, MethodError
from daamctl.evaluation.audit import steps
from daamctl.evaluation.consistency import scored_folds, scored_otherwise
from daamctl.evaluation.layer_sets import choose_sets
from daamctl.fit.steps import seed_everything
from daamctl.fit.trial import steps_of_training, trainings
from daamctl.methods import CLOSED_FORM
from daamctl.planning.expected import ADAM_BYTES, Expected
from daamctl.planning.finetune_size import finetune_dtype, finetune_size
from daamctl.planning.layer_sets import choose_method, choose_ranking, layer_scores, ranked
from daamctl.planning.recorded import (
    FORWARD_PASSES,
    FORWARD_PASSES_RECOMPUTED,
    MEASURED,
    RecordedSpeeds,
    Throughput,
    work_of_fold,
)
from daamctl.planning.tasks import Blockers, Task, set_state
from daamctl.reconstruction.training import kept_trainings
from daamctl.reconstruction.vqvae import VQVAE
from daamctl.store.files import read_json
from daamctl.store.provenance import device_name

T = TypeVar("T")
PICTURES_BYTES = 500_000
"""Approximate size of a method's pictures in `importance`."""
RANKED = ("highest-", "lowest-")
"""Kinds of layer groups that a ranking chooses."""
QUICK_BYTES = {"evaluate": 1_000_000, "report": 10_000_000}
QUICK_PREDICTIONS = 500_000
"""Above this number of test predictions, evaluate and report take minutes rather than seconds."""
TRIED_PIXELS = 32 * 64**2
"""Most pixels in a step that is timed on a CPU, where the time grows with them; on a GPU a whole batch is."""
TRIED_STEPS, TRIED_S = 3, 10.0
"""Most steps that are timed, and seconds after which no further one begins. The first is slower than the rest."""


def run(layout: Layout, config: Config, *, blockers: Blockers, measured: Layout | None = None) -> dict[str, Any]:
    """Make the plan.

    Args:
        blockers: `corpus` and `encoder` -> what is missing on this machine, or None.
        measured: where the pipeline was tried on a few clips, for times that finished work does not tell.

    Returns:
        JSON-able: pipeline; encoder: its name for readers, None if the embeddings are given; machine: device,
        disk_free_bytes, memory_available_bytes, gpu_free_bytes (None: no GPU); stages: see `Task`; totals of what is
        not done: disk_bytes, memory_bytes, gpu_memory_bytes, time_s, joules (of GPUs whose driver tells), at_least (not
        all items are known), at_least_of (single totals that are lower bounds), about, possible; notes.

    Raises:
        UnknownNameError: there is no such corpus or method.
        ConfigError: a device of the settings is not on this machine.
        ArtifactError: an artifact is damaged.
    """
    planner = _Planner(layout, config, blockers, measured)
    for stage, entry in steps_of(config):
        planner.add(stage, entry)
    todo = [task for task in planner.tasks if not task.is_done]
    on_gpu = [task for task in todo if task.memory_on == "cuda"]
    on_cpu = [task for task in todo if task.memory_on != "cuda"]
    lower_bounds = {
        "memory_bytes": any(task.memory_at_least for task in on_cpu),
        "gpu_memory_bytes": any(task.memory_at_least for task in on_gpu),
        "time_s": any(task.basis == "not known" for task in todo),
        # what takes seconds takes next to no energy
        "joules": any(task.joules is None and task.basis != "quick" for task in on_gpu),
    }
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
        "stages": [asdict(task) for task in planner.tasks],
        "totals": {
            "disk_bytes": sum(task.disk_left_bytes or 0 for task in todo),
            "memory_bytes": max((task.memory_bytes or 0 for task in on_cpu), default=0),
            "gpu_memory_bytes": max((task.memory_bytes or 0 for task in on_gpu), default=0),
            "time_s": sum(task.time_s or 0.0 for task in todo),
            "joules": sum(task.joules or 0.0 for task in todo),
            "at_least": any(task.at_least for task in todo),
            "at_least_of": [name for name, is_lower in lower_bounds.items() if is_lower],
            "about": any(task.about for task in todo),
            "possible": all(task.state != "not possible" for task in todo),
        },
        "notes": planner.notes(todo),
    }


class _Planner:
    """Fills in the tasks in order, each from those before it. The method for a stage has its name."""

    def __init__(self, layout: Layout, config: Config, blockers: Blockers, measured: Layout | None) -> None:
        self.layout, self.config, self.blockers = layout, config, blockers
        self.no_encoder = blockers.get("encoder") or blockers.get("corpus")
        section = config.reconstruct if config.task == "reconstruct" else config.train
        self.device = resolve_device(section.device)
        self.kind = self.device.partition(":")[0]
        self.known = Expected(layout, config)
        self.recorded = RecordedSpeeds(layout, config, measured)
        self.tasks: list[Task] = []

    def add(self, stage: str, entry: str | None) -> None:
        """Add the task of a stage, or of one entry of the list that it runs for."""
        task = Task(stage, entry, unit=STAGES[stage].unit)
        # they are written in one go, in seconds
        if task.unit in ("tables", "pages"):
            task.total, task.basis = 1, "quick"
        if stage in ("segment", "extract", "train", "finetune", "ablate", "importance"):
            task.at_least, task.about = self.known.stats.at_least, self.known.stats.about
        getattr(self, stage)(task)
        self.tasks.append(task)

    def of(self, *stages: str) -> list[Task]:
        """The tasks of stages before."""
        return [task for task in self.tasks if task.stage in stages]

    def notes(self, todo: Sequence[Task]) -> list[str]:
        """Notes on the estimates that concern more than one task."""
        known, config, notes = self.known, self.config, list[str]()
        stages = {task.stage for task in todo}
        if config.task == "reconstruct":
            words = "measured: some steps were timed on this machine now; other programs slow them down"
            return [words] if any(task.basis == "measured" for task in todo) else []
        has_size = known.encoder_size is not None or known.stats.modality is None or not config.has_encoder
        if stages & {"extract", "finetune"} and not has_size:
            notes.append(f"the size of encoder '{config.extract.encoder}' is not known yet, or it is hierarchical")
        source = known.feature_source()
        if "train" in stages and source is not None and known.num_items is not None:
            how = {
                "memory": "held in memory",
                "device": "copied to the GPU once per method",
                "stream": "read from disk in every epoch, which times scaled from smaller runs do not include",
            }[source]
            size = f"{known.num_items * known.vector_bytes / 1e6:,.1f} MB"
            notes.append(f"train: the features take {size}, {how} (train.features={config.train.features})")
        if known.copies > 1 and stages & {"train", "finetune"}:
            notes.append("train, finetune: MLflow keeps a second copy of every fold, which is included under disk")
        unknown = {task.stage for task in todo if task.basis == "not known"}
        if self.recorded.measured is None and unknown & {"extract", "train", "finetune"}:
            command = f"daamctl plan {self.layout.pipeline} --measure"
            notes.append(f"?: no finished work of the same kind tells the time; measure it: {command}")
        if any(task.about for task in todo):
            notes.append("≈: estimated from the published durations of the corpus until it is downloaded")
        return notes

    def download(self, task: Task) -> None:
        corpus: Corpus = CORPORA.load(self.config.download.corpus)
        task.work = f"corpus {corpus.name}"
        task.done, task.reason = int(self.known.utterances is not None), self.known.outdated.get("download")
        set_state(task, self.blockers.get("corpus"))
        if self.config.task == "reconstruct":
            return
        here = (self.layout.corpora / corpus.name).exists() or source_of(self.layout.root, corpus.name) is not None
        if corpus.url is not None and not task.done and not here:
            task.basis = "not known"
            task.notes.append("the download time depends on the network")
        self._set_disk(task, self.known.table_bytes())

    def segment(self, task: Task) -> None:
        task.work = self.known.items()
        clips, audio = self.known.clips, self.layout.clips.parent / AUDIO_DIR
        is_exported = not self.config.segment.write_audio or audio.is_dir()
        task.done, task.reason = int(clips is not None and is_exported), self.known.outdated.get("segment")
        set_state(task, None, self.of("download"))
        self._set_disk(task, self.known.table_bytes())

    def extract(self, task: Task) -> None:
        known, config = self.known, self.config.extract
        task.work, task.total, task.reason = known.items(), known.num_items, known.outdated.get("extract")
        if known.head is not None:
            task.total = task.done = known.head.num_clips
        else:
            task.done = known.extracted_clips()
        set_state(task, self.no_encoder, self.of("segment"))
        self._set_disk(task, known.embeddings_bytes())
        if task.is_done:
            return
        if not self.config.has_encoder:
            task.basis = "quick"
            task.notes.append("given embeddings are stored as they are; no encoder is opened")
            return
        if (folder := known.same_vectors()) is not None:
            task.basis, task.reason = "quick", None
            task.notes.append(f"the same vectors are in {folder}: they are used, not embedded again")
            self._set_disk(task, 0)
            return
        device, task.memory_on = resolve_device(config.device), self._memory_on(config)
        if known.encoder_size is not None and known.stats.modality is not None:
            precision = resolve_precision(config.precision, device, work="encoder")
            task.memory_bytes = weight_bytes(known.encoder_size, config, known.stats.modality, device, precision)
            task.memory_at_least = True
        rate = self.recorded.extraction()
        if rate is not None and task.total:
            self._set_time(task, rate, task.total - task.done)

    def train(self, task: Task) -> None:
        known, method = self.known, str(task.method)
        left = self._set_folds(task, known.kept(method), self.config, "" if known.head else "embeddings")
        task.memory_on = self.kind
        size, problem = known.method(method)
        set_state(task, problem or known.no_split, self.of("extract"))
        if size is None:
            self._set_disk(task, None)
            return
        task.memory_bytes = known.training_bytes(known.state_bytes(method, size))
        maps = 8 * known.vector_numbers if size.density else 0
        self._set_disk(task, known.fold_bytes([4 * size.num_parameters + maps]))
        rate = self.recorded.training(method, known.sizes)
        if rate is not None and known.splits and not task.is_done:
            self._set_time(task, rate, left)

    def finetune(self, task: Task) -> None:
        known, method = self.known, str(task.method)
        config, extract = self.config.for_adapter(method), self.config.extract
        left = self._set_folds(task, known.finetuned(method), config, "" if known.clips else "clips")
        task.memory_on = self._memory_on(config.finetune)
        size, problem = None, None
        if known.stats.modality is not None:
            try:
                size = finetune_size(method, extract, known.stats.modality, known.stats.classes or 2)
            except MethodError as error:
                problem = Obstacle(error.message, error.fix)
        set_state(task, problem or self.no_encoder or known.no_split, self.of("segment"))
        self._set_disk(task, None if size is None else known.fold_bytes([4 * size.num_kept], "finetune"))
        if task.is_done:
            return
        rate = self.recorded.training(method, known.sizes)
        if rate is not None and rate.peak_memory_bytes is not None:
            task.memory_bytes = rate.peak_memory_bytes
        elif size is not None:
            task.memory_bytes, task.memory_at_least = size.held_bytes + ADAM_BYTES * size.num_trained, True
        elif known.encoder_size is not None:
            each = finetune_dtype(extract).itemsize
            task.memory_bytes, task.memory_at_least = known.encoder_size.num_parameters * each, True
        if rate is not None and known.splits:
            self._set_time(task, rate, left)
        elif rate is None and (extraction := self.recorded.extraction()) is not None and known.splits:
            passes = FORWARD_PASSES_RECOMPUTED if config.finetune.gradient_checkpointing else FORWARD_PASSES
            task.time_s, task.basis = left * passes * extraction.seconds, "estimated"
            task.notes.append(f"a training step is taken as {passes} forward passes, as fast as in extract")

    def evaluate(self, task: Task) -> None:
        trained = self.of("train", "finetune")
        task.work = counted(len(trained), "method")
        made = self._made(task, trained, find_evaluation)
        if made is not None:
            wanted = {name: {*self.config.seeds_of(stage_of(name))} for name in self.config.trained}
            scored = {name: {run.seed for run in one.runs} for name, one in made.methods.items()}
            stale = scored_otherwise(made, self.config) or scored_folds(self.layout, self.config, made)[1]
            task.done, task.reason = int(scored == wanted and not stale), stale[0] if stale else None
        set_state(task, None, trained, any_upstream=True)
        self._set_quick(task)

    def ablate(self, task: Task) -> None:
        known, settings = self.known, self.config.ablate
        task.work, task.memory_on = "layer groups", self.kind
        rank_by = choose_ranking(self.layout, self.config, known.sizes).name if known.sizes else settings.rank_by
        ranking = [one for one in self.of("train") if one.method == rank_by]
        made = self._made(task, [], find_ablation)
        upstream = [*self.of("extract"), *ranking]
        unlisted = "; ".join(self.config.unlisted().values())
        set_state(task, Obstacle(unlisted) if unlisted else None, upstream)
        if known.sizes is None or known.vectors is None or not known.splits or unlisted:
            self._set_disk(task, None)
            return
        size = known.method(str(rank_by))[0] if ranking else None
        order: list[int] | None = None  # known once the method is trained
        keys: list[str] | None = None
        if not ranking or (size is not None and not size.density):
            order = []
        elif ranking[0].is_done:
            finished = intact_folds(self.layout.method(str(rank_by)))
            finished = [fold for fold in finished if fold.seed in self.config.train.seeds]
            order = ranked(layer_scores(finished))
            keys = sorted(fold.result["run"]["key"] for fold in finished if order)
        layers = [layer for layer in known.vectors[0] if layer > 0]
        wanted = settings.k, settings.layers, layers, settings.presets
        try:
            groups = choose_sets(layers if order is None else order, *wanted)  # until then any layers stand for them
        except ConfigError as error:
            set_state(task, Obstacle(error.message, error.fix))
            return
        method = choose_method(self.layout, self.config, known.sizes, set(map(len, groups.values()))).name
        if method is None or not groups:
            method, groups = None, {}
        fresh = False  # whether the table is of what it would train
        if made is not None and order in (None, made.ranking) and keys in (None, made.folds):
            now = (self.config.evaluate.unit, rank_by, method, groups)
            fresh = (made.unit, made.rank_by, made.method, made.sets) == now
        if method is None:
            task.work, task.total, task.done, task.basis = "nothing to train", 1, int(fresh), "quick"
            set_state(task, None, upstream)
            self._set_disk(task, 0)
            return
        runs = known.num_runs()
        task.work, task.total = f"{counted(len(groups), 'group')} × {counted(runs, 'fold')}", len(groups) * runs
        settled = {name: group for name, group in groups.items() if order is not None or not name.startswith(RANKED)}
        folder = self.layout.stage("ablate")
        kept = [fold for name in settled for fold in known.kept(method, settled[name], folder / f"{name}-{method}")]
        task.took_s = _train_seconds(kept)
        task.done = len(kept) if fresh else min(len(kept), task.total - 1)  # the table is still to be written
        if len(settled) < len(groups):
            task.notes.append(f"which layers it trains on is known once '{rank_by}' is trained")
        found = {len(group): known.method(method, len(group)) for group in groups.values()}
        problem = next((why for _, why in found.values() if why is not None), None)
        set_state(task, problem, upstream)
        sizes = {k: size for k, (size, _) in found.items() if size is not None and problem is None}
        weights = [4 * sizes[len(group)].num_parameters for group in groups.values() if sizes]
        self._set_disk(task, known.fold_bytes(weights) or 0)
        if task.is_done or problem is not None:
            return
        # every fold is trained, and only the table is to be written
        if len(kept) == task.total:
            task.basis = "quick"
            return
        task.memory_bytes = known.training_bytes(max(known.state_bytes(method, size, k) for k, size in sizes.items()))
        rate = self.recorded.training(method, known.sizes)
        if rate is not None:
            each = fmean(self._work_of_folds(method, self.config).values())
            task.time_s, task.basis = (task.total - task.done) * each * rate.seconds, "estimated"
            task.notes.append(f"a fold on few layers is taken to last as long as a fold of '{method}' on all layers")

    def importance(self, task: Task) -> None:
        known, settings, trained = self.known, self.config.importance, self.of("train")
        task.work, task.memory_on = "maps", self.kind
        made = self._made(task, self.of("train", "ablate"), find_importance)
        task.done = int(made is not None and made.key == folds_and_key(self.layout, self.config)[1])
        task.basis = "not known"
        set_state(task, None, trained, any_upstream=True)
        if known.sizes is None or not known.splits:
            self._set_disk(task, None)
            return
        found = {str(one.method): known.method(str(one.method))[0] for one in trained}
        maps = sum(size.density for size in found.values() if size) * (known.num_runs() + 1)
        self._set_disk(task, maps * 8 * known.vector_numbers + len(found) * PICTURES_BYTES)
        scored = [name for name, size in found.items() if size and size.scored]
        if not (settings.audit and scored):
            self._set_quick(task)
            return
        task.work = f"maps, {counted(len(scored), 'audit')}"
        if task.is_done:
            return
        task.memory_bytes = known.training_bytes()
        rates = [rate.seconds for name in scored if (rate := self.recorded.training(name, known.sizes)) is not None]
        if len(rates) == len(scored):
            # deletion and insertion in order of the score, of the untrained score, and at random; they share both ends
            masked = 2 * (2 + settings.audit_orders) * (len(steps(known.sizes[0])) - 2) + 2
            clips = np.mean([min(settings.audit_clips, len(split.test)) for split in known.splits])
            task.time_s = float(known.num_runs() * masked * clips * sum(rates) / FORWARD_PASSES)
            task.basis = "estimated"
            words = f"a prediction is taken as 1/{FORWARD_PASSES} of a training step; the linear probes of the audit"
            task.notes.append(f"{words} are not included")

    def report(self, task: Task) -> None:
        task.work = "one page"
        self._set_written(task)
        self._set_quick(task)

    def crop(self, task: Task) -> None:
        task.work = f"crops of {self.config.crop.size} pixels"
        task.done, task.reason = int(self.known.crops is not None), self.known.outdated.get("crop")
        set_state(task, None, self.of("download"))

    def reconstruct(self, task: Task) -> None:
        arm, settings, crops = str(task.method), self.config.reconstruct, self.known.crops
        number = None
        if crops is not None:
            number = crops.part("train").height
        elif (published := CORPORA.load(self.config.download.corpus).fingerprint) is not None:
            total = sum(published.per_class.values())
            # without an official split one of the groups is tested
            images = published.per_group.get("train", total - total // self.config.download.num_groups)
            number, task.about = images * self.config.crop.per_image, True
        steps = None if number is None else settings.epochs * (number // settings.batch_size)
        task.work = "" if steps is None else f"{steps:,} steps"
        task.total, task.memory_on = len(settings.seeds), self.kind
        folder = folder_of(self.layout, "reconstruct", arm)
        found = kept_trainings(folder, arm, self.config, crops, settings.seeds) if crops else {}
        took = [one.train_s for one in found.values() if one is not None]
        task.done, task.took_s = len(took), sum(took) or None
        set_state(task, None, self.of("crop"))
        # shapes without memory: only the size of the weights is asked
        with torch.device("meta"):
            state = VQVAE(arm, settings).state_dict()
        each, left = sum(value.numel() * value.element_size() for value in state.values()), task.total - len(took)
        task.disk_bytes, task.disk_left_bytes = each * task.total, each * left
        if not task.is_done and steps is not None:
            task.basis = "recorded" if took else "measured"
            task.time_s = left * (sum(took) / len(took) if took else steps * self._step_s(arm))

    def score(self, task: Task) -> None:
        task.work = f"{len(self.of('reconstruct'))} blocks"
        self._set_written(task)

    def _step_s(self, arm: str) -> float:
        """Seconds of a training step of a VQ-VAE on the device: the fastest of a few."""
        settings, side, device = self.config.reconstruct, self.config.crop.size, self.device
        size = settings.batch_size if device != "cpu" else min(settings.batch_size, max(1, TRIED_PIXELS // side**2))
        precision = resolve_precision(settings.precision, device, work="convolutions")
        seed_everything(0, device)  # with the kernels of a training
        model = VQVAE(arm, settings).to(device).train()
        images = torch.rand(size, 3, side, side, device=device)
        times: list[float] = []
        while len(times) < TRIED_STEPS and sum(times) < TRIED_S:
            started = time.perf_counter()
            with autocast(device, precision):
                found = model(images)
            (found.images.float() - images).square().mean().backward()
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - started)
        # the fastest, because other programs only ever slow a step down
        return min(times) * settings.batch_size / size

    def _memory_on(self, settings: Any) -> str:
        """Kind of device that holds the encoder."""
        return "cuda" if self.config.extract.min_gpu_memory_gb else resolve_device(settings.device).partition(":")[0]

    def _set_folds(self, task: Task, kept: Sequence[Fold], config: Config, missing: str) -> int:
        """Fill in the trainings and their steps (of a probe neither), and which folds are kept.

        Args:
            missing: the inputs, if they are not there. Without them no key tells whether folds were trained on them.

        Returns:
            Clips in the steps of all folds that are not finished.
        """
        method, splits = str(task.method), self.known.splits
        seeds = config.seeds_of("finetune" if task.stage == "finetune" else "train")
        task.total = len(splits) * len(seeds) or None
        task.done, task.took_s = len(kept), _train_seconds(kept)
        if missing and (existing := len(intact_folds(self.layout.method(method)))):
            verb = "is" if existing == 1 else "are"
            task.reason = f"{counted(existing, 'fold')} {verb} kept if the {missing} do not change"
        parts = [counted(len(splits), "fold")] if splits else []
        if len(seeds) > 1:
            parts.append(f"{len(seeds)} seeds")
        if method not in CLOSED_FORM:
            if (number := trainings(method, config)) > 1:
                parts.append(counted(number, "training"))
            read = [split.train for split in splits]
            rows = self.known.stats.rows
            if task.stage == "finetune" and rows is not None and are_words(rows):
                sentences = sentence_of(rows["utterance_id"])  # which a fine-tuned encoder reads as one item
                read = [np.unique(sentences[part]) for part in read]
            counts = {
                steps_of_training(method, config, len(part), len(split.dev))
                for part, split in zip(read, splits, strict=True)
            }
            if counts:
                low, high = min(counts), max(counts)
                parts.append(counted(low, "step") if low == high else f"{low:,} to {high:,} steps")
        task.work = " × ".join(parts)
        finished = {(fold.fold, fold.seed) for fold in kept}
        work = self._work_of_folds(method, config)
        return sum(work[fold] for fold in work for seed in seeds if (fold, seed) not in finished)

    def _work_of_folds(self, method: str, config: Config) -> dict[int, int]:
        """Fold -> clips in its steps."""
        return {
            split.fold: work_of_fold(method, config, *map(len, (split.train, split.dev, split.test)))
            for split in self.known.splits
        }

    def _set_time(self, task: Task, rate: Throughput, units: int) -> None:
        task.time_s, task.basis = rate.seconds * units, "measured" if rate.source == MEASURED else "recorded"
        task.joules = None if rate.joules is None else rate.joules * units
        if rate.source not in (MEASURED, self.layout.run_name):
            task.notes.append(f"time scaled from '{rate.source}'")

    def _set_disk(self, task: Task, whole: int | None) -> None:
        """Fill in the size on disk if it is done, otherwise the estimate and what is left of it."""
        if task.is_done:
            files = folder_of(self.layout, task.stage, task.method).rglob("*")
            task.disk_bytes, task.disk_left_bytes = sum(path.stat().st_size for path in files if path.is_file()), 0
        elif whole is not None:
            task.disk_bytes = whole
            task.disk_left_bytes = round(whole * (1 - task.done / task.total)) if task.total else whole

    def _set_quick(self, task: Task) -> None:
        """Fill in a stage that takes seconds, or minutes if there are many predictions."""
        known, config = self.known, self.config
        runs = sum(len(config.seeds_of(stage_of(method))) for method in config.trained)
        if not task.is_done:
            task.basis = "quick"
            if (known.num_items or 0) * runs > QUICK_PREDICTIONS:
                task.notes.append("takes minutes rather than seconds because of the number of predictions")
        self._set_disk(task, QUICK_BYTES.get(task.stage, task.disk_bytes))

    def _set_written(self, task: Task) -> None:
        """Fill in whether a report is of what its stage reads now; that of an earlier version does not say so."""
        reads, written = STAGES[task.stage].reads, self.layout.report_settings
        if is_finished(self.layout.stage(task.stage), task.stage):
            same = written.is_file() and read_json(written) == inputs_of_report(self.layout, self.config, task.stage)
            task.done = int(same and all(one.is_done for one in self.of(*reads)))
            task.reason = None if same else "written with other settings or results, or by an earlier version"
        set_state(task, None, self.of(*reads[:1]))

    def _made(self, task: Task, needed: Sequence[Task], find: Callable[[Path], T]) -> T | None:
        """The record of a stage if the tasks that it reads are done."""
        try:
            return find(self.layout.stage(task.stage)) if all(one.is_done for one in needed) else None
        except ArtifactError as error:
            task.reason = error.message
            return None


def _train_seconds(folds: Sequence[Fold]) -> float | None:
    """Recorded training time of folds, in seconds; None if there are none."""
    return sum(fold.result["meta"]["train_s"] for fold in folds) if folds else None
