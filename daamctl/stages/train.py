"""Train one method of a pipeline: every fold and seed, or one; finished folds made from identical inputs are kept."""

from __future__ import annotations

from pathlib import Path

from daamctl.artifacts.results import SKIPPED_FILE, read_folds
from daamctl.config import Config
from daamctl.engines.base import Engine
from daamctl.layout import Layout
from daamctl.methods import resolve_method
from daamctl.tracking import make_tracker, send_missing
from daamctl.training.fold_files import remove_strays
from daamctl.training.run import fold_specs, open_features, train_all


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
        layout: where artifacts lie.
        config: all settings.
        method: a name from the table of methods, or a variant with another decoder (`daam-v1-mlp`).
        fold: 1-based fold; None: all.
        seed: one seed instead of `train.seeds`.
        force: train again even what is finished.
        track: log to MLflow.
        engine: where to train; None: here, one fold after the other.

    Returns:
        The method's folder.

    Raises:
        ConfigError: the engine cannot train with the workers asked for.
        UnknownNameError: no such method.
        ArtifactError: no embeddings, or embeddings made with other settings.
        TrainingError: no such fold, or the data or numbers do not allow training.
        WorkerError: a worker of the engine died too often.
    """
    engine = None if engine is None or engine.runs_here() else engine
    resolve_method(method)
    folder = layout.method(method)
    (folder / SKIPPED_FILE).unlink(missing_ok=True)
    features = open_features(layout, config)
    seeds = None if seed is None else (seed,)
    specs = fold_specs(layout.run_name, method, features, config, fold=fold, seeds=seeds)
    if fold is None and seed is None:
        remove_strays(folder, [(spec.fold, spec.seed) for spec in specs])
    tracker = make_tracker(layout.root, enabled=track)
    try:
        train_all(specs, features, folder, layout, tracker, force=force, engine=engine)
        send_missing(tracker, read_folds(folder))
    finally:
        tracker.close()
    return folder
