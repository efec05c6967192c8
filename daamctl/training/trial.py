"""A trial: one fold of one method with one seed, from its data to the files of the finished fold.

There are two kinds: a fusion over stored layers (`trials/fusion.py`) and an adapter in an encoder
(`trials/adapter.py`). A kind says what its data, key and model are. The runner (`runner.py`) does the rest for both:
resume, search, refit, writing the result, placing on engines and tracking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from torch import Tensor

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.splits import Split, chosen_folds, split_of
from daamctl.config import Config, TrainingStage
from daamctl.devices import resolve_device
from daamctl.layout import Layout
from daamctl.training.loop import Training
from daamctl.training.run_precision import run_precision
from daamctl.training.search import Grid, Start, most_epochs, refits

if TYPE_CHECKING:
    from daamctl.training.tagging import F1


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


class Trial(ABC):
    """One fold of one method with one seed.

    Args:
        spec: which fold, and the settings.
        data: shared by all trials of the run.

    Attributes:
        stage: stage that trains this kind; also its section of the settings, and its folder of unfinished work.
        title: what the progress bar says.
        unit: what the progress bar counts.
        trials_per_gpu: default limit of trials that share a GPU on a cluster.
        config: all settings.
        clips: the clips; their groups are the folds.
        device_setting: auto, cpu, mps, cuda or cuda:N.
        epochs: largest number of epochs of one training.
        refits: whether to train again with the held-out group once the settings and the epoch are chosen.
    """

    stage: ClassVar[TrainingStage]
    title: ClassVar[str]
    unit: ClassVar[str]
    trials_per_gpu: ClassVar[int]

    def __init__(self, spec: FoldSpec, data: Any) -> None:
        self.spec, self.data, self.config = spec, data, spec.config
        self.clips: ClipTable = data.table
        section = self.config.finetune if self.stage == "finetune" else self.config.train
        self.device_setting, self.epochs = section.device, section.epochs
        self.refits = refits(self.config.train)

    @property
    @abstractmethod
    def key(self) -> str:
        """Content key of everything that affects the result; the machine does not."""

    @property
    def owner(self) -> dict[str, Any]:
        """What every file of the fold says about it, see `daamctl.artifacts.results.owner_of`."""
        return {"key": self.key, "method": self.spec.method, "fold": self.spec.fold, "seed": self.spec.seed}

    @property
    def accepted_keys(self) -> set[str]:
        """Keys with which a finished fold is kept."""
        return {self.key}

    @property
    @abstractmethod
    def grid(self) -> Grid | None:
        """The candidates of the search; a new grid at every call; None without a search."""

    @abstractmethod
    def starter(self, advance: Callable[[int], None]) -> Start:
        """Return a function that starts the trainings of this trial, which share what they can.

        Args:
            advance: called with the number of finished units of work.
        """

    @abstractmethod
    def refit(self, first: Training, work: Path, key: str, advance: Callable[[int], None]) -> Training:
        """Return a training on the training part plus the held-out group, with the choices made on that group.

        It must keep no reference to `first`, only to its results.

        Args:
            first: the chosen training, ended and paused.
            work: folder for its resume file.
            key: its content key.
            advance: called with the number of finished units of work.
        """

    @abstractmethod
    def result_parts(self, training: Training) -> ResultParts:
        """What only this kind knows of a completed training's result."""

    @abstractmethod
    def write_weights(self, folder: Path, training: Training) -> None:
        """Write the weights of a completed training, and what else only this kind has."""

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

    @property
    def units(self) -> int:
        """Upper bound on what the progress bar counts; here, the epochs of all trainings."""
        return most_epochs(self.grid, self.epochs, refit=self.refits)

    @property
    def most_members(self) -> int:
        """Largest number of trainings like this one that can be trained jointly; 1: only on its own."""
        return 1

    def with_data(self, data: Any) -> Self:
        """The same trial on other data."""
        return type(self)(self.spec, data)


def entity_f1_of(trial: Trial) -> Mapping[str, F1]:
    """Functions that give the entity F1 of a trial's parts; none unless it tags words."""
    if trial.clips.modality != "tokens":
        return {}
    from daamctl.training.tagging import entity_f1  # loads the statistics, which takes seconds

    return entity_f1(trial.clips.rows, trial.clips.classes, trial.split)


def for_refit(f1: Mapping[str, F1]) -> Mapping[str, F1]:
    """The functions for a refit, which holds nothing out."""
    return {name: of for name, of in f1.items() if name == "test"}


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
        kind: kind of the trials.
        layout: locations of the run.
        method: name of the method.
        data: data of this kind.
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
