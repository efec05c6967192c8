"""Whether an evaluation is of the folds that are there now."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.evaluation import read_evaluation
from daamctl.artifacts.layout import Layout
from daamctl.config import Config, load_config
from daamctl.evaluation.consistency import other_settings, scored_folds
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
            "These methods are in the settings but not scored: gqa. To score them, run: daamctl run toy",
        ],
    )
    write_method(layout, listed, "gqa")
    assert checked(layout, listed)[1][1].endswith(f"not scored: gqa. To score them, {AGAIN}")


def test_settings_of_the_folds_that_are_not_the_present_ones_are_named(layout: Layout) -> None:
    evaluation = read_evaluation(layout.stage("evaluate"))
    folds, _ = scored_folds(layout, CONFIG, evaluation)
    assert other_settings(layout, CONFIG, evaluation, folds) == []
    now = Config.model_validate({"download": {"num_groups": 10}, "train": {"epochs": 7, "device": "cpu"}})
    assert other_settings(layout, now, evaluation, folds) == [
        "These results were made with other settings than those of pipelines/toy.yaml: "
        "download.num_groups: 5 (now 10), train.epochs: 35 (now 7)."
    ]


def test_a_reference_or_a_unit_that_was_set_after_the_evaluation_is_told(layout: Layout) -> None:
    evaluation = read_evaluation(layout.stage("evaluate"))
    folds, _ = scored_folds(layout, CONFIG, evaluation)
    now = Config.model_validate({"methods": CONFIG.methods, "evaluate": {"reference": "mha", "unit": "clip"}})
    assert other_settings(layout, now, evaluation, folds) == [
        "The evaluation has other settings of evaluate: reference 'none' (now 'mha'), unit 'utterance' (now 'clip'). "
        f"To update, {AGAIN}"
    ]


def test_settings_of_the_command_line_are_those_of_no_file(project: Path) -> None:
    given = Config.model_validate({"methods": ["none"], "download": {"num_groups": 10}})
    layout = Layout.of(project, "demo", given, ["download.num_groups=10"])
    write_method(layout, given, "none", folds=(1, 2, 3, 4))
    evaluation = read_evaluation(evaluate.run(layout, given).parent)
    line = other_settings(layout, given, evaluation, scored_folds(layout, given, evaluation)[0])[0]
    assert "than those of pipelines/demo.yaml: " in line
    assert "download.num_groups: 10 (now 5)" in line


def test_files_that_are_valid_only_with_the_options_given_end_no_report(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("methods: [none]\ntrain: {recipe: published, steps: 30}\n")
    given = load_config(project, "mine", {"train.steps": None})
    layout = Layout.of(project, "mine", given, ["train.steps=null"])
    write_method(layout, given, "none", folds=(1, 2, 3, 4))
    evaluation = read_evaluation(evaluate.run(layout, given).parent)
    assert other_settings(layout, given, evaluation, scored_folds(layout, given, evaluation)[0]) == []
