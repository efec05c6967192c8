"""Log finished folds that the current MLflow store does not have yet."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

from daamctl.artifacts.results import Fold, intact_folds
from daamctl.artifacts.runs import find_run
from daamctl.compute.progress import progress
from daamctl.errors import ArtifactError
from daamctl.fit.tracking import (
    Tracker,
    artifacts_elsewhere,
    check_database,
    correct_artifacts,
    is_sent,
    not_sent,
    repair_of_store,
    send_missing,
    shown_store,
)

log = logging.getLogger(__name__)


def run(root: Path, pipeline: str | None = None) -> Path:
    """Log the missing folds, of a pipeline, an ad-hoc run, or all; gives the folder that was searched.

    The store of a project that was copied or moved is corrected, too.

    Raises:
        ArtifactError: a fold or the store is damaged, the pipeline has none, or the store did not take everything.
        ConfigError: there is no such pipeline or run, or it reconstructs images.
    """
    folder = root / "data"
    finished = _finished(folder, pipeline)
    if pipeline is not None and not finished:
        find_run(root, pipeline)  # refuses what does not exist, or has no folds
        raise ArtifactError(f"'{pipeline}' has no finished fold", fix=f"make some: daamctl run {pipeline}")
    check_database(root, whole=True)
    correct_artifacts(root)
    counting = progress(len(finished), "sending to MLflow", "folds")
    with counting as counter, closing(Tracker(root, close_timeout_s=3600.0)) as tracker:
        send_missing(tracker, finished, counter)
    # after a failure, the tracker does not ask for the rest
    left = sum(fold.folder not in tracker.stored and not is_sent(root, fold) for fold in finished)
    if left:
        raise ArtifactError(
            f"{left} of {len(finished)} folds could not be sent to {shown_store(root)}",
            fix=repair_of_store(root),
        )
    if tracker.num_sent:
        words = "%d of %d finished folds were missing in %s and have been sent"
        log.info(words, tracker.num_sent, len(finished), shown_store(root))
    else:
        log.info("all %d finished folds are in %s already", len(finished), shown_store(root))
    return folder


def unsent(root: Path) -> str | None:
    """One line on what `run` would send or correct; None: nothing. Writes nothing."""
    finished = _finished(root / "data", None)
    left, elsewhere = len(not_sent(root, finished)), artifacts_elsewhere(root)
    facts = [f"{left} of {len(finished)} finished folds are not in MLflow"] if left else []
    if elsewhere:
        facts.append(f"MLflow looks for files of runs in {', '.join(elsewhere)}, where the project was before")
    return f"{'; '.join(facts)}. To correct it: daamctl track" if facts else None


def _finished(data: Path, pipeline: str | None) -> list[Fold]:
    """Finished folds of training and ablation, of one run or all."""
    methods = [path for stage in ("train", "ablate") for path in (data / stage).glob(f"{pipeline or '*'}/*")]
    return [fold for path in sorted(methods) if path.is_dir() for fold in intact_folds(path)]
