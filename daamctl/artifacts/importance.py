"""Result of the `importance` stage: `data/importance/<run>/summary.json`.

The JSON has the same names and nesting as the classes. Layer numbers are the indices of Hugging Face's hidden states;
as keys they are strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from daamctl.artifacts import audit
from daamctl.artifacts.audit import Audit, LayerTest
from daamctl.artifacts.embeddings import METADATA_FILE, open_embeddings
from daamctl.artifacts.inputs import embeddings_of
from daamctl.artifacts.layer_sets import TABLE, LayerRow, find_ablation, read_rows
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import WEIGHTS, Fold, read_folds
from daamctl.config import Config
from daamctl.config.keys import watched_settings
from daamctl.data.task import FIGURES
from daamctl.methods import settings_of
from daamctl.store.artifact import Artifact
from daamctl.store.files import content_key
from daamctl.store.provenance import code_hash

PROBE = "ridge-last"
"""The method whose probe of each layer tells how well the layer carries what is asked."""
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
        correlation_with_untrained: Pearson correlation with the untrained map; None for a constant map.
        head_positions: effect of the position inside the head; None if every head has one layer or there is one head.
        caution: why the map mostly reflects geometry; None if it does not.
    """

    folds: list[tuple[int, int]]
    layers: list[int]
    num_features: int
    num_heads: int
    ranking: list[int]
    ranking_untrained: list[int]
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
    """What is known of the layer scores of a method, which are rows of the table.

    Args:
        label: name of the method in results.
        kind: "importance" (mean Importance Factor) or "weight" (learned layer weight).
        learned: whether training changed the score.
        folds: (fold, seed) of the runs.
        ranking: layers by score, highest first; empty if all are equal.
        stability: agreement between runs.
        tau_with_untrained: Kendall's tau between the scores after and before training; None if one is constant.
        replacement: file name of a picture; None without curves.
    """

    label: str
    kind: str
    learned: bool
    folds: list[tuple[int, int]]
    layers: list[int]
    ranking: list[int]
    ranking_untrained: list[int]
    stability: Stability
    stability_untrained: Stability
    tau_with_untrained: float | None
    band: str
    replacement: str | None


@dataclass(frozen=True)
class ProbedLayers:
    """Linear probes of every layer alone.

    Args:
        unit: what was scored: "utterance" or "clip".
        resampled: what the intervals resample and the tests take as independent, e.g. "speaker".
    """

    unit: str
    resampled: str


@dataclass(frozen=True)
class Importance:
    """Importance Factor maps, layer scores and their audit.

    Args:
        methods: method with a density -> its map.
        scores: method with a layer score -> its score.
        without_score: method -> why it has no score.
        probed: None if no layer was probed.
        files: SHA-256 of the stage's other files.
        folds: content keys of the folds that it was computed from, sorted.
        key: content key of all inputs; if it is unchanged, nothing is computed again.
        rows: figures of the layers: those of probes, scores, and shares in the density. They and the tests of the audit
            are not in the record but in tables.
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
    key: str = ""
    rows: Sequence[LayerRow] = ()
    tests: Sequence[LayerTest] = ()

    @property
    def profile(self) -> list[LayerRow]:
        """How well each layer alone carries what is asked, by the primary figure."""
        probes = [row for row in self.rows if row.method == PROBE and row.fold is None and row.kind in FIGURES]
        return [row for row in probes if row.kind != "accuracy"] or probes

    def by_layer(self, method: str, kind: str) -> dict[int, LayerRow]:
        """Layer -> figure of a method over all runs."""
        own = (method, kind, None)
        return {row.layers[0]: row for row in self.rows if (row.method, row.kind, row.fold) == own}

    @property
    def pictures(self) -> list[str]:
        """File names of all pictures."""
        names = [name for entry in self.methods.values() for name in (entry.heatmap, entry.layers_picture)]
        for score in self.scores.values():
            names += [name for name in (score.band, score.replacement) if name]
        return names


def find_importance(folder: Path, *, hide: Path | None = None) -> Importance | None:
    """The summary in the folder of a run, see `Artifact.find`; `hide`: folder to remove from paths in texts."""
    found = Artifact(folder / FILE, Importance, hide=hide).find()
    return None if found is None else replace(found, rows=read_rows(folder), tests=audit.read_tests(folder))


def folds_and_key(layout: Layout, config: Config) -> tuple[dict[str, list[Fold]], str]:
    """The folds of each method that the stage reads, and the content key of all that it reads.

    Raises:
        ArtifactError: the embeddings or the ablation are damaged, or the former were made with other settings.
    """
    folds: dict[str, list[Fold]] = {}
    for method in config.methods:
        folds[method] = [fold for fold in read_folds(layout.method(method)) if fold.seed in config.train.seeds]
    embeddings = ablation = None
    if config.importance.audit and any(folds.values()) and (layout.embeddings / METADATA_FILE).exists():
        embeddings = embeddings_of(layout, config).key
        open_embeddings(layout.embeddings)
        ablation = find_ablation(layout.stage("ablate"))
    return folds, content_key(
        {
            "code": code_hash("daamctl.stages.importance", "daamctl"),
            "settings": [watched_settings(config, "importance"), config.evaluate.unit],
            "methods": {method: settings_of(method, config.method_settings) for method in folds},
            # not the bytes of records, which say how long a training took
            "folds": [
                [fold.result["run"]["key"], fold.result["files"], (fold.folder / WEIGHTS).exists()]
                for found in folds.values()
                for fold in found
            ],
            "embeddings": embeddings,
            "ablation": ablation and [ablation.unit, ablation.embeddings_key, ablation.trained, ablation.files[TABLE]],
        }
    )
