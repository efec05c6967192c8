"""Tables that `dvc plots` shows: accuracy, history and confusion. Fractions; losses as trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.results import Fold
from daamctl.evaluation.scoring import Items, join
from daamctl.files import csv_text

MAX_CONFUSION_ROWS = 100_000
"""`dvc plots` puts every row into its page. Of more rows than this, a random sample is written, always the same."""
HISTORY_TYPES = {
    "epoch": pl.Int64,
    "train_loss": pl.Float64,
    "train_accuracy": pl.Float64,
    "dev_accuracy": pl.Float64,
    "test_accuracy": pl.Float64,
}


def accuracy_rows(evaluation: Evaluation) -> pl.DataFrame:
    """One row per method, fold and seed, in the main unit: method, fold, seed, and every metric."""
    rows = []
    for entry in evaluation.methods.values():
        for row in entry.per_fold:
            scores = row.scores(evaluation.main_unit)
            metrics = {name: scores[name] for name in evaluation.metrics}
            rows.append({"method": entry.label, "fold": row.fold, "seed": row.seed, **metrics})
    return pl.DataFrame(rows)


def history_rows(folds: Mapping[str, Sequence[Fold]], labels: Mapping[str, str]) -> pl.DataFrame:
    """One row per method, fold, seed and epoch, per clip.

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


def confusion_rows(evaluation: Evaluation, items: Mapping[str, Mapping[str, list[Items]]], unit: str) -> pl.DataFrame:
    """One row per item: method, actual and predicted class. evaluation.json has the counts of all items.

    Args:
        evaluation: names of classes and labels of methods.
        items: method -> unit -> items of each fold.
        unit: unit of scoring.
    """
    classes = pl.Series(evaluation.classes, dtype=pl.String)
    most = MAX_CONFUSION_ROWS // len(items)
    frames = []
    for method, parts in items.items():
        rows = join(parts[unit])
        chosen = np.arange(len(rows))
        if len(rows) > most:
            chosen = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
        label = evaluation.methods[method].label
        columns = {
            "method": pl.repeat(label, len(chosen), eager=True),
            "actual": classes.gather(rows.targets[chosen]),
            "predicted": classes.gather(rows.predictions[chosen]),
        }
        frames.append(pl.DataFrame(columns))
    return pl.concat(frames)


def to_csv(table: pl.DataFrame) -> str:
    """Comma-separated values, in which no text is a formula (see `csv_text`)."""
    return table.with_columns(pl.col(pl.String).map_elements(csv_text, return_dtype=pl.String)).write_csv()
