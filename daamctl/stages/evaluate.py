"""Stage `evaluate`: score the finished folds of every method, per utterance and per clip.

Reads `data/train/<run>/<method>/`. Writes:

- `data/evaluate/<run>/*.parquet`: tidy tables of all figures (`daamctl.artifacts.scores`);
- `data/evaluate/<run>/evaluation.json`: what was evaluated and how it was compared (`daamctl.artifacts.evaluation`);
- `data/metrics/<run>/<method>.json`: a few mean scores, for `dvc metrics show`.

Scores are fractions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from daamctl.adapters import FINETUNES, stage_of
from daamctl.artifacts.evaluation import (
    FILE,
    AdapterEffect,
    Evaluation,
    MethodFacts,
    MetricInfo,
    ReferenceComparison,
    Run,
)
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, marked, read_folds
from daamctl.artifacts.runs import trained_methods
from daamctl.artifacts.scores import ALL_PAIRS, OF_EVALUATE, Compared, Scores, frame_of
from daamctl.artifacts.skipped import read_note
from daamctl.artifacts.statistics import Family
from daamctl.artifacts.terms import listed
from daamctl.config import Config
from daamctl.data import METRICS
from daamctl.data.task import Task
from daamctl.errors import ArtifactError, first_few
from daamctl.evaluation.comparison import compare_methods, item_table, method_intervals, with_least_trained
from daamctl.evaluation.consistency import check_method, check_methods, differences
from daamctl.evaluation.fairness import assess
from daamctl.evaluation.primary import primary_rows
from daamctl.evaluation.provenance import counts, provenance
from daamctl.evaluation.scores import history_rows, method_rows, speaker_rows, write_scores
from daamctl.evaluation.scoring import UNITS, Items, items_of
from daamctl.methods import CLOSED_FORM, SINGLE_LAYER, fuses_layers
from daamctl.planning.leaks import leaks
from daamctl.store.artifact import Artifact
from daamctl.store.files import locked, remove_others, write_json
from daamctl.store.records import SKIPPED_FILE

logger = logging.getLogger(__name__)

SHOWN = 3
"""Metrics of items for `dvc metrics show`. A column each: more would not fit into a terminal."""
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
    evaluation, history = score(layout, config)
    evaluation = replace(evaluation, leaks=leaks(layout, config))
    reference = evaluation.comparison.reference
    for method in evaluation.skipped:
        note = layout.method(method) / SKIPPED_FILE
        logger.warning("%s is not evaluated, because training skipped it (see %s)", method, note)
    for text in (*evaluation.leaks, *evaluation.notes):
        logger.warning(text)
    if further := sorted(set(trained_methods(layout)) - {*config.trained}):
        example = f"daamctl compare {layout.run_name}/{further[0]} {layout.run_name}/{reference}"
        logger.info(
            "trained, but not listed in the settings, so not evaluated: %s; add them to methods or finetunes, or: %s",
            first_few(further),
            example,
        )
    judged = evaluation.fairness.methods.get(reference)
    if judged is not None and judged.doubtful and len(evaluation.methods) > 1:
        label = evaluation.methods[reference].label
        logger.warning("the reference is %s, so training alone may explain every difference from it", label)
    if evaluation.counts.weighted or evaluation.counts.merged:
        words = "%d utterances have clips of different lengths, weighted by duration; %d clips include a rest piece"
        logger.info(words, evaluation.counts.weighted, evaluation.counts.merged)
    folder = layout.stage("evaluate")
    frames = {**evaluation.scores.frames, "history": history}
    # without the lock, the record of one process could vouch for the tables of another
    with locked(layout.work / "evaluate" / f"{layout.run_name}.lock", what="the evaluation"):
        tables = write_scores(folder, evaluation.run, frames)
        _write_metrics(layout.stage("metrics"), evaluation)
        Artifact(folder / FILE, Evaluation).seal(folder, evaluation.as_json(), tables)
    return folder / FILE


def score(layout: Layout, config: Config) -> tuple[Evaluation, pl.DataFrame]:
    """The evaluation of the finished folds, without leaks, and their learning curves. Raises ArtifactError as `run`."""
    folds, skipped = _collect(layout, config)
    items: dict[str, UnitItems] = {}
    for method, part in folds.items():
        predictions = [fold.predictions() for fold in part]
        items[method] = {unit: [items_of(frame, unit, part[0].task) for frame in predictions] for unit in UNITS}
    first = next(iter(folds.values()))[0]
    run_part = first.result["run"]
    unit = config.evaluate.unit
    main_items = {method: part[unit] for method, part in items.items()}
    tables = with_least_trained({method: item_table(part, main_items[method]) for method, part in folds.items()})
    fairness = assess(folds, main_items, tables, margin=config.evaluate.margin)
    methods = {
        method: _facts(part, config.seeds_of(stage_of(method)), fairness.methods[method].mark)
        for method, part in folds.items()
    }
    complete = {method: tables[method] for method, entry in methods.items() if not entry.missing}
    reference, task = config.reference, first.task
    pairs: list[Compared] = []
    family = None
    if reference in complete:
        pairs, family = compare_methods(complete, reference=reference, task=task)
    more, single = _against_single_layer(complete, task)
    if len(complete) > 1:
        more += [replace(pair, family=ALL_PAIRS) for pair in compare_methods(complete, task=task)[0]]
    intervals = method_intervals(tables, task=task)
    primary = primary_rows(folds, list(complete), reference)
    rows: dict[str, list[Any]] = {table: [] for table in OF_EVALUATE if table != "history"}
    found = [method_rows(name, part, items[name], unit, intervals[name]) for name, part in folds.items()]
    speakers = [row for name, table in tables.items() for row in speaker_rows(name, table, task)]
    parts: list[dict[str, list[Any]]] = [*found, {"comparisons": [*pairs, *more], "speakers": speakers}, primary]
    for tidy in parts:
        for name, own in tidy.items():
            rows[name] += own
    described = {name: METRICS.load(name) for name in task.metrics}
    most = max(items.values(), key=lambda parts: len(parts[unit]))  # seeds repeat items, so their number does not count
    targets = {one: {item: true for part in most[one] for item, true in zip(part.ids, part.targets, strict=True)}
               for one in UNITS}  # fmt: skip
    # a probe, and fine-tuning, record only what they use of `train`
    stored = (part[0] for name, part in folds.items() if stage_of(name) == "train" and name not in CLOSED_FORM)
    rule = next(stored, first).rule
    chance = {
        one: replace(guess, uniform_fraction=float(np.mean([1 / len(np.unique(part.targets)) for part in most[one]])))
        for one, true in targets.items()
        if (guess := task.chance(np.array([*true.values()])))
    }
    evaluation = Evaluation(
        run=layout.run_name,
        pipeline=layout.pipeline,
        modality=first.modality,
        source=primary["figures"][0]["unit"] if primary else task.source,
        main_unit=unit,
        metrics={name: MetricInfo(one.alias, one.higher_is_better, one.unit) for name, one in described.items()},
        classes=run_part["classes"],
        num_folds=run_part["num_folds"],
        seeds=list(config.train.seeds),
        selection=rule.selection,
        refit=rule.refit and rule.to_the_end,  # of trainings in steps, see `probe_rule`
        counts=counts(folds, items),
        chance=chance,
        methods=methods,
        fairness=fairness,
        comparison=ReferenceComparison(reference, [name for name in tables if name not in complete], family),
        notes=[*_notes(config, folds, methods), *fairness.notes],
        provenance=provenance(folds),
        skipped=skipped,
        single_layer=single,
        scores=Scores(unit, {table: frame_of(table, part) for table, part in rows.items()}),
    )
    return evaluation, history_rows(folds)


def _collect(layout: Layout, config: Config) -> tuple[dict[str, list[Fold]], dict[str, Any]]:
    """The checked folds of every method, and the content of `skipped.json` of methods that were not trained."""
    folds: dict[str, list[Fold]] = {}
    skipped: dict[str, Any] = {}
    for method in config.trained:
        note = layout.method(method) / SKIPPED_FILE
        if note.exists():
            skipped[method] = read_note(note)
            continue
        stage = stage_of(method)
        finished = read_folds(layout.method(method))
        seeds = config.seeds_of(stage)
        folds[method] = [fold for fold in finished if fold.seed in seeds]
        if folds[method] and (others := sorted({fold.seed for fold in finished} - {*seeds})):
            words = "%s was also trained with seeds that are not in %s.seeds, so not evaluated: %s"
            section = stage if getattr(config, stage).seeds else "train"
            logger.info(words, method, section, first_few(list(map(str, others))))
        if not folds[method]:
            text = f"no finished fold of method '{method}' in {layout.method(method)}"
            if finished:
                available = ", ".join(sorted({str(fold.seed) for fold in finished}))
                text += f" with seed {', '.join(map(str, seeds))} (available: {available})"
            # others may lack folds, too
            fix = f"make it: {layout.command('run')}" if layout.pipeline and not finished else None
            raise ArtifactError(text, fix=fix, path=layout.method(method))
        check_method(method, folds[method])
    if not folds:
        names = ", ".join(skipped) or "none"
        raise ArtifactError(f"there is no method to evaluate; skipped: {names}", fix="set `methods`")
    check_methods(folds, config)
    return folds, skipped


def _against_single_layer(complete: Mapping[str, pl.DataFrame], task: Task) -> tuple[list[Compared], Family | None]:
    """Compare methods that fuse layers with a probe of one layer, which is chosen without the test group.

    Closed-form fusions are compared with `ridge-best-layer`, trained ones with `best-layer`, as a family each; if no
    fusion has a probe of its kind, all with the one that is there. The family is the first of these; None if there is
    no such probe or nothing to compare with it. Fine-tuned encoders are left out: they do not fuse.
    """
    fusing = [method for method in complete if method not in FINETUNES and fuses_layers(method)]
    probes = [method for method in SINGLE_LAYER[:2] if method in complete]
    alike = {probe: [one for one in fusing if (one in CLOSED_FORM) == (probe in CLOSED_FORM)] for probe in probes}
    families = {probe: own for probe, own in alike.items() if own} or {probe: fusing for probe in probes[:1] if fusing}
    rows: list[Compared] = []
    found: list[Family] = []
    for probe, own in families.items():
        compared = {method: complete[method] for method in (probe, *own)}
        pairs, family = compare_methods(compared, reference=probe, task=task)
        rows += [replace(pair, family="single layer") for pair in pairs]
        found.append(family)
    return rows, found[0] if found else None


def _facts(folds: Sequence[Fold], seeds: Sequence[int], mark: str) -> MethodFacts:
    run_part = folds[0].result["run"]
    runs = []
    for fold in folds:
        own, meta, selected = fold.result["run"], fold.result["meta"], fold.result["metrics"].get("selected_epoch")
        runs.append(
            Run(
                fold=fold.fold,
                seed=fold.seed,
                test_group=own["test_group"],
                dev_group=own["dev_group"],
                selected_epoch=None if selected is None else int(selected),
                num_parameters=own["num_parameters"],
                train_s=meta["train_s"],
                device=meta["device"],
            )
        )
    done = {one.run for one in runs}
    wanted = [(fold, seed) for fold in range(1, run_part["num_folds"] + 1) for seed in sorted(seeds)]
    effect = run_part.get("effect")
    return MethodFacts(
        label=marked(folds[0].label, mark),
        reconstructed=run_part.get("reconstructed", ""),
        eval_batches=run_part.get("eval_batches"),
        notes=[f"{run_part['method']}: {note}" for note in run_part.get("notes", [])],
        finetune=run_part.get("finetune", False),
        effect=AdapterEffect(**effect) if effect else None,
        num_parameters=run_part["num_parameters"],
        layers=run_part["layers"],
        embed_dim=run_part["embed_dim"],
        runs=runs,
        missing=[run for run in wanted if run not in done],
        settings=run_part["config"].get("method", {}),
        rule=folds[0].rule if run_part.get("finetune") else None,
    )


def _notes(config: Config, folds: Mapping[str, Sequence[Fold]], methods: Mapping[str, MethodFacts]) -> list[str]:
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
                f"{entry.eval_batches['size']} {clips} in the order of the clip table (hash in each result.json)"
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
        shown = (*evaluation.task.metrics[:SHOWN], evaluation.task.primary)
        figures = {name: evaluation.scores.find(method, name) for name in shown}
        values: dict[str, Any] = {name: round(one.mean, 6) for name, one in figures.items() if one}
        note = entry.label.partition(" (")[2].removesuffix(")")
        write_json(folder / f"{method}.json", {**values, "note": note} if note else values)
    remove_others(folder, [f"{method}.json" for method in evaluation.methods])
