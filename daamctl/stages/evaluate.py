"""Stage `evaluate`: score the finished folds of every method, per utterance and per clip.

Reads `data/train/<run>/<method>/`. Writes:

- `data/evaluate/<run>/evaluation.json`: all results, see `daamctl.artifacts.evaluation`;
- `data/evaluate/<run>/*.parquet`: tidy tables of all figures (`daamctl.evaluation.scores`);
- `data/metrics/<run>/<method>.json`: a few mean scores, for `dvc metrics show`.

Scores are fractions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.adapters import FINETUNES, stage_of
from daamctl.artifacts.evaluation import (
    EPOCH_RULES,
    FILE,
    AdapterEffect,
    EpochRule,
    EvalBatches,
    Evaluation,
    FoldScores,
    MethodEvaluation,
    MetricInfo,
    ReferenceComparison,
    Scores,
    SpeakerAccuracy,
    Spread,
)
from daamctl.artifacts.results import Fold, marked, read_folds
from daamctl.artifacts.skipped import read_note
from daamctl.artifacts.statistics import Intervals
from daamctl.artifacts.terms import listed
from daamctl.config import Config
from daamctl.data.task import Task
from daamctl.errors import ArtifactError
from daamctl.evaluation import METRICS
from daamctl.evaluation.comparison import compare_methods, item_table, method_intervals, speakers_known
from daamctl.evaluation.consistency import check_method, check_methods, differences
from daamctl.evaluation.fairness import assess
from daamctl.evaluation.metrics import class_recalls, confusion_matrix
from daamctl.evaluation.provenance import chance_of, counts, provenance
from daamctl.evaluation.scores import write_scores
from daamctl.evaluation.scoring import UNITS, Items, items_of, join, score_items
from daamctl.evaluation.summary import spread
from daamctl.evaluation.tagging import entities_of
from daamctl.layout import Layout
from daamctl.methods import SINGLE_LAYER, resolve_method
from daamctl.planning.leaks import leaks
from daamctl.store.artifact import Artifact
from daamctl.store.files import remove_others, write_json
from daamctl.store.records import SKIPPED_FILE

logger = logging.getLogger(__name__)

SHOWN_METRICS = ("accuracy", "balanced_accuracy", "macro_f1")
"""Metrics for `dvc metrics show`. A column each: more would not fit into a terminal."""
UnitItems = dict[str, list[Items]]
"""Unit -> scored items of each fold."""


def run(layout: Layout, config: Config) -> Path:
    """Score the finished folds.

    Args:
        config: settings; `evaluate.unit` is the main unit.

    Returns:
        Path of evaluation.json.

    Raises:
        ArtifactError: a method has no finished fold, or folds were made with different settings.
    """
    folds, skipped = _collect(layout, config)
    items: dict[str, UnitItems] = {}
    for method, part in folds.items():
        predictions = [fold.predictions() for fold in part]
        items[method] = {unit: [items_of(frame, unit) for frame in predictions] for unit in UNITS}
    evaluation = replace(_evaluate(layout, config, folds, items, skipped), leaks=leaks(layout, config))
    reference = evaluation.comparison.reference
    for note in (*evaluation.leaks, *evaluation.notes):
        logger.warning(note)
    if reference in evaluation.methods and evaluation.fairness.methods[reference].mark and len(evaluation.methods) > 1:
        label = evaluation.methods[reference].label
        logger.warning("the reference is %s, so training alone may explain every difference from it", label)
    if evaluation.counts.weighted or evaluation.counts.merged:
        words = "%d utterances have clips of different lengths, weighted by duration; %d clips include a rest piece"
        logger.info(words, evaluation.counts.weighted, evaluation.counts.merged)
    folder = layout.stage("evaluate")
    tables = write_scores(folder, evaluation, folds)
    _write_metrics(layout.stage("metrics"), evaluation)
    Artifact(folder / FILE, Evaluation).seal(folder, evaluation.as_json(), tables)
    return folder / FILE


def _collect(layout: Layout, config: Config) -> tuple[dict[str, list[Fold]], dict[str, Any]]:
    """The checked folds of every method, and the content of `skipped.json` of methods that were not trained."""
    folds: dict[str, list[Fold]] = {}
    skipped: dict[str, Any] = {}
    for method in config.trained:
        note = layout.method(method) / SKIPPED_FILE
        if note.exists():
            skipped[method] = read_note(note)
            logger.warning("%s is not evaluated, because training skipped it (see %s)", method, note)
            continue
        stage = stage_of(method)
        finished = read_folds(layout.method(method))
        seeds = config.seeds_of(stage)
        folds[method] = [fold for fold in finished if fold.seed in seeds]
        if not folds[method]:
            raise ArtifactError(_no_fold(layout, method, finished, seeds), path=layout.method(method))
        check_method(method, folds[method])
    if not folds:
        names = ", ".join(skipped) or "none"
        raise ArtifactError(f"there is no method to evaluate; skipped: {names}", fix="set `methods`")
    check_methods(folds, config)
    return folds, skipped


def _no_fold(layout: Layout, method: str, finished: Sequence[Fold], seeds: Sequence[int]) -> str:
    text = f"no finished fold of method '{method}' in {layout.method(method)}"
    if not finished:
        return text
    available = ", ".join(sorted({str(fold.seed) for fold in finished}))
    return f"{text} with seed {', '.join(map(str, seeds))} (available: {available})"


def _evaluate(
    layout: Layout,
    config: Config,
    folds: Mapping[str, Sequence[Fold]],
    items: Mapping[str, UnitItems],
    skipped: dict[str, Any],
) -> Evaluation:
    first = next(iter(folds.values()))[0]
    run_part = first.result["run"]
    unit = config.evaluate.unit
    main_items = {method: part[unit] for method, part in items.items()}
    tables = {method: item_table(part, main_items[method]) for method, part in folds.items()}
    fairness = assess(folds, main_items, tables, margin=config.evaluate.margin)
    intervals = method_intervals(tables, task=first.task)
    methods = {
        method: _evaluate_method(
            part,
            items[method],
            seeds=config.seeds_of(stage_of(method)),
            mark=fairness.methods[method].mark,
            intervals=intervals[method],
            per_speaker=_per_speaker(tables[method]),
        )
        for method, part in folds.items()
    }
    comparison = _comparison(config.reference, tables, methods, first.task)
    complete = [method for method, entry in methods.items() if not entry.missing]
    return Evaluation(
        run=layout.run_name,
        pipeline=layout.pipeline,
        modality=first.modality,
        main_unit=unit,
        units=list(UNITS),
        metrics={name: _describe(name) for name in METRICS},
        classes=run_part["classes"],
        num_folds=run_part["num_folds"],
        seeds=list(config.train.seeds),
        selection=run_part["config"]["train"]["selection"],
        refit=_was_refitted(run_part["config"]["train"]),
        counts=counts(folds, items),
        chance={one: chance_of(items, one, run_part["classes"]) for one in UNITS},
        methods=methods,
        fairness=fairness,
        comparison=comparison,
        notes=[*_notes(config, folds, methods), *fairness.notes],
        provenance=provenance(folds),
        skipped=skipped,
        single_layer=_against_single_layer(tables, methods, first.task),
        entities=entities_of(folds, complete, comparison.reference),
    )


def _comparison(
    reference: str, tables: Mapping[str, pl.DataFrame], methods: Mapping[str, MethodEvaluation], task: Task
) -> ReferenceComparison:
    """Compare every method with the reference on the same items. Methods with missing folds are listed instead.

    Raises:
        ArtifactError: methods were tested on different items though no fold is missing.
    """
    complete = {method: table for method, table in tables.items() if not methods[method].missing}
    left_out = [method for method in tables if method not in complete]
    result = None
    if reference in complete:
        result = compare_methods(complete, reference=reference, task=task)
    return ReferenceComparison(reference, left_out, result)


def _against_single_layer(
    tables: Mapping[str, pl.DataFrame], methods: Mapping[str, MethodEvaluation], task: Task
) -> ReferenceComparison | None:
    """Compare every method that fuses layers with a probe of one layer, which is chosen without the test group.

    None if there is no such probe or nothing to compare with it. Fine-tuned encoders are left out: they do not fuse.
    """
    complete = [method for method in tables if not methods[method].missing]
    reference = next((method for method in SINGLE_LAYER[:2] if method in complete), None)
    fusing = [
        method for method in complete if method not in FINETUNES and resolve_method(method)[0] not in SINGLE_LAYER
    ]
    if reference is None or not fusing:
        return None
    compared = {method: tables[method] for method in (reference, *fusing)}
    return ReferenceComparison(reference, [], compare_methods(compared, reference=reference, task=task))


def _per_speaker(table: pl.DataFrame) -> list[SpeakerAccuracy]:
    """Accuracy of every speaker over all folds and seeds, in the main unit; empty if speakers are unknown."""
    if not speakers_known(table):
        return []
    figures = [pl.col("item").n_unique().alias("n"), pl.col("correct").mean().alias("accuracy")]
    rows = table.group_by("speaker").agg(figures).sort("speaker", nulls_last=True)
    return [SpeakerAccuracy(**row) for row in rows.iter_rows(named=True)]


def _evaluate_method(
    folds: Sequence[Fold],
    items: UnitItems,
    *,
    seeds: Sequence[int],
    mark: str,
    intervals: Intervals,
    per_speaker: list[SpeakerAccuracy],
) -> MethodEvaluation:
    run_part = folds[0].result["run"]
    classes, size = run_part["classes"], len(run_part["classes"])
    per_fold = [_fold_scores(fold, {unit: items[unit][index] for unit in UNITS}) for index, fold in enumerate(folds)]
    done = {row.run for row in per_fold}
    wanted = [(fold, seed) for fold in range(1, run_part["num_folds"] + 1) for seed in sorted(seeds)]
    batches, effect = run_part.get("eval_batches"), run_part.get("effect")
    summary: dict[str, dict[str, Spread]] = {}
    pooled: dict[str, Scores] = {}
    recalls: dict[str, dict[str, float | None]] = {}
    confusion: dict[str, list[list[int]]] = {}
    for unit in UNITS:
        joined = join(items[unit])
        found = class_recalls(joined.targets, joined.predictions, size)
        summary[unit] = {name: spread([row.scores(unit)[name] for row in per_fold]) for name in METRICS}
        pooled[unit] = score_items(joined, size)
        recalls[unit] = dict(zip(classes, found, strict=True))
        confusion[unit] = confusion_matrix(joined.targets, joined.predictions, size).tolist()
    selection: dict[EpochRule, Spread | None] = {}
    for rule in EPOCH_RULES:
        values = [value for row in per_fold if (value := row.at_epoch(rule)) is not None]
        selection[rule] = spread(values) if values else None
    return MethodEvaluation(
        label=marked(folds[0].label, mark),
        reconstructed=run_part.get("reconstructed", ""),
        eval_batches=EvalBatches(**batches) if batches else None,  # type: ignore[arg-type]
        notes=[f"{run_part['method']}: {note}" for note in run_part.get("notes", [])],
        finetune=run_part.get("finetune", False),
        effect=AdapterEffect(**effect) if effect else None,
        num_parameters=run_part["num_parameters"],
        layers=run_part["layers"],
        embed_dim=run_part["embed_dim"],
        per_fold=per_fold,
        missing=[run for run in wanted if run not in done],
        summary=summary,
        selection=selection,
        pooled=pooled,
        recalls=recalls,
        confusion=confusion,
        intervals=intervals,
        per_speaker=per_speaker,
    )


def _was_refitted(train: Mapping[str, Any]) -> bool:
    """Whether the held-out group joined the training part at the end; without such a group there is no refit."""
    return bool(train.get("refit")) and train["selection"] == "dev-group"


def _fold_scores(fold: Fold, items: Mapping[str, Items]) -> FoldScores:
    """Facts about one fold, and its scores per utterance and per clip."""
    run_part, metrics, meta = fold.result["run"], fold.result["metrics"], fold.result["meta"]
    size = len(run_part["classes"])
    selected = metrics.get("selected_epoch")
    return FoldScores(
        fold=fold.fold,
        seed=fold.seed,
        test_group=run_part["test_group"],
        dev_group=run_part["dev_group"],
        selection=run_part["config"]["train"]["selection"],
        selected_epoch=None if selected is None else int(selected),
        num_parameters=run_part["num_parameters"],
        train_s=meta["train_s"],
        device=meta["device"],
        accuracy=_finite(metrics.get("accuracy")),
        accuracy_best_on_test=_finite(metrics.get("accuracy_best_on_test")),
        accuracy_last=_finite(metrics.get("accuracy_last")),
        utterance=score_items(items["utterance"], size),
        clip=score_items(items["clip"], size),
    )


def _finite(value: float | int | None) -> float | None:
    """Replace values that are not finite by None, because JSON has no NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def _describe(name: str) -> MetricInfo:
    metric = METRICS.load(name)
    return MetricInfo(metric.alias, metric.higher_is_better, metric.unit)


def _notes(config: Config, folds: Mapping[str, Sequence[Fold]], methods: Mapping[str, MethodEvaluation]) -> list[str]:
    """Notes for the reader of the results: missing folds, reconstructions, changed settings."""
    notes = []
    clips = f"{next(iter(folds.values()))[0].task.clip}s"
    for method, entry in methods.items():
        if entry.missing:
            pairs = ", ".join(f"fold {fold} seed {seed}" for fold, seed in entry.missing)
            notes.append(f"{method}: some folds are missing: {pairs}")
        if entry.reconstructed:
            notes.append(
                f"{entry.label}: {entry.reconstructed}; the original definition was not available, so this is a "
                "reconstruction, not a replication"
            )
        if entry.eval_batches:
            notes.append(
                f"{method}: predictions depend on the other {clips} in the batch (D1); the test batches have "
                f"{entry.eval_batches.size} {clips} in the order of the clip table (hash in each result.json)"
            )
        notes += entry.notes
    for stage in ("train", "finetune"):  # a run has one format, but folds may come from several
        auto = [fold for part in folds.values() for fold in part
                if fold.result["run"]["config"].get(stage, {}).get("precision") == "auto"]  # fmt: skip
        formats = sorted({fold.result["meta"]["precision"] for fold in auto})
        if len(formats) > 1:
            notes.append(
                f"trained in {listed(formats)}, because folds come from several runs; to compare them in one format, "
                f"name it in the pipeline's file ({stage}.precision) and train again"
            )
    changed = {text for part in folds.values() for fold in part for text in differences(fold, config)}
    notes += [f"trained with other settings than the current ones: {text}" for text in sorted(changed)]
    return notes


def _write_metrics(folder: Path, evaluation: Evaluation) -> None:
    """Write one file per method: means in the main unit to six digits, and what its label notes, e.g. undertrained."""
    for method, entry in evaluation.methods.items():
        summary = evaluation.summary(method)
        values: dict[str, Any] = {name: round(summary[name].mean, 6) for name in SHOWN_METRICS}
        if evaluation.entities and method in evaluation.entities.methods:
            values["entity_f1"] = round(evaluation.entities.methods[method].f1.value, 6)
        note = entry.label.partition(" (")[2].removesuffix(")")
        write_json(folder / f"{method}.json", {**values, "note": note} if note else values)
    remove_others(folder, [f"{method}.json" for method in evaluation.methods])
