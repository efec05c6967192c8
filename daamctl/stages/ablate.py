"""Stage `ablate`: retrain on the layers of highest and lowest Importance Factor, on the papers', and on those named.

Writes `data/ablate/<run>/<group>-<method>/fold*/` and ablation.json: rank_by, method, unit, embeddings_key, ranking,
baseline (all layers), groups (accuracy per fold), differences (highest less lowest, per k), presets (the papers' high
less low), alone (whether layers of high Importance Factor do better alone, see `alone_tests`) and notes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daamctl.analysis.ablation import (
    PRESETS,
    LayerGroup,
    alone_tests,
    choose_groups,
    group_name,
    paired_differences,
    summarize,
)
from daamctl.analysis.importance import layer_importance, mean_density, order_layers
from daamctl.artifacts.io import write_json
from daamctl.artifacts.results import Fold, read_folds
from daamctl.config import Config
from daamctl.errors import ArtifactError, MethodError
from daamctl.evaluation.scoring import items_of, score_items
from daamctl.layout import Layout
from daamctl.methods import resolve_method
from daamctl.methods.base import FusionClassifier
from daamctl.methods.effect import constant_weight
from daamctl.tracking import Tracker, make_tracker, send_missing
from daamctl.training.fold import Features, build_method, kept_fold
from daamctl.training.run import fold_specs, load_features, settle, train_all

NOTES = {
    "ranking": "Layers are ranked by the mean Importance Factor of '{rank_by}' over all folds, as in the papers; the "
    "maps come from test data, but no label enters them.",
    "none": "The layers are measured with the decoder alone ('none'): a DAAM over a single layer multiplies its input "
    "by a constant and would measure nothing of its own.",
    "unranked": "Layers are not ranked: {why}. Highest and lowest groups are left out; ablate.layers names others.",
    "constant": "On {groups} '{method}' weighs nothing: its weight is {weight:.3g} for every input at the start, and "
    "training can at most make it another constant (D6, D33). These rows measure what follows, not the weighing.",
}
FIXES: tuple[dict[str, Any], ...] = (
    {"num_heads": "auto"},
    {"variance": "biased"},  # one layer has no unbiased variance (D33)
    {"num_heads": "auto", "variance": "biased"},
    {"num_groups": 1},
)
"""Settings with which methods whose heads do not fit few layers do; the first that fits is named."""
STARTS = range(8)
"""Seeds of the starts at which all of them must be: by chance, a ReLU may start dead for all inputs (`se`)."""


def run(layout: Layout, config: Config, *, force: bool = False, track: bool = True) -> Path:
    """Ablate layers.

    Args:
        layout: where artifacts lie.
        config: all settings.
        force: train again even what is finished.
        track: log to MLflow.

    Returns:
        The file with the results.

    Raises:
        ArtifactError: no finished folds of the ranking method, or no embeddings, or the two do not belong together.
        ConfigError: layer groups that do not fit.
        MethodError: the method does not fit one of the groups; before anything is trained.
    """
    score, note = _score(layout, config)
    features = load_features(layout, config)
    if score and list(score) != list(features.layers):
        raise ArtifactError(
            f"layers cannot be ranked: '{config.ablate.rank_by}' was trained on layers {list(score)}, but the "
            f"embeddings hold {list(features.layers)}",
            fix="train it again: " + layout.command("train", "--method", config.ablate.rank_by),
        )
    ranking = order_layers(np.array(list(score.values())), list(score))
    groups = choose_groups(ranking, config.ablate.k, config.ablate.layers, features.layers, config.ablate.presets)
    notes = [note, *_method_notes(config, features, groups)]
    folder = layout.stage("ablate")
    tracker = make_tracker(layout.root, enabled=track)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        baseline = _baseline(features, folder, layout, config, tracker, force=force) if groups else []
        results = {}
        for group in groups:
            subset = settle(features.subset(group.layers), config)  # few layers may fit where all do not
            results[group.name] = _train(
                subset, folder / f"{group.name}-{config.ablate.method}", layout, config, tracker, force
            )
        _remove_strays(folder, {f"{group.name}-{config.ablate.method}" for group in groups}, config.ablate.method)
        send_missing(tracker, [fold for folds in results.values() for fold in folds])
    finally:
        tracker.close()
    path = folder / "ablation.json"
    write_json(path, _table(config, score, ranking, notes, features, baseline, groups, results))
    return path


def _score(layout: Layout, config: Config) -> tuple[dict[int, float], str]:
    """Mean Importance Factor of every layer, with a note for the report; empty where there is nothing to rank by.

    Raises:
        ArtifactError: the pipeline lists the ranking method, but it is not trained.
    """
    name = config.ablate.rank_by
    folds = read_folds(layout.method(name))
    if not folds and name in config.methods:
        raise ArtifactError(
            f"layers cannot be ranked: '{name}' is not trained in {layout.method(name)}",
            fix="train it: " + layout.command("train", "--method", name),
        )
    maps = [density["trained"] for fold in folds if (density := fold.density()) is not None]
    if not maps:
        what = "has no density" if folds else "is not among the methods of this pipeline"
        return {}, NOTES["unranked"].format(why=f"'{name}' (ablate.rank_by) {what}")
    layers = folds[0].result["run"]["layers"]
    means = layer_importance(mean_density(maps)).tolist()
    return dict(zip(layers, means, strict=True)), NOTES["ranking"].format(rank_by=name)


def _method_notes(config: Config, features: Features, groups: list[LayerGroup]) -> list[str]:
    """What must be said of the method on these layers.

    Raises:
        MethodError: it does not fit a group; names what does.
    """
    method = config.ablate.method
    sizes = {group.k: ", ".join(one.name for one in groups if one.k == group.k) for group in groups}
    sizes |= {len(features.layers): "all layers"} if groups else {}
    _check_fits(config, features, sizes)
    notes = [NOTES["none"]] if groups and resolve_method(method)[0] == "none" else []
    for k, names in sizes.items():
        x = torch.randn(4, k, features.head.embed_dim, generator=torch.Generator().manual_seed(0))
        starts = (constant_weight(_started(config, features, k, seed), x) for seed in STARTS)
        weights = list(takewhile(lambda weight: weight is not None, starts))  # of most methods one start is enough
        if len(weights) == len(STARTS):
            notes.append(NOTES["constant"].format(groups=names, method=method, weight=weights[0]))
    return notes


def _started(config: Config, features: Features, k: int, seed: int) -> FusionClassifier:
    """The method on k layers as a seed starts it; random numbers of others are left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_method(config.ablate.method, config, k, features.head.embed_dim, len(features.head.classes))


def _check_fits(config: Config, features: Features, sizes: Mapping[int, str]) -> None:
    """Check that the method can be built for every number of layers.

    Raises:
        MethodError: it cannot; names what fits.
    """
    method, rest = config.ablate.method, (features.head.embed_dim, len(features.head.classes))
    problems, fix = [], None
    for k, names in sizes.items():
        try:
            with torch.device("meta"):
                build_method(method, config, k, *rest)
        except MethodError as error:
            problems.append(f"{names}: {error.message}")
            fix = fix or error.fix
    if not problems:
        return
    for settings in FIXES:
        changed = {**config.method_settings, method: {**config.method_settings.get(method, {}), **settings}}
        try:
            for k in sizes:
                build_method(method, config.model_copy(update={"method_settings": changed}), k, *rest)
        except MethodError:
            continue
        words = " ".join(f"--set method_settings.{method}.{name}={value}" for name, value in settings.items())
        fix = f"all groups and the baseline fit with {words}"
        break
    raise MethodError("; ".join(problems), fix=fix)


def _train(
    features: Features, folder: Path, layout: Layout, config: Config, tracker: Tracker, force: bool
) -> list[Fold]:
    specs = fold_specs(layout.run_name, config.ablate.method, features, config)
    return train_all(specs, features, folder, layout, tracker, force=force)


def _baseline(
    features: Features, folder: Path, layout: Layout, config: Config, tracker: Tracker, *, force: bool
) -> list[Fold]:
    """All layers: the folds of the train stage if they were made from the same inputs, else trained here."""
    specs = fold_specs(layout.run_name, config.ablate.method, features, config)
    kept = [kept_fold(layout.method(config.ablate.method), spec, features) for spec in specs]
    if all(kept):
        return [fold for fold in kept if fold is not None]
    return _train(features, folder / f"all-{config.ablate.method}", layout, config, tracker, force)


def _remove_strays(folder: Path, wanted: set[str], method: str) -> None:
    """Remove layer groups that the settings or a new ranking no longer have."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in wanted | {f"all-{method}"}:
            shutil.rmtree(path, ignore_errors=True)


def _scores(folds: list[Fold], unit: str) -> list[dict[str, Any]]:
    rows = []
    for fold in folds:
        items = items_of(fold.predictions(), unit)
        score = score_items(items, len(fold.result["run"]["classes"]))
        rows.append({"fold": fold.fold, "seed": fold.seed, "accuracy": score["accuracy"]})
    return rows


def _table(
    config: Config,
    score: Mapping[int, float],
    ranking: list[int],
    notes: list[str],
    features: Features,
    baseline: list[Fold],
    groups: list[LayerGroup],
    results: dict[str, list[Fold]],
) -> dict[str, Any]:
    unit, settings = config.evaluate.unit, config.ablate
    rows = {name: _scores(folds, unit) for name, folds in results.items()}
    base = _scores(baseline, unit)
    differences = []
    for k in dict.fromkeys(settings.k if ranking else ()):
        pairs = paired_differences(rows[f"highest-{k}"], rows[f"lowest-{k}"])
        differences.append({"k": k, "per_fold": pairs, **summarize([pair["difference"] for pair in pairs])})
    tables = [
        {
            "name": group.name,
            "kind": group.kind,
            "k": group.k,
            "layers": list(group.layers),
            "per_fold": rows[group.name],
            **summarize([row["accuracy"] for row in rows[group.name]]),
        }
        for group in groups
    ]
    return {
        "rank_by": settings.rank_by,
        "method": next((fold.label for folds in [baseline, *results.values()] for fold in folds), settings.method),
        "unit": unit,
        "embeddings_key": features.head.key,
        "ranking": ranking,
        "baseline": {
            "layers": list(features.layers),
            "per_fold": base,
            **(summarize([row["accuracy"] for row in base]) if base else {}),
        },
        "groups": tables,
        "differences": differences,
        "presets": [_preset(name, rows) for name in dict.fromkeys(settings.presets)],
        "alone": alone_tests(tables, score),
        "notes": notes,
    }


def _preset(name: str, rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The papers' high less their low layers."""
    high, low = PRESETS[name]
    pairs = paired_differences(rows[group_name(high)], rows[group_name(low)])
    differences = [pair["difference"] for pair in pairs]
    return {"name": name, "high": list(high), "low": list(low), "per_fold": pairs, **summarize(differences)}
