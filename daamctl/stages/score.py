"""Stage `score`: compare the arms of a pipeline that reconstructs images, and write its report.

Reads `data/reconstruct/<run>/` and `data/crop/<run>/`. Writes score.json and the tables of results to
`data/score/<run>/`, the report to `data/report/<run>/` and its figures to `data/plots/<run>/`, for `dvc plots show`.
MLflow gets the report as one run.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors.numpy import load_file

from daamctl.artifacts.inputs import crops_of, inputs_of_report
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.reconstruction import (
    EXAMPLES,
    HISTORY,
    METRICS,
    SCORE,
    SCORES,
    TABLES_OF_ARMS,
    ArmScores,
    Crops,
    Reconstruction,
    training_of,
)
from daamctl.artifacts.scores import Scores, frame_of
from daamctl.config import Config
from daamctl.config.keys import key_settings, names
from daamctl.config.marks import DefaultSource
from daamctl.corpora.sources import root_of
from daamctl.errors import ArtifactError
from daamctl.evaluation.comparison import with_holm
from daamctl.evaluation.reconstruction import score_rows
from daamctl.evaluation.scores import write_scores
from daamctl.fit.tracking import make_tracker
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.training import examples_of, key_of
from daamctl.reporting.reconstruction import ArmRuns, document
from daamctl.reporting.write import write_plots, write_report
from daamctl.store.artifact import Artifact
from daamctl.store.files import write_json
from daamctl.store.tables import read_frame


def run(layout: Layout, config: Config, *, track: bool = True) -> Path:
    """Compare and report.

    Returns:
        Path of report.html.

    Raises:
        ArtifactError: a training is missing, damaged, or was made with other settings or crops.
        CorpusError: an image of the examples is gone or damaged.
    """
    inputs = inputs_of_report(layout, config, "score")  # before it reads them, as in `report`
    crops = crops_of(layout, config)
    arms = {arm: _read_arm(layout, config, arm, crops) for arm in config.reconstructions}
    found = _compare(layout, config, crops, arms)
    shown = {arm: _shown(layout, arm, runs) for arm, runs in arms.items()}
    settings = {
        f"{part}.{name}": value
        for part in ("crop", "reconstruct")
        for name, value in key_settings(config, part).items()
    }
    content = document(
        found,
        shown,
        _originals(layout, config, crops),
        settings,
        [f"{part}.{name}" for part in ("crop", "reconstruct") for name in names(part, DefaultSource.RECONSTRUCTED)],
        [f"dvc repro score@{layout.pipeline}    # or without DVC: daamctl run {layout.pipeline}"],
    )
    report = write_report(layout.stage("report"), content, interactive=config.report.interactive)
    write_json(layout.report_settings, inputs)  # `plan` asks for them
    write_plots(layout.stage("plots"), content)
    with closing(make_tracker(layout.root, enabled=track)) as tracker:
        metrics = {f"{name}_{arm}": found.scores.figure(arm, name).pooled or 0.0 for arm in arms for name in METRICS}
        tracker.report(layout.run_name, report.parent, metrics, {"reference": found.reference, "unit": "image"})
    return report


def _read_arm(layout: Layout, config: Config, arm: str, crops: Crops) -> list[Reconstruction]:
    """The trainings of an arm, one per seed."""
    folder = layout.stage("reconstruct") / arm
    runs = []
    for seed in config.reconstruct.seeds:
        artifact = training_of(folder, seed)
        found = artifact.open()
        # a training of other settings may be left where the new one failed
        if found.key != key_of(arm, seed, config, crops):
            # other arms are probably out of date too, so propose `run`, which makes them all
            raise ArtifactError(f"{artifact.path} was made with other settings or crops", path=folder.parent)
        runs.append(found)
    return runs


def _compare(layout: Layout, config: Config, crops: Crops, arms: dict[str, list[Reconstruction]]) -> ArmScores:
    """Compare the arms and write the tables and their record."""
    test, reference, seeds = crops.part("test").sort("crop_id"), config.score.reference, config.reconstruct.seeds
    tables = {arm: [_frame(layout, arm, one, SCORES).sort("crop_id") for one in runs] for arm, runs in arms.items()}
    rows: dict[str, list[Any]] = {name: [] for name in TABLES_OF_ARMS}
    for metric in METRICS:
        values = {
            arm: np.stack([one[metric].to_numpy().astype(np.float64) for one in own]) for arm, own in tables.items()
        }
        for name, own in score_rows(metric, values, test["utterance_id"].to_list(), seeds, reference).items():
            rows[name] += own
    rows["comparisons"] = with_holm(rows["comparisons"])
    frames = {name: frame_of(name, own) for name, own in rows.items()}
    found = ArmScores(
        run=layout.run_name,
        reference=reference,
        arms={arm: [one.key for one in runs] for arm, runs in arms.items()},
        train_crops=crops.part("train").height,
        steps=next(iter(arms.values()))[0].steps,
    )
    folder = layout.stage("score")
    written = write_scores(folder, layout.run_name, frames)
    record = {name: value for name, value in vars(found).items() if name not in ("files", "scores")}
    Artifact(folder / SCORE, ArmScores).seal(folder, record, written)
    return replace(found, scores=Scores("image", frames))


def _frame(layout: Layout, arm: str, run: Reconstruction, name: str) -> pl.DataFrame:
    """A table of a training, whose hash `_read_arm` has checked."""
    return read_frame(training_of(layout.stage("reconstruct") / arm, run.seed).folder / name)[0]


def _shown(layout: Layout, arm: str, runs: list[Reconstruction]) -> ArmRuns:
    # pictures of the first seed; figures are of all
    tensors = load_file(training_of(layout.stage("reconstruct") / arm, runs[0].seed).folder / EXAMPLES)
    pictures = np.moveaxis(tensors.pop("reconstructions"), 1, -1)
    curves = [_frame(layout, arm, one, HISTORY)["reconstruction"].to_list() for one in runs]
    return ArmRuns(runs, curves, pictures, tensors)


def _originals(layout: Layout, config: Config, crops: Crops) -> NDArray[np.uint8]:
    """Pixels of the examples, (E, S, S, 3)."""
    rows = examples_of(crops, config.reconstruct.examples)
    chosen = crops.part("test")[rows]
    # the table of a few rows, so that no other image is opened
    few = Crops(crops.corpus, chosen, crops.settings, crops.content)
    found: Any = next(CropPixels(few, "test", root_of(layout, crops)).batches([range(len(rows))]))
    pixels: NDArray[np.uint8] = np.moveaxis(found.numpy(), 1, -1)
    return pixels
