"""Metrics against hand computation and an independent NumPy form."""

import warnings

import numpy as np
import pytest

from daamctl.evaluation import METRICS
from daamctl.evaluation.metrics import Metric, confusion_matrix, score
from daamctl.evaluation.summary import chance, spread


def numpy_scores(targets: np.ndarray, predictions: np.ndarray, num_classes: int) -> dict[str, float]:
    """The three metrics written out from the definitions, without scikit-learn."""
    recalls, f1s = [], []
    for c in range(num_classes):
        true = int(((targets == c) & (predictions == c)).sum())
        actual, predicted = int((targets == c).sum()), int((predictions == c).sum())
        if actual:
            recalls.append(true / actual)
        if actual or predicted:
            f1s.append(2 * true / (actual + predicted))
    return {
        "accuracy": float((targets == predictions).mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        "macro_f1": float(np.mean(f1s)),
    }


def test_hand_computed():
    targets, predictions = np.array([0, 0, 0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1, 0, 2, 2])
    result = score(targets, predictions, 3)
    assert result["accuracy"] == pytest.approx(6 / 8)
    assert result["balanced_accuracy"] == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert result["macro_f1"] == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)


@pytest.mark.parametrize("seed", range(5))
def test_equals_numpy_form(seed):
    rng = np.random.default_rng(seed)
    # Seven classes and 12 items: some classes are absent from targets, predictions or both.
    targets, predictions = rng.integers(0, 7, 12), rng.integers(0, 7, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert score(targets, predictions, 7) == pytest.approx(numpy_scores(targets, predictions, 7))


def test_absent_class_is_left_out_of_recall_but_counts_in_f1():
    result = score(np.array([0, 0, 1, 1]), np.array([0, 2, 1, 1]), 4)
    assert result["balanced_accuracy"] == pytest.approx((0.5 + 1.0) / 2)
    assert result["macro_f1"] == pytest.approx((2 / 3 + 1.0 + 0.0) / 3)


def test_single_class():
    assert score(np.array([1, 1]), np.array([1, 1]), 2) == dict.fromkeys(METRICS, 1.0)


@pytest.mark.parametrize("name", list(METRICS))
def test_every_metric_of_the_table(name):
    metric = METRICS.load(name)
    assert isinstance(metric, Metric)
    assert metric.name == name
    assert metric.alias
    assert 0.0 <= metric.compute(np.array([0, 1]), np.array([1, 1]), 2) <= 1.0


def test_refuses_wrong_input():
    with pytest.raises(ValueError, match="0 targets and 0 predictions"):
        score(np.array([], dtype=int), np.array([], dtype=int), 2)
    with pytest.raises(ValueError, match="2 targets and 1 predictions"):
        score(np.array([0, 1]), np.array([0]), 2)
    with pytest.raises(ValueError, match=r"prediction class ids span 0 \.\. 2; allowed 0 \.\. 1"):
        score(np.array([0, 1]), np.array([0, 2]), 2)


def test_confusion_matrix_keeps_absent_classes():
    counts = confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


def test_spread_by_hand():
    result = spread([0.5, 0.7])
    assert result["mean"] == pytest.approx(0.6)
    assert result["population_std"] == pytest.approx(0.1)
    assert result["sample_std"] == pytest.approx(np.sqrt(0.02))
    assert spread([0.5])["sample_std"] is None
    with pytest.raises(ValueError, match="no value"):
        spread([])


def test_chance():
    result = chance(np.array([0, 1, 1, 1]), ["calm", "angry", "sad"])
    assert (result["majority_class"], result["majority_fraction"]) == ("angry", 0.75)
    assert result["uniform_fraction"] == pytest.approx(1 / 3)
    assert result["per_class"] == {"calm": 1, "angry": 3, "sad": 0}
