"""The tables that `dvc plots` draws from: accuracy, history and confusion. Fractions; losses as trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.results import Fold
from daamctl.evaluation.scoring import Items, join

MAX_CONFUSION_ROWS = 100_000
"""`dvc plots` holds every row in its page; more than this are drawn from, with one seed."""


def accuracy_rows(report: Mapping[str, Any]) -> pl.DataFrame:
    """One row per method, fold and seed, in the main unit."""
    unit = report["main_unit"]
    return pl.DataFrame(
        [
            {
                "method": entry["label"],
                "fold": row["fold"],
                "seed": row["seed"],
                **{name: row[unit][name] for name in report["metrics"]},
            }
            for entry in report["methods"].values()
            for row in entry["per_fold"]
        ]
    )


def history_rows(folds: Mapping[str, Sequence[Fold]], labels: Mapping[str, str]) -> pl.DataFrame:
    """One row per method, fold, seed and epoch; per clip. `labels` names the methods as beside figures."""
    columns = ["epoch", "train_loss", "train_accuracy", "dev_accuracy", "test_accuracy"]
    types = {name: pl.Int64 if name == "epoch" else pl.Float64 for name in columns}
    return pl.concat(
        fold.history()
        .select(columns)
        .cast(types)  # type: ignore[arg-type]
        .select(
            pl.lit(labels[method]).alias("method"),
            pl.lit(fold.fold).alias("fold"),
            pl.lit(fold.seed).alias("seed"),
            "*",
        )
        for method, part in folds.items()
        for fold in part
    )


def confusion_rows(
    report: Mapping[str, Any], items: Mapping[str, Mapping[str, list[Items]]], unit: str
) -> pl.DataFrame:
    """One row per item, as `dvc plots` with the confusion template counts them; of very many a part of each method's.

    All counts stand in evaluation.json.
    """
    classes = pl.Series(report["classes"], dtype=pl.String)
    most = MAX_CONFUSION_ROWS // len(items)
    frames = []
    for method, parts in items.items():
        rows = join(parts[unit])
        chosen = np.arange(len(rows))
        if len(rows) > most:
            chosen = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
        frames.append(
            pl.DataFrame(
                {
                    "method": pl.repeat(report["methods"][method]["label"], len(chosen), eager=True),
                    "actual": classes.gather(rows.targets[chosen]),
                    "predicted": classes.gather(rows.predictions[chosen]),
                }
            )
        )
    return pl.concat(frames)
