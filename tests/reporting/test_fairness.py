"""Search curves of several runs as one: candidates that some runs lack, and epochs that some were not trained for."""

from __future__ import annotations

from typing import Any

import pytest

from daamctl.reporting.fairness import search_curves


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
