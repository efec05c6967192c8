"""How a fold is named beside figures, how its weights were chosen, and how many clips they were trained on."""

from pathlib import Path

import numpy as np
import pytest

from daamctl.artifacts.results import Fold, Rule, marked, read_folds
from daamctl.config import Config
from tests.fixtures.folds import make_layout, predictions_frame, write_fold

EFFECT = {"tensors": 4, "with_gradient": 4, "output_change": 0.1, "silent": []}


@pytest.mark.parametrize(
    ("run", "label"),
    [
        ({}, "mha"),
        ({"reconstructed": "reading A"}, "mha (reconstructed)"),
        ({"effect": EFFECT}, "mha (fine-tuned)"),
        ({"effect": {**EFFECT, "with_gradient": 3}}, "mha (fine-tuned)"),
        ({"effect": {**EFFECT, "with_gradient": 0}}, "mha (no effect)"),
        ({"effect": {**EFFECT, "output_change": 0.0}}, "mha (no effect)"),
        ({"effect": {**EFFECT, "tensors": 0, "with_gradient": 0}}, "mha"),  # a classifier on the frozen encoder
    ],
)
def test_label_says_what_must_not_be_overlooked(run, label):
    assert Fold(Path("fold1-seed1"), {"run": {"method": "mha", **run}}).label == label


def test_marks_join_those_that_a_label_has():
    assert marked("none", "") == "none"
    assert marked("none", "undertrained") == "none (undertrained)"
    assert marked("sga (reconstructed)", "learned nothing") == "sga (reconstructed, learned nothing)"


@pytest.mark.parametrize(
    ("train", "finetune", "search", "rule"),
    [
        ({"selection": "dev-group", "steps": 9, "refit": True}, None, None, Rule("dev-group", True, True, True)),
        ({"selection": "dev-group", "steps": None, "refit": True}, None, None, Rule("dev-group", False, True, False)),
        ({"selection": "best-on-test"}, {"schedule": "linear"}, None, Rule("last", True, False, False)),
        ({"selection": "best-on-test"}, {"schedule": "constant"}, None, Rule("best-on-test", False, False, False)),
        ({"selection": "dev-group", "refit": True}, None, None, Rule("dev-group", False, True, True)),  # a probe
        ({"selection": "dev-group", "refit": True}, {"schedule": "linear"}, {}, Rule("dev-group", True, True, True)),
        ({"selection": "dev-group", "refit": True}, {"schedule": "linear"}, None, Rule("last", True, False, True)),
        (
            {"selection": "dev-group", "refit": True},
            {"schedule": "constant"},
            {},
            Rule("dev-group", False, True, False),
        ),
    ],
)
def test_fine_tuning_selects_by_its_schedule(train, finetune, search, rule):
    config = {"train": train, **({} if finetune is None else {"finetune": finetune})}
    result = {
        "run": {"config": config, "finetune": finetune is not None},
        **({} if search is None else {"search": search}),
    }
    assert Fold(Path("nowhere"), result).rule == rule


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({}, 400),
        ({"run.config.train.refit": False}, 300),
        ({"run.dev_group": None, "meta.num_dev_clips": 0}, 300),
        ({"metrics.selected_epoch": 3, "run.config.train.steps": None}, 300),  # the held-out group chose it
        ({"run.config.train": {"selection": "dev-group", "refit": True}}, 400),  # a closed-form probe
        ({"run.config.train": {"selection": "dev-group", "refit": False}}, 300),
    ],
)
def test_held_out_clips_count_where_the_tested_weights_have_seen_them(changes, number, tmp_path):
    layout = make_layout(tmp_path)
    rows = predictions_frame(["u", "v"], [0, 1], np.eye(4)[:2])
    write_fold(layout, Config(), "none", 1, 1, rows, changes=changes)
    (fold,) = read_folds(layout.method("none"))
    assert fold.num_fitted == number
