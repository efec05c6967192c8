"""Pictures: they exist at every size, and drawing warns of nothing."""

import struct
import warnings

import numpy as np
import pytest

from daamctl.analysis.plots import (
    confusion_picture,
    fold_dots,
    importance_heatmap,
    layer_band,
    layer_bars,
    learning_curves,
    replacement_panels,
)


def size_of(picture: bytes) -> tuple[int, int]:
    """Width and height from the PNG's own header."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


@pytest.fixture(autouse=True)
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("shape", [(1, 8), (24, 1024), (40, 5120)])
@pytest.mark.parametrize("beside", [True, False])
def test_importance_pictures(shape, beside):
    values = np.random.default_rng(0).random(shape)
    layers = list(range(1, shape[0] + 1))
    heatmap = importance_heatmap(values, values if beside else None, layers, title="daam-v1", dpi=60)
    shares = 100 * values.sum(axis=1) / values.sum()
    bars = layer_bars(shares, shares if beside else None, layers, title="daam-v1", dpi=60)
    assert min(size_of(heatmap)) > 100
    assert min(size_of(bars)) > 100


def test_same_input_gives_same_bytes():
    values = np.random.default_rng(0).random((3, 8))
    pictures = {importance_heatmap(values, values, [1, 2, 3], title="x", dpi=50) for _ in range(2)}
    assert len(pictures) == 1


def test_dpi_sets_the_size():
    small, large = (layer_bars(np.ones(3), None, [1, 2, 3], title="x", dpi=dpi) for dpi in (50, 100))
    assert size_of(large)[0] == 2 * size_of(small)[0]


@pytest.mark.parametrize("shape", [(1, 1), (5, 24), (10, 40)])
@pytest.mark.parametrize("beside", [True, False])
def test_layer_band(shape, beside):
    values = np.random.default_rng(0).random(shape)
    picture = layer_band(values, values / 2 if beside else None, range(1, shape[1] + 1), title="x", label="y", dpi=60)
    assert min(size_of(picture)) > 100


@pytest.mark.parametrize("counts", [[0, 1], [0, 1, 2, 4, 8, 16, 24]])
@pytest.mark.parametrize("beside", [True, False])
def test_replacement_panels(counts, beside):
    others = np.random.default_rng(0).random((19, len(counts)))
    panel = (others[0], others, others[1] if beside else None)
    picture = replacement_panels({"Layers replaced": panel, "Layers put back": panel}, counts, title="x", dpi=60)
    assert size_of(picture)[0] > 1.5 * size_of(picture)[1]


@pytest.mark.parametrize("epochs", [1, 35])
def test_learning_curves(epochs):
    values = np.linspace(0.2, 0.9, 2 * epochs).reshape(2, epochs)
    curves = {"Training": (list(range(1, epochs + 1)), values), "Test group": (list(range(1, epochs + 1)), values / 2)}
    assert min(size_of(learning_curves(curves, title="none", chance=0.3))) > 100


@pytest.mark.parametrize("num_classes", [2, 4, 30])
def test_confusion_picture(num_classes):
    counts = np.eye(num_classes, dtype=int)
    counts[0] = 0  # a class without a single test item
    names = [f"class {number}" for number in range(num_classes)]
    assert min(size_of(confusion_picture(counts, names, title="none", dpi=60))) > 100


def test_fold_dots():
    assert min(size_of(fold_dots({"none": [0.5, 0.6], "mha": [0.7]}, label="Accuracy per clip", chance=0.3))) > 100
