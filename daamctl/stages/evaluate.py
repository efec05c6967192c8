"""Stage `evaluate`: score the finished folds of every method, per utterance and per clip.

Reads `data/train/<run>/<method>/`; writes to `data/evaluate/<run>/`: evaluation.json (everything), metrics.json (flat,
for `dvc metrics show`), accuracy.csv, history.csv and confusion.csv (for `dvc plots`). All values are fractions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.adapters import FINETUNES
from daamctl.artifacts.io import read_json, write_json, write_text
from daamctl.artifacts.results import SKIPPED_FILE, Fold, marked, read_folds
from daamctl.artifacts.terms import terms_of
from daamctl.config import Config, TrainingStage
from daamctl.errors import ArtifactError, ConfigError
from daamctl.evaluation import METRICS
from daamctl.evaluation.comparison import compare_methods, item_table, method_intervals, speakers_known
from daamctl.evaluation.consistency import check_method, check_methods, differences
from daamctl.evaluation.fairness import Fairness, assess
from daamctl.evaluation.metrics import class_recalls, confusion_matrix
from daamctl.evaluation.provenance import chance_of, counts, provenance
from daamctl.evaluation.scoring import UNITS, Items, items_of, join, score_items
from daamctl.evaluation.summary import spread
from daamctl.evaluation.tables import accuracy_rows, confusion_rows, history_rows
from daamctl.layout import Layout

logger = logging.getLogger(__name__)

SELECTION_FIGURES = ("accuracy", "accuracy_best_on_test", "accuracy_last")


def run(layout: Layout, config: Config, *, methods: Sequence[str] | None = None) -> Path:
    """Score the finished folds.

    Args:
        layout: paths of all artifacts.
        config: settings; `evaluate.unit` is the main unit.
        methods: methods to score; None: `config.trained`.

    Returns:
        Path of evaluation.json.

    Raises:
        ArtifactError: a method has no finished fold, or folds were made with different settings.
    """
    folds, skipped = _collect(layout, config, tuple(methods or config.trained))
    items = {
        method: {unit: [items_of(fold.predictions(), unit) for fold in part] for unit in UNITS}
        for method, part in folds.items()
    }
    report = _evaluation(layout, config, folds, items)
    report["skipped"] = skipped
    for note in report["notes"]:
        logger.warning(note)
    flat = _flat_metrics(report)
    for method, scores in flat.items():
        unit = terms_of(report["modality"]).unit(config.evaluate.unit)
        logger.info("%s: accuracy %.1f %% per %s", method, 100 * scores["accuracy"], unit)
    folder = layout.stage("evaluate")
    write_json(folder / "evaluation.json", report)
    write_json(folder / "metrics.json", flat)
    unit = config.evaluate.unit
    write_text(folder / "accuracy.csv", accuracy_rows(report).write_csv())
    labels = {method: entry["label"] for method, entry in report["methods"].items()}
    write_text(folder / "history.csv", history_rows(folds, labels).write_csv())
    write_text(folder / "confusion.csv", confusion_rows(report, items, unit).write_csv())
    return folder / "evaluation.json"


def _collect(layout: Layout, config: Config, methods: Sequence[str]) -> tuple[dict[str, list[Fold]], dict[str, Any]]:
    """The checked folds of every method, and the content of `skipped.json` for methods that were not trained."""
    folds: dict[str, list[Fold]] = {}
    skipped: dict[str, Any] = {}
    for method in methods:
        note = layout.method(method) / SKIPPED_FILE
        if note.exists():
            skipped[method] = read_json(note)
            logger.warning("%s is not evaluated, because training skipped it (see %s)", method, note)
            continue
        stage = _stage(method)
        fix = layout.command(stage, "--method", method)
        finished = read_folds(layout.method(method))
        seeds = config.seeds_of(stage)
        folds[method] = [fold for fold in finished if fold.seed in seeds]
        if not folds[method]:
            raise ArtifactError(_no_fold(layout, method, finished, seeds), fix=f"train it: {fix}")
        check_method(method, folds[method], fix=fix)
    if not folds:
        raise ArtifactError(
            f"there is no method to evaluate; skipped: {', '.join(skipped) or 'none'}", fix="set `methods`"
        )
    check_methods(folds, config, fix=layout.command("train"))
    return folds, skipped


def _stage(method: str) -> TrainingStage:
    return "finetune" if method in FINETUNES else "train"


def _no_fold(layout: Layout, method: str, finished: Sequence[Fold], seeds: Sequence[int]) -> str:
    text = f"no finished fold of method '{method}' in {layout.method(method)}"
    if finished:
        text += (
            f" with seed {', '.join(map(str, seeds))} (available: {', '.join(sorted({str(f.seed) for f in finished}))})"
        )
    return text


def _evaluation(
    layout: Layout,
    config: Config,
    folds: Mapping[str, Sequence[Fold]],
    items: Mapping[str, Mapping[str, list[Items]]],
) -> dict[str, Any]:
    first = next(iter(folds.values()))[0]
    run_part = first.result["run"]
    methods = {
        method: _method(
            part, items[method], run_part["num_folds"], config.seeds_of(_stage(method)), run_part["classes"]
        )
        for method, part in folds.items()
    }
    tables = {method: item_table(part, items[method][config.evaluate.unit]) for method, part in folds.items()}
    modality = first.modality
    main_items = {method: part[config.evaluate.unit] for method, part in items.items()}
    fairness = assess(folds, main_items, tables, margin=config.evaluate.margin)
    intervals = method_intervals(tables, modality=modality)
    for method, table in tables.items():
        entry = methods[method]
        entry["label"] = marked(entry["label"], fairness.methods[method].mark)
        entry["intervals"] = intervals[method]
        entry["per_speaker"] = _per_speaker(table)
    return {
        "run": layout.run_name,
        "pipeline": layout.pipeline,
        "modality": modality,
        "main_unit": config.evaluate.unit,
        "units": list(UNITS),
        "metrics": {name: _describe(name) for name in METRICS},
        "classes": run_part["classes"],
        "num_folds": run_part["num_folds"],
        "seeds": list(config.train.seeds),
        "selection": run_part["config"]["train"]["selection"],
        "refit": _was_refitted(run_part["config"]["train"]),
        "counts": counts(folds, items),
        "chance": {unit: chance_of(items, unit, run_part["classes"]) for unit in UNITS},
        "methods": methods,
        "fairness": fairness.as_json(),
        "comparison": _comparison(config, tables, methods, fairness, modality),
        "notes": [*_notes(config, folds, methods), *fairness.notes],
        "provenance": provenance(folds),
    }


def _comparison(
    config: Config,
    tables: Mapping[str, pl.DataFrame],
    methods: Mapping[str, Any],
    fairness: Fairness,
    modality: str,
) -> dict[str, Any]:
    """Compare every method with the reference on the same items. Methods with missing folds are excluded and listed.

    Raises:
        ConfigError: `evaluate.reference` is not among the methods.
        ArtifactError: methods were tested on different items though no fold is missing.
    """
    whole = {method: table for method, table in tables.items() if not methods[method]["missing"]}
    wanted = config.evaluate.reference
    if wanted is not None and wanted not in tables:
        raise ConfigError(f"evaluate.reference: '{wanted}' is not among the methods {', '.join(tables)}")
    left_out = [method for method in tables if method not in whole]
    reference = wanted or _default_reference(list(whole), fairness)
    if reference not in whole:
        return {"reference": reference, "left_out": left_out, "result": None}
    result = compare_methods(whole, reference=reference, modality=modality)
    return {"reference": reference, "left_out": left_out, "result": result}


def _default_reference(methods: Sequence[str], fairness: Fairness) -> str | None:
    """`none` or else the first method, skipping methods that are undertrained or learned nothing."""
    ordered = sorted(methods, key=lambda method: method != "none")
    reference = next((method for method in ordered if not fairness.methods[method].mark), next(iter(ordered), None))
    if reference is not None and fairness.methods[reference].mark:
        logger.warning("the reference is %s, although all methods are undertrained or learned nothing", reference)
    elif reference != next(iter(ordered), None):
        passed = ordered[: ordered.index(str(reference))]
        states = ", ".join(f"{method} ({fairness.methods[method].mark})" for method in passed)
        logger.warning("the reference is %s, because these methods cannot serve as reference: %s", reference, states)
    return reference


def _per_speaker(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Accuracy of every speaker over all folds and seeds, in the main unit. An unknown speaker is None.

    Empty if every item is its own speaker.
    """
    if not speakers_known(table):
        return []
    figures = [pl.col("item").n_unique().alias("n"), pl.col("correct").mean().alias("accuracy")]
    rows = table.group_by("speaker").agg(figures)
    return rows.sort("speaker", nulls_last=True).to_dicts()


def _method(
    folds: Sequence[Fold], items: Mapping[str, list[Items]], num_folds: int, seeds: Sequence[int], classes: list[str]
) -> dict[str, Any]:
    size = len(classes)
    per_fold = [
        {**_fold_head(fold), **{unit: score_items(items[unit][index], size) for unit in UNITS}}
        for index, fold in enumerate(folds)
    ]
    done = {(fold.fold, fold.seed) for fold in folds}
    wanted = [(fold, seed) for fold in range(1, num_folds + 1) for seed in sorted(seeds)]
    joined = {unit: join(items[unit]) for unit in UNITS}
    run_part = folds[0].result["run"]
    return {
        "label": folds[0].label,
        "reconstructed": run_part.get("reconstructed", ""),
        "eval_batches": run_part.get("eval_batches"),
        "notes": [f"{run_part['method']}: {note}" for note in run_part.get("notes", [])],
        "finetune": run_part.get("finetune", False),
        "effect": run_part.get("effect"),
        "num_parameters": run_part["num_parameters"],
        "layers": run_part["layers"],
        "embed_dim": run_part["embed_dim"],
        "per_fold": per_fold,
        "missing": [list(pair) for pair in wanted if pair not in done],
        "summary": {unit: {name: spread([row[unit][name] for row in per_fold]) for name in METRICS} for unit in UNITS},
        "selection": {name: _spread_known([row[name] for row in per_fold]) for name in SELECTION_FIGURES},
        "pooled": {unit: score_items(joined[unit], size) for unit in UNITS},
        "recalls": {
            unit: dict(zip(classes, class_recalls(joined[unit].targets, joined[unit].predictions, size), strict=True))
            for unit in UNITS
        },
        "confusion": {
            unit: confusion_matrix(joined[unit].targets, joined[unit].predictions, size).tolist() for unit in UNITS
        },
    }


def _was_refitted(train: Mapping[str, Any]) -> bool:
    """Whether the held-out group joined the training part at the end; without such a group there is no refit."""
    return bool(train.get("refit")) and train["selection"] == "dev-group"


def _fold_head(fold: Fold) -> dict[str, Any]:
    """Facts about one fold. `accuracy` and the two other accuracies are per clip, as written by `train`."""
    run_part, metrics, meta = fold.result["run"], fold.result["metrics"], fold.result["meta"]
    return {
        "fold": fold.fold,
        "seed": fold.seed,
        "test_group": run_part["test_group"],
        "dev_group": run_part["dev_group"],
        "selection": run_part["config"]["train"]["selection"],
        "selected_epoch": metrics.get("selected_epoch"),
        "num_parameters": run_part["num_parameters"],
        "train_s": meta["train_s"],
        "device": meta["device"],
        **{name: _finite(metrics.get(name)) for name in SELECTION_FIGURES},
    }


def _finite(value: float | int | None) -> float | None:
    """Replace values that are not finite by None, because JSON has no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def _spread_known(values: Sequence[float | None]) -> dict[str, Any] | None:
    known = [value for value in values if value is not None]
    return spread(known) if known else None


def _describe(name: str) -> dict[str, Any]:
    metric = METRICS.load(name)
    return {"alias": metric.alias, "higher_is_better": metric.higher_is_better, "unit": metric.unit}


def _notes(config: Config, folds: Mapping[str, Sequence[Fold]], methods: Mapping[str, Any]) -> list[str]:
    """Notes for the reader of the results: missing folds, reconstructions, changed settings."""
    notes = []
    clips = f"{terms_of(next(iter(folds.values()))[0].modality).clip}s"
    for method, entry in methods.items():
        if entry["missing"]:
            pairs = ", ".join(f"fold {fold} seed {seed}" for fold, seed in entry["missing"])
            notes.append(f"{method}: some folds are missing: {pairs}")
        if entry["reconstructed"]:
            notes.append(
                f"{entry['label']}: {entry['reconstructed']}; the original definition was not available, so this is a "
                "reconstruction, not a replication"
            )
        if entry["eval_batches"]:
            notes.append(
                f"{method}: predictions depend on the other {clips} in the batch (D1); the test batches have "
                f"{entry['eval_batches']['size']} {clips} in the order of the clip table (hash in each result.json)"
            )
        notes += entry["notes"]
    changed = {text for part in folds.values() for fold in part for text in differences(fold, config)}
    notes += [f"trained with other settings than the current ones: {text}" for text in sorted(changed)]
    return notes


def _flat_metrics(report: Mapping[str, Any]) -> dict[str, Any]:
    """Means in the main unit, to six digits. accuracy_best_on_test is always per clip, the only unit recorded."""
    flat = {}
    for entry in report["methods"].values():
        summary, best = entry["summary"][report["main_unit"]], entry["selection"]["accuracy_best_on_test"]
        deviation = summary["accuracy"]["sample_std"]
        flat[entry["label"]] = {
            **{name: round(summary[name]["mean"], 6) for name in report["metrics"]},
            "accuracy_sample_std": None if deviation is None else round(deviation, 6),
            "accuracy_best_on_test": None if best is None else round(best["mean"], 6),
            "folds": len(entry["per_fold"]),
        }
    return flat
