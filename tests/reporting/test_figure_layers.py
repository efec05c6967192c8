"""Panels of layer scores: drawn at every size without a warning."""

import warnings

import numpy as np
import pytest

from daamctl.reporting import figure_static as static
from daamctl.reporting.figure_layers import (
    contribution,
    contribution_change,
    importance_map,
    replaced_layers,
    score_over_runs,
)
from tests.reporting.test_figure_static import size_of


@pytest.fixture(autouse=True)
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("shape", [(1, 8), (24, 1024), (40, 5120)])
def test_maps_and_contributions(shape):
    values = np.random.default_rng(0).random(shape)
    layers = list(range(1, shape[0] + 1))
    maps = [importance_map(values, layers, "Trained"), importance_map(values, layers, "Change", minus=values / 2)]
    shares = 100 * values.sum(axis=1) / values.sum()
    width, height = size_of(static.png([*maps, contribution(shares, shares, layers)], title="daam-v1", dpi=60))
    assert width > 1.3 * height > 130
    assert min(size_of(static.png([contribution_change(shares, shares, layers)], dpi=60))) > 100


def test_layers_of_a_map_and_of_its_contributions_are_level():
    values = np.ones((3, 8))
    shares = np.full(3, 100 / 3)
    left, right = importance_map(values, [2, 4, 6], "map"), contribution(shares, shares, [2, 4, 6])
    assert left.y == right.y
    assert (left.y.names, left.y.reverse, left.size[1]) == (["2", "4", "6"], False, right.size[1])
    uniform = right.marks[-1]
    assert (uniform.at, uniform.vertical) == (pytest.approx(100 / 3), True)


@pytest.mark.parametrize("shape", [(1, 1), (5, 24), (10, 40)])
def test_score_over_runs(shape):
    values = np.random.default_rng(0).random(shape)
    panel = score_over_runs(values, values / 2, range(1, shape[1] + 1), "Layer weight")
    assert min(size_of(static.png([panel], title="x", dpi=60))) > 100
    trained, untrained = panel.marks
    assert trained.y == pytest.approx(values.mean(axis=0))
    assert untrained.y == pytest.approx(values.mean(axis=0) / 2)
    if shape[0] == 1:
        assert trained.band is None
    else:
        assert trained.band[0] == pytest.approx(values.min(axis=0))
        assert trained.band[1] == pytest.approx(values.max(axis=0))


@pytest.mark.parametrize("counts", [[0, 1], [0, 1, 2, 4, 8, 16, 24]])
@pytest.mark.parametrize("beside", [True, False])
def test_replaced_layers(counts, beside):
    others = np.random.default_rng(0).random((19, len(counts)))
    curves = (others[0], others, others[1] if beside else None)
    panels = replaced_layers({"Layers replaced": curves, "Layers put back": curves}, counts, "clip")
    width, height = size_of(static.png(panels, title="x", dpi=60))
    assert width > 1.5 * height
    assert panels[0].y == panels[1].y
    names = [mark.name for mark in panels[0].marks]
    assert names == ["Random orders, mean", *["Order of the untrained score"] * beside, "Order of the score"]
    assert panels[0].marks[-1].y == pytest.approx(100 * others[0])
