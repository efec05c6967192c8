"""Stage `report`: one page with all results, tables and figures of a run, under our protocol and the published one.

Reads `data/evaluate/<run>/`, the folds in `data/train/<run>/`, and `data/importance/<run>/`, `data/ablate/<run>/`,
`data/truncate/<run>/` and `data/protocols/<run>/` if they exist. Writes to `data/report/<run>/`: report.html
(self-contained), report.md, the pictures in `pictures/` (PNG, and PDF for print), every table in `tables/` (CSV and
LaTeX), and settings.json, the settings of `report` and hashes of what it read. The figures also go to
`data/plots/<run>/`, for `dvc plots show`. It also logs everything to MLflow, as one run `report` in the experiment of
the pipeline.

The effect of the training recipe comes from the evaluation of the run `<run>-published-recipe`, or of the as-published
twin (for a twin: of its pair), if one exists. `dvc repro` tracks neither this dependency nor `data/truncate/`: after a
change there, write the report again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from safetensors import safe_open

from daamctl.adapters import stage_of
from daamctl.artifacts.evaluation import Evaluation, find_evaluation, read_evaluation
from daamctl.artifacts.importance import MAPS_FILE, Importance, find_importance
from daamctl.artifacts.inputs import inputs_of_report
from daamctl.artifacts.layer_sets import find_ablation, find_truncation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.protocols import find_protocols
from daamctl.artifacts.results import Fold, SearchPart, intact_folds
from daamctl.artifacts.terms import encoder_label, listed
from daamctl.config import PIPELINES_DIR, RECIPES, Config
from daamctl.config.corpus_keys import FILES
from daamctl.corpora import CORPORA
from daamctl.data.stage_table import folder_stages
from daamctl.errors import ArtifactError, first_few
from daamctl.evaluation.consistency import (
    layers_otherwise,
    other_settings,
    protocols_otherwise,
    scored_folds,
    scores_otherwise,
)
from daamctl.evaluation.importance import layer_contribution
from daamctl.evaluation.learned import read_learned
from daamctl.evaluation.scores import read_scores
from daamctl.evaluation.settings_diff import differing, settings
from daamctl.extraction.stopwatch import timing_file
from daamctl.fit.tracking import make_tracker, send_missing
from daamctl.methods import CLOSED_FORM
from daamctl.methods.weights_metadata import read_metadata
from daamctl.paper import sections as paper
from daamctl.paper.tables import read_published
from daamctl.reporting import entities, layers, protocols, results, run_record
from daamctl.reporting import truncation as shortest
from daamctl.reporting.answers import answers
from daamctl.reporting.document import Document, Section, if_current, plural
from daamctl.reporting.fairness import fairness
from daamctl.reporting.figure_layers import LayerRun, MethodMaps
from daamctl.reporting.glossary import with_glossary
from daamctl.reporting.recipe import AGAIN, BACK, TWIN, Recipe, gains, siblings
from daamctl.reporting.run_record import CURVES, RunFacts
from daamctl.reporting.verdict import against, headline, labelled, source, with_encoder_name
from daamctl.reporting.write import write_plots, write_report
from daamctl.store.files import read_json, write_json
from daamctl.store.tables import read_frame

logger = logging.getLogger(__name__)

OPEN = ("answers", "entities", "results", "published")
"""Sections that a reader need not expand."""
MAPS = ("importance", "untrained_importance", "density", "untrained_density")


def run(layout: Layout, config: Config, *, track: bool = True) -> Path:
    """Write the report; gives the path of report.html.

    Raises:
        ArtifactError: there is no evaluation, or one of an older version, or a picture of the importance stage is gone.
        UnknownNameError: `report.published` names no published table.
    """
    inputs = inputs_of_report(layout, config, "report")  # before it reads them: one may be made again meanwhile
    evaluation = read_evaluation(layout.stage("evaluate"))
    document = _document(layout, config, evaluation)
    folder = layout.stage("report")
    page = write_report(folder, document, interactive=config.report.interactive)
    write_json(layout.report_settings, inputs)  # `plan` and `bundle` ask for them
    write_plots(layout.stage("plots"), document)
    logger.info("report: %s (%.1f MB)", page, page.stat().st_size / 1e6)
    with closing(make_tracker(layout.root, enabled=track, again=layout.command("report"))) as tracker:
        # `train` leaves closed-form probes to this stage: opening MLflow takes longer than they do.
        probes = [name for name in evaluation.methods if name in CLOSED_FORM]
        send_missing(tracker, [fold for name in probes for fold in intact_folds(layout.method(name))])
        tracker.report(layout.run_name, folder, *_tracked(labelled(evaluation), config))
    return page


def _document(layout: Layout, config: Config, raw: Evaluation) -> Document:
    command = layout.command("importance")
    if not config.importance.audit:
        command += " --set importance.audit=true"  # without the audit no layer is probed
    summary = find_importance(layout.stage("importance"), hide=layout.root)
    ablated = find_ablation(layout.stage("ablate"), hide=layout.root)
    truncation = find_truncation(layout.stage("truncate"), hide=layout.root)
    compared = find_protocols(layout.stage("protocols"), hide=layout.root)
    table = read_published(config.report.published) if config.report.published else None
    labels = {name: entry.label for name, entry in raw.methods.items()}
    raw_names = {label: name for name, label in labels.items()}
    evaluation = with_encoder_name(labelled(raw), config.extract.name)
    folds, stale = scored_folds(layout, config, raw)
    stale += other_settings(layout, config, raw, folds)
    key = evaluation.provenance.embeddings_key
    shorter = f"daamctl truncate {layout.run_name}"
    changed: dict[str, list[str]] = {}
    for stage, one, what, again in (
        ("ablate", ablated, "Training on few layers was done", layout.command("ablate")),
        ("truncate", truncation, "The shortest encoder was found", shorter),
    ):
        changed[stage] = layers_otherwise(layout.stage(stage), one, raw.main_unit, folds, config=config) if one else []
        if one is not None and one.embeddings_key != key:
            stale.append(f"{what} on other embeddings. To update, run: {again}")
        elif others := changed[stage]:
            stale.append(f"{what} with other settings: {first_few(others)}. To update, run: {again}")
    if summary is not None and (others := scores_otherwise(summary, raw, folds)):
        again = layout.command("importance")
        stale.append(f"Layer scores are {', '.join(others)}. To update, run: {again}")
    for note in stale:
        logger.warning(note)
    history, pngs = read_scores(layout, "history"), {}
    history = history.filter(~pl.col("method").is_in(list(CLOSED_FORM)))  # probes are solved, they take no steps
    ends = history.group_by("method", "fold", "seed").agg(pl.col("step").max())
    steps = {tuple(run): step for *run, step in ends.rows()}
    runs = [_facts(fold, labels[fold.result["run"]["method"]], steps) for fold in folds]
    declared = config.names_reference(raw.comparison.reference)
    if summary is not None:  # the hashes of its files were checked with it
        pngs = {name: (layout.stage("importance") / name).read_bytes() for name in summary.pictures}
    searches: dict[str, list[SearchPart]] = {}  # label -> what every run of the method searched
    for fold in folds:
        if "search" in fold.result:
            searches.setdefault(labels[fold.result["run"]["method"]], []).append(fold.result["search"])
    maps = _density_runs(layout, summary, labels)
    rows_of = {label: history.filter(pl.col("method") == raw_names[label]) for label in evaluation.methods}
    curves = {label: _curves(rows) for label, rows in rows_of.items() if len(rows)}
    current = truncation if truncation and truncation.embeddings_key == key and not changed["truncate"] else None
    opened = {*OPEN, *(["truncation"] if current and current.shortest else [])}
    sections: list[Section | None] = [
        answers(evaluation, summary, stale=stale, command=command, truncation=current),
        entities.section(evaluation),
        results.results(evaluation),
        headline(evaluation, declared=declared),
        results.tests(evaluation, declared=declared),
        fairness(evaluation, searches),
        results.metrics(evaluation),
        results.folds(evaluation),
        results.speakers(evaluation),
        results.selection(evaluation, _recipe(layout, raw, folds)),
        *([paper.published(evaluation, table, raw_names)] if table else []),
        layers.importance(summary, maps, pngs, labels=labels, task=evaluation.task, command=command),
        layers.ablation(
            ablated,
            summary,
            paper.few_layers(table) if table else [],
            labels=labels,
            task=evaluation.task,
            command=layout.command("ablate"),
        ),
        if_current(shortest.section, truncation, key=key, command=shorter, changed=changed["truncate"]),
        if_current(
            protocols.section,
            compared,
            key=key,
            command=f"daamctl protocols {layout.run_name}",
            changed=protocols_otherwise(compared, evaluation, folds) if compared else [],
        ),
        run_record.use(_use(layout, config, evaluation, raw_names), evaluation.task.metric),
        paper.learned(runs, evaluation),
        run_record.cost(runs, evaluation, extraction=_extraction(layout)),
        run_record.learning(curves, evaluation, raw_names),
        run_record.confusion(evaluation, raw_names),
        run_record.missing(evaluation),
        run_record.provenance(
            evaluation, runs, texts=_settings(config, evaluation, runs), commands=_commands(layout, evaluation)
        ),
    ]  # fmt: skip
    title = config.report.title or f"Layer probing report: {layout.run_name}"
    found = [replace(section, folded=section.key not in opened) for section in sections if section is not None]
    return Document(title, layout.run_name, with_glossary(found), f"{source(evaluation)}.")


def _recipe(layout: Layout, raw: Evaluation, folds: Sequence[Fold]) -> Recipe | str | None:
    """Effect of the training recipe from a run with the other recipe, or a text on how to get such a run.

    None if there can be no such run, or nothing was trained over stored layers.
    """
    if all(name in CLOSED_FORM or stage_of(name) != "train" for name in raw.methods):
        return None
    own = raw.provenance.recipe
    unfit = ""
    for sibling in siblings(layout.run_name, own):
        try:
            other = find_evaluation(layout.data / "evaluate" / sibling.name)
        except ArtifactError:
            unfit = f" ('{sibling.name}' was evaluated by an older version of daamctl)"
            continue
        if other is None:  # not made, or left out on this machine
            continue
        if own == other.provenance.recipe:
            unfit = f" ('{sibling.name}' has the same recipe)"
            continue
        keys = {part.provenance.embeddings_key for part in (raw, other)}
        if len(keys) > 1 and AGAIN in layout.run_name + sibling.name:  # twins extract with other settings
            unfit = f" ('{sibling.name}' was trained on other embeddings)"
            continue
        ours, theirs = (raw, sibling.own_reading), (other, sibling.reading)
        searched, published = (theirs, ours) if sibling.searched else (ours, theirs)
        found = gains(searched, published)
        if not found:
            unfit = f" ('{sibling.name}' shares no method and no test group with it)"
            continue
        names = (layout.run_name, sibling.name)
        return Recipe(
            {raw.methods[name].label: gain for name, gain in found.items()},
            searched=(names[sibling.searched], searched[1]),
            published=(names[not sibling.searched], published[1]),
            others=_other_settings(layout, folds, sibling.name, list(found)),
        )
    again = _other_recipe(layout, own)
    return again and f"The effect of the training recipe is unknown{unfit}: {again}"


def _other_recipe(layout: Layout, own: str) -> str | None:
    """How to get a run with the other recipe."""
    for end in (AGAIN, BACK, TWIN):
        base = layout.run_name.removesuffix(end)
        if base != layout.run_name:
            known = (layout.root / PIPELINES_DIR / f"{base}.yaml").is_file()
            return f"it needs the runs of '{base}'. Run: daamctl run {base}" if known else None
    if own == "published":
        return "these runs use the published recipe. To train with the other, set train.recipe=searched"
    make = layout.command("run") if layout.pipeline else layout.command("train")
    return (
        f"it needs the same methods trained with the published recipe. Run: {make} --recipe published, then "
        f"{layout.command('report')}"
    )


def _other_settings(layout: Layout, folds: Sequence[Fold], sibling: str, methods: Sequence[str]) -> list[str]:
    """Settings other than the recipe that differ between two runs of the same methods and can change results."""
    recipe = {f"{stage}.{name}" for stage, part in RECIPES["published"].items() for name in part}
    found: dict[str, None] = {}
    for method in methods:
        ours = [fold for fold in folds if fold.result["run"]["method"] == method]
        theirs = intact_folds(layout.data / "train" / sibling / method)
        if ours and theirs:
            rows = differing(settings(ours[0]), settings(theirs[0])).can_change
            found |= dict.fromkeys(row.name for row in rows)
    searched = tuple(f"{stage}.search_" for stage in RECIPES["published"])
    return [name for name in found if name not in recipe and not name.startswith(searched)]


def _extraction(layout: Layout) -> tuple[float, float] | None:
    """Seconds and joules that a clip took in extraction; None if its energy is not recorded."""
    try:
        timing = read_json(timing_file(layout.embeddings))
        clips = timing["clips"]
        return (timing["seconds"] / clips, timing["joules"] / clips) if clips else None
    except (ArtifactError, KeyError, TypeError):  # there is none, or it is damaged
        return None


def _facts(fold: Fold, label: str, steps: Mapping[tuple[Any, ...], int]) -> RunFacts:
    """Facts of a fold; `steps` has the number of a training's steps by method, fold and seed."""
    run_part, metrics, meta = fold.result["run"], fold.result["metrics"], fold.result["meta"]
    epochs, selected = metrics.get("epochs"), metrics.get("selected_epoch")
    return RunFacts(
        label=label,
        fold=fold.fold,
        seed=fold.seed,
        key=run_part["key"],
        num_parameters=run_part["num_parameters"],
        train_s=meta["train_s"],
        joules=meta.get("joules"),
        peak_memory_bytes=meta.get("peak_memory_bytes"),
        steps=steps.get((run_part["method"], fold.fold, fold.seed)),
        epochs=None if epochs is None else int(epochs),
        selected_epoch=None if selected is None else int(selected),
        device=meta["device"],
        settings=run_part["config"].get("method", {}),
        eval_batches=run_part.get("eval_batches"),
        adapted=len(run_part.get("adapted", [])),
        **_weights(fold.weights(), run_part["num_parameters"]),
    )


def _weights(path: Path | None, num_parameters: int) -> dict[str, Any]:
    """Size of the decoder or classifier, and the learned offset and scaled variance of a density."""
    if path is None:
        return {"decoder_parameters": None}
    found: dict[str, Any] = {"decoder_parameters": read_metadata(path).head_parameters}  # of a fine-tuned encoder
    if found["decoder_parameters"] is None:
        with safe_open(path, framework="np") as file:
            shapes = [file.get_slice(name).get_shape() for name in list(file.keys()) if name.startswith("decoder.")]
        # The file of a closed-form probe has more than its parameters: means and scales of the inputs.
        found["decoder_parameters"] = min(sum(int(np.prod(shape)) for shape in shapes), num_parameters)
    learned = read_learned(path)
    if learned is not None:
        found |= {
            "num_heads": learned.num_heads,
            "kernel": learned.kernel,
            "offset": (*learned.offset, learned.offset_mean),
            "scaled_variance": (*learned.scaled_variance, learned.scaled_variance_mean),
        }
    return found


def _curves(history: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Mean, lowest and highest accuracy at every epoch or step over folds and seeds, for the curves that exist."""
    found = {}
    at = "epoch" if history["epoch"].null_count() == 0 else "step"
    for part in CURVES:
        if history[f"{part}_accuracy"].null_count() == len(history):
            continue
        column = pl.col(f"{part}_accuracy")
        points = history.group_by(at).agg(mean=column.mean(), low=column.min(), high=column.max())
        found[part] = points.sort(at).rename({at: "at"}).to_dict(as_series=False)
    return found


def _density_runs(layout: Layout, summary: Importance | None, labels: Mapping[str, str]) -> dict[str, MethodMaps]:
    """Label -> maps of a method with a density."""
    if summary is None or not summary.methods:
        return {}
    frame, _ = read_frame(layout.stage("importance") / MAPS_FILE)
    found = {}
    for name, entry in summary.methods.items():
        own = frame.filter(pl.col("method") == name)
        shape = (len(entry.layers), entry.num_features)
        parts = own.partition_by("fold", "seed", maintain_order=True)
        runs = []
        for part in parts:  # fold 0 is the mean over all runs
            fold, seed = part["fold"][0], part["seed"][0]
            which = f"fold {fold}, seed {seed}" if fold else f"mean of {plural(len(parts) - 1, 'run')}"
            trained, untrained, density, before = (part[column].to_numpy().reshape(shape) for column in MAPS)
            shares = layer_contribution(density), layer_contribution(before)
            runs.append(LayerRun(which, trained, untrained, *shares))
        found[labels.get(name, name)] = MethodMaps(entry.layers, runs)
    return found


def _settings(config: Config, evaluation: Evaluation, runs: list[RunFacts]) -> dict[str, str]:
    """Settings as YAML, by title."""
    unused = set() if config.has_encoder else {"segment", "extract", "finetunes", "finetune_settings", "finetune"}
    now = config.model_dump(mode="json", exclude={"pipelines", *unused})
    made = {stage: part for stage, part in evaluation.provenance.config.items() if stage != "method"}
    texts = {"Settings of the pipeline (YAML)": now}
    # a closed-form probe records only what it uses of a section
    if other := {stage: part for stage, part in made.items() if stage in now and now[stage] | part != now[stage]}:
        texts["Settings of the folds, if different (YAML)"] = other
    if own := {run.label: dict(run.settings) for run in runs if run.settings}:
        texts["Settings of methods that differ from the defaults (YAML)"] = own
    return {title: yaml.safe_dump(value, sort_keys=False, allow_unicode=True) for title, value in texts.items()}


def _commands(layout: Layout, evaluation: Evaluation) -> list[str]:
    """Commands that reproduce this report from scratch."""
    corpus = evaluation.provenance.corpus or ""
    found = evaluation.provenance
    commits = [commit.partition("+")[0] for commit in found.git_commits if commit != "unknown"]
    lines = [f"git checkout {commits[-1]}"] if commits else []
    checkout = (layout.root / "pyproject.toml").is_file() and (layout.root / "Makefile").is_file()
    lines.append("make install" if checkout else f"pip install daamctl=={found.daamctl[-1]}")
    if corpus in CORPORA and corpus not in FILES:
        known = CORPORA.load(corpus)
        if known.obtain is None:
            lines.append(f"daamctl download {corpus} --from DIR    # folder of your copy")
        elif known.url is not None:
            lines.append(f"daamctl download {corpus}    # or with --from DIR, if you have a copy")
    if layout.recipe and layout.pipeline:
        return [*lines, layout.command("run")]
    if layout.pipeline:
        return [*lines, f"dvc repro report@{layout.pipeline}    # or without DVC: daamctl run {layout.pipeline}"]
    return [*lines, *(layout.command(stage) for stage in folder_stages())]


def _use(layout: Layout, config: Config, evaluation: Evaluation, raw_names: Mapping[str, str]) -> list[str]:
    """Commands for the best method that can be exported; none without an encoder or without such a method."""
    usable = [
        raw_names[label]
        for label in evaluation.ranked
        if not (entry := evaluation.methods[label]).eval_batches
        and not entry.missing
        and stage_of(raw_names[label]) == "train"
    ]
    if not config.has_encoder or not usable:
        return []
    best = f"{layout.run_name}/{usable[0]}"
    return [
        f"daamctl truncate {best}    # how few layers of the encoder are enough",
        f"daamctl export {best} --out model    # a folder with weights, facts and a model card",
        "daamctl predict model FILES... --out found.csv    # over HTTP: daamctl serve model",
    ]


def _tracked(evaluation: Evaluation, config: Config) -> tuple[dict[str, float], dict[str, str]]:
    """Headline metrics and tags for the tracking store."""
    best = evaluation.ranked[0]
    one = against(evaluation).get(best)
    figures = {name: evaluation.scores.find(best, name) for name in (*evaluation.metrics, evaluation.task.primary)}
    found: dict[str, float | None] = {f"best_{name}": figure.mean for name, figure in figures.items() if figure}
    found["best_accuracy_sample_std"] = evaluation.accuracy(best).std
    found["majority_fraction"] = evaluation.main_chance.majority_fraction
    if one:
        found |= {"difference_to_reference": one.difference, "p_holm": one.p_holm}
    found["methods"] = len(evaluation.methods)
    found["missing_folds"] = sum(len(entry.missing) for entry in evaluation.methods.values())
    tags = {
        "best_method": listed(evaluation.best()),
        "reference": evaluation.comparison.reference,
        "unit": evaluation.main_unit,
        "fairness": evaluation.fairness.verdict,
        "encoder": encoder_label(evaluation.provenance.encoder, config.section("extract")),
    }
    return {name: float(value) for name, value in found.items() if value is not None}, tags
