"""Result of the `importance` stage: `data/importance/<run>/summary.json`.

The JSON has the same names and nesting as the classes. Layer numbers are the indices of Hugging Face's hidden states;
as keys they are strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from daamctl.artifacts.audit import Audit, PerLayer
from daamctl.artifacts.statistics import Interval
from daamctl.store.artifact import Artifact

FILE, MAPS_FILE, CURVES_FILE = "summary.json", "importance.parquet", "audit-curves.parquet"


@dataclass(frozen=True)
class HeadPositions:
    """How much of a layer score the position of a layer inside its head explains.

    Args:
        num_heads: h.
        means: (P,) mean score of the layers at position 1, 2, … of their heads.
        counts: (P,) layers at each position; fewer at positions that only the last head has.
        share: R^2 of the position alone; None for a constant score.
        adjusted_share: R^2 corrected for what P free means explain by chance, 1 - (1 - R^2) (L - 1) / (L - P).
        p: share of random permutations of the layers whose R^2 is at least as large.
    """

    num_heads: int
    means: list[float]
    counts: list[int]
    share: float | None
    adjusted_share: float | None
    p: float | None


@dataclass(frozen=True)
class DensityMaps:
    """Importance Factor map of a method with a density, mean over its runs.

    Args:
        folds: (fold, seed) of the runs.
        num_heads: number of heads that split the layers.
        ranking: layers by mean Importance Factor, highest first; empty if all are equal.
        ranking_untrained: likewise for the untrained map.
        mean_importance: mean Importance Factor of each layer.
        mean_importance_untrained: likewise for the untrained map.
        contribution_percent: share of each layer in the density, in percent.
        contribution_percent_untrained: likewise for the untrained map.
        correlation_with_untrained: Pearson correlation with the untrained map; None for a constant map.
        head_positions: effect of the position inside the head; None if every head has one layer or there is one head.
        head_positions_untrained: likewise for the untrained map.
        caution: why the map mostly reflects geometry; None if it does not.
    """

    folds: list[tuple[int, int]]
    layers: list[int]
    num_features: int
    num_heads: int
    ranking: list[int]
    ranking_untrained: list[int]
    mean_importance: PerLayer
    mean_importance_untrained: PerLayer
    contribution_percent: PerLayer
    contribution_percent_untrained: PerLayer
    correlation_with_untrained: float | None
    head_positions: HeadPositions | None
    head_positions_untrained: HeadPositions | None
    caution: str | None
    heatmap: str
    layers_picture: str


@dataclass(frozen=True)
class Stability:
    """Kendall's tau between the layer scores of every pair of runs.

    Args:
        tau_mean: mean over the pairs; None without any.
        tau_min: lowest value.
        pairs: number of pairs; constant scores have no tau.
    """

    tau_mean: float | None
    tau_min: float | None
    pairs: int


@dataclass(frozen=True)
class LayerScores:
    """One score per layer of a method, mean over its runs.

    Args:
        label: name of the method in results.
        kind: "importance" (mean Importance Factor) or "weight" (learned layer weight).
        folds: (fold, seed) of the runs.
        ranking: layers by score, highest first; empty if all are equal.
        ranking_untrained: likewise before training.
        stability: agreement between runs.
        stability_untrained: likewise before training.
        tau_with_untrained: Kendall's tau between the scores after and before training; None if one is constant.
        replacement: file name of a picture; None without curves.
    """

    label: str
    kind: str
    folds: list[tuple[int, int]]
    layers: list[int]
    trained: PerLayer
    untrained: PerLayer
    ranking: list[int]
    ranking_untrained: list[int]
    stability: Stability
    stability_untrained: Stability
    tau_with_untrained: float | None
    band: str
    replacement: str | None


@dataclass(frozen=True)
class LayerAccuracy:
    """Accuracy of `ridge-last` on one layer alone.

    Args:
        low: lower end of its 95 % interval; None if there is no interval.
        difference: from the best layer, over all test items, in the figure of the profile; 0 for the best.
        p: of the paired test against the best layer, after Holm's correction; None for the best, or without a test.
    """

    layer: int
    accuracy: float
    low: float | None
    high: float | None
    difference: float = 0.0
    p: float | None = None


class Height(NamedTuple):
    """The score of a layer, a fraction, and its interval if there is one."""

    layer: int
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ProbedLayers:
    """Linear probes of every layer alone.

    Args:
        unit: what was scored: "utterance" or "clip".
        resampled: what the intervals resample and the tests take as independent, e.g. "speaker".
        entity_f1: of the probes of words, one per layer; intervals over sentences. None for other items.
        floor: smallest p-value that the tests allow after correction; None without a test.
    """

    unit: str
    resampled: str
    layers: list[LayerAccuracy]
    entity_f1: list[Interval] | None = None
    floor: float | None = None

    @property
    def profile(self) -> list[Height]:
        """How well each layer carries what is asked: entity F1 for words, accuracy for other items."""
        if self.entity_f1 is None:
            return [Height(one.layer, one.accuracy, one.low, one.high) for one in self.layers]
        pairs = zip(self.layers, self.entity_f1, strict=True)
        return [Height(one.layer, f1.value, f1.low, f1.high) for one, f1 in pairs]


@dataclass(frozen=True)
class Importance:
    """Importance Factor maps, layer scores and their audit.

    Args:
        methods: method with a density -> its map.
        scores: method with a layer score -> its score.
        without_score: method -> why it has no score.
        probed: accuracy of every layer; None if no layer was probed.
        files: SHA-256 of the stage's other files.
        folds: content keys of the folds that it was computed from, sorted.
    """

    run: str
    methods: dict[str, DensityMaps]
    without_density: list[str]
    note: str
    scores: dict[str, LayerScores]
    without_score: dict[str, str]
    audit: Audit
    probed: ProbedLayers | None = None
    files: dict[str, str] = field(default_factory=dict)
    folds: list[str] = field(default_factory=list)

    @property
    def pictures(self) -> list[str]:
        """File names of all pictures."""
        names = [name for entry in self.methods.values() for name in (entry.heatmap, entry.layers_picture)]
        for score in self.scores.values():
            names += [name for name in (score.band, score.replacement) if name]
        return names


def find_importance(folder: Path, *, hide: Path | None = None) -> Importance | None:
    """The summary in the folder of a run, see `Artifact.find`; `hide`: folder to remove from paths in texts."""
    return Artifact(folder / FILE, Importance, hide=hide).find()
