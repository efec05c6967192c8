"""Speeds from finished folds: which folds count, and how their seconds are scaled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.layout import Layout
from daamctl.compute.devices import resolve_device
from daamctl.config import Config
from daamctl.fit.trial import clips_of_fold, steps_of_training, trainings
from daamctl.planning.recorded import RecordedSpeeds, work_of_fold
from daamctl.store.provenance import device_name
from daamctl.store.records import write_record
from tests.fixtures.folds import make_layout, write_method

TRAIN = {"epochs": 10, "search": "none", "refit": False, "device": "cpu"}


def config(**train: Any) -> Config:
    return Config.model_validate({"methods": ["none"], "train": {**TRAIN, **train}})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return make_layout(tmp_path)


def rewrite(layout: Layout, method: str, **meta: Any) -> dict[str, Any]:
    """Change `meta` of every fold of a method; returns the last result."""
    result: dict[str, Any] = {}
    for path in sorted(layout.method(method).glob("fold*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        result["meta"].update(meta)
        write_record(path, result)
    return result


def test_speed_is_per_clip_of_every_step(layout: Layout) -> None:
    settings = config()
    write_method(layout, settings, "none")
    counts = {"num_train_clips": 40, "num_dev_clips": 100, "num_test_clips": 100}
    result = rewrite(layout, "none", train_s=120.0, device=device_name(resolve_device("cpu")), **counts)
    sizes = (len(result["run"]["layers"]), result["run"]["embed_dim"], 4)
    clips = work_of_fold("none", Config.model_validate({"train": result["run"]["config"]["train"]}), 40, 100, 100)
    rate = RecordedSpeeds(layout, settings).training("none", sizes)
    assert rate is not None
    assert rate.seconds == pytest.approx(120.0 / clips)
    assert rate.source == layout.run_name
    for other in ((sizes[0] + 1, *sizes[1:]), (sizes[0], 2 * sizes[1], 4), None):
        assert RecordedSpeeds(layout, settings).training("none", other) is None  # other sizes take another time
    rewrite(layout, "none", device="cuda (another machine)")
    assert RecordedSpeeds(layout, settings).training("none", sizes) is None


def test_nothing_is_recorded_before_the_first_fold(layout: Layout) -> None:
    assert RecordedSpeeds(layout, config()).training("none", (24, 64, 4)) is None
    assert RecordedSpeeds(layout, config()).extraction() is None


@pytest.mark.parametrize(
    ("method", "train", "number", "steps", "clips"),
    [
        ("none", {"steps": None}, 1, 10 * 13, 10 * 100),
        ("none", {"steps": 30, "schedule": "cosine"}, 1, 30, 30 * 8),
        ("none", {"steps": 30, "schedule": "cosine", "passes": 2}, 1, 32, 32 * 8),  # twice 125 clips
        ("none", {"steps": 30, "schedule": "cosine", "refit": True}, 2, 30, 2 * 30 * 8),
        ("none", {"steps": 30, "schedule": "cosine", "search": "grid", "search_lr": [1e-3, 3e-3]}, 2, 30, 2 * 30 * 8),
        ("ridge-mean", {}, 1, 1, 100),
        ("lora-r4", {}, 1, 7 * 13, 700),
        ("lora-r4", {"refit": True}, 2, 7 * 13, 7 * (100 + 125)),  # the refit has the held-out clips, too
    ],
)
def test_what_a_fold_takes(method: str, train: dict[str, Any], number: int, steps: int, clips: int) -> None:
    own = {"passes": 0, "epochs": 10, "batch_size": 8, "search": "none", "refit": False, "schedule": "constant"}
    settings = Config.model_validate({"train": {**own, **train}, "finetune": {"epochs": 7, "search": "none"}})
    assert trainings(method, settings) == number
    assert steps_of_training(method, settings, 100, 25) == steps
    assert clips_of_fold(method, settings, 100, 25) == clips


@pytest.mark.parametrize(
    ("method", "train", "predicted"),
    [
        ("none", {}, 10 * (25 + 35)),
        ("none", {"steps": 7}, 7 * (25 + 35)),  # a record after every step
        ("none", {"refit": True}, 10 * (25 + 35)),  # one is held out from, the other is tested
        ("none", {"search": "grid", "search_lr": [1e-3, 3e-3]}, 10 * 2 * (25 + 35)),
        ("none", {"search": "grid", "search_lr": [1e-3, 3e-3], "refit": True}, 10 * (2 * 25 + 35)),
        ("none", {"steps": None, "schedule": "constant"}, 0),
        ("ridge-mean", {}, 0),
        ("lora-r4", {}, 0),
    ],
)
def test_predictions_count_as_a_third_of_a_step(method: str, train: dict[str, Any], predicted: int) -> None:
    own = {"steps": 30, "passes": 0, "batch_size": 8, "search": "none", "refit": False, "schedule": "cosine"}
    settings = Config.model_validate({"train": {**own, **train}, "finetune": {"epochs": 7, "search": "none"}})
    assert work_of_fold(method, settings, 100, 25, 35) == clips_of_fold(method, settings, 100, 25) + predicted // 3
