"""Results as tidy tables, one row per figure: Parquet files that any tool reads (docs/reports.md#tables-of-results).

`evaluate` writes all but `layers` and `audit`, of which other stages write a part each. Scores are fractions, losses
as trained. Differences are first minus second. Methods have their own names, without marks such as
*undertrained*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.audit import AUDIT
from daamctl.artifacts.evaluation import Evaluation, read_evaluation
from daamctl.artifacts.importance import Importance, find_importance
from daamctl.artifacts.layer_sets import LAYERS, Ablation, LayerRow, Truncation, find_ablation, find_truncation
from daamctl.artifacts.results import Fold
from daamctl.artifacts.statistics import Comparisons, Interval, MetricComparison
from daamctl.errors import UnknownNameError
from daamctl.evaluation.scoring import score_predictions
from daamctl.layout import Layout
from daamctl.store.files import csv_text
from daamctl.store.records import check_file
from daamctl.store.tables import read_frame, write_frame

TEXT, INTEGER, NUMBER = pl.String(), pl.Int64(), pl.Float64()
Schema = dict[str, pl.DataType]

FIGURES: Schema = {
    "method": TEXT, "unit": TEXT, "metric": TEXT, "mean": NUMBER, "std": NUMBER, "runs": INTEGER, "pooled": NUMBER,
    "low": NUMBER, "high": NUMBER, "resampled": TEXT,
}  # fmt: skip
"""Figures of every method: mean and sample standard deviation over its runs; over all test items as one set (pooled),
with a 95 % interval over `resampled`."""
SCORES: Schema = {
    "method": TEXT, "fold": INTEGER, "seed": INTEGER, "test_group": TEXT, "unit": TEXT, "metric": TEXT,
    "value": NUMBER, "items": INTEGER,
}  # fmt: skip
"""The same metrics of every run, a fold with a seed."""
COMPARISONS: Schema = {
    "family": TEXT, "first": TEXT, "second": TEXT, "metric": TEXT, "first_value": NUMBER, "second_value": NUMBER,
    "difference": NUMBER, "low": NUMBER, "high": NUMBER, "unit": TEXT, "units": INTEGER, "p": NUMBER, "p_holm": NUMBER,
    "floor": NUMBER, "p_folds": NUMBER, "p_folds_holm": NUMBER, "detectable": NUMBER,
}  # fmt: skip
"""Paired comparisons. family: with the reference, or with the best single layer; low, high: 95 % interval of the
difference; p: of the sign-flip test over `units` units, floor its smallest possible value; p_folds: of the corrected
t-test; detectable: smallest difference that would have been detected with 80 % power."""
CONFUSION: Schema = {"method": TEXT, "unit": TEXT, "actual": TEXT, "predicted": TEXT, "count": INTEGER}
"""How often a class was taken for another, over all runs."""
SPEAKERS: Schema = {"method": TEXT, "speaker": TEXT, "items": INTEGER, "accuracy": NUMBER}
"""Accuracy of every speaker, over all runs; null: those whose speaker is unknown."""
HISTORY: Schema = {
    "method": TEXT, "fold": INTEGER, "seed": INTEGER, "step": INTEGER, "epoch": INTEGER, "train_loss": NUMBER,
    "train_accuracy": NUMBER, "dev_accuracy": NUMBER, "test_accuracy": NUMBER,
}  # fmt: skip
"""Learning curves: one row per record, per clip."""
TABLES: dict[str, Schema] = {
    "figures": FIGURES, "scores": SCORES, "comparisons": COMPARISONS, "confusion": CONFUSION, "speakers": SPEAKERS,
    "history": HISTORY, "layers": LAYERS, "audit": AUDIT,
}  # fmt: skip
SPREAD: dict[str, dict[str, Callable[..., Ablation | Importance | Truncation | None]]] = {
    "layers": {"ablate": find_ablation, "importance": find_importance, "truncate": find_truncation},
    "audit": {"ablate": find_ablation, "importance": find_importance},
}
"""Table -> the stages that write a part of it, with what reads their records."""


def write_scores(folder: Path, evaluation: Evaluation, folds: Mapping[str, Sequence[Fold]]) -> list[Path]:
    """Write the tables of an evaluation; return their files."""
    rows: dict[str, list[dict[str, Any]]] = {
        "figures": list(_figures(evaluation)),
        "scores": list(_scores(evaluation)),
        "comparisons": list(_comparisons(evaluation)),
        "confusion": list(_confusion(evaluation)),
        "speakers": [
            {"method": name, "speaker": one.speaker, "items": one.n, "accuracy": one.accuracy}
            for name, method in evaluation.methods.items()
            for one in method.per_speaker
        ],
    }
    frames = {name: pl.DataFrame(found, TABLES[name]) for name, found in rows.items()}
    frames["history"] = history_rows(folds)
    for name, frame in frames.items():
        write_frame(table_file(folder, name), frame, {"run": evaluation.run, "table": name})
    return [table_file(folder, name) for name in frames]


def table_file(folder: Path, table: str) -> Path:
    """File of a table in the folder of its stage."""
    return folder / f"{table}.parquet"


def read_scores(layout: Layout, table: str, files: Mapping[str, str] | None = None) -> pl.DataFrame:
    """Read a table of a run.

    Args:
        table: one of `TABLES`.
        files: `files` of the record beside it, for those who have read that; None: read it.

    Raises:
        UnknownNameError: there is no such table.
        ArtifactError: the stage that writes it has not run, or a file is damaged.
    """
    if table not in TABLES:
        raise UnknownNameError("table", table, TABLES)
    if table in SPREAD:
        parts = [
            read_frame(table_file(layout.stage(stage), table))[0]
            for stage, find in SPREAD[table].items()
            if find(layout.stage(stage)) is not None  # the table is as recorded
        ]
        if parts:
            return pl.concat(parts)
        folder, files = layout.stage("importance"), {}  # its table, if there is one, is in no record
    else:
        folder = layout.stage("evaluate")
        files = read_evaluation(folder).files if files is None else files
    path = table_file(folder, table)
    return read_frame(check_file(path, files.get(path.name)))[0]


def run_rows(name: str, layers: tuple[int, ...], folds: Sequence[Fold], unit: str) -> list[LayerRow]:
    """Accuracy in every run after training on a set of layers, and the primary figure of the task.

    Args:
        unit: utterance or clip.
    """
    rows = []
    for fold in folds:
        scores, method = score_predictions(fold.predictions(), unit, fold.task), fold.result["run"]["method"]
        for kind in dict.fromkeys(("accuracy", fold.task.primary)):
            rows.append(LayerRow(name, layers, method, kind, float(scores[kind]), fold.fold, fold.seed))
    return rows


def history_rows(folds: Mapping[str, Sequence[Fold]]) -> pl.DataFrame:
    """Learning curves of all folds."""
    frames = [pl.DataFrame(schema=HISTORY)]
    for method, part in folds.items():
        for fold in part:
            run = {"method": method, "fold": fold.fold, "seed": fold.seed}
            columns = [pl.lit(value, HISTORY[name]).alias(name) for name, value in run.items()]
            frames.append(fold.history().with_columns(*columns).select(list(HISTORY)).cast(pl.Schema(HISTORY)))
    return pl.concat(frames)


def csv_of(table: pl.DataFrame) -> str:
    """Comma-separated values, in which no text is a formula (see `csv_text`)."""
    return table.with_columns(pl.col(pl.String).map_elements(csv_text, return_dtype=pl.String)).write_csv()


def _figures(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    for name, method in evaluation.methods.items():
        for unit, metrics in method.summary.items():
            for metric, spread in metrics.items():
                interval = method.intervals.metrics.get(metric) if unit == evaluation.main_unit else None
                row = {"mean": spread.mean, "std": spread.sample_std, "runs": spread.n}
                row |= {"pooled": method.pooled[unit].get(metric), **_ends(interval)}
                resampled = method.intervals.unit_word if interval else None
                yield {"method": name, "unit": unit, "metric": metric, **row, "resampled": resampled}
    if evaluation.entities is not None:
        for name, one in evaluation.entities.methods.items():
            word = evaluation.entities.unit
            row = {"mean": one.f1.value, "runs": len(one.per_trial), "pooled": one.f1.value, **_ends(one.f1)}
            yield {"method": name, "unit": word, "metric": "entity_f1", **row, "resampled": word}


def _scores(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    for name, method in evaluation.methods.items():
        for run in method.per_fold:
            head = {"method": name, "fold": run.fold, "seed": run.seed, "test_group": run.test_group}
            for unit in evaluation.units:
                found = run.scores(unit)
                for metric, value in found.items():
                    if metric != "n":
                        yield {**head, "unit": unit, "metric": metric, "value": float(value), "items": found["n"]}


def _comparisons(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    for family, compared in (("reference", evaluation.comparison), ("single layer", evaluation.single_layer)):
        result: Comparisons | None = compared.result if compared else None
        for pair in result.comparisons if result else ():
            for metric, one in pair.metrics.items():
                yield {"family": family, "first": pair.first, "second": pair.second, "metric": metric, **_compared(one)}
    if evaluation.entities is not None:
        for name, one in evaluation.entities.comparisons.items():
            pair_of = {"first": name, "second": evaluation.entities.reference, "metric": "entity_f1"}
            yield {"family": "reference", **pair_of, **_compared(one)}


def _compared(one: MetricComparison) -> dict[str, Any]:
    values = {"first_value": one.first_value, "second_value": one.second_value, "difference": one.difference}
    row: dict[str, Any] = {**values, **_ends(one.interval)}
    if (test := one.primary) is not None:
        row |= {"unit": test.unit, "units": test.n, "p": test.p, "p_holm": test.p_holm, "floor": test.floor}
    if (second := one.secondary) is not None:
        row |= {"p_folds": second.p, "p_folds_holm": second.p_holm}
    points = one.minimal_detectable.points if one.minimal_detectable else None
    return {**row, "detectable": None if points is None else points / 100}


def _confusion(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    for name, method in evaluation.methods.items():
        for unit, table in method.confusion.items():
            for actual, row in zip(evaluation.classes, table, strict=True):
                for predicted, count in zip(evaluation.classes, row, strict=True):
                    yield {"method": name, "unit": unit, "actual": actual, "predicted": predicted, "count": count}


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low if interval else None, "high": interval.high if interval else None}
