"""Stage `report`: one page with every figure, table and picture of a run, honest and published protocol side by side.

Reads `data/evaluate/<run>/`, and `data/importance/<run>/` and `data/ablate/<run>/` where they exist; writes to
`data/report/<run>/`: report.html (self-contained), report.md and the pictures it links to, in `pictures/`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from daamctl import __version__
from daamctl.analysis.plots import confusion_picture, fold_dots, learning_curves
from daamctl.artifacts.io import atomic_path, read_json, write_text
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.layout import Layout
from daamctl.reporting import comparison, results
from daamctl.reporting.document import Document, Picture, Section, percent
from daamctl.reporting.published import read_published
from daamctl.reporting.render import PICTURES_DIR, to_html, to_markdown

logger = logging.getLogger(__name__)

CURVES = {"train_accuracy": "Training", "dev_accuracy": "Held-out training group", "test_accuracy": "Test group"}
HISTORY_TYPES = dict.fromkeys(("train_loss", *CURVES), pl.Float64)


def run(layout: Layout, config: Config) -> Path:
    """Write the report.

    Returns:
        Path of report.html.

    Raises:
        ArtifactError: there is no evaluation, or a picture of the importance stage is gone.
        UnknownNameError: `report.published` names no published table.
    """
    document = _document(layout, config)
    folder = layout.stage("report")
    _write_pictures(folder / PICTURES_DIR, document)
    write_text(folder / "report.md", to_markdown(document, version=__version__))
    write_text(folder / "report.html", to_html(document, version=__version__))
    logger.info("report: %s", folder / "report.html")
    return folder / "report.html"


def _document(layout: Layout, config: Config) -> Document:
    again = layout.command("evaluate")
    evaluation = read_json(layout.stage("evaluate") / "evaluation.json", fix=f"make it: {again}")
    summary = _optional(layout.stage("importance") / "summary.json")
    ablated = _optional(layout.stage("ablate") / "ablation.json")
    table = read_published(config.report.published) if config.report.published else None
    headline = results.headline(evaluation)
    headline.pictures.append(_dots(evaluation))
    sections = [headline, results.folds(evaluation), results.selection(evaluation)]
    if table is not None:
        sections.append(comparison.published(evaluation, table))
    command = layout.command("importance")
    sections += [
        comparison.importance(summary, _importance_pictures(layout, summary, command), command),
        comparison.ablation(ablated, layout.command("ablate"), table),
        _learning(layout, evaluation),
        _confusion(evaluation),
        results.missing(evaluation),
        results.provenance(evaluation, _yaml(config)),
    ]
    title = config.report.title or f"Layer probing report: {layout.pipeline or layout.run_name}"
    return Document(title, sections)


def _optional(path: Path) -> Any:
    return read_json(path) if path.exists() else None


def _yaml(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _dots(evaluation: Mapping[str, Any]) -> Picture:
    unit = evaluation["main_unit"]
    methods = evaluation["methods"]
    values = {name: [row[unit]["accuracy"] for row in entry["per_fold"]] for name, entry in methods.items()}
    floor = evaluation["chance"][unit]["majority_fraction"]
    means = ", ".join(f"{name} {percent(float(np.mean(part)))} %" for name, part in values.items())
    alt = f"Accuracy per {unit} of every fold, with the mean of each method: {means}; the numbers are in the table."
    return Picture("accuracy.png", alt, fold_dots(values, label=f"Accuracy per {unit}", chance=floor), wide=True)


def _importance_pictures(layout: Layout, summary: Mapping[str, Any] | None, command: str) -> dict[str, bytes]:
    pictures = {}
    for entry in (summary or {"methods": {}})["methods"].values():
        for name in (entry["heatmap"], entry["layers_picture"]):
            path = layout.stage("importance") / name
            if not path.exists():
                raise ArtifactError(f"no picture {path}, though summary.json names it", fix=f"make it: {command}")
            pictures[name] = path.read_bytes()
    return pictures


def _learning(layout: Layout, evaluation: Mapping[str, Any]) -> Section:
    path = layout.stage("evaluate") / "history.csv"
    if not path.exists():
        raise ArtifactError(f"no file {path}", fix=f"make it: {layout.command('evaluate')}")
    history = pl.read_csv(path, schema_overrides=HISTORY_TYPES)
    floor = evaluation["chance"]["clip"]["majority_fraction"]
    pictures = [
        _learning_picture(method, history.filter(pl.col("method") == method), floor) for method in evaluation["methods"]
    ]
    rule = evaluation["selection"]
    text = "Mean over folds; the shade spans the lowest and the highest fold. The test curve " + (
        "chooses the epoch reported." if rule == "best-on-test" else "is shown only; it chooses nothing."
    )
    return Section("learning", "Learning curves", [text], pictures=pictures)


def _learning_picture(method: str, history: pl.DataFrame, floor: float) -> Picture:
    epochs = history["epoch"].unique().sort().to_list()
    curves = {}
    for column, name in CURVES.items():
        if history[column].null_count() < len(history):
            wide = history.pivot(on="epoch", index=["fold", "seed"], values=column).sort("fold", "seed")
            curves[name] = (epochs, wide.select([str(epoch) for epoch in epochs]).to_numpy().astype(float))
    last = [f"{name.lower()} {percent(float(np.nanmean(values[:, -1])))} %" for name, (_, values) in curves.items()]
    alt = f"Accuracy per clip of {method} over {len(epochs)} epochs; after the last: {', '.join(last)}."
    return Picture(f"{method}-learning.png", alt, learning_curves(curves, title=method, chance=floor))


def _confusion(evaluation: Mapping[str, Any]) -> Section:
    unit, classes = evaluation["main_unit"], evaluation["classes"]
    pictures = []
    for method, entry in evaluation["methods"].items():
        counts = np.asarray(entry["confusion"][unit])
        recalls = np.divide(np.diag(counts), counts.sum(axis=1), out=np.zeros(len(classes)), where=counts.any(axis=1))
        right = ", ".join(f"{name} {percent(float(share))} %" for name, share in zip(classes, recalls, strict=True))
        alt = f"Confusion matrix of {method}; share of each actual class predicted rightly: {right}."
        pictures.append(Picture(f"{method}-confusion.png", alt, confusion_picture(counts, classes, title=method)))
    text = (
        f"All test {unit}s of all folds and seeds. Rows are actual classes and sum to 100 %; counts stand below the "
        "shares."
    )
    return Section("confusion", "Confusion matrices", [text], pictures=pictures)


def _write_pictures(folder: Path, document: Document) -> None:
    kept = {picture.name for picture in document.pictures}
    for picture in document.pictures:
        with atomic_path(folder / picture.name) as temporary:
            temporary.write_bytes(picture.data)
    for old in folder.glob("*.png"):
        if old.name not in kept:
            old.unlink()
