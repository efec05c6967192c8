"""The learning curves of all folds as one table. Fractions; losses as trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from daamctl.artifacts.results import Fold
from daamctl.store.files import csv_text

HISTORY_TYPES = {
    "step": pl.Int64,
    "epoch": pl.Int64,
    "train_loss": pl.Float64,
    "train_accuracy": pl.Float64,
    "dev_accuracy": pl.Float64,
    "test_accuracy": pl.Float64,
}


def history_rows(folds: Mapping[str, Sequence[Fold]], labels: Mapping[str, str]) -> pl.DataFrame:
    """One row per method, fold, seed and record, per clip.

    Args:
        folds: method -> its finished folds.
        labels: method -> its name in results.
    """
    frames = []
    for method, part in folds.items():
        for fold in part:
            run = {"method": labels[method], "fold": fold.fold, "seed": fold.seed}
            columns = [pl.lit(value).alias(name) for name, value in run.items()]
            history = fold.history().select(list(HISTORY_TYPES)).cast(HISTORY_TYPES)  # type: ignore[arg-type]
            frames.append(history.select(*columns, "*"))
    return pl.concat(frames)


def to_csv(table: pl.DataFrame) -> str:
    """Comma-separated values, in which no text is a formula (see `csv_text`)."""
    return table.with_columns(pl.col(pl.String).map_elements(csv_text, return_dtype=pl.String)).write_csv()
