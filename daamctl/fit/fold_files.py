"""Files of a finished fold, the same for every kind of trial; see `daamctl.artifacts.results`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import polars as pl
import torch
import yaml

from daamctl import __version__
from daamctl.artifacts.embeddings import label_columns
from daamctl.artifacts.results import FoldResult
from daamctl.cpu_formats import cpu_formats
from daamctl.fit.loop import Trained
from daamctl.fit.trial import Trial
from daamctl.provenance import device_name, git_commit, versions
from daamctl.store.files import write_text
from daamctl.store.tables import write_frame


def metrics_of(trained: Trained) -> dict[str, float | int | None]:
    """Build `metrics` of a fold's result: as selected, at the best record on the test group, and at the last."""
    test = [float(entry["test_accuracy"] or 0.0) for entry in trained.history]
    selected = trained.last
    tagger: dict[str, float | int | None] = {}
    if "test_f1" in selected:
        f1 = [float(entry["test_f1"] or 0.0) for entry in trained.history]
        tagger = {"entity_f1": selected["test_f1"], "entity_f1_best_on_test": max(f1), "entity_f1_last": f1[-1]}
        tagger["dev_entity_f1"] = selected.get("dev_f1")
    return {
        **tagger,
        "accuracy": selected["test_accuracy"],
        "accuracy_best_on_test": max(test),
        "accuracy_last": test[-1],
        "train_accuracy": selected["train_accuracy"],
        "dev_accuracy": selected["dev_accuracy"],
        "selected_epoch": trained.selected_epoch,
        "epochs": None if trained.selected_epoch is None else len(trained.history),
        "collapsed": int(trained.collapsed),
        "replaced_refits": trained.replaced,
    }


def fold_result(trial: Trial, trained: Trained, root: Path) -> tuple[FoldResult, torch.Tensor]:
    """Build the result of a fold.

    Returns:
        the content of `result.json`, and the class ids (N_test,) of the test clips.
    """
    spec, split, device = trial.spec, trial.split, trial.device
    own = trial.result_parts(trained)
    run = {
        "key": trial.key,
        "pipeline": spec.name,
        "method": spec.method,
        "fold": spec.fold,
        "num_folds": split.num_folds,
        "modality": trial.clips.modality,
        "seed": spec.seed,
        "test_group": split.test_group,
        "dev_group": split.dev_group,
        "classes": list(trial.clips.classes),
        **own.run,
    }
    cuda = device.startswith("cuda")
    meta = {
        "daamctl": __version__,
        "versions": versions(),
        "git_commit": git_commit(root),
        "device": device_name(device),
        "precision": trial.precision,
        "train_s": round(trained.train_s, 3),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "num_train_clips": len(split.train),
        "num_dev_clips": len(split.dev),
        "num_test_clips": len(split.test),
        **own.meta,
    }
    result: dict[str, Any] = {"run": run, "metrics": {**metrics_of(trained), **own.metrics}, "meta": meta}
    if device == "cpu" and (speeds := cpu_formats().speeds):
        meta["bfloat16_speed"] = speeds
    if trained.joules is not None:
        meta["joules"] = round(trained.joules, 3)
    if trained.search is not None:
        result["search"] = trained.search
    return cast(FoldResult, result), own.targets


def write_fold(folder: Path, trial: Trial, trained: Trained, root: Path, *, together: int = 1) -> FoldResult:
    """Write all files of a finished fold but `result.json`, and return what belongs into that.

    Args:
        together: number of folds trained jointly.
    """
    result, targets = fold_result(trial, trained, root)
    if together > 1:
        result["meta"]["together"] = together
    trial.write_weights(folder, trained)
    head = {**trial.owner, "classes": result["run"]["classes"]}
    clips = trial.clips.rows[trial.split.test]
    predictions = clips.select(label_columns(trial.clips.modality)).with_columns(
        pl.Series("target", targets.numpy()),
        pl.Series("logits", trained.logits.numpy().tolist(), dtype=pl.List(pl.Float32)),
    )
    if (batches := result["run"]["eval_batches"]) is not None:  # predictions depend on their batch
        predictions = predictions.with_columns(pl.int_range(pl.len()).floordiv(int(batches["size"])).alias("batch"))
    write_frame(folder / "predictions.parquet", predictions, head)
    history = trained.history
    columns = {name: pl.Int64 if name in ("step", "epoch") else pl.Float64 for name in history[0]}
    write_frame(folder / "history.parquet", pl.DataFrame(history, schema=columns), head)
    write_text(folder / "config.yaml", yaml.safe_dump(trial.config.model_dump(mode="json"), sort_keys=False))
    return result
