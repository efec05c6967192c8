"""Result of the `evaluate` stage: `data/evaluate/<run>/`.

All figures are in tables (`daamctl.artifacts.scores`). `evaluation.json` has the rest: what was evaluated, whether the
methods were trained well, and how they were compared. It has the same names and nesting as the classes.

Scores are fractions, log losses are in nats, and times are in seconds. Scores exist per unit, "utterance" and "clip".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import InstanceOf

from daamctl.artifacts.results import Rule
from daamctl.artifacts.scores import OF_EVALUATE, Figure, Scores, table_file
from daamctl.artifacts.statistics import Family
from daamctl.artifacts.terms import listed
from daamctl.data.task import Chance, Task, task_of
from daamctl.errors import ArtifactError
from daamctl.store.artifact import Artifact

FILE = "evaluation.json"
Status = Literal["fair", "undertrained", "overfitted", "collapsed", "learned nothing", "not checked", "closed form"]
MARKS: tuple[Status, ...] = ("undertrained", "overfitted", "collapsed", "learned nothing")
"""States that are shown in the label of a method."""
NAMED_BY_FILE = ("manifest", "conll", "embeddings")
"""Corpora of which there may be several, so that the name of the file tells which."""
ROUNDING = 1e-12
"""Figures that differ less are equal."""


@dataclass(frozen=True)
class MetricInfo:
    """Properties of a metric, in nats or as a fraction."""

    alias: str
    higher_is_better: bool
    unit: str


@dataclass(frozen=True)
class ItemCounts:
    """Number of tested items; every item counts once, whatever the number of seeds.

    Args:
        groups: fold number -> test group.
        wholes: number of what is read at once: of words, sentences.
        weighted: test utterances with clips of different durations, which are weights in the mean of their logits.
        merged: test clips that a rest piece was merged into, so that they exceed `segment.max_duration_s`.
    """

    utterance: int
    clip: int
    groups: dict[str, str]
    wholes: int
    weighted: int = 0
    merged: int = 0


@dataclass(frozen=True)
class ReferenceComparison:
    """Every method compared with the reference.

    Args:
        left_out: methods with missing folds, which are not compared.
        family: None if the reference is left out, or was not trained on this machine.
    """

    reference: str
    left_out: list[str]
    family: Family | None


@dataclass(frozen=True)
class MethodFairness:
    """How well one method was trained.

    Args:
        status: see `Status`; not checked: there is no probe, and no search whose edges tell.
        counterpart: closed-form probe among the methods that it should reach; None if there is none.
        gap: accuracy minus the counterpart's accuracy, of taggers the entity F1, mean over the shared folds; None
            without a counterpart.
        gaps: fold number -> gap in that fold, averaged over seeds.
        train_gap: accuracy per clip on the training parts minus the counterpart's; None if one of them is not known.
        dev_gap: the same on the held-out groups.
        runs: number of runs (folds and seeds).
        unfinished: number of runs that selected one of the last epochs; None if no run selects an epoch.
        chosen: setting -> value -> number of runs that chose it in a search.
        edges: setting -> number of runs that chose the lowest or highest value tried.
        highest: setting -> number of runs that chose the highest of several values tried.
        as_probe: whether it is a closed-form probe, or reaches that of its input.
    """

    status: Status
    reasons: list[str]
    counterpart: str | None
    gap: float | None
    gaps: dict[str, float]
    train_gap: float | None
    dev_gap: float | None
    runs: int
    unfinished: int | None
    chosen: dict[str, dict[str, int]]
    edges: dict[str, int]
    highest: dict[str, int]
    as_probe: bool = False

    @property
    def mark(self) -> str:
        """Addition to the label of the method; empty if there is nothing to report."""
        return self.status if self.status in MARKS else ""

    @property
    def doubtful(self) -> bool:
        """Whether training alone may explain its figures: it is marked, and not as good as a probe."""
        return bool(self.mark) and not self.as_probe


@dataclass(frozen=True)
class IdenticalPredictions:
    """Methods whose predictions are the same in every fold.

    Args:
        reason: why they are the same; None if unknown.
    """

    methods: list[str]
    reason: str | None

    @property
    def text(self) -> str:
        """Note on these methods."""
        reason = self.reason or "the reason is unknown"
        return f"the predictions of {listed(self.methods)} are identical in every fold: {reason}"


@dataclass(frozen=True)
class Fairness:
    """Whether the methods of a comparison were trained well enough to be compared.

    Args:
        verdict: fair, not fair or not checked.
        text: the verdict in one or two sentences that name the methods.
    """

    verdict: Literal["fair", "not fair", "not checked"]
    text: str
    margin: float
    methods: dict[str, MethodFairness]
    identical: list[IdenticalPredictions]

    @property
    def notes(self) -> list[str]:
        """Notes for the reader of the results, one line per method or group."""
        lines = [f"{name}: {one.status}: {'; '.join(one.reasons)}" for name, one in self.methods.items() if one.mark]
        return lines + [group.text for group in self.identical]


@dataclass(frozen=True)
class AdapterEffect:
    """Effect of what fine-tuning trains in the encoder, see `daamctl.adapters.activity_check`.

    Args:
        tensors: number of trained tensors within the encoder.
        with_gradient: number of them that receive a gradient.
        output_change: largest change of a logit when all of them are moved.
        silent: names of those without a gradient.
    """

    tensors: int
    with_gradient: int
    output_change: float
    silent: list[str]

    @property
    def is_active(self) -> bool:
        """Whether training changes the encoder at all."""
        return bool(self.with_gradient and self.output_change)


@dataclass(frozen=True)
class Run:
    """One run: a fold with a seed.

    Args:
        fold: 1-based fold number.
        dev_group: group that selected the epoch; None if there is none.
        selected_epoch: 1-based; None if no epoch is selected.
    """

    fold: int
    seed: int
    test_group: str
    dev_group: str | None
    selected_epoch: int | None
    num_parameters: int
    train_s: float
    device: str

    @property
    def run(self) -> tuple[int, int]:
        """Fold and seed."""
        return self.fold, self.seed


@dataclass(frozen=True)
class MethodFacts:
    """What is known of one method besides its figures.

    Args:
        label: name in results, e.g. `sga (reconstructed)`.
        reconstructed: the interpretation chosen, for methods whose original definition was not available; else empty.
        eval_batches: for methods whose predictions depend on their batch, see `artifacts.results.RunPart`.
        effect: effect of fine-tuning on the encoder; None for methods over stored layers.
        missing: (fold, seed) of the runs without a result.
        settings: its own ones that were given, e.g. hidden_dim.
        rule: how its weights were chosen, if the encoder was fine-tuned; None: as `Evaluation.selection` says.
    """

    label: str
    reconstructed: str
    eval_batches: dict[str, int | str] | None
    notes: list[str]
    finetune: bool
    effect: AdapterEffect | None
    num_parameters: int
    layers: list[int]
    embed_dim: int
    runs: list[Run]
    missing: list[tuple[int, int]]
    settings: dict[str, Any] = field(default_factory=dict)
    rule: Rule | None = None


class FoldClips(NamedTuple):
    """Number of clips of one fold."""

    fold: int
    train: int
    dev: int
    test: int


@dataclass(frozen=True)
class Provenance:
    """Code, machines, encoder and settings that made the folds.

    Args:
        train_s: method -> wall time of training, all runs together.
        peak_memory_bytes: largest GPU memory of a run; None if not recorded.
        clips_per_fold: number of clips of every fold.
        code_versions: number of versions of the code that the folds depend on; 0: not recorded.
    """

    git_commits: list[str]
    daamctl: list[str]
    versions: dict[str, str]
    devices: list[str]
    precisions: list[str]
    embeddings_key: str
    encoder: dict[str, Any]
    train_s: dict[str, float]
    peak_memory_bytes: int | None
    clips_per_fold: list[FoldClips]
    config: dict[str, Any]
    code_versions: int = 0

    @property
    def corpus(self) -> str | None:
        """Name of the corpus in the settings."""
        corpus: str | None = self.config.get("download", {}).get("corpus")
        return corpus

    @property
    def recipe(self) -> str:
        """Training recipe in the settings. Folds that record none used the published recipe."""
        return str(self.config.get("train", {}).get("recipe", "published"))


@dataclass(frozen=True)
class Evaluation:
    """Results of all methods of one run.

    Args:
        pipeline: name of the pipeline; None for an ad-hoc run.
        main_unit: "utterance" or "clip".
        source: word for what items come from, the unit of independence if it is known.
        metrics: metric -> its properties, in the order of reports.
        num_folds: 1 for an official split.
        seeds: seeds of the methods over stored layers.
        selection: rule that selected the epoch: "dev-group", "best-on-test" or "last".
        refit: whether the held-out group joined the training part at the end.
        chance: unit -> scores of constant predictions; empty if the task has no classes.
        skipped: method -> content of its `skipped.json`, for methods that were not trained.
        single_layer: methods that fuse layers compared with the best single layer; None if none of both was trained.
        files: SHA-256 of the stage's other files.
        leaks: what makes results on these folds too high.
        scores: all figures; not in the record but in tables.
    """

    run: str
    pipeline: str | None
    modality: str
    source: str
    main_unit: str
    metrics: dict[str, MetricInfo]
    classes: list[str]
    num_folds: int
    seeds: list[int]
    selection: str
    refit: bool
    counts: ItemCounts
    chance: dict[str, Chance]
    methods: dict[str, MethodFacts]
    fairness: Fairness
    comparison: ReferenceComparison
    notes: list[str]
    provenance: Provenance
    skipped: dict[str, dict[str, Any]] = field(default_factory=dict)
    single_layer: Family | None = None
    files: dict[str, str] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    scores: InstanceOf[Scores] = field(default_factory=Scores)

    @property
    def task(self) -> Task:
        """What the methods were trained for."""
        return replace(task_of(self.modality, self.classes), source=self.source)

    @property
    def given(self) -> bool:
        """Whether the embeddings were given, so that their encoder is not known."""
        return self.modality == "embeddings"

    @property
    def item(self) -> str:
        """The word for an item of the main unit."""
        return self.task.unit(self.main_unit)

    @property
    def corpus_name(self) -> str:
        """The corpus as its owner calls it: of your own data the name of their file or folder, else of the run."""
        corpus, given = self.provenance.corpus, self.provenance.config.get("download", {}).get("source")
        # these names are of kinds of files, which tell a reader nothing
        if corpus in NAMED_BY_FILE:
            return Path(given).stem if given else self.run
        return corpus or self.run

    @property
    def main_chance(self) -> Chance:
        """Scores of constant predictions in the main unit."""
        return self.chance[self.main_unit]

    def accuracy(self, method: str) -> Figure:
        """Accuracy of a method in the main unit."""
        return self.scores.figure(method)

    def primary(self, method: str) -> Figure | None:
        """The primary figure of a method; None if it is not accuracy and folds are missing."""
        return self.scores.find(method, self.task.primary)

    @property
    def by_accuracy(self) -> bool:
        """Whether accuracy ranks the methods: it is the primary figure, or all methods lack folds for another."""
        return self.task.by_accuracy or not any(map(self.primary, self.methods))

    @property
    def ranked(self) -> list[str]:
        """Methods by the primary figure, best first; without those that lack folds for it."""
        found = self._means(None, None)
        return sorted(found, key=lambda name: -found[name])

    def best(self, metric: str | None = None, unit: str | None = None) -> list[str]:
        """The method with the highest figure, or all that share it; empty if no method has it.

        Args:
            metric: None: the one that ranks the methods.
            unit: None: the main one.
        """
        found = self._means(metric, unit)
        return [name for name, value in found.items() if value > max(found.values()) - ROUNDING]

    def _means(self, metric: str | None, unit: str | None) -> dict[str, float]:
        metric = metric or ("accuracy" if self.by_accuracy else self.task.primary)
        return {name: one.mean for name in self.methods if (one := self.scores.find(name, metric, unit))}

    def as_json(self) -> dict[str, Any]:
        """Content of the file. The fairness of a method also has its mark."""
        # the tables have files of their own, and `asdict` would copy them
        found = asdict(replace(self, scores=Scores(frames={})))
        del found["scores"]
        for name, one in self.fairness.methods.items():
            found["fairness"]["methods"][name]["mark"] = one.mark
        return found


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in the folder of a run, with its tables; raises ArtifactError, see `Artifact.open`."""
    return _with_scores(folder, Artifact(folder / FILE, Evaluation).open())


def find_evaluation(folder: Path) -> Evaluation | None:
    """The same; None if there is none, see `Artifact.find`."""
    found = Artifact(folder / FILE, Evaluation).find()
    return found and _with_scores(folder, found)


def _with_scores(folder: Path, found: Evaluation) -> Evaluation:
    paths = [table_file(folder, name) for name in OF_EVALUATE]
    # a table that was put beside a sealed record would be read as a part of it
    foreign = next((path for path in paths if path.exists() and path.name not in found.files), None)
    if foreign is not None:
        raise ArtifactError(f"{folder / FILE} has no hash of {foreign.name}", path=folder / FILE)
    return replace(found, scores=Scores.read(folder, found.main_unit))
