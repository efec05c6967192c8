"""Search curves of several runs as one: candidates that some runs lack, and epochs that some were not trained for."""

from __future__ import annotations

from typing import Any

import pytest

from daamctl.reporting.document import Plot
from daamctl.reporting.fairness import fairness, search_curves
from daamctl.reporting.verdict import labelled
from tests.fixtures.compared import evaluation
from tests.fixtures.records import parsed


def search(curves: dict[float, list[float]], chosen: int) -> Any:
    candidates = [
        {"settings": {"lr": rate, "standardize": "layer"}, "dev_accuracy": part, "dev_loss": [], "added": False}
        for rate, part in curves.items()
    ]
    return {"epochs": 2, "candidates": candidates, "chosen": chosen, "edges": []}


def test_curves_are_means_over_the_runs_that_have_them() -> None:
    runs = [search({0.01: [0.2], 0.001: [0.4, 0.6]}, 1), search({0.001: [0.6, 0.8, 0.9], 0.1: [0.1]}, 0)]
    found = search_curves(runs)
    assert [one.name for one in found] == [f"lr {rate}, standardize layer" for rate in ("0.001", "0.01", "0.1")]
    assert found[0].accuracy == pytest.approx([0.5, 0.7, 0.9])
    assert [(one.chosen, one.runs) for one in found] == [(2, 2), (0, 2), (0, 2)]
    assert search_curves([]) == []


@pytest.mark.usefixtures("blank_pictures")
def test_a_probe_at_chance_has_no_search_curves() -> None:
    found = labelled(
        parsed(evaluation({"mean": 0.6, "ridge-last": 0.4}, "mean", status={"ridge-last": "learned nothing"}))
    )
    searches = {name: [search({0.01: [0.2], 0.001: [0.4]}, 1)] for name in found.methods}
    figures = [one.figure for one in fairness(found, searches).blocks if isinstance(one, Plot)]
    assert [list(one.views) for one in figures] == [[("mean",)]]
