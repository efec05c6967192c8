"""Result of the `ablate` stage: `data/ablate/<run>/ablation.json`.

Taggers are compared by entity F1, all else by accuracy in the unit of the evaluation; `Ablation.metric` says by which.
Both are fractions. The JSON has the same names and nesting as the classes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from daamctl.store.artifact import Artifact

FILE = "ablation.json"


@dataclass(frozen=True)
class RunAccuracy:
    """Accuracy of one run, and the entity F1 of a tagger."""

    fold: int
    seed: int
    accuracy: float
    entity_f1: float | None = None

    @property
    def compared(self) -> float:
        """The metric by which groups of layers are compared."""
        return self.accuracy if self.entity_f1 is None else self.entity_f1


@dataclass(frozen=True)
class RunDifference:
    """Difference between two groups of layers in one run."""

    fold: int
    difference: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class OverRuns:
    """Mean over runs.

    Args:
        mean: None without runs.
        sample_std: standard deviation with divisor n - 1; None for fewer than two runs.
    """

    mean: float | None
    sample_std: float | None
    n: int


@dataclass(frozen=True, kw_only=True)
class LayerAccuracy(OverRuns):
    """The metric after training on some layers.

    Args:
        probe: the metric of the closed-form probe on the same layers; without runs if there is no such probe.
        mark: one of `MARKS`, by the rules for methods; else empty.
    """

    layers: list[int]
    per_fold: list[RunAccuracy]
    probe: OverRuns
    mark: str


@dataclass(frozen=True, kw_only=True)
class GroupAccuracy(LayerAccuracy):
    """The metric after training on a group of layers.

    Args:
        name: e.g. `highest-3`.
        kind: highest, lowest, given or preset.
        k: number of layers.
    """

    name: str
    kind: str
    k: int


@dataclass(frozen=True, kw_only=True)
class Difference(OverRuns):
    """Difference in the metric between two groups of layers, by run."""

    per_fold: list[RunDifference]


@dataclass(frozen=True, kw_only=True)
class ProbedDifference(Difference):
    """Difference between layers of high and of low importance, beside that of the closed-form probe.

    Args:
        probe: the same difference for the probe; without runs if there is no such probe.
        contradicts: caution if the two differences contradict each other, else None.
        judged: whether they could have: both groups were trained well, and there are several runs.
    """

    probe: Difference
    contradicts: str | None
    judged: bool


@dataclass(frozen=True, kw_only=True)
class RankedDifference(ProbedDifference):
    """The k layers of highest importance minus the k layers of lowest importance."""

    k: int


@dataclass(frozen=True, kw_only=True)
class PresetDifference(ProbedDifference):
    """The papers' layers of high importance minus their layers of low importance."""

    name: str
    high: list[int]
    low: list[int]


@dataclass(frozen=True)
class AloneTest:
    """Whether layers with a high score do better when they are trained alone. p-values are one-sided.

    Args:
        k: number of layers per group.
        num_groups: number of groups with k layers.
        spearman_rho: rank correlation between the scores and the metric of the groups; None if either are all equal.
        high: layers of the group with the highest score; empty if all scores are equal.
        low: layers of the group with the lowest score.
        difference: metric of `high` minus that of `low`, mean over the shared folds; None without any.
        p_folds: p-value of the sign-flip test over folds.
        floor_folds: smallest p-value that these differences allow.
    """

    k: int
    num_groups: int
    spearman_rho: float | None
    p_groups: float | None
    high: list[int]
    low: list[int]
    difference: float | None
    p_folds: float | None
    floor_folds: float | None


@dataclass(frozen=True)
class Ablation:
    """Results of training on few layers.

    Args:
        rank_by: method whose Importance Factor ranks the layers; None if no method qualifies.
        method: label of the method that is trained; None if no method qualifies.
        probe: closed-form probe that is trained beside it; None if the method is one itself.
        unit: "utterance" or "clip".
        ranking: layers by Importance Factor, highest first; empty if they are not ranked.
        baseline: training on all layers; without runs if there are no groups.
        differences: highest minus lowest, per number of layers.
        presets: the papers' high minus low layers.
        alone: whether layers of high importance do better alone, per number of layers.
        notes: how layers and method were chosen.
        run: name of the run; None in files older than this field.
        files: SHA-256 of `result.json` of every fold on few layers, by its path in the folder of the run.
    """

    rank_by: str | None
    method: str | None
    probe: str | None
    unit: str
    embeddings_key: str
    ranking: list[int]
    baseline: LayerAccuracy
    groups: list[GroupAccuracy]
    differences: list[RankedDifference]
    presets: list[PresetDifference]
    alone: list[AloneTest]
    notes: list[str]
    cautions: list[str] = field(default_factory=list)
    run: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    metric: str = "accuracy"

    def as_json(self) -> dict[str, Any]:
        """Content of the file."""
        return asdict(self)


def find_ablation(folder: Path, *, hide: Path | None = None) -> Ablation | None:
    """The ablation in the folder of a run, see `Artifact.find`; `hide`: folder to remove from paths in texts."""
    return Artifact(folder / FILE, Ablation, hide=hide).find()
