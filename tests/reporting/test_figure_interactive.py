"""What is sent to the page: small, exact to half a byte's step, and JSON."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from daamctl.reporting.figure_interactive import SCRIPT, to_data
from daamctl.reporting.figure_spec import Axis, Confusion, Figure, HeatMap, Line, Panel, Rule, rows


def map_figure(*maps: np.ndarray, minus: np.ndarray | None = None) -> Figure:
    views = {}
    for number, values in enumerate(maps):
        names = [str(layer) for layer in range(1, len(values) + 1)]
        panel = Panel("", Axis("Feature"), Axis("Layer", names=names), [HeatMap(values, "Importance Factor", minus)])
        views[str(number),] = [panel]
    return Figure("importance", "Maps.", views, ("Run",))


def marks_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [mark for view in data["views"] for panel in view["panels"] for mark in panel["marks"]]


def decode(data: dict[str, Any], index: int, num_layers: int) -> np.ndarray:
    cells = np.frombuffer(base64.b64decode(data["maps"][index]), dtype=np.uint8)
    return cells.reshape(num_layers, -1) / 255


def test_maps_come_back_within_half_a_step() -> None:
    values = np.random.default_rng(0).random((24, 1024))
    data = to_data(map_figure(values))
    (mark,) = marks_of(data)
    assert (mark["kind"], mark["rows"], mark["step"], mark["minus"]) == ("map", 24, 1, None)
    assert np.abs(decode(data, mark["values"], 24) - values).max() <= 0.5 / 255 + 1e-12
    assert all(len(text) < 50_000 for text in data["maps"])
    assert json.loads(json.dumps(data)) is not None


def test_wide_maps_are_averaged_over_neighbours() -> None:
    values = np.random.default_rng(1).random((40, 5120))
    data = to_data(map_figure(values))
    (mark,) = marks_of(data)
    assert mark["step"] == 7  # 40 * 5120 / 7 is the first number of cells that is not above 32,768
    found = decode(data, mark["values"], 40)
    edges = np.arange(0, 5120, 7)
    means = np.stack([values[:, start : start + 7].mean(axis=1) for start in edges], axis=1)
    assert found.shape == means.shape
    assert np.abs(found - means).max() <= 0.5 / 255 + 1e-12


def test_equal_maps_are_sent_once() -> None:
    first, second = np.random.default_rng(2).random((2, 6, 8))
    data = to_data(map_figure(first, second, second, minus=first))
    assert [(mark["values"], mark["minus"]) for mark in marks_of(data)] == [(0, 0), (1, 0), (1, 0)]
    assert len(data["maps"]) == 2


def test_lines_are_rounded_and_unknown_values_are_null() -> None:
    line = Line([1, 2], np.array([100 / 3, np.nan]), "Test", band=([10, float("nan")], [90, 100]), notes=["a", "b"])
    panel = Panel("none", Axis("Epoch", whole=True), Axis("Accuracy", "%"), [line, Rule(25.0, "Chance")], (2, 1))
    data = to_data(Figure("learning", "All.", {("none",): [panel]}, ("Method",)))
    assert json.loads(json.dumps(data, allow_nan=False))["views"][0]["chosen"] == ["none"]
    drawn, rule = marks_of(data)
    assert (drawn["kind"], drawn["y"], drawn["band"]) == ("line", [33.3333, None], [[10.0, None], [90.0, 100.0]])
    assert (rule["kind"], rule["at"], rule["vertical"]) == ("rule", 25.0, False)
    assert data["views"][0]["panels"][0]["y"]["title"] == "Accuracy (%)"


def test_confusion_matrices_are_counts_and_no_larger_than_a_screen() -> None:
    names = [f"class {number}" for number in range(30)]
    panel = Panel("", Axis(names=names), rows(names), [Confusion(np.eye(30, dtype=int))], (12.0, 12.0))
    data = to_data(Figure("confusion", "All.", {(): [panel]}))
    (mark,) = marks_of(data)
    assert (mark["counts"][1][1], mark["counts"][1][2], mark["many"]) == (1, 0, True)
    assert data["views"][0]["panels"][0]["size"][1] < 7
    assert json.loads(json.dumps(data)) is not None


def test_the_script_draws_every_kind_of_mark() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert all(f'"{mark.kind}"' in text for mark in (Line, HeatMap, Confusion))
    assert "</script" not in text
