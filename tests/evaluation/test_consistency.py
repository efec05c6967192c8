"""Whether an evaluation is of the folds that are there now."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.config import Config
from daamctl.evaluation.consistency import scored_folds
from daamctl.stages import evaluate
from tests.fixtures.folds import make_layout, write_method

CONFIG = Config(methods=("none", "mha"))
AGAIN = "run: daamctl evaluate toy"
LATER = f"These methods were trained again after scoring: none. To update, {AGAIN}"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = make_layout(tmp_path)
    for method in CONFIG.methods:
        write_method(layout, CONFIG, method, folds=(1, 2, 3, 4))
    evaluate.run(layout, CONFIG)
    return layout


def checked(layout: Layout, config: Config = CONFIG) -> tuple[int, Sequence[str]]:
    """Number of folds behind the evaluation, and what makes it out of date."""
    folds, stale = scored_folds(layout, config, read_evaluation(layout.stage("evaluate")))
    return len(folds), stale


def test_what_was_scored_is_not_out_of_date(layout: Layout) -> None:
    write_method(layout, CONFIG, "none", seeds=(7,))  # a seed that the settings do not list
    assert checked(layout) == (8, [])


@pytest.mark.parametrize(
    ("changes", "folds"),
    [
        ({"folds": (2,), "changes": {"meta.train_s": 9.0}}, 8),  # trained again
        ({"folds": (2,), "num_parameters": 7}, 8),
        ({"folds": (5,)}, 8),  # was missing
    ],
)
def test_a_training_after_scoring_is_named(layout: Layout, changes: dict[str, Any], folds: int) -> None:
    write_method(layout, CONFIG, "none", **changes)
    assert checked(layout) == (folds, [LATER])


def test_missing_folds_and_new_methods_are_named(layout: Layout) -> None:
    shutil.rmtree(layout.method("mha") / "fold3-seed1")
    listed = Config(methods=("none", "mha", "gqa"))
    assert checked(layout, listed) == (
        7,
        [
            "Trained folds are missing for mha, so details that only they contain are missing.",
            f"These methods are in the settings but not scored: gqa. To score them, {AGAIN}",
        ],
    )
