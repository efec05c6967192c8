"""Figures of the report: what they show, in percent, and that both forms of them can be drawn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from daamctl.reporting import figures
from daamctl.reporting.fairness import SearchCurve
from daamctl.reporting.figure_interactive import to_data
from daamctl.reporting.figure_layers import LayerRun, MethodMaps
from daamctl.reporting.figure_spec import Figure, Line, Rule
from tests.reporting.test_figure_static import size_of

CURVE = {"at": [1, 2, 3, 4], "mean": [0.2, 0.5, None, 0.6], "low": [0.1] * 4, "high": [0.9] * 4}


def check(figure: Figure) -> tuple[int, int]:
    """Draw both forms. Returns the size of the first picture."""
    json.dumps(to_data(figure), allow_nan=False)
    plot = figures.drawn(figure)
    assert all(picture.vector is not None for picture in plot.pictures)
    return size_of(plot.pictures[0].data)


def marks(figure: Figure) -> dict[str, Any]:
    """Marks of the first panel by name."""
    panel = next(iter(figure.views.values()))[0]
    return {mark.name: mark for mark in panel.marks if isinstance(mark, Line | Rule)}


def test_accuracy() -> None:
    methods = {"none": [(0.5, "fold 1"), (0.6, "fold 2")], "mha": [(0.7, "fold 1")]}
    figure = figures.accuracy(methods, 0.3, "Accuracy per clip", "alt")
    check(figure)
    found = marks(figure)
    assert found["One run"].x == pytest.approx([50, 60, 70])
    assert found["One run"].y == [0, 0, 1]
    assert found["One run"].notes == ["fold 1", "fold 2", "fold 1"]
    assert found["Mean"].x == pytest.approx([55, 70])
    assert found["Most frequent class"].at == pytest.approx(30)


@pytest.mark.parametrize("number", [2, 10, 30])
def test_speakers_may_be_unknown(number: int) -> None:
    names = [f"S{index}" for index in range(number)]
    methods = {"none": dict.fromkeys(names, 0.5), "mha": {names[0]: 0.7}, "empty": {}}
    figure = figures.speakers(methods, names, 0.3, label="Accuracy", who="author", alt="alt")
    check(figure)
    found = marks(figure)
    assert list(found)[:2] == ["author S0", "author S1"]
    assert found["author S1"].x[0] == 50
    assert np.isnan(found["author S1"].x[1:]).all()
    assert found["Mean of authors"].x == pytest.approx([50, 70, np.nan], nan_ok=True)
    assert (found["author S0"].legend is None) == (number <= 12)
    assert len({(line.colour, line.dash, line.marker) for line in found.values() if isinstance(line, Line)}) > 1


@pytest.mark.parametrize("number", [1, 6])
def test_gaps_and_searches(number: int) -> None:
    names = [f"m{index} (undertrained)" for index in range(number)]
    gaps = {name: [-0.1, 0.02][: index + 1] for index, name in enumerate(names)}
    figure = figures.gaps(gaps, dict.fromkeys(names, "ridge-mean"), 0.02, "Accuracy", "alt")
    check(figure)
    found = marks(figure)
    assert found["Mean"].x[0] == pytest.approx(-10)
    assert found["Not trained well below"].at == pytest.approx(-2)
    assert found["Fold"].notes[0] == "to ridge-mean"
    candidates = [
        SearchCurve("lr 0.001", [0.5, 0.6, 0.7, 0.8], 3, 5), SearchCurve("lr 0.01", [0.4], 2, 5),
        SearchCurve("lr 0.1", [0.3, 0.2], 0, 5),
    ]  # fmt: skip
    figure = figures.searches(dict.fromkeys(names, candidates), "text", "alt")
    check(figure)
    found = marks(figure)
    assert list(found) == ["lr 0.001 (chosen in 3 of 5)", "lr 0.01 (chosen in 2 of 5)", "lr 0.1"]
    assert [line.legend for line in found.values()] == ["Chosen most often", "Chosen in some runs", "Not chosen"]
    assert list(found["lr 0.1"].y) == pytest.approx([30, 20])


@pytest.mark.parametrize("number", [1, 5])
def test_learning_and_confusion(number: int) -> None:
    names = [f"method-{index} (reconstructed)" for index in range(number)]
    figure = figures.learning(
        {name: {"Training": CURVE, "Test group": CURVE} for name in names}, 0.3, "clip", "epoch", "alt"
    )
    check(figure)
    test = marks(figure)["Test group"]
    assert test.y == pytest.approx([20, 50, np.nan, 60], nan_ok=True)
    assert (test.band[0][0], test.band[1][0]) == pytest.approx((10, 90))
    assert list(figure.views) == [(name,) for name in names]
    counts = np.array([[3, 1, 0, 0], [0, 4, 0, 0], [1, 1, 2, 0], [0, 0, 0, 0]])
    figure = figures.confusion(dict.fromkeys(names, counts), ["neutral", "happy", "angry", "sad"], "alt")
    check(figure)
    assert figure.views[names[0],][0].marks[0].counts is counts


def test_a_hundred_classes_are_few_to_a_picture() -> None:
    classes = [f"class-{index}" for index in range(100)]
    figure = figures.confusion(dict.fromkeys("abcde", np.eye(100, dtype=int)), classes, "alt")
    assert (figure.per_picture, figure.columns) == (4, 2)
    assert figure.small[0] >= 3.9


def test_every_method_has_its_own_file() -> None:
    figure = figures.confusion({"MHA (reconstructed)": np.eye(2, dtype=int)}, ["a", "b"], "alt")
    (picture,) = figures.per_method(figure, {"MHA (reconstructed)": "mha"}, "Confusion matrix")
    assert (picture.name, picture.vector) == ("mha-confusion.png", None)
    assert picture.alt == "Confusion matrix of MHA (reconstructed)."
    assert min(size_of(picture.data)) > 200


def layer_run(name: str, seed: int, shape: tuple[int, int] = (6, 8)) -> LayerRun:
    rng = np.random.default_rng(seed)
    shares = np.full(shape[0], 100 / shape[0])
    return LayerRun(name, rng.random(shape), rng.random(shape), shares, shares + 0.04)


def test_importance(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = [1, 2, 3, 4, 5, 6]
    runs = [layer_run(name, seed) for seed, name in enumerate(("mean of 2 runs", "fold 1", "fold 2"))]
    methods = {"a": MethodMaps(layers, runs), "b": MethodMaps(layers, runs[:1])}
    figure = figures.importance(methods, "alt")
    check(figure)
    assert list(figure.views)[:4] == [
        ("a", "mean of 2 runs", "trained"), ("a", "mean of 2 runs", "untrained"), ("a", "mean of 2 runs", "difference"),
        ("a", "fold 1", "trained"),
    ]  # fmt: skip
    trained, untrained, change = list(figure.views.values())[:3]
    assert change[0].marks[0].values is trained[0].marks[0].values
    assert change[0].marks[0].minus is untrained[0].marks[0].values
    assert change[1].marks[0].x == pytest.approx([-0.04] * 6)
    assert [len(panels) for panels in figure.printed.values()] == [3, 3]
    assert len(to_data(figure)["maps"]) == 6  # trained, untrained of three runs; method b repeats the first
    monkeypatch.setattr(figures, "MAX_MAP_BYTES", 8 * 48)
    assert {run for _, run, _ in figures.importance(methods, "alt").views} == {"mean of 2 runs"}
