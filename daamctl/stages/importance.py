"""Stage `importance`: Importance Factor maps, and a test whether layer scores reflect the usefulness of the layers.

Reads `data/train/<run>/<method>/fold*/` and, for the audit, `data/extract/<run>/` and
`data/ablate/<run>/ablation.json`. Without these two, it computes the rest and reports what is missing. Writes to
`data/importance/<run>/`:

- importance.parquet: one row per method with a density, fold, layer and feature; fold 0 and seed 0 are the mean over
  folds and seeds, features count from 1. Importance is in [0, 1].
- audit-curves.parquet: one row per method, fold, kind (deletion, insertion), order (score, untrained, random with its
  draw from 1) and number of layers touched; accuracy is a fraction of clips.
- pictures: `<method>-heatmap.png` and `<method>-layers.png` of methods with a density, `<method>-band.png` of every
  method with a score, `<method>-replacement.png` of every method with curves.
- layers.parquet and audit.parquet: see `daamctl.artifacts.layer_sets` and `daamctl.artifacts.audit`.
- summary.json: see `daamctl.artifacts.importance`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from daamctl.artifacts.audit import write_tests
from daamctl.artifacts.importance import (
    CURVES_FILE,
    FILE,
    MAPS_FILE,
    PROBE,
    DensityMaps,
    Importance,
    LayerScores,
    ProbedLayers,
    Stability,
    folds_and_key,
)
from daamctl.artifacts.layer_sets import LayerRow, layers_name, write_rows
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold
from daamctl.artifacts.statistics import Interval
from daamctl.config import Config
from daamctl.data.metrics import ACCURACY
from daamctl.evaluation.audit import ProbedFold, audit_scores, curves_of, steps
from daamctl.evaluation.comparison import compare_methods, item_table, method_intervals, with_holm
from daamctl.evaluation.importance import (
    Map,
    geometry_caution,
    head_positions,
    importance_factor,
    layer_contribution,
    map_correlation,
    order_layers,
    rank_correlation,
    stability,
)
from daamctl.evaluation.layer_scores import FoldMaps, MethodLayerScores, read_maps, read_scores
from daamctl.evaluation.scoring import items_of
from daamctl.evaluation.trials import compare_trials, trial_intervals, trials_of
from daamctl.methods import METHODS, resolve_method, settings_of
from daamctl.methods.heads import resolved
from daamctl.reporting import figure_static as static
from daamctl.reporting.document import plural
from daamctl.reporting.figure_layers import contribution, importance_map, replaced_layers, score_over_runs
from daamctl.store.artifact import Artifact
from daamctl.store.files import remove_others, write_bytes
from daamctl.store.tables import write_frame

logger = logging.getLogger(__name__)

SCHEMA = {
    "method": pl.String, "fold": pl.Int32, "seed": pl.Int32, "layer": pl.Int32, "feature": pl.Int32,
    "density": pl.Float32, "importance": pl.Float32, "untrained_density": pl.Float32,
    "untrained_importance": pl.Float32,
}  # fmt: skip
KINDS = {"deletion": "Layers replaced", "insertion": "Layers put back"}
LABELS = {"importance": "Mean Importance Factor", "weight": "Layer weight"}
UNSCORED = {True: "it has neither a density nor one weight per layer", False: "it has no finished fold"}


def run(layout: Layout, config: Config) -> Path:
    """Compute the maps, the audit, the summary and the pictures; what was made of the same inputs is kept.

    Returns:
        Path of summary.json. Without any density it contains an explanation instead of maps. Without embeddings,
        weights or layers trained alone, the audit lists what is missing.

    Raises:
        ArtifactError: a density or layer weights do not fit their fold's layers, or folds differ in shape.
    """
    folder = layout.stage("importance")
    folder.mkdir(parents=True, exist_ok=True)
    folds, key = folds_and_key(layout, config)
    artifact = Artifact(folder / FILE, Importance, keys=[key], what="importance")
    kept = artifact.keep()
    if kept is not None and not kept.audit.missing:
        logger.info("importance is finished and kept")
        return artifact.path
    maps: dict[str, list[FoldMaps]] = {}
    scores: dict[str, MethodLayerScores] = {}
    for method, found in folds.items():
        parts = read_maps(found)
        scored = read_scores(found, parts)
        if parts:
            maps[method] = parts
        if scored is not None:
            scores[method] = scored
    folds_of_one = next((found for found in folds.values() if found), [])
    unit = config.evaluate.unit

    def accuracy_of(predictions: pl.DataFrame) -> float:
        return ACCURACY.compute(items_of(predictions, unit))

    audit, tests, curves, probes = audit_scores(layout, config, folds_of_one, scores, accuracy_of)
    pictures = {**_map_pictures(config, maps, scores), **_score_pictures(config, scores, curves)}
    write_bytes(folder, pictures)
    remove_others(folder, pictures, "*.png")
    frames = [_rows(method, part, scores[method].layers) for method, parts in maps.items() for part in parts]
    rows = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    write_frame(folder / MAPS_FILE, rows, {"run": layout.run_name, "methods": list(maps)})
    write_frame(folder / CURVES_FILE, curves, {"run": layout.run_name})
    resampled, probed = _probe_rows(probes, unit) if probes else ("", [])
    # tables and pictures come before the record, which holds their hashes
    tables = [
        write_rows(folder, layout.run_name, [*probed, *_score_rows(scores, maps)]),
        write_tests(folder, layout.run_name, tests),
    ]
    drawn = set(curves["method"].unique())
    # probes, and methods with weights of layers only
    without = [method for method in folds if method not in maps]
    note = f"Importance Factor of {', '.join(maps)}"
    note += f"; methods without a density: {', '.join(without)}." if without else "."
    if not maps:
        note = (
            "No method has a density, so there is no Importance Factor. To get one, add a density method such as "
            "daam-v1 to `methods` and train it."
        )
    summary = Importance(
        run=layout.run_name,
        methods={method: _summary(config, method, parts, scores[method]) for method, parts in maps.items()},
        without_density=without,
        note=note,
        scores={method: _score_summary(method, scored, curves=method in drawn) for method, scored in scores.items()},
        without_score={method: UNSCORED[bool(found)] for method, found in folds.items() if method not in scores},
        audit=audit,
        probed=ProbedLayers(unit, resampled) if probes else None,
        folds=sorted(fold.result["run"]["key"] for found in folds.values() for fold in found),
        key=key,
    )
    record = asdict(summary)
    del record["rows"], record["tests"]
    files = [*tables, *(folder / name for name in (MAPS_FILE, CURVES_FILE, *pictures))]
    artifact.seal(folder, record, files)
    logger.info(summary.note)
    lacking = [line for lines in audit.methods.values() for line in lines]
    for line in (*audit.missing, audit.no_ablation, *lacking, audit.sentence):
        if line is not None:
            logger.info(line)
    return folder / FILE


def _probe_rows(probes: Sequence[ProbedFold], unit: str) -> tuple[str, list[LayerRow]]:
    """How `ridge-last` does on every layer alone, and whether worse than on the best one.

    What the tests take as independent, e.g. "speaker", and rows of every run and over all runs.
    """
    folds, layers = [part.fold for part in probes], probes[0].layers
    tables = {
        str(layer): item_table(folds, [items_of(part.predictions[index], unit, part.fold.task) for part in probes])
        for index, layer in enumerate(layers)
    }
    task = folds[0].task
    intervals = method_intervals(tables, task=task)
    values = np.mean([part.accuracy for part in probes], axis=0)
    f1: list[Interval] = []
    if not task.by_accuracy:
        parts = [[(part.fold, part.predictions[index]) for part in probes] for index in range(len(layers))]
        trials = [trials_of(task, own) for own in parts]
        f1 = trial_intervals(task, trials)
    best = int(np.argmax([one.value for one in f1] if f1 else values))
    others = [index for index in range(len(layers)) if index != best]
    if f1:
        names = [(str(layers[best]), str(layers[index])) for index in others]
        pairs = zip(others, names, strict=True)
        found = with_holm([compare_trials(task, trials[best], trials[index], both) for index, both in pairs])
    else:
        compared, _ = compare_methods(tables, reference=str(layers[best]), task=task)
        found = [pair for pair in compared if pair.metric == "accuracy"]
    against = dict(zip(others, found, strict=True))
    rows = []
    for index, layer in enumerate(layers):
        probe = partial(LayerRow, layers_name((layer,)), (layer,), PROBE)
        rows += [probe("accuracy", float(part.accuracy[index]), part.fold.fold, part.fold.seed) for part in probes]
        interval = intervals[str(layer)].metrics.get("accuracy")
        low, high = (interval.low, interval.high) if interval else (None, None)
        row = probe("accuracy", float(values[index]), low=low, high=high)
        if f1:
            rows.append(row)
            row = probe(task.primary, f1[index].value, low=f1[index].low, high=f1[index].high)
        gap = against.get(index)
        # this layer minus the best one
        row = row._replace(difference=-gap.difference if gap else 0.0)
        if gap is not None and gap.floor is not None:
            row = row._replace(p=gap.p_holm, floor=min(1.0, len(others) * gap.floor))
        rows.append(row)
    return next(iter(intervals.values())).word, rows


def _score_rows(scores: Mapping[str, MethodLayerScores], maps: Mapping[str, list[FoldMaps]]) -> list[LayerRow]:
    """Scores of the layers of every method, and their shares in its density."""
    kinds: list[tuple[str, str, Map, Map]] = [
        (method, one.kind, one.mean, one.mean_untrained) for method, one in scores.items()
    ]
    for method, (mean, *_) in maps.items():
        shares = [layer_contribution(part) / 100 for part in (mean.trained, mean.untrained)]
        kinds.append((method, "contribution", shares[0], shares[1]))
    return [
        LayerRow(layers_name((layer,)), (layer,), method, kind, float(value), untrained=float(before))
        for method, kind, trained, untrained in kinds
        for layer, value, before in zip(scores[method].layers, trained, untrained, strict=True)
    ]


def _rows(method: str, part: FoldMaps, layers: list[int]) -> pl.DataFrame:
    num_layers, num_features = part.trained.shape
    size = num_layers * num_features
    columns = {
        "method": [method] * size,
        "fold": np.full(size, part.fold),
        "seed": np.full(size, part.seed),
        "layer": np.repeat(layers, num_features),
        "feature": np.tile(np.arange(1, num_features + 1), num_layers),
        "density": part.trained.ravel(),
        "importance": importance_factor(part.trained).ravel(),
        "untrained_density": part.untrained.ravel(),
        "untrained_importance": importance_factor(part.untrained).ravel(),
    }
    return pl.DataFrame(columns).cast(SCHEMA)  # type: ignore[arg-type]


def _summary(config: Config, method: str, parts: list[FoldMaps], scored: MethodLayerScores) -> DensityMaps:
    mean, folds, layers = parts[0], parts[1:], scored.layers
    correlation = map_correlation(mean.trained, mean.untrained)
    num_heads = _num_heads(config, method, scored.folds[0])
    positions, before = (head_positions(values, num_heads) for values in (scored.mean, scored.mean_untrained))
    return DensityMaps(
        folds=[(part.fold, part.seed) for part in folds],
        layers=layers,
        num_features=mean.trained.shape[1],
        num_heads=num_heads,
        ranking=order_layers(scored.mean, layers),
        ranking_untrained=order_layers(scored.mean_untrained, layers),
        correlation_with_untrained=correlation,
        head_positions=positions,
        head_positions_untrained=before,
        caution=geometry_caution(correlation, positions, scored.folds[0].result["meta"]["encoder"].get("widths", ())),
        heatmap=f"{method}-heatmap.png",
        layers_picture=f"{method}-layers.png",
    )


def _num_heads(config: Config, method: str, fold: Fold) -> int:
    """Number of heads that split the layers; 1 if all layers, or features, are standardised together."""
    settings = METHODS.defaults(resolve_method(method)[0])
    # what the fold was trained with counts, not what the pipeline says now
    settings |= {**settings_of(method, config.method_settings), **fold.result["run"]["config"].get("method", {})}
    if settings.get("norm_axis") == "features":
        return 1
    settings = resolved(settings, len(fold.result["run"]["layers"]))
    return int(settings.get("num_heads") or settings.get("num_groups") or 1)


def _score_summary(method: str, scored: MethodLayerScores, *, curves: bool) -> LayerScores:
    return LayerScores(
        label=scored.label,
        kind=scored.kind,
        learned=scored.learned,
        folds=[(fold.fold, fold.seed) for fold in scored.folds],
        layers=scored.layers,
        ranking=order_layers(scored.mean, scored.layers),
        ranking_untrained=order_layers(scored.mean_untrained, scored.layers),
        stability=Stability(**stability(list(scored.trained))),
        stability_untrained=Stability(**stability(list(scored.untrained))),
        tau_with_untrained=rank_correlation(scored.mean, scored.mean_untrained),
        band=f"{method}-band.png",
        replacement=f"{method}-replacement.png" if curves else None,
    )


def _map_pictures(
    config: Config, maps: Mapping[str, list[FoldMaps]], scores: Mapping[str, MethodLayerScores]
) -> dict[str, bytes]:
    dpi, pictures = config.importance.dpi, {}
    for method, (mean, *folds) in maps.items():
        layers = scores[method].layers
        title = f"{scores[method].label}, mean of {plural(len(folds), 'run')}"
        panels = [
            importance_map(importance_factor(mean.trained), layers, "Trained"),
            importance_map(importance_factor(mean.untrained), layers, "Untrained"),
        ]
        pictures[f"{method}-heatmap.png"] = static.png(panels, title=f"Importance Factor of {title}", dpi=dpi)
        shares = contribution(layer_contribution(mean.trained), layer_contribution(mean.untrained), layers)
        pictures[f"{method}-layers.png"] = static.png([shares], title=title, dpi=dpi)
    return pictures


def _score_pictures(config: Config, scores: Mapping[str, MethodLayerScores], curves: pl.DataFrame) -> dict[str, bytes]:
    dpi, pictures = config.importance.dpi, {}
    for method, scored in scores.items():
        runs = plural(len(scored.folds), "run")
        label = LABELS[scored.kind]
        band = score_over_runs(scored.trained, scored.untrained, scored.layers, label)
        pictures[f"{method}-band.png"] = static.png([band], title=f"{label} of {scored.label}, {runs}", dpi=dpi)
        own = curves.filter(pl.col("method") == method)
        if own.is_empty():
            continue
        curves_by_kind = {}
        for kind, name in KINDS.items():
            score, random, before = (curves_of(own, kind, order) for order in ("score", "random", "untrained"))
            untrained = before[:, 0].mean(axis=0) if len(before) == len(score) else None
            curves_by_kind[name] = (score[:, 0].mean(axis=0), random.mean(axis=0), untrained)
        clip = scored.folds[0].task.clip
        panels = replaced_layers(curves_by_kind, steps(len(scored.layers)), clip)
        title = f"Layers of the trained {scored.label} replaced by their mean, {runs}"
        pictures[f"{method}-replacement.png"] = static.png(panels, title=title, dpi=dpi)
    return pictures
