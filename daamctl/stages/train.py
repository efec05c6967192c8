"""Train one method of a pipeline: every fold and seed, or one; keep finished folds whose inputs are identical."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import intact_folds
from daamctl.compute.engine import Engine
from daamctl.config import Config
from daamctl.fit.features import open_features
from daamctl.fit.runner import train_all
from daamctl.fit.tracking import make_tracker, send_missing
from daamctl.fit.trial import FusionTrial, trials_of
from daamctl.methods import CLOSED_FORM, resolve_method


def run(
    layout: Layout,
    config: Config,
    *,
    method: str,
    fold: int | None = None,
    seed: int | None = None,
    force: bool = False,
    track: bool = True,
    engine: Engine | None = None,
) -> Path:
    """Train a method.

    Args:
        method: a name from the table of methods, or a variant with another decoder (`daam-v1-mlp`).
        fold: 1-based fold; None: all.
        seed: one seed instead of `train.seeds`.
        force: train again even what is finished.
        track: log to MLflow. Closed-form probes take a second and have no curve to watch, while opening MLflow takes
            several, so stage `report` sends them, with its own run.
        engine: where to train; None: in this process, one fold after the other.

    Returns:
        The method's folder.

    Raises:
        UnknownNameError: no such method.
        ArtifactError: no embeddings, or embeddings made with other settings.
        TrainingError: no such fold, or the data or numbers do not allow training.
        WorkerError: a worker of the engine died too often.
    """
    resolve_method(method)
    features = open_features(layout, config)
    seeds = None if seed is None else (seed,)
    trials = trials_of(FusionTrial, layout, method, features, config, fold=fold, seeds=seeds)
    folder = layout.method(method)
    whole = fold is None and seed is None
    with closing(make_tracker(layout.root, enabled=track and method not in CLOSED_FORM)) as tracker:
        train_all(trials, folder, layout, tracker, force=force, alone=whole, engine=engine)
        send_missing(tracker, intact_folds(folder))
    return folder
