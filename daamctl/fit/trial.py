"""Folds that are trained: one method with one seed, from the data to the parts of the result.

There are two kinds: `FusionTrial` fuses the stored layers of a frozen encoder, and `AdapterTrial` (`adapter.py`) trains
in the encoder. The loop (`loop.py`) searches, trains and refits; the runner (`runner.py`) keeps finished folds,
resumes, writes results, and tracks.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast

import polars as pl
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from daamctl.adapters import FINETUNES
from daamctl.adapters.released import is_published
from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import ENTRY, RESULT, FoldArtifact, FoldResult, fold_dir, intact_folds
from daamctl.artifacts.splits import Split, chosen_folds, joined, split_of
from daamctl.compute.devices import resolve_device, resolve_precision
from daamctl.config import Config, TrainingStage
from daamctl.config.keys import key_settings, probe_settings
from daamctl.errors import ConfigError, MethodError
from daamctl.fit.features import Features, fit_standardize, is_collinear
from daamctl.fit.graphs import has_foreign_parts
from daamctl.fit.loop import Fit, Member, Settings, Trainable, Trained
from daamctl.fit.ridge import RidgeFit
from daamctl.fit.stack import Fusion, Stack
from daamctl.fit.steps import seed_everything
from daamctl.methods import CLOSED_FORM, METHODS, build, resolve_method, save_weights, settings_of
from daamctl.methods.base import FusionClassifier
from daamctl.methods.weights_metadata import Origin
from daamctl.store.files import content_key, locked, read_json, write_json
from daamctl.store.provenance import FOLD_CODE, code_hash, versions

log = logging.getLogger(__name__)

KEY_FORMAT = 3  # raise it when a change of the loop makes finished folds wrong
COLLINEAR_CLIPS = 256  # tell whether features are collinear
MOST_MEMBERS = 64
"""Largest number of models in a stack."""
CPU_BATCH_NUMBERS = 100_000
"""Largest batch per training, B * L * D numbers, for which batching folds pays on a CPU. Beyond it, memory traffic
limits the speed, not the number of kernels (benchmarks/training.py)."""
CPU_PARAMETERS = 300_000
"""Largest number of trainable parameters for which batching folds pays on a CPU (same benchmark)."""
CPU_STEP_NUMBERS = 1_000_000
"""Numbers in the batches of all trainings that fit in a CPU's caches beside everything else."""
SEPARATE = (nn.Conv2d, nn.Dropout, _BatchNorm)
"""Modules that rule out a stack of several: convolutions already fill the processor; the others hold state or draw
random numbers that the models would share."""


@dataclass(frozen=True)
class FoldSpec:
    """Which fold to train, and with which settings.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of methods, or of fine-tuning methods.
        fold: 1-based.
        config: all settings; those of the method itself have been applied.
        layout: of the run that it belongs to; None: to no run.
    """

    name: str
    method: str
    fold: int
    seed: int
    config: Config
    layout: Layout | None = None


class Trial(Trainable):
    """One fold of one method with one seed.

    Args:
        data: shared by all trials of the run: `Features` or an `EncoderSource`.

    Attributes:
        title: what the progress bar says.
        trials_per_gpu: default limit of trials that share a GPU on a cluster.
        clips: their groups are the folds.
        device_setting: auto, cpu, mps, cuda or cuda:N.
    """

    stage: ClassVar[TrainingStage]
    title: ClassVar[str]
    trials_per_gpu: ClassVar[int]

    def __init__(self, spec: FoldSpec, data: Any) -> None:
        self.spec, self.data, self.config = spec, data, spec.config
        self.clips: ClipTable = data.table
        section = self.config.finetune if self.stage == "finetune" else self.config.train
        self.device_setting = section.device
        self.candidates = candidates_of(spec.method, self.config)
        self.refits = refits(spec.method, self.config)

    @abstractmethod
    def result_parts(self, trained: Trained) -> dict[str, Any]:
        """What only this kind knows of a result: entries of `run` and `meta`, and perhaps `metrics` (`FoldResult`)."""

    @abstractmethod
    def write_weights(self, folder: Path, trained: Trained) -> None:
        """Write the weights of a finished training, and what else only this kind has."""

    @property
    def what(self) -> str:
        """The trial, for messages."""
        return f"{self.spec.method} fold {self.spec.fold} seed {self.spec.seed}"

    @property
    def calmer(self) -> str:
        """Settings that help if the loss is no longer finite."""
        name = self.stage
        decays = ", train.search_weight_decay" if name == "train" else ""
        return f"lower {name}.lr, {name}.search_lr{decays}, or train with --set {name}.precision=float32"

    @property
    def owner(self) -> dict[str, Any]:
        """What every file of the fold says about it."""
        return {"key": self.key, "method": self.spec.method, "fold": self.spec.fold, "seed": self.spec.seed}

    def artifact(self, method_dir: Path, work: Path | None = None) -> FoldArtifact:
        """The fold in the folder of a method; `work`: folder for unfinished work."""
        folder = fold_dir(method_dir, self.spec.fold, self.spec.seed)
        name = f"{method_dir.name}-{folder.name}"
        own = work and work / name
        return FoldArtifact(folder / RESULT, FoldResult, keys=self.accepted_keys, work=own, what=name)

    @property
    def accepted_keys(self) -> set[str]:
        """Keys with which a finished fold is kept."""
        return {self.key}

    @property
    def device(self) -> str:
        """The resolved device; raises ConfigError if this machine does not have it."""
        return resolve_device(self.device_setting)

    @cached_property
    def precision(self) -> str:
        """Number format of the training step, see `run_precision`."""
        return run_precision(self.spec, self.stage, self.device)

    @cached_property
    def split(self) -> Split:
        """Rows of the training, held-out and test part."""
        return split_of(self.clips.rows, self.spec.fold, self.config.train, self.spec.seed)

    @cached_property
    def f1(self) -> Mapping[str, Callable[[Tensor], float]]:
        """Functions that give the primary figure of the held-out (`dev`) and the test part; none if it is accuracy."""
        task = self.clips.task
        if task.by_accuracy:
            return {}

        def value(rows: pl.DataFrame, logits: Tensor) -> float:
            return task.values(rows, task.answers(logits.double().cpu().numpy()))[task.primary]

        parts = {"dev": self.split.dev, "test": self.split.test}
        return {name: partial(value, self.clips.rows[rows]) for name, rows in parts.items()}

    @property
    def units(self) -> int:
        """What the progress bar counts: steps of all candidates and of the refit."""
        return (len(self.candidates) + self.refits) * self.units_of_training

    @property
    def most_members(self) -> int:
        """Largest number of trainings like this one in a stack.

        Raises:
            MethodError: the method does not fit the data.
            ConfigError: the requested device or precision is not available.
        """
        return 1

    def with_data(self, data: Any) -> Self:
        """The same trial on other data."""
        return type(self)(self.spec, data)


Kind = TypeVar("Kind", bound=Trial)


def trials_of(
    kind: type[Kind],
    layout: Layout,
    method: str,
    data: Any,
    config: Config,
    *,
    fold: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> list[Kind]:
    """List the trials of a method: each fold, or the given one, with every seed, given or of the settings.

    Raises:
        TrainingError: there is no such fold.
    """
    seeds = seeds or config.seeds_of(kind.stage)
    folds = chosen_folds(data.table.rows["group"], fold)
    specs = (FoldSpec(layout.run_name, method, number, seed, config, layout) for number in folds for seed in seeds)
    return [kind(spec, data) for spec in specs]


def in_groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group consecutive trials that can be stacked; the others form groups of one. Raises as `most_members`."""
    groups: list[list[Trial]] = []
    most = 1
    for trial in trials:
        spec, last = trial.spec, groups[-1][-1].spec if groups else None
        alike = last is not None and (last.method, last.config) == (spec.method, spec.config)
        if not alike:
            most = trial.most_members  # takes a while: it builds the model
        if alike and len(groups[-1]) < most:
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def candidates_of(method: str, config: Config) -> list[Settings]:
    """Settings of each candidate, in order; one that changes nothing if there is nothing to choose by.

    They are chosen by the held-out group alone; the test group is never used. Published variants of fine-tuning methods
    keep the given rate.

    Args:
        config: all settings; for a fine-tuning method with its own applied (`Config.for_adapter`).
    """
    train, tunes = config.train, method in FINETUNES
    search = config.finetune.search if tunes else train.search
    if search == "none" or train.selection != "dev-group" or method in CLOSED_FORM or (tunes and is_published(method)):
        return [{}]
    if tunes:
        return [{"lr": rate} for rate in sorted(config.finetune.search_lr)]
    rates, decays = sorted(train.search_lr), train.search_weight_decay or (train.weight_decay,)
    kinds = train.search_standardize or (train.standardize,)
    return [
        {"lr": rate, "weight_decay": decay, "standardize": kind} for kind, decay, rate in product(kinds, decays, rates)
    ]


def refits(method: str, config: Config) -> bool:
    """Whether the final training includes the held-out group, once that group has chosen the settings.

    With `train.epochs`, and in fine-tuning at a constant rate, that group has chosen an epoch instead; a closed-form
    probe refits by itself.
    """
    to_the_end = config.finetune.schedule != "constant" if method in FINETUNES else config.train.steps is not None
    return config.train.refit and config.train.selection == "dev-group" and to_the_end and method not in CLOSED_FORM


def trainings(method: str, config: Config) -> int:
    """Trainings of a fold: every candidate, and the refit; arguments as in `candidates_of`."""
    return len(candidates_of(method, config)) + refits(method, config)


def steps_of_training(method: str, config: Config, train: int, dev: int) -> int:
    """Optimiser steps of one training on `train` clips: of each candidate, and of the refit, which adds `dev` clips."""
    if method in CLOSED_FORM:
        return 1
    if method in FINETUNES:
        return config.finetune.epochs * -(-train // config.finetune.batch_size)
    size = config.train.batch_size
    if config.train.steps is None:
        return config.train.epochs * -(-train // size)
    return max(config.train.steps, -(-config.train.passes * (train + dev) // size))


def clips_of_fold(method: str, config: Config, train: int, dev: int) -> int:
    """Clips in all steps of a fold, each as often as it is trained on; for the arguments see `steps_of_training`."""
    if method in CLOSED_FORM:
        return train
    if method in FINETUNES or config.train.steps is None:
        epochs = config.finetune.epochs if method in FINETUNES else config.train.epochs
        return epochs * (trainings(method, config) * train + refits(method, config) * dev)
    return trainings(method, config) * steps_of_training(method, config, train, dev) * config.train.batch_size


def run_precision(spec: FoldSpec, stage: TrainingStage, device: str) -> str:
    """Resolve the number format of the steps of a training. Where it is `auto`, all methods of a run have one.

    `auto` is settled by the first training of a run, which notes it among the unfinished work; where that note is gone,
    finished folds tell it. On a CPU it means bfloat16 if a method of the run has 2-D convolutions and these are faster
    in it: they gain more than the small matrices of the other methods lose.

    Args:
        spec: the training; without a layout it belongs to no run.

    Raises:
        ConfigError: the device does not support the format.
    """
    config, layout = spec.config, spec.layout
    setting = config.finetune.precision if stage == "finetune" else config.train.precision
    convolves = False
    for method in {spec.method, *(config.methods if layout else ())} if stage == "train" else ():
        default = METHODS.defaults(resolve_method(method)[0]).get("decoder")
        convolves |= settings_of(method, config.method_settings).get("decoder", default) == "conv"
    own = resolve_precision(setting, device, work="convolutions" if convolves else "other")
    if setting != "auto" or layout is None:
        return own
    note = layout.work / stage / layout.run_name / "precision.json"
    with locked(note.with_suffix(".lock"), what="a note of the number format"):
        if not note.exists():
            folds = [fold for path in layout.method("").glob("*/") for fold in intact_folds(path)]
            made = Counter(
                fold.result["meta"]["precision"]
                for fold in folds
                if fold.result["run"]["config"].get(stage, {}).get("precision") == "auto"
            )
            write_json(note, made.most_common(1)[0][0] if made else own)
        noted = str(read_json(note, fix=f"delete {note}"))
    if noted == "float16" and device == "cpu":
        raise ConfigError(
            f"{stage}.precision is auto, and other folds of '{layout.run_name}' were trained in float16, which needs a "
            "GPU",
            fix=f"train on a GPU, or train all methods again with --set {stage}.precision=float32",
        )
    if noted != own:
        log.info("trained in %s, as other folds of '%s'; alone, 'auto' means %s here", noted, layout.run_name, own)
    return noted


class FusionTrial(Trial):
    """One fold of a method over the stored layers of a frozen encoder."""

    stage = "train"
    title = "training"
    trials_per_gpu = 4  # the models are small, their features are not
    data: Features

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method, defaults included."""
        return settings_of(self.spec.method, self.config.method_settings)

    @cached_property
    def key(self) -> str:
        """Content key of everything that affects the result; the machine does not."""
        return self.key_when(stream=self.data.stream)

    @property
    def accepted_keys(self) -> set[str]:
        """The key; under `train.features=auto` also that of features read from elsewhere."""
        auto = self.config.train.features == "auto"
        return {self.key_when(stream=stream) for stream in (False, True)} if auto else {self.key}

    def key_when(self, *, stream: bool) -> str:
        """The key if features are streamed, or are not: the order of batches differs, unless there are none."""
        closed = self.spec.method in CLOSED_FORM
        parts: dict[str, Any] = {
            "format": KEY_FORMAT,
            "embeddings": self.data.head.key,
            "layers": self.data.layers,
            "method": self.spec.method,
            "settings": self.settings,
            "code": self.code["method"],
            "train": probe_settings(self.config) if closed else key_settings(self.config, "train"),
            "fold": self.spec.fold,
            "seed": self.spec.seed,
        }
        # shards decide the order, too; keys with those of the usual size are older
        return content_key({**parts, "stream": self.data.shard_clips or True} if stream and not closed else parts)

    @property
    def code(self) -> dict[str, str]:
        """Hashes of the code that the fold depends on: of training, and of its method."""
        name = resolve_method(self.spec.method)[0]
        training = code_hash(__name__, "daamctl", FOLD_CODE)
        packages = ("daamctl.methods", *METHODS.modules_of(name))
        return {"training": training, "method": code_hash(METHODS.module_of(name), packages)}

    @property
    def units_of_training(self) -> int:
        """See `Trainable.units_of_training`."""
        return steps_of_training(self.spec.method, self.config, len(self.split.train), len(self.split.dev))

    @property
    def most_members(self) -> int:
        """See `Trial.most_members`; several must have their features on the training device."""
        train, device, x = self.config.train, self.device, self.data.x
        held = isinstance(x, Tensor) and x.device.type == torch.device(device).type
        if train.stack == "never" or train.steps is None or not held:
            return 1
        sizes = (len(self.data.layers), self.data.head.embed_dim, len(self.data.head.classes))
        with torch.device("meta"):
            model = build_method(self.spec.method, self.config, *sizes)
        if not stackable(model) or self.precision == "float16":
            return 1
        numbers = train.batch_size * sizes[0] * sizes[1]
        if train.stack == "always" or device != "cpu":
            return MOST_MEMBERS
        if numbers > CPU_BATCH_NUMBERS or sum(p.numel() for p in model.parameters()) > CPU_PARAMETERS:
            return 1
        return max(1, min(MOST_MEMBERS, CPU_STEP_NUMBERS // numbers))

    def stacks(self, members: Sequence[Member]) -> list[list[Member]]:
        """See `Trainable.stacks`: candidates of equal standardisation and length, of as many trials as fit."""
        most = self.most_members
        if most == 1:
            return [[member] for member in members]
        found = [[member] for member in members if member.ready]  # nothing to train, so nothing to share
        groups: dict[Any, list[Member]] = {}
        for member in members:
            if not member.ready:
                trial = cast(FusionTrial, member.trial)
                kinds = tuple(map(trial.settled, trial.candidates))  # trials of a stack have equally many candidates
                alike = trial.settled(member.settings), kinds, trial.units_of_training
                groups.setdefault(alike, []).append(member)
        for group in groups.values():
            each = len(group) // len({id(member.trial) for member in group})  # candidates of a trial
            together = max(most // each, 1) * each  # `Stack` expects all candidates of a trial
            found += [group[start : start + together] for start in range(0, len(group), together)]
        return found

    def settled(self, settings: Settings) -> str:
        """Kind of standardisation of a candidate: layer, feature, whiten or none; `auto` is settled by the clips."""
        kind = str(settings.get("standardize", self.config.train.standardize))
        if kind != "auto":
            return kind
        return "whiten" if self.is_collinear else "feature"

    @cached_property
    def is_collinear(self) -> bool:
        """See `features.is_collinear`; of training and held-out clips, so that a refit does as its candidate did."""
        rows = joined(self.split).train
        return is_collinear(self.data.part(rows[:: -(-len(rows) // COLLINEAR_CLIPS)], self.device))

    def start(self, members: Sequence[Member]) -> Fit:
        """See `Trainable.start`; candidates of a trial share features and standardisation."""
        closed = self.spec.method in CLOSED_FORM
        fusions: list[Fusion] = []
        shared: dict[tuple[Trial, Any], tuple[Any, ...]] = {}
        for member in members:
            trial = cast(FusionTrial, member.trial)
            config = trial.config.train.model_copy(update=member.settings)
            if config.steps is not None:
                config = config.model_copy(update={"steps": trial.units_of_training})
            kind = "none" if closed else trial.settled(member.settings)
            first, f1, model = member.first, trial.f1, trial.build()
            if (trial, kind) not in shared:
                parts = trial.data.parts(joined(trial.split) if first else trial.split, trial.device)
                fitted = None if kind == "none" else fit_standardize(parts[0], kind, trial.device)
                shared[trial, kind] = (*parts, fitted)
            train, dev, test, fitted = shared[trial, kind]
            if fitted is not None:
                model.standardize = deepcopy(fitted)
            if first and model.traits.needs_dev:
                model.load_state_dict(first.weights, strict=False)
            dev = None if first else dev
            test = test if member.final or not trial.refits else None  # a training that a refit repeats is not tested
            fusions.append(Fusion(model, config, train, dev, test, trial.spec.seed, f1))
        if closed:
            return RidgeFit(members, fusions[0], self.device, self.data.layers)
        if fusions[0].model.traits.batch_dependent:
            _warn(
                f"{self.spec.method}: a prediction depends on the other clips of its batch (D1); evaluated "
                f"{self.config.train.batch_size} at a time, in the order of the clip table"
            )
        return Stack(members, fusions, self.device, self.precision)

    def build(self) -> FusionClassifier:
        """Build the method, initialised from the seed."""
        seed_everything(self.spec.seed, self.device)
        sizes = (len(self.data.layers), self.data.head.embed_dim, len(self.data.head.classes))
        return build_method(self.spec.method, self.config, *sizes)

    def result_parts(self, trained: Trained) -> dict[str, Any]:
        """See `Trial.result_parts`."""
        model, features, head = trained.model, self.data, self.data.head
        sections = ("download", "segment", "extract", "train") if self.config.has_encoder else ("download", "train")
        config = {stage: self.config.section(stage) for stage in sections}
        if self.spec.method in CLOSED_FORM:
            config["train"] = probe_settings(self.config)
        batches = None
        if model.traits.batch_dependent:
            order = "\n".join(features.clips["clip_id"].gather(self.split.test).to_list())
            sha256 = hashlib.sha256(order.encode()).hexdigest()
            batches = {"size": self.config.train.batch_size, "order": "clip table", "clips_sha256": sha256}
        held = isinstance(features.x, Tensor) and features.x.device.type != "cpu"
        source = "stream" if features.stream else "device" if held else "memory"
        chosen = dict(model.named_buffers()).get("fusion.chosen")  # index of the layer that a method has selected
        added = METHODS.package_of(resolve_method(self.spec.method)[0])
        return {
            "run": {
                "layers": list(features.layers),
                "embed_dim": head.embed_dim,
                "num_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
                "reconstructed": model.traits.reconstructed,
                "eval_batches": batches,
                "config": {**config, "method": self.settings},
                **({"notes": trained.notes} if trained.notes else {}),
            },
            "metrics": {} if chosen is None else {"chosen_layer": features.layers[int(chosen)]},
            "meta": {
                "code": self.code,
                **({"versions": {**versions(), added.package: added.version}} if added else {}),
                "embeddings_key": head.key,
                **({"vectors_key": head.vectors_key} if head.vectors_key else {}),
                "encoder": head.encoder,
                "features": source,
            },
        }

    def write_weights(self, folder: Path, trained: Trained) -> None:
        """Write the weights, and the density maps and layer weights, if the method has them."""
        head = self.data.head
        save_weights(
            trained.model,
            folder / "weights.safetensors",
            method=self.spec.method,
            num_layers=len(self.data.layers),
            embed_dim=head.embed_dim,
            num_classes=len(head.classes),
            settings=self.settings,
            origin=Origin.of(
                head.encoder,
                classes=head.classes,
                layers=self.data.layers,
                modality=head.modality,
                settings=head.settings,
                fold=self.owner,
            ),
        )
        entry = {ENTRY: json.dumps({"fold": self.owner}, sort_keys=True)}
        for name, after in trained.maps.items():
            maps = {"trained": after.contiguous(), "untrained": trained.untrained_maps[name].contiguous()}
            save_file(maps, folder / f"{name}.safetensors", entry)


def build_method(method: str, config: Config, num_layers: int, embed_dim: int, num_classes: int) -> FusionClassifier:
    """Build a method with its settings.

    Raises:
        MethodError: the method does not fit these sizes, or needs a held-out group that the settings do not set aside;
            the message names the setting to change.
    """
    settings = settings_of(method, config.method_settings)
    try:
        model = build(method, num_layers=num_layers, embed_dim=embed_dim, num_classes=num_classes, **settings)
    except MethodError as error:
        fix = f"correct method_settings.{method}, or leave the method out"
        if error.setting is not None:
            name, value = error.setting
            fix = (
                f"add --set method_settings.{method}.{name}={value}, write that into the pipeline's file, or leave the "
            )
            fix += "method out"
        message = error.message.removeprefix(f"{method}: ")
        raise MethodError(f"{method}: {message}", fix=error.fix or fix, setting=error.setting) from error
    if model.traits.needs_dev and config.train.selection != "dev-group":
        raise MethodError(
            f"{method}: part of it is chosen on a held-out group, which train.selection={config.train.selection} "
            "does not set aside",
            fix="leave the method out, or use --set train.selection=dev-group",
        )
    return model


@cache
def _warn(words: str) -> None:
    """Warn once."""
    log.warning("%s", words)


def stackable(model: FusionClassifier) -> bool:
    """Whether several of these models can be trained in one stack without affecting one another."""
    plain = type(model).training_loss is FusionClassifier.training_loss
    traits = model.traits
    free = not (traits.batch_dependent or traits.needs_dev or traits.closed_form or has_foreign_parts(model))
    return plain and free and not any(isinstance(module, SEPARATE) for module in model.modules())
