"""What travels in the page for figures to be explored: small, exact to a byte's step, and JSON."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from daamctl.reporting import plots
from daamctl.reporting.plots import (
    DensityRun,
    confusion_data,
    explorer_data,
    gap_data,
    learning_data,
    search_data,
    speaker_data,
)


def density_run(name: str, shape: tuple[int, int], seed: int) -> DensityRun:
    rng = np.random.default_rng(seed)
    shares = np.full(shape[0], 100 / shape[0])
    return DensityRun(name, rng.random(shape), rng.random(shape), shares, shares + 0.00004)


def decode(data: dict[str, object], index: int, layers: int) -> np.ndarray:
    cells = np.frombuffer(base64.b64decode(data["maps"][index]), dtype=np.uint8)  # type: ignore[index]
    return cells.reshape(layers, -1) / 255


def test_maps_come_back_within_half_a_step() -> None:
    run = density_run("mean", (24, 1024), 0)
    data = explorer_data({"daam-v1": (list(range(1, 25)), [run])})
    entry = data["methods"]["daam-v1"]
    assert (entry["layers"][0], entry["layers"][-1], entry["features"], entry["width"]) == ("1", "24", 1024, 1)
    for values, index in zip((run.trained, run.untrained), entry["runs"][0]["maps"], strict=True):
        assert np.abs(decode(data, index, 24) - values).max() <= 0.5 / 255 + 1e-12
    assert all(len(text) < 50_000 for text in data["maps"])
    assert json.loads(json.dumps(data)) == data


def test_wide_maps_are_averaged_over_neighbours() -> None:
    run = density_run("mean", (40, 5120), 1)
    data = explorer_data({"daam-v1": (list(range(1, 41)), [run])})
    width = data["methods"]["daam-v1"]["width"]
    assert width == 7  # 40 * 5120 / 7 cells are the first to be no more than 32,768
    found = decode(data, data["methods"]["daam-v1"]["runs"][0]["maps"][0], 40)
    edges = np.arange(0, 5120, width)
    means = np.stack([run.trained[:, start : start + width].mean(axis=1) for start in edges], axis=1)
    assert found.shape == means.shape
    assert np.abs(found - means).max() <= 0.5 / 255 + 1e-12


def test_equal_maps_travel_once() -> None:
    run = density_run("mean", (6, 8), 2)
    frozen = DensityRun("mean", run.untrained, run.untrained, run.share, run.share)
    data = explorer_data({"daam-v1": ([1, 2, 3, 4, 5, 6], [run]), "daam-frozen": ([1, 2, 3, 4, 5, 6], [frozen])})
    assert len(data["maps"]) == 2
    assert data["methods"]["daam-frozen"]["runs"][0]["maps"] == [1, 1]


def test_single_folds_stay_behind_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [density_run(name, (6, 8), seed) for seed, name in enumerate(("mean", "fold 1", "fold 2"))]
    methods = {"daam-v1": ([1, 2, 3, 4, 5, 6], runs)}
    assert [run["name"] for run in explorer_data(methods)["methods"]["daam-v1"]["runs"]] == ["mean", "fold 1", "fold 2"]
    monkeypatch.setattr(plots, "MAX_MAPS_BYTES", 6 * 64 - 1)  # 48 cells are 64 signs of base64
    data = explorer_data(methods)
    assert [run["name"] for run in data["methods"]["daam-v1"]["runs"]] == ["mean"]
    assert len(data["maps"]) == 2


def test_what_is_not_known_is_null() -> None:
    found = {"none": {"A": 0.5}, "mha": {"A": 0.25, "B": 1 / 3}}
    data = speaker_data(found, ["A", "B"], 0.3, unit="text", source="author")
    assert (data["unit"], data["source"]) == ("text", "author")
    assert data["values"] == [[50.0, 25.0], [None, 33.333]]
    curve = {"epochs": [1, 2], "mean": [0.5, None], "low": [0.1, float("nan")], "high": [0.9, 1.0]}
    learned = learning_data({"none": {"Test group": curve}}, 0.25, unit="text")
    assert learned["methods"]["none"]["Test group"]["low"] == [10.0, None]
    assert learned["chance"] == 25.0
    counts = confusion_data({"none": [[1, 2], [3, 4]]}, ["a", "b"])
    assert json.loads(json.dumps(counts))["methods"]["none"] == [[1, 2], [3, 4]]


def test_gaps_and_searches_are_in_percent() -> None:
    assert gap_data({"mha": [-0.1, 0.02]}, {"mha": "ridge-mean"}, 0.02) == {
        "methods": {"mha": {"values": [-10.0, 2.0], "probe": "ridge-mean", "mean": -4.0}}, "margin": 2.0,
    }  # fmt: skip
    assert search_data({"mha": [("lr 0.001", [0.5, 0.625], 3, 5)]}, unit="text") == {
        "methods": {"mha": [{"name": "lr 0.001", "values": [50.0, 62.5], "chosen": 3, "runs": 5}]}, "unit": "text",
    }  # fmt: skip
