"""Tables for `dvc plots`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from daamctl.artifacts.results import read_folds
from daamctl.config import Config
from daamctl.evaluation.comparison import MethodIntervals
from daamctl.evaluation.scores import csv_of, method_rows
from daamctl.evaluation.scoring import UNITS, items_of
from tests.fixtures.folds import make_layout, predictions_frame, write_fold


def test_class_names_cannot_be_formulas() -> None:
    table = pl.DataFrame({"method": ["daam-v1", None], "actual": ["=HYPERLINK(1)", "sad"], "share": [-0.5, 1.0]})
    assert csv_of(table).splitlines() == ["method,actual,share", "daam-v1,'=HYPERLINK(1),-0.5", ",sad,1.0"]


@pytest.mark.parametrize(("method", "differ", "runs"), [("none", 1, 4), ("ridge-mean", 0, 2), ("ridge-mean", 1, 4)])
def test_pooled_figures_are_means_over_seeds_and_equal_fits_count_once(
    tmp_path: Path, method: str, differ: int, runs: int
) -> None:
    layout, config = make_layout(tmp_path), Config()
    for fold in (1, 2):
        for seed in (1, 2):
            rng = np.random.default_rng([fold, seed * differ])
            targets = rng.integers(4, size=40)
            names = [f"f{fold}u{number}" for number in range(40)]
            rows = predictions_frame(names, np.arange(40) % 4, np.eye(4)[targets] * rng.random((40, 1)))
            write_fold(layout, config, method, fold, seed, rows)
    folds = read_folds(layout.method(method))
    items = {unit: [items_of(fold.predictions(), unit) for fold in folds] for unit in UNITS}
    found = method_rows(method, folds, items, "utterance", MethodIntervals("", {}))
    figure = next(row for row in found["figures"] if (row["unit"], row["metric"]) == ("utterance", "ece"))
    assert figure["runs"] == runs
    assert len([row for row in found["scores"] if (row["unit"], row["metric"]) == ("utterance", "ece")]) == 4
    pooled = []
    for seed in (1, 2):
        rows = pl.concat(fold.predictions() for fold in folds if fold.seed == seed)
        odds = np.exp(np.array(rows["logits"].to_list()))
        best, right = (
            (odds / odds.sum(axis=1, keepdims=True)).max(axis=1),
            odds.argmax(axis=1) == rows["target"].to_numpy(),
        )
        places = np.minimum((best * 15).astype(int), 14)
        gaps = [abs((right - best)[places == place].sum()) for place in range(15)]
        pooled.append(sum(gaps) / len(rows))
    assert figure["pooled"] == pytest.approx(np.mean(pooled), abs=1e-6)
