"""Retrain on the layers with the highest and the lowest Importance Factor, and on layers the user names."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from daamctl.analysis.ablation import LayerGroup, choose_groups, paired_differences, summarize
from daamctl.analysis.importance import rank_layers
from daamctl.artifacts.io import write_json
from daamctl.artifacts.results import Fold, read_folds
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.evaluation.scoring import items_of, score_items
from daamctl.layout import Layout
from daamctl.tracking import Tracker, make_tracker, send_missing
from daamctl.training.fold import Features, kept_fold
from daamctl.training.run import fold_specs, load_features, train_all

NOTES = {
    "ranking": "Layers are ranked by the mean Importance Factor of '{rank_by}' over all folds, as in the papers; the "
    "maps come from test clips, but no label enters them.",
    "none": "The layers are measured with the decoder alone ('none'): a DAAM over a single layer multiplies its input "
    "by a constant and would measure nothing of its own.",
    "unranked": "Layers are not ranked: {why}. Highest and lowest groups are left out; ablate.layers names others.",
    "daam": "'{method}' over a single layer is the identity at the start and a constant factor later: its k = 1 rows "
    "measure the decoder, not the attention.",
}


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
        ArtifactError: no finished folds of the ranking method, or no embeddings.
        ConfigError: layer groups that do not fit.
    """
    ranking, note = _ranking(layout, config)
    features = load_features(layout, config)
    groups = choose_groups(ranking, config.ablate.k, config.ablate.layers, features.layers)
    folder = layout.stage("ablate")
    tracker = make_tracker(layout.root, enabled=track)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        baseline = _baseline(features, folder, layout, config, tracker, force=force) if groups else []
        results = {}
        for group in groups:
            subset = features.subset(group.layers)
            results[group.name] = _train(
                subset, folder / f"{group.name}-{config.ablate.method}", layout, config, tracker, force
            )
        _remove_strays(folder, {f"{group.name}-{config.ablate.method}" for group in groups}, config.ablate.method)
        send_missing(tracker, [fold for folds in results.values() for fold in folds])
    finally:
        tracker.close()
    path = folder / "ablation.json"
    write_json(path, _table(config, ranking, note, features, baseline, groups, results))
    return path


def _ranking(layout: Layout, config: Config) -> tuple[list[int], str]:
    """Layers from most to least important, with a note for the report; empty where there is nothing to rank by.

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
        return [], NOTES["unranked"].format(why=f"'{name}' (ablate.rank_by) {what}")
    return rank_layers(maps, folds[0].result["run"]["layers"]), NOTES["ranking"].format(rank_by=name)


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
    ranking: list[int],
    note: str,
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
    notes = [note]
    if groups and (settings.method == "none" or settings.method.startswith("daam")):
        notes.append(NOTES[settings.method.split("-")[0]].format(method=settings.method))
    return {
        "rank_by": settings.rank_by,
        "method": settings.method,
        "unit": unit,
        "ranking": ranking,
        "baseline": {
            "layers": list(features.layers),
            "per_fold": base,
            **(summarize([row["accuracy"] for row in base]) if base else {}),
        },
        "groups": [
            {
                "name": group.name,
                "kind": group.kind,
                "k": group.k,
                "layers": list(group.layers),
                "per_fold": rows[group.name],
                **summarize([row["accuracy"] for row in rows[group.name]]),
            }
            for group in groups
        ],
        "differences": differences,
        "notes": notes,
    }
