"""Stage `score`: compare the arms of a pipeline that reconstructs images, and write its report.

Reads `data/reconstruct/<run>/` and `data/crop/<run>/`. Writes `data/score/<run>/score.json`, the report to
`data/report/<run>/` and its figures to `data/plots/<run>/`, for `dvc plots show`. MLflow gets the report as one run.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors.numpy import load_file

from daamctl.artifacts.inputs import crops_of
from daamctl.artifacts.reconstruction import (
    EXAMPLES,
    HISTORY,
    SCORE,
    SCORES,
    ArmScores,
    Crops,
    Reconstruction,
    ScoredArm,
    training_of,
)
from daamctl.config import Config
from daamctl.config.keys import key_settings, names
from daamctl.config.marks import Source
from daamctl.corpora.sources import files_root
from daamctl.errors import ArtifactError
from daamctl.evaluation.reconstruction import compare_arms
from daamctl.layout import Layout
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.scores import SCORES as KINDS
from daamctl.reconstruction.training import examples_of, key_of
from daamctl.reporting.reconstruction import ArmRuns, ScoreName, document, verdict
from daamctl.reporting.write import write_plots, write_report
from daamctl.store.records import write_record
from daamctl.store.tables import read_frame
from daamctl.tracking import make_tracker

log = logging.getLogger(__name__)


def run(layout: Layout, config: Config, *, track: bool = True) -> Path:
    """Compare and report.

    Returns:
        Path of report.html.

    Raises:
        ArtifactError: a training is missing, damaged, or was made with other settings or crops.
        CorpusError: an image of the examples is gone or damaged.
    """
    crops = crops_of(layout, config)
    arms = {arm: _read_arm(layout, config, arm, crops) for arm in config.reconstructions}
    found = _compare(layout, config, crops, arms)
    path = layout.stage("score") / SCORE
    write_record(path, asdict(found))
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
        {name: ScoreName(one.label, one.better) for name, one in KINDS.items()},
        settings,
        [f"{part}.{name}" for part in ("crop", "reconstruct") for name in names(part, Source.RECONSTRUCTED)],
        [f"dvc repro score@{layout.pipeline}    # or without DVC: daamctl run {layout.pipeline}"],
    )
    report = write_report(layout.stage("report"), content, interactive=config.report.interactive)
    write_plots(layout.stage("plots"), content)
    with closing(make_tracker(layout.root, enabled=track)) as tracker:
        metrics = {f"{name}_{arm.arm}": score.value for arm in found.arms for name, score in arm.scores.items()}
        tracker.report(layout.run_name, report.parent, metrics, {"reference": found.reference, "unit": "image"})
    log.info("%s", verdict(found).replace("`", ""))
    return report


def _read_arm(layout: Layout, config: Config, arm: str, crops: Crops) -> list[Reconstruction]:
    """The trainings of an arm, one per seed."""
    folder = layout.stage("reconstruct") / arm
    runs = []
    for seed in config.reconstruct.seeds:
        artifact = training_of(folder, seed)
        found = artifact.open()
        if found.key != key_of(arm, seed, config, crops):
            raise ArtifactError(f"{artifact.path} was made with other settings or crops", path=artifact.path)
        runs.append(found)
    return runs


def _compare(layout: Layout, config: Config, crops: Crops, arms: dict[str, list[Reconstruction]]) -> ArmScores:
    test = crops.part("test")
    tables = {arm: [_frame(layout, arm, one, SCORES).sort("crop_id") for one in runs] for arm, runs in arms.items()}
    images = test.sort("crop_id")["utterance_id"].to_list()
    reference = config.score.reference
    scored = {
        name: compare_arms(
            {arm: np.stack([one[name].to_numpy().astype(np.float64) for one in own]) for arm, own in tables.items()},
            images,
            reference,
        )
        for name in KINDS
    }
    return ArmScores(
        run=layout.run_name,
        reference=reference,
        seeds=list(config.reconstruct.seeds),
        images=len(set(images)),
        crops=test.height,
        train_crops=crops.part("train").height,
        steps=next(iter(arms.values()))[0].steps,
        arms=[
            ScoredArm(
                arm=arm,
                scores={name: found[arm] for name, found in scored.items()},
                perplexity=[one.perplexity for one in runs],
                used=[one.used for one in runs],
                block_parameters=runs[0].block_parameters,
                parameters=runs[0].parameters,
                crops_per_s=[one.crops_per_s for one in runs],
                peak_bytes=[one.peak_bytes for one in runs],
                keys=[one.key for one in runs],
            )
            for arm, runs in arms.items()
        ],
    )


def _frame(layout: Layout, arm: str, run: Reconstruction, name: str) -> pl.DataFrame:
    """A table of a training, whose hash `_read_arm` has checked."""
    return read_frame(training_of(layout.stage("reconstruct") / arm, run.seed).folder / name)[0]


def _shown(layout: Layout, arm: str, runs: list[Reconstruction]) -> ArmRuns:
    tensors = load_file(training_of(layout.stage("reconstruct") / arm, runs[0].seed).folder / EXAMPLES)
    pictures = np.moveaxis(tensors.pop("reconstructions"), 1, -1)
    curves = [_frame(layout, arm, one, HISTORY)["reconstruction"].to_list() for one in runs]
    return ArmRuns(runs, curves, pictures, tensors)


def _originals(layout: Layout, config: Config, crops: Crops) -> NDArray[np.uint8]:
    """Pixels of the examples, (E, S, S, 3)."""
    rows = examples_of(crops, config.reconstruct.examples)
    chosen = crops.part("test")[rows]
    few = Crops(crops.corpus, chosen, crops.settings, crops.content)
    found: Any = next(CropPixels(few, "test", files_root(layout.root, crops.corpus)).batches([range(len(rows))]))
    pixels: NDArray[np.uint8] = np.moveaxis(found.numpy(), 1, -1)
    return pixels
