"""The metrics and the confusion matrix, computed by scikit-learn. All values are fractions in [0, 1].

A new metric is one `Metric` object here (or in a file of its own) and one line in `daamctl.evaluation.METRICS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, f1_score, recall_score
from sklearn.metrics import confusion_matrix as _confusion_matrix

from daamctl.evaluation import METRICS

ClassIds = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Metric:
    """One figure computed from true and predicted class ids.

    Args:
        name: key in tables and files.
        alias: what the field calls it; heading in reports.
        higher_is_better: direction.
        compute: (targets, predictions, num_classes) -> value; called by `score`, which checks the input first.
    """

    name: str
    alias: str
    higher_is_better: bool
    compute: Callable[[ClassIds, ClassIds, int], float]


def _accuracy(targets: ClassIds, predictions: ClassIds, num_classes: int) -> float:
    """Share of items predicted rightly; every item counts the same."""
    return float(accuracy_score(targets, predictions))


def _balanced_accuracy(targets: ClassIds, predictions: ClassIds, num_classes: int) -> float:
    """Mean of the recalls of the classes present in the targets.

    A class without a target has no recall; it is left out rather than counted as zero, so a fold that lacks a class
    stays comparable. Predictions of such a class still count as errors of the class they were taken from.
    """
    # balanced_accuracy_score gives the same, but warns when an absent class is predicted.
    return float(recall_score(targets, predictions, labels=np.unique(targets), average="macro", zero_division=0.0))


def _macro_f1(targets: ClassIds, predictions: ClassIds, num_classes: int) -> float:
    """Mean of the F1 of the classes present in targets or predictions.

    A class predicted but never true has F1 = 0 and is counted; a class in neither is left out.
    """
    present = np.union1d(targets, predictions)
    return float(f1_score(targets, predictions, labels=present, average="macro", zero_division=0.0))


ACCURACY = Metric("accuracy", "Accuracy (WA)", True, _accuracy)
"""Share of items predicted rightly (the field's WA)."""
BALANCED_ACCURACY = Metric("balanced_accuracy", "Balanced accuracy (UA)", True, _balanced_accuracy)
"""Mean recall of the classes present (the field's UA)."""
MACRO_F1 = Metric("macro_f1", "Macro-F1", True, _macro_f1)
"""Mean F1 of the classes present."""


def score(targets: ClassIds, predictions: ClassIds, num_classes: int) -> dict[str, float]:
    """Every metric of the table, by name.

    Raises:
        ValueError: there is no item, the lengths differ, or a class id is outside 0 .. num_classes - 1.
    """
    _check(targets, predictions, num_classes)
    return {name: METRICS.load(name).compute(targets, predictions, num_classes) for name in METRICS}


def confusion_matrix(targets: ClassIds, predictions: ClassIds, num_classes: int) -> NDArray[np.int64]:
    """Counts, shape (C, C): row = actual class, column = predicted class.

    Raises:
        ValueError: as for `score`.
    """
    _check(targets, predictions, num_classes)
    counts = _confusion_matrix(targets, predictions, labels=np.arange(num_classes))
    return np.asarray(counts, dtype=np.int64)


def _check(targets: ClassIds, predictions: ClassIds, num_classes: int) -> None:
    if len(targets) == 0 or len(targets) != len(predictions):
        raise ValueError(f"{len(targets)} targets and {len(predictions)} predictions; need one of each per item")
    for what, ids in (("target", targets), ("prediction", predictions)):
        if ids.min() < 0 or ids.max() >= num_classes:
            raise ValueError(f"{what} class ids span {ids.min()} .. {ids.max()}; allowed 0 .. {num_classes - 1}")
