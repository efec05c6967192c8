"""The metrics, per-class recall and the confusion matrix.

All values are fractions in [0, 1], except the log loss, which is in nats. Most follow from the confusion matrix. The
tests compare them with scikit-learn, which takes eighty times as long for a fold, and seconds to load. A new metric is
one `Metric` object in this or another file, one line in `daamctl.data.METRICS`, and its name in a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

ClassIds = NDArray[np.integer[Any]]
Probabilities = NDArray[np.float64]

ECE_BINS = 15


class ScoredItems(Protocol):
    """Input of a metric, N items, e.g. `daamctl.evaluation.scoring.Items`; here of C classes."""

    @property
    def targets(self) -> ClassIds:
        """True class ids, shape (N,)."""

    @property
    def predictions(self) -> ClassIds:
        """Predicted class ids, shape (N,)."""

    @property
    def probabilities(self) -> Probabilities:
        """Predicted probabilities, shape (N, C); rows sum to 1."""


@dataclass(frozen=True)
class Metric:
    """A score computed from true and predicted answers, and of classes from predicted probabilities.

    Args:
        higher_is_better: direction.
        unit: "fraction" (in [0, 1], shown in percent) or "nats".
        compute: items -> value; called by `Task.score`, which checks the items first.
    """

    name: str
    alias: str
    higher_is_better: bool
    unit: Literal["fraction", "nats"]
    compute: Callable[[ScoredItems], float]


def _accuracy(items: ScoredItems) -> float:
    """Share of items predicted correctly; all items have equal weights."""
    return float((items.targets == items.predictions).mean())


def _balanced_accuracy(items: ScoredItems) -> float:
    """Mean of the recalls of the classes present in the targets.

    A class without a target has no recall. It is skipped rather than counted as zero, so that a fold without that class
    remains comparable. Predictions of such a class still count as errors of the true class.
    """
    counts = _counts(items)
    actual = counts.sum(1)
    present = actual > 0
    return float((counts.diagonal()[present] / actual[present]).mean())


def _macro_f1(items: ScoredItems) -> float:
    """Mean of the F1 of the classes present in targets or predictions.

    A class that is predicted but never true counts with F1 = 0; a class in neither is skipped.
    """
    counts = _counts(items)
    present = counts.sum(0) + counts.sum(1) > 0
    return float(_f1(counts)[present].mean())


def _weighted_f1(items: ScoredItems) -> float:
    """Mean of the F1 of the classes present in the targets, each weighted by its number of targets."""
    counts = _counts(items)
    return float(np.average(_f1(counts), weights=counts.sum(1)))


def _log_loss(items: ScoredItems) -> float:
    """Mean of -ln(probability of the true class).

    A probability counts as at least 2.2e-16, as in scikit-learn, so one item adds at most 36 nats.
    """
    of_target = items.probabilities[np.arange(len(items.targets)), items.targets]
    return float(-np.log(np.maximum(of_target, np.finfo(np.float64).eps)).mean())


def _counts(items: ScoredItems) -> NDArray[np.int64]:
    """Confusion matrix (C, C)."""
    return confusion_matrix(items.targets, items.predictions, items.probabilities.shape[1])


def _f1(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """F1 of every class, shape (C,): 2 x right / (actual + predicted); 0 for a class that is neither."""
    either = np.maximum(counts.sum(0) + counts.sum(1), 1)
    return np.asarray(2 * counts.diagonal() / either)


def _ece(items: ScoredItems) -> float:
    """Expected calibration error (Guo et al. 2017, eq. 3), with 15 bins of equal width.

    Items are binned by their top probability; bin b is ((b - 1) / 15, b / 15]. The error is the mean over items of the
    gap of their bin, |share predicted correctly - mean top probability|. It is biased upwards if bins have few items.
    """
    confidence = items.probabilities.max(axis=1)  # (N,)
    surplus = (items.predictions == items.targets) - confidence
    edges = np.linspace(0.0, 1.0, ECE_BINS + 1)
    bins = np.digitize(confidence, edges[1:-1], right=True)
    return float(np.abs(np.bincount(bins, weights=surplus)).sum() / len(confidence))


ACCURACY = Metric("accuracy", "Accuracy (WA)", True, "fraction", _accuracy)
"""Share of items predicted correctly (the field's WA)."""
BALANCED_ACCURACY = Metric("balanced_accuracy", "Balanced accuracy (UA)", True, "fraction", _balanced_accuracy)
"""Mean recall of the classes present (the field's UA)."""
MACRO_F1 = Metric("macro_f1", "Macro-F1", True, "fraction", _macro_f1)
"""Mean F1 of the classes present."""
WEIGHTED_F1 = Metric("weighted_f1", "Weighted F1", True, "fraction", _weighted_f1)
"""Mean F1, each class weighted by its number of items."""
LOG_LOSS = Metric("log_loss", "Log loss (nats)", False, "nats", _log_loss)
"""Mean negative log probability of the true class, in nats; lower is better."""
ECE = Metric("ece", "Calibration error (ECE)", False, "fraction", _ece)
"""Expected calibration error over 15 equal bins of the top probability; lower is better."""


def confusion_matrix(targets: ClassIds, predictions: ClassIds, num_classes: int) -> NDArray[np.int64]:
    """Counts, shape (C, C), from class ids (N,): row = actual class, column = predicted class.

    Raises:
        ValueError: there is no item, the lengths differ, or a class id is outside 0 .. num_classes - 1.
    """
    _check(targets, predictions, num_classes)
    cells = np.bincount(targets.astype(np.int64) * num_classes + predictions, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes)


def _check(targets: ClassIds, predictions: ClassIds, num_classes: int) -> None:
    if len(targets) == 0 or len(targets) != len(predictions):
        raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions; need one of each per item")
    for what, ids in (("target", targets), ("prediction", predictions)):
        if ids.min() < 0 or ids.max() >= num_classes:
            raise ValueError(f"{what} class ids span {ids.min()} .. {ids.max()}; allowed 0 .. {num_classes - 1}")


def check_classes(items: ScoredItems, num_classes: int) -> None:
    """Check items of C classes.

    Raises:
        ValueError: there is no item, the lengths differ, a class id is outside 0 .. C - 1, or the probabilities of an
            item are not of C classes, not finite or do not sum to 1.
    """
    shape, needed = items.probabilities.shape, (len(items.targets), num_classes)
    if shape != needed:
        raise ValueError(f"probabilities have shape {shape}; need {needed}")
    _check(items.targets, items.predictions, num_classes)
    sums = items.probabilities.sum(axis=1)
    if not np.allclose(sums, 1.0, atol=1e-6):  # also false for what is not finite
        worst = int(np.argmax(np.where(np.isfinite(sums), np.abs(sums - 1.0), np.inf)))
        raise ValueError(f"probabilities of item {worst} sum to {sums[worst]:g}; need 1")
