"""The tables of results (`daamctl.artifacts.scores`): how they are computed, written and read.

`evaluate` writes all but `layers` and `audit`, of which other stages write a part each, and `protocols`; `score` writes
those of reconstructions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.importance import Importance, find_importance
from daamctl.artifacts.layer_sets import Ablation, LayerRow, Truncation, find_ablation, find_truncation, over_runs
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.protocols import Protocols, find_protocols
from daamctl.artifacts.reconstruction import read_arm_scores
from daamctl.artifacts.results import Fold
from daamctl.artifacts.scores import BEST_ON_TEST, LAST, OF_EVALUATE, TABLES, frame_of, read_table, table_file
from daamctl.data.task import Task
from daamctl.errors import ArtifactError, UnknownNameError
from daamctl.evaluation.comparison import MethodIntervals, speakers_known
from daamctl.evaluation.scoring import UNITS, Items, items_of, join, score_predictions
from daamctl.methods import CLOSED_FORM
from daamctl.store.files import csv_text
from daamctl.store.tables import write_frame

SPREAD: dict[str, dict[str, Callable[..., Ablation | Importance | Truncation | Protocols | None]]] = {
    "layers": {"ablate": find_ablation, "importance": find_importance, "truncate": find_truncation},
    "audit": {"ablate": find_ablation, "importance": find_importance},
    "protocols": {"protocols": find_protocols},
}
"""Table -> the stages that write a part of it, with what reads their records."""


def method_rows(
    method: str, folds: Sequence[Fold], items: Mapping[str, Sequence[Items]], main: str, found: MethodIntervals
) -> dict[str, list[Any]]:
    """Figures, scores and, of classes, confusion counts of a method.

    Args:
        items: unit -> scored items of each fold.
        main: the unit of the intervals.
    """
    rows: dict[str, list[Any]] = {"figures": [], "scores": [], "confusion": []}
    task = folds[0].task
    for unit in UNITS:
        metrics: dict[str, list[float]] = {}
        of_seeds: dict[int, list[Items]] = {}
        for fold, part, new in zip(folds, items[unit], _are_new(folds, items[unit]), strict=True):
            values = task.score(part)
            if unit == "clip":  # epochs are scored per clip
                recorded = {name: fold.result["metrics"].get(name) for name in (BEST_ON_TEST, LAST)}
                values |= {name: one for name, one in recorded.items() if one is not None and math.isfinite(one)}
            run: dict[str, Any] = {"method": method, "fold": fold.fold, "seed": fold.seed, "unit": unit}
            run |= {"test_group": fold.result["run"]["test_group"], "items": len(part)}
            of_seeds.setdefault(fold.seed, []).append(part)
            for metric, value in values.items():
                own = metrics.setdefault(metric, [])
                if new:
                    own.append(float(value))
                rows["scores"].append({**run, "metric": metric, "value": float(value)})
        joined = join(items[unit])
        pooled = [task.score(join(parts)) for parts in of_seeds.values()]  # ECE and F1 are no means over items
        for metric in (*task.metrics, BEST_ON_TEST, LAST):
            if metric not in metrics:
                continue
            level = over_runs(metrics[metric])
            one: dict[str, Any] = {
                "mean": level.mean,
                "std": level.std,
                "runs": level.n,
                "pooled": fmean(one[metric] for one in pooled) if metric in pooled[0] else None,
            }
            interval = found.metrics.get(metric) if unit == main else None
            if interval is not None:
                one |= {"pooled": interval.value, "low": interval.low, "high": interval.high}
                one |= {"resampled": found.word, "units": interval.n_clusters}
            rows["figures"].append({"method": method, "unit": unit, "metric": metric, **one})
        rows["confusion"] += [{"method": method, "unit": unit, **pair} for pair in task.confusion(joined)]
    rows["scores"].sort(key=lambda row: (row["fold"], row["seed"]))
    return rows


def speaker_rows(method: str, items: pl.DataFrame, task: Task) -> list[dict[str, Any]]:
    """Accuracy of every speaker over all folds and seeds; none if speakers are unknown, or without accuracy.

    Args:
        items: test items of the method (`comparison.item_table`).
    """
    if "accuracy" not in task.metrics or not speakers_known(items):
        return []
    figures = [pl.col("item").n_unique().alias("items"), pl.col("correct").mean().alias("accuracy")]
    rows = items.group_by("speaker").agg(figures).sort("speaker", nulls_last=True)
    return [{"method": method, **row} for row in rows.iter_rows(named=True)]


def write_scores(folder: Path, run: str, frames: Mapping[str, pl.DataFrame]) -> list[Path]:
    """Write the tables of an evaluation; return their files."""
    for name, frame in frames.items():
        write_frame(table_file(folder, name), frame, {"run": run, "table": name})
    return [table_file(folder, name) for name in frames]


def read_scores(layout: Layout, table: str) -> pl.DataFrame:
    """Read a table of a run.

    Args:
        table: one of `TABLES`.

    Raises:
        UnknownNameError: there is no such table.
        ArtifactError: the stage that writes it has not run, or a file is damaged.
    """
    if table not in TABLES:
        raise UnknownNameError("table", table, TABLES)
    if layout.task == "reconstruct":
        return read_arm_scores(layout.stage("score")).scores.frames.get(table, frame_of(table, ()))
    if table not in SPREAD:
        read = read_evaluation(layout.stage("evaluate")).scores.frames  # as recorded; all but the learning curves
        return read[table] if table in read else read_table(table_file(layout.stage("evaluate"), table))
    parts = [
        read_table(table_file(layout.stage(stage), table))
        for stage, find in SPREAD[table].items()
        if find(layout.stage(stage)) is not None  # the table is as recorded
    ]
    if not parts:
        stage = "importance" if "importance" in SPREAD[table] else table
        path = table_file(layout.stage(stage), table)
        raise ArtifactError(f"no file {path}", path=path)
    return pl.concat(parts)


def run_rows(name: str, layers: tuple[int, ...], folds: Sequence[Fold], unit: str) -> list[LayerRow]:
    """The first figure of items, accuracy of classes, after training on a set of layers, and the primary figure."""
    items = [items_of(fold.predictions(), unit, fold.task) for fold in folds]
    rows = []
    for fold in compress(folds, _are_new(folds, items)):
        scores, method = score_predictions(fold.predictions(), unit, fold.task), fold.result["run"]["method"]
        for kind in dict.fromkeys((fold.task.metrics[0], fold.task.primary)):
            rows.append(LayerRow(name, layers, method, kind, float(scores[kind]), fold.fold, fold.seed))
    return rows


def _are_new(folds: Sequence[Fold], items: Sequence[Items]) -> list[bool]:
    """Whether each run counts: the seeds of a closed-form probe are one fit, unless they draw other training items."""
    seen: dict[int, list[Items]] = {}
    found = []
    for fold, part in zip(folds, items, strict=True):
        others = seen.setdefault(fold.fold, []) if fold.result["run"]["method"] in CLOSED_FORM else []
        found.append(not any(np.array_equal(part.outputs, one.outputs) for one in others))
        others.append(part)
    return found


def history_rows(folds: Mapping[str, Sequence[Fold]]) -> pl.DataFrame:
    """Learning curves of all folds."""
    schema = OF_EVALUATE["history"]
    frames = [pl.DataFrame(schema=schema)]
    for method, part in folds.items():
        for fold in part:
            run: dict[str, Any] = {"method": method, "fold": fold.fold, "seed": fold.seed}
            columns = [pl.lit(value, schema[name]).alias(name) for name, value in run.items()]
            frames.append(fold.history().with_columns(*columns).select(list(schema)).cast(pl.Schema(schema)))
    return pl.concat(frames)


def csv_of(table: pl.DataFrame) -> str:
    """Comma-separated values, in which no text is a formula (see `csv_text`)."""
    return table.with_columns(pl.col(pl.String).map_elements(csv_text, return_dtype=pl.String)).write_csv()
