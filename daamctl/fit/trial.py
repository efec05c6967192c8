"""A trial: one fold of one method with one seed, from its data to the files of the finished fold.

There are two kinds: a fusion over stored layers (`trials/fusion.py`) and an adapter in an encoder
(`trials/adapter.py`). A kind says what its data, key and model are. The loop (`loop.py`) searches, trains and refits;
the runner (`runner.py`) keeps finished folds, resumes, writes results, and tracks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import polars as pl
import torch
from torch import Tensor

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.results import RESULT, FoldArtifact, FoldResult, fold_dir
from daamctl.artifacts.splits import Split, chosen_folds, split_of
from daamctl.config import Config, TrainingStage
from daamctl.devices import resolve_device
from daamctl.fit.loop import Fit, Member, Settings, Trained
from daamctl.fit.run_precision import run_precision
from daamctl.fit.search import refits
from daamctl.layout import Layout


@dataclass(frozen=True)
class FoldSpec:
    """Which fold to train, and with which settings.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of methods, or of fine-tuning methods.
        fold: 1-based.
        seed: initial weights and order of batches.
        config: all settings; those of the method itself have been applied.
        layout: locations of the run that it belongs to; None: to no run.
    """

    name: str
    method: str
    fold: int
    seed: int
    config: Config
    layout: Layout | None = None


class TrialData:
    """Data that all trials of a run share; pickled when they are sent to a worker process."""

    @property
    def table(self) -> ClipTable:
        """The clips; their groups are the folds."""
        raise NotImplementedError

    def prepare_in_process(self, config: Config) -> Self:
        """Read the data to where this process trains on them."""
        return self

    def prepare_for_workers(self, config: Config) -> Self:
        """Read what is to be sent to the workers of an engine."""
        return self

    def prepare_in_worker(self, config: Config, per_gpu: int) -> Self:
        """Place the data in a worker of an engine; `per_gpu` workers share its device."""
        return self


@dataclass(frozen=True)
class ResultParts:
    """The parts of a fold's result that only its kind knows; see `FoldResult`.

    Args:
        targets: (N_test,) class ids of the test clips.
        run: entries of `run`.
        metrics: entries of `metrics`, replacing the usual ones.
        meta: entries of `meta`.
    """

    targets: Tensor
    run: Mapping[str, Any]
    metrics: Mapping[str, float | int | None] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


class Trainable(ABC):
    """What `fit` trains: a trial, or a training that classifies nothing.

    Attributes:
        stage: stage that trains this kind; also its section of the settings, and its folder of unfinished work.
        refits: whether to train again with the held-out group once the settings are chosen.
        chosen_on_dev: tensors of a candidate that a refit takes over, because they are chosen on the held-out group.
    """

    stage: ClassVar[str]
    refits: bool = False
    chosen_on_dev: ClassVar[Sequence[str]] = ()

    @property
    @abstractmethod
    def key(self) -> str:
        """Content key of everything that affects the result (the machine is not part of it)."""

    @property
    @abstractmethod
    def what(self) -> str:
        """The trial, for messages."""

    @property
    @abstractmethod
    def calmer(self) -> str:
        """Settings that help if the loss is no longer finite."""

    @property
    @abstractmethod
    def units_of_training(self) -> int:
        """Optimiser steps of one training, which the progress bar counts."""

    @property
    def candidates(self) -> list[Settings]:
        """Settings of each candidate of the search; without a search, one that changes nothing."""
        return [{}]

    def stacks(self, members: Sequence[Member]) -> list[list[Member]]:
        """Divide trainings of trials like this one into stacks that are trained together."""
        return [[member] for member in members]

    @abstractmethod
    def start(self, members: Sequence[Member]) -> Fit:
        """Start a stack."""


class Trial(Trainable):
    """One fold of one method with one seed.

    Args:
        data: shared by all trials of the run.

    Attributes:
        title: what the progress bar says.
        trials_per_gpu: default limit of trials that share a GPU on a cluster.
        config: all settings.
        clips: the clips; their groups are the folds.
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
        self.refits = refits(self.config, self.stage)

    @abstractmethod
    def result_parts(self, trained: Trained) -> ResultParts:
        """What only this kind knows of a finished training's result."""

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
        return f"lower {name}.lr or {name}.search_lr, or train with --set {name}.precision=float32"

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
        """The resolved device.

        Raises:
            ConfigError: this machine does not have it.
        """
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
            return task.values(rows, torch.as_tensor(logits).argmax(-1).cpu().numpy())[task.primary]

        parts = {"dev": self.split.dev, "test": self.split.test}
        return {name: partial(value, self.clips.rows[rows]) for name, rows in parts.items()}

    @property
    def units(self) -> int:
        """What the progress bar counts: steps of all candidates and of the refit."""
        return (len(self.candidates) + self.refits) * self.units_of_training

    @property
    def most_members(self) -> int:
        """Largest number of trainings like this one in a stack."""
        return 1

    def with_data(self, data: Any) -> Self:
        """The same trial on other data."""
        return type(self)(self.spec, data)


Kind = TypeVar("Kind", bound=Trial)


def trials_of(
    kind: type[Kind],
    layout: Layout,
    method: str,
    data: TrialData,
    config: Config,
    *,
    fold: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> list[Kind]:
    """List the trials of a method: each fold with every seed.

    Args:
        config: all settings, with the method's overrides applied.
        fold: one fold, 1-based; None: all.
        seeds: seeds to train with; None: those of the settings.

    Raises:
        TrainingError: there is no such fold.
    """
    seeds = seeds or config.seeds_of(kind.stage)
    folds = chosen_folds(data.table.rows["group"], fold)
    specs = (FoldSpec(layout.run_name, method, number, seed, config, layout) for number in folds for seed in seeds)
    return [kind(spec, data) for spec in specs]
