"""`shots`: entity F1 against the number of training sentences, over a family of few-shot pipelines.

A family are the pipelines `<family>-<N>-shots`, and `<family>` itself, which trains on all sentences. Reads
`data/evaluate/<pipeline>/`. Writes `data/report/<family>-shots/`: report.html (self-contained), report.md, pictures and
tables, and the figure in `data/plots/<family>-shots/`. A pipeline without a result is named with the reason. In DVC
this is `report@<family>-shots`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from daamctl.artifacts.dag import families, family_of
from daamctl.artifacts.evaluation import Evaluation, find_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.skipped import folder_of, note_of
from daamctl.config import load_config, pipeline_names
from daamctl.data.stage_table import folder_stages
from daamctl.errors import ArtifactError, ConfigError, UnknownNameError
from daamctl.evaluation.consistency import other_settings, scored_folds
from daamctl.evaluation.primary import over_trials
from daamctl.reporting.shots import Point, document
from daamctl.reporting.write import write_plots, write_report

logger = logging.getLogger(__name__)


def run(root: Path, family: str) -> Path:
    """Write the report on a family.

    Args:
        family: e.g. `wnut17`.

    Returns:
        Path of report.html.

    Raises:
        UnknownNameError: there is no such family.
        ConfigError: the settings of a pipeline have another number of shots than its name.
        ArtifactError: no pipeline of the family is evaluated, and none was left out.
    """
    names = pipeline_names(root)
    members = family_of(family, names)
    if not members:
        raise UnknownNameError("family of few-shot pipelines", family, families(names))
    points, absent, waiting, stale = [], {}, [], []
    for name, shots in members.items():
        config = load_config(root, name)
        if config.train.shots != shots:
            raise ConfigError(f"pipeline '{name}' has train.shots={config.train.shots}, its name says {shots}")
        layout = Layout.of(root, name, config)
        found = find_evaluation(layout.stage("evaluate"))
        if found is None:
            left_out = [note_of(folder_of(layout, stage), stage) for stage in folder_stages()]
            reason = next((note.reason for note in left_out if note), None)
            absent[name] = reason or f"not made yet; run: daamctl run {name}"
            waiting += [] if reason else [name]
            continue
        folds, notes = scored_folds(layout, config, found)
        for note in [*notes, *other_settings(layout, config, found, folds)]:
            logger.warning("the evaluation of '%s': %s", name, note)
            stale.append(f"{name}: {note}")
        if found.by_accuracy:
            raise ConfigError(f"pipeline '{name}' does not tag words, so it has no entity F1")
        points.append(Point(name, shots, found, _trials(found)))
    if not points and waiting:
        raise ArtifactError(f"no pipeline of '{family}' is evaluated", fix=f"run one: daamctl run {waiting[0]}")
    content = document(family, points, absent, stale)
    path = write_report(root / "data/report" / f"{family}-shots", content)
    write_plots(root / "data/plots" / f"{family}-shots", content)
    logger.info("shots: %s, with figures of %s", path, ", ".join(point.pipeline for point in points) or "no pipeline")
    return path


def _trials(found: Evaluation) -> dict[str, tuple[float, float, float, int]]:
    """Method -> its difference from the reference over the trials of both, see `over_trials`, if these are several."""
    values = {name: found.scores.trials(name, found.task.primary) for name in found.ranked}
    base = values.pop(found.comparison.reference, {})
    both = {name: [seed for seed in own if seed in base] for name, own in values.items()}
    return {
        name: over_trials([values[name][seed] for seed in seeds], [base[seed] for seed in seeds])
        for name, seeds in both.items()
        if len(seeds) > 1
    }
