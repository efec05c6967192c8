"""Metrics against hand computation, an independent NumPy form, and scikit-learn."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from daamctl.artifacts.scores import recalls
from daamctl.data import METRICS
from daamctl.data.metrics import Metric, confusion_matrix
from daamctl.data.task import task_of


def scored(targets, predictions=None, probabilities=None, *, classes=4):
    """Items; without probabilities, nearly certain of the prediction, without predictions, the most probable class."""
    targets = np.asarray(targets, dtype=int)
    if probabilities is None:
        predictions = np.asarray(predictions, dtype=int)
        probabilities = np.full((len(predictions), classes), 0.01 / (classes - 1))
        probabilities[np.arange(len(predictions)), predictions] = 0.99
    probabilities = np.asarray(probabilities, dtype=np.float64)
    predictions = probabilities.argmax(axis=1) if predictions is None else predictions
    return SimpleNamespace(targets=targets, predictions=predictions, probabilities=probabilities)


def score(items):
    """As a task scores items of as many classes as there are probabilities."""
    return task_of("speech", list(map(str, range(items.probabilities.shape[1])))).score(items)


def numpy_scores(items) -> dict[str, float]:
    """All metrics written out from their definitions, without scikit-learn."""
    targets, predictions, probabilities = items.targets, items.predictions, items.probabilities
    recalls, f1s, sizes = [], [], []
    for c in range(probabilities.shape[1]):
        true = int(((targets == c) & (predictions == c)).sum())
        actual, predicted = int((targets == c).sum()), int((predictions == c).sum())
        if actual:
            recalls.append(true / actual)
        if actual or predicted:
            f1s.append(2 * true / (actual + predicted))
            sizes.append(actual)
    gap = 0.0
    for b in range(1, 16):
        top = probabilities.max(axis=1)
        inside = (top > (b - 1) / 15) & (top <= b / 15)
        if inside.any():
            gap += inside.mean() * abs((targets == predictions)[inside].mean() - top[inside].mean())
    return {
        "accuracy": float((targets == predictions).mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        "macro_f1": float(np.mean(f1s)),
        "weighted_f1": float(np.dot(f1s, sizes) / len(targets)),
        "log_loss": float(-np.mean(np.log(probabilities[np.arange(len(targets)), targets]))),
        "ece": gap,
    }


@pytest.mark.parametrize("classes", [2, 4, 100])  # with 100, most folds lack some
@pytest.mark.parametrize("dtype", [np.int8, np.int64])
def test_metrics_are_those_of_scikit_learn(classes, dtype):
    from sklearn import metrics

    rng = np.random.default_rng(classes)
    for number in (1, 7, 150):
        probabilities = rng.dirichlet(np.full(classes, 0.2), number)
        targets = rng.integers(0, classes, number).astype(dtype)
        predictions = probabilities.argmax(1).astype(dtype)
        items = SimpleNamespace(targets=targets, predictions=predictions, probabilities=probabilities)
        pair, found = (targets, predictions), score(items)
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(*pair), abs=1e-12)
        recall = metrics.recall_score(*pair, labels=np.unique(targets), average="macro", zero_division=0.0)
        assert found["balanced_accuracy"] == pytest.approx(recall, abs=1e-12)
        macro = metrics.f1_score(*pair, labels=np.union1d(*pair), average="macro", zero_division=0.0)
        assert found["macro_f1"] == pytest.approx(macro, abs=1e-12)
        weighted = metrics.f1_score(*pair, labels=np.unique(targets), average="weighted", zero_division=0.0)
        assert found["weighted_f1"] == pytest.approx(weighted, abs=1e-12)
        loss = metrics.log_loss(targets, probabilities, labels=np.arange(classes))
        assert found["log_loss"] == pytest.approx(loss, rel=1e-9)
        expected = metrics.confusion_matrix(*pair, labels=np.arange(classes))
        np.testing.assert_array_equal(confusion_matrix(*pair, classes), expected)


def test_the_table_is_in_report_order_with_directions():
    directions = {name: (METRICS.load(name).higher_is_better, METRICS.load(name).unit) for name in METRICS}
    assert list(directions.items()) == [
        ("accuracy", (True, "fraction")),
        ("balanced_accuracy", (True, "fraction")),
        ("macro_f1", (True, "fraction")),
        ("weighted_f1", (True, "fraction")),
        ("log_loss", (False, "nats")),
        ("ece", (False, "fraction")),
    ]


@pytest.mark.parametrize("name", list(METRICS))
def test_a_better_answer_scores_better(name):
    metric = METRICS.load(name)
    assert isinstance(metric, Metric)
    assert metric.name == name
    assert metric.alias
    good, bad = (metric.compute(scored([0, 1, 2], predictions)) for predictions in ([0, 1, 2], [1, 1, 2]))
    assert (good > bad) == metric.higher_is_better


def test_hand_computed():
    result = score(scored([0, 0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 0, 2, 2], classes=3))
    assert result["accuracy"] == pytest.approx(6 / 8)
    assert result["balanced_accuracy"] == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert result["macro_f1"] == pytest.approx((3 / 4 + 1 / 2 + 1) / 3)
    assert result["weighted_f1"] == pytest.approx((4 * 3 / 4 + 2 * 1 / 2 + 2 * 1) / 8)
    assert result["log_loss"] == pytest.approx(-(6 * np.log(0.99) + 2 * np.log(0.005)) / 8)
    assert result["ece"] == pytest.approx(abs(6 / 8 - 0.99))


def test_calibration_error_by_hand():
    """Bin (14/15, 1] holds .95 (right) and .95 (wrong); bin (8/15, 9/15] holds .55 (right) and .6, its edge (wrong)."""
    probabilities = [[0.95, 0.05], [0.95, 0.05], [0.55, 0.45], [0.6, 0.4]]
    result = score(scored([0, 1, 0, 1], probabilities=probabilities))
    assert result["ece"] == pytest.approx(2 / 4 * (0.95 - 1 / 2) + 2 / 4 * (0.575 - 1 / 2))


def test_perfect_calibration_has_no_error():
    probabilities = np.tile([0.75, 0.25], (8, 1))
    assert score(scored([0, 0, 0, 1, 0, 0, 0, 1], probabilities=probabilities))["ece"] == pytest.approx(0.0)


@pytest.mark.parametrize("seed", range(5))
def test_equals_numpy_form(seed):
    rng = np.random.default_rng(seed)
    # Seven classes and 12 items: some classes are absent from targets, predictions or both.
    items = scored(rng.integers(0, 7, 12), probabilities=rng.dirichlet(np.ones(7) / 3, 12) * 0.999 + 0.001 / 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = score(items)
    assert result == pytest.approx(numpy_scores(items))
    assert all(0.0 <= value <= 1.0 for name, value in result.items() if METRICS.load(name).unit == "fraction")


def test_absent_class_is_left_out_of_recall_but_counts_in_f1():
    result = score(scored([0, 0, 1, 1], [0, 2, 1, 1]))
    assert result["balanced_accuracy"] == pytest.approx((0.5 + 1.0) / 2)
    assert result["macro_f1"] == pytest.approx((2 / 3 + 1.0 + 0.0) / 3)
    assert result["weighted_f1"] == pytest.approx((2 / 3 + 1.0) / 2)


def test_one_certain_wrong_answer_leaves_the_log_loss_finite():
    result = score(scored([0, 1], probabilities=[[1.0, 0.0], [1.0, 0.0]]))
    assert result["log_loss"] == pytest.approx(-np.log(np.finfo(float).eps) / 2)


def test_single_class():
    result = score(scored([1, 1], [1, 1]))
    assert [result[name] for name in ("accuracy", "balanced_accuracy", "macro_f1", "weighted_f1")] == [1.0] * 4


def test_recall_of_each_class():
    counts = confusion_matrix(np.array([0, 0, 0, 1, 3]), np.array([0, 0, 1, 0, 3]), 5)
    assert recalls(counts) == [pytest.approx(2 / 3), 0.0, None, 1.0, None]


@pytest.mark.usefixtures("unchecked_shapes")
def test_refuses_wrong_input():
    with pytest.raises(ValueError, match="0 targets and 0 predictions"):
        score(scored([], [], classes=2))
    with pytest.raises(ValueError, match=r"probabilities have shape \(1, 2\); need \(2, 2\)"):
        score(scored([0, 1], [0], classes=2))
    with pytest.raises(ValueError, match=r"target class ids span 0 \.\. 2; allowed 0 \.\. 1"):
        score(scored([0, 2], [0, 1], classes=2))
    with pytest.raises(ValueError, match="2 targets and 1 predictions"):
        confusion_matrix(np.array([0, 1]), np.array([0]), 2)
    with pytest.raises(ValueError, match=r"prediction class ids span 0 \.\. 2; allowed 0 \.\. 1"):
        confusion_matrix(np.array([0, 1]), np.array([0, 2]), 2)


@pytest.mark.parametrize(("row", "told"), [([0.5, 0.4], "0.9"), ([np.nan, 0.4], "nan"), ([2.0, 3.0], "5")])
def test_refuses_what_is_no_probability(row, told):
    with pytest.raises(ValueError, match=f"probabilities of item 1 sum to {told}; need 1"):
        score(scored([0, 1], probabilities=[[0.3, 0.7], row]))


def test_confusion_matrix_keeps_absent_classes():
    counts = confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]
