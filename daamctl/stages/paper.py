"""Stage `paper`: one page with every published table beside the results of this project's pipelines.

Reads the available results of the six pipelines iemocap, cifar100, agnews and their `-as-published` twins:
evaluation.json, ablation.json, summary.json of the importance stage, the weights of one density,
`data/check/<pipeline>/machine.json`, and the `skipped.json` of stages that could not run. All of them are optional; a
cell without a result says why. Writes `data/report/paper/`: report.html (self-contained), report.md and every table in
`tables/` (CSV and LaTeX), and the figures in `data/plots/paper/`. In DVC this is `report@paper`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from daamctl.artifacts.dag import PAPER
from daamctl.artifacts.evaluation import find_evaluation
from daamctl.artifacts.importance import find_importance
from daamctl.artifacts.layer_sets import find_ablation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import intact_folds, read_folds
from daamctl.artifacts.skipped import Obstacle, folder_of, is_finished, note_of, read_inventory, read_note
from daamctl.config import PIPELINES_DIR
from daamctl.data.stage_table import folder_stages
from daamctl.errors import first_few
from daamctl.evaluation.consistency import layers_otherwise
from daamctl.evaluation.learned import read_learned
from daamctl.paper.numbers import Experiment, experiments
from daamctl.paper.reproduced import EIGHT_HEADS, ReproducedResults
from daamctl.paper.whole_paper import whole_paper
from daamctl.reporting.write import write_plots, write_report
from daamctl.store.records import SKIPPED_FILE

logger = logging.getLogger(__name__)

TWIN = "-as-published"


def run(root: Path) -> Path:
    """Write the report on the papers.

    Returns:
        Path of report.html.

    Raises:
        ArtifactError: a file of an earlier stage is damaged.
    """
    pairs = {
        experiment.key: (
            _read(root, experiment, f"{experiment.key}{TWIN}", as_published=True),
            _read(root, experiment, experiment.key, as_published=False),
        )
        for experiment in experiments()
    }
    document = whole_paper(pairs)
    path = write_report(root / "data" / "report" / PAPER, document)
    write_plots(root / "data" / "plots" / PAPER, document)
    there = [one.pipeline for pair in pairs.values() for one in pair if one.evaluation]
    logger.info("paper: %s, with figures of %s", path, ", ".join(there) or "no pipeline")
    return path


def _read(root: Path, experiment: Experiment, pipeline: str, *, as_published: bool) -> ReproducedResults:
    """All available results of one pipeline, and the reasons why others are missing."""
    layout = Layout(root, pipeline, pipeline, pipeline)
    evaluation = find_evaluation(layout.stage("evaluate"))
    obstacle = None if evaluation else _reason(layout, "evaluate", again=f"daamctl run {pipeline}")
    why = {"evaluate": obstacle.reason if obstacle else ""}
    for stage in ("ablate", "importance"):
        again = layout.command(stage)
        one = obstacle or _reason(layout, stage, again=again)
        why[stage] = f"{one.reason}: {again}" if one.fix == again else one.reason
    ablation = find_ablation(layout.stage("ablate"))
    if evaluation and ablation:  # a cell names its unit, but no other setting
        others = ["embeddings"]
        if ablation.embeddings_key == evaluation.provenance.embeddings_key:
            folds = [fold for name in evaluation.methods for fold in intact_folds(layout.method(name))]
            others = layers_otherwise(layout.stage("ablate"), ablation, ablation.unit, folds)
        if others:
            ablation, again = None, layout.command("ablate")
            why["ablate"] = f"done with other settings than the methods ({first_few(others)}): {again}"
    files = [fold.weights() for fold in read_folds(layout.method(EIGHT_HEADS))]
    found = [read_learned(path) for path in files if path is not None]
    notes = sorted(layout.stage("train").glob(f"*/{SKIPPED_FILE}"))  # that training leaves
    return ReproducedResults(
        pipeline,
        experiment,
        as_published,
        evaluation=evaluation,
        ablation=ablation,
        importance=find_importance(layout.stage("importance")),
        learned={EIGHT_HEADS: [(one.offset, one.scaled_variance) for one in found if one]},
        why=why,
        fix=(obstacle and obstacle.fix) or "",
        untrained={path.parent.name: read_note(path)["reason"] for path in notes},
        made=_made(layout),
        reported=(layout.stage("report") / "report.html").is_file(),
    )


def _reason(layout: Layout, stage: str, *, again: str) -> Obstacle:
    """Why a stage has no result: the note of the first skipped stage, else the reason in the inventory.

    Args:
        again: the command that runs the stage.
    """
    name = str(layout.pipeline)
    if not (layout.root / PIPELINES_DIR / f"{name}.yaml").is_file():
        return Obstacle(f"there is no pipeline '{name}' in this project")
    stages = folder_stages()
    for one in stages[: stages.index(stage) + 1]:
        if note := note_of(folder_of(layout, one), one):
            return note
    return read_inventory(layout.root, name) or Obstacle("not made yet", again)


def _made(layout: Layout) -> Sequence[str]:
    """Stages with results. Results of `finetune` are stored with those of `train`."""
    methods = list(layout.stage("train").glob("*"))
    folders = {stage: methods if stage == "train" else [folder_of(layout, stage)] for stage in folder_stages()}
    return [stage for stage, found in folders.items() if any(is_finished(folder, stage) for folder in found)]
