"""Stage `importance`: Importance Factor maps and layer contributions of every method that has a density.

Reads `data/train/<run>/<method>/fold*/density.safetensors`; writes to `data/importance/<run>/`: importance.parquet
(one row per method, fold, layer and feature; fold 0 and seed 0 are the mean over folds and seeds, features count from
1), summary.json, and per method `<method>-heatmap.png` and `<method>-layers.png`. Importance is in [0, 1], layer
contribution in percent.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from daamctl.analysis.importance import (
    Map,
    importance_factor,
    layer_contribution,
    map_correlation,
    mean_density,
    rank_layers,
)
from daamctl.analysis.plots import importance_heatmap, layer_bars
from daamctl.artifacts.io import atomic_path, write_json
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.utterances import write_frame
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.layout import Layout

logger = logging.getLogger(__name__)

GEOMETRY_THRESHOLD = 0.9
"""Correlation with the untrained map above which a map is called mostly geometry."""
SCHEMA = {
    "method": pl.String,
    "fold": pl.Int32,
    "seed": pl.Int32,
    "layer": pl.Int32,
    "feature": pl.Int32,
    "density": pl.Float32,
    "importance": pl.Float32,
    "untrained_density": pl.Float32,
    "untrained_importance": pl.Float32,
}


class Maps(NamedTuple):
    """Density maps of one fold, or their mean; shape (L, D)."""

    fold: int
    seed: int
    trained: Map
    untrained: Map


def run(layout: Layout, config: Config) -> Path:
    """Make the maps, the summary and the pictures.

    Returns:
        Path of summary.json. Without any density it holds an explanation and no map.

    Raises:
        ArtifactError: a density does not fit its fold's layers, or folds differ in shape.
    """
    folder = layout.stage("importance")
    folder.mkdir(parents=True, exist_ok=True)
    maps: dict[str, list[Maps]] = {}
    layers: dict[str, list[int]] = {}
    without: list[str] = []
    for method in config.methods:
        folds = [fold for fold in read_folds(layout.method(method)) if fold.seed in config.train.seeds]
        found = [part for fold in folds if (part := _maps(fold)) is not None]
        if not found:
            without.append(method)
            continue
        maps[method], layers[method] = [_mean(layout, method, found), *found], folds[0].result["run"]["layers"]
    _write_pictures(folder, config, maps, layers)
    frames = [_rows(method, part, layers[method]) for method, parts in maps.items() for part in parts]
    rows = pl.concat(frames) if frames else pl.DataFrame(schema=SCHEMA)
    write_frame(folder / "importance.parquet", rows, {"run": layout.run_name, "methods": list(maps)})
    summary = {
        "run": layout.run_name,
        "methods": {method: _summary(config, method, parts, layers[method]) for method, parts in maps.items()},
        "without_density": without,
        "note": _note(maps, without),
    }
    write_json(folder / "summary.json", summary)
    logger.info(summary["note"])
    return folder / "summary.json"


def _maps(fold: Fold) -> Maps | None:
    density = fold.density()
    if density is None:
        return None
    num_layers = len(fold.result["run"]["layers"])
    again = f"delete {fold.folder} and train it again"
    for name in ("trained", "untrained"):
        if name not in density:
            raise ArtifactError(f"{fold.folder / 'density.safetensors'} lacks the map '{name}'", fix=again)
        if density[name].ndim != 2 or len(density[name]) != num_layers:
            raise ArtifactError(
                f"{fold.folder / 'density.safetensors'}: map '{name}' has shape {density[name].shape}, but the fold "
                f"has {num_layers} layers",
                fix=again,
            )
        if not np.isfinite(density[name]).all():
            raise ArtifactError(f"{fold.folder / 'density.safetensors'}: map '{name}' is not finite", fix=again)
    return Maps(fold.fold, fold.seed, density["trained"].astype(float), density["untrained"].astype(float))


def _mean(layout: Layout, method: str, found: list[Maps]) -> Maps:
    shapes = sorted({part.trained.shape for part in found} | {part.untrained.shape for part in found})
    if len(shapes) > 1:
        raise ArtifactError(
            f"density maps of '{method}' have different shapes: {shapes}",
            fix=layout.command("train", "--method", method),
        )
    return Maps(0, 0, mean_density([part.trained for part in found]), mean_density([part.untrained for part in found]))


def _rows(method: str, part: Maps, layers: list[int]) -> pl.DataFrame:
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


def _summary(config: Config, method: str, parts: list[Maps], layers: list[int]) -> dict[str, Any]:
    mean, folds = parts[0], parts[1:]
    correlation = map_correlation(mean.trained, mean.untrained)
    mostly_geometry = correlation is not None and correlation > GEOMETRY_THRESHOLD
    return {
        "folds": [[part.fold, part.seed] for part in folds],
        "layers": layers,
        "num_features": mean.trained.shape[1],
        "num_heads": config.method_settings.get(method, {}).get("num_heads"),
        "ranking": rank_layers([part.trained for part in folds], layers),
        "ranking_untrained": rank_layers([part.untrained for part in folds], layers),
        "mean_importance": _per_layer(layers, importance_factor(mean.trained).mean(axis=1)),
        "mean_importance_untrained": _per_layer(layers, importance_factor(mean.untrained).mean(axis=1)),
        "contribution_percent": _per_layer(layers, layer_contribution(mean.trained)),
        "contribution_percent_untrained": _per_layer(layers, layer_contribution(mean.untrained)),
        "correlation_with_untrained": correlation,
        "caution": _caution(correlation) if mostly_geometry else None,
        "heatmap": f"{method}-heatmap.png",
        "layers_picture": f"{method}-layers.png",
    }


def _per_layer(layers: list[int], values: Map) -> dict[str, float]:
    return {str(layer): float(value) for layer, value in zip(layers, values, strict=True)}


def _caution(correlation: float | None) -> str:
    return (
        f"The trained map is almost that of the untrained module (Pearson r = {correlation:.3f}): its pattern is "
        "mostly geometry, set by standardising few layers per head, and says little about what was learned."
    )


def _note(maps: dict[str, list[Maps]], without: list[str]) -> str:
    if not maps:
        return (
            f"No finished fold of {', '.join(without)} has a density, so there is no Importance Factor. Only density "
            "methods such as daam-v1 have one; add one to `methods` and train it."
        )
    text = f"Importance Factor of {', '.join(maps)}"
    return f"{text}; without a density: {', '.join(without)}." if without else f"{text}."


def _write_pictures(folder: Path, config: Config, maps: dict[str, list[Maps]], layers: dict[str, list[int]]) -> None:
    dpi, kept = config.importance.dpi, set()
    for method, (mean, *folds) in maps.items():
        runs = f"mean of {len(folds)} fold{'s' if len(folds) > 1 else ''}"
        heatmap = importance_heatmap(
            importance_factor(mean.trained), importance_factor(mean.untrained), layers[method],
            title=f"Importance Factor of {method} ({runs})", dpi=dpi,
        )  # fmt: skip
        bars = layer_bars(
            layer_contribution(mean.trained), layer_contribution(mean.untrained), layers[method],
            title=f"Layer contribution in {method} ({runs})", dpi=dpi,
        )  # fmt: skip
        for name, picture in ((f"{method}-heatmap.png", heatmap), (f"{method}-layers.png", bars)):
            kept.add(name)
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(picture)
    # Pictures of methods no longer in the settings would be read as results of this run.
    for old in set(folder.glob("*-heatmap.png")) | set(folder.glob("*-layers.png")):
        if old.name not in kept:
            old.unlink()
