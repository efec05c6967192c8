"""Files of a finished fold, shared by methods over stored layers and fine-tuned encoders."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl
import torch
import yaml

from daamctl import __version__
from daamctl.artifacts.io import write_json, write_text
from daamctl.artifacts.results import FOLD_DIR, FoldResult, MetaPart, fold_dir
from daamctl.artifacts.splits import Split
from daamctl.artifacts.utterances import write_frame
from daamctl.config import Config
from daamctl.provenance import device_name, git_commit, versions
from daamctl.training.loop import Trained

log = logging.getLogger(__name__)


LAST_PART = 0.9
"""If the selected epoch lies beyond this share of the allowed epochs, training may not have finished."""


def metrics_of(trained: Trained, epochs: int, selection: str) -> dict[str, float | int | None]:
    """Build `metrics` of a fold's result: at the selected epoch, at the best on the test group, and at the last.

    Args:
        trained: history and selected epoch.
        epochs: largest number of epochs allowed.
        selection: rule that selected the epoch.
    """
    test = [float(entry["test_accuracy"] or 0.0) for entry in trained.history]
    selected = trained.history[trained.selected_epoch - 1]
    return {
        "accuracy": selected["test_accuracy"],
        "accuracy_best_on_test": max(test),
        "accuracy_last": test[-1],
        "dev_accuracy": selected["dev_accuracy"],
        "selected_epoch": trained.selected_epoch,
        "epochs": trained.epochs,
        "finished": None if selection == "last" else trained.selected_epoch <= LAST_PART * epochs,
    }


def meta_of(
    split: Split,
    trained: Trained,
    *,
    embeddings_key: str,
    encoder: dict[str, Any],
    device: str,
    precision: str,
    root: Path,
) -> MetaPart:
    """Build `meta` of a fold's result.

    Args:
        split: sizes of the parts.
        trained: wall time.
        embeddings_key: content key of the training data.
        encoder: its recorded facts.
        device: resolved device.
        precision: precision of the training step.
        root: project folder, for the commit.
    """
    return {
        "daamctl": __version__,
        "versions": versions(),
        "git_commit": git_commit(root),
        "device": device_name(device),
        "precision": precision,
        "embeddings_key": embeddings_key,
        "encoder": encoder,
        "train_s": round(trained.train_s, 3),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None,
        "num_train_clips": len(split.train),
        "num_dev_clips": len(split.dev),
        "num_test_clips": len(split.test),
    }


def write_finished(
    folder: Path,
    clips: pl.DataFrame,
    targets: torch.Tensor,
    trained: Trained,
    config: Config,
    result: FoldResult,
    *,
    batch_size: int | None = None,
) -> None:
    """Write predictions, history, settings and, last, `result.json`.

    Args:
        folder: the fold's folder.
        clips: the test clips.
        targets: their class ids (N,).
        trained: history and logits (N, C).
        config: the settings to write.
        result: content of `result.json`.
        batch_size: clips per test batch, if predictions depend on it.
    """
    head = {"key": result["run"]["key"], "classes": result["run"]["classes"]}
    predictions = clips.select("clip_id", "utterance_id", "label", "speaker", "group").with_columns(
        pl.Series("target", targets.numpy()),
        pl.Series("logits", trained.logits.numpy().tolist(), dtype=pl.List(pl.Float32)),
    )
    if batch_size is not None:
        predictions = predictions.with_columns(pl.int_range(pl.len()).floordiv(batch_size).alias("batch"))
    write_frame(folder / "predictions.parquet", predictions, head)
    columns = {name: pl.Float64 for name in trained.history[0] if name != "epoch"}
    write_frame(folder / "history.parquet", pl.DataFrame(trained.history, schema={"epoch": pl.Int64, **columns}), head)
    write_text(folder / "config.yaml", yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
    write_json(folder / "result.json", result)


def identity(folder: Path) -> int | None:
    """Value that changes whenever a finished fold is replaced; None without a fold."""
    path = folder / "result.json"
    return path.stat().st_mtime_ns if path.exists() else None


def remove_strays(folder: Path, wanted: Iterable[tuple[int, int]]) -> None:
    """Remove folds that the settings no longer ask for (fewer groups or other seeds), so that they are not evaluated.

    Args:
        folder: the method's folder.
        wanted: pairs (fold, seed) to keep.
    """
    kept = {fold_dir(folder, fold, seed) for fold, seed in wanted}
    for path in folder.glob("fold*-seed*"):
        if FOLD_DIR.match(path.name) and path not in kept:
            log.info("%s: removed, the settings no longer have it", path.name)
            shutil.rmtree(path, ignore_errors=True)
