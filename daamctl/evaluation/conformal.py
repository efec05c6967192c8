"""Prediction sets: the classes of an item that together hold the true one with a given probability.

Split conformal prediction for items in groups, e.g. of speakers: Lee, Barber and Willett 2023, "Distribution-free
inference with hierarchical data", arXiv 2306.06342 (docs/sources.md#prediction-sets). The set of an item of a new
speaker holds its class with at least the probability asked for, if the new speaker is like those that the sets are
calibrated on. Each of K speakers weighs 1 / (K + 1), whatever its number of items. A new one could be anything, so
the probability is at most K / (K + 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVELS = tuple(percent / 100 for percent in range(50, 100))
"""Coverages that sets are calibrated for."""


def smallest_probabilities(probabilities: ArrayLike, units: ArrayLike) -> dict[float, float]:
    """Coverage -> the smallest probability with which a class is in a set; coverages that are too high are left out.

    Args:
        probabilities: of the true class of each item, from a model that was not trained on its unit, (N,).
        units: unit of each item, e.g. its speaker, (N,).
    """
    values = np.asarray(probabilities, dtype=np.float64)
    codes, counts = np.unique(np.asarray(units), return_inverse=True, return_counts=True)[1:]
    weights = 1.0 / ((len(counts) + 1) * counts[codes])
    order = np.argsort(-values, kind="stable")
    held = np.cumsum(weights[order])  # what is held by sets that reach down to the probability of each item
    found = {}
    for level in LEVELS:
        place = int(np.searchsorted(held, level - 1e-9))
        if place < len(values):
            found[level] = float(values[order[place]])
    return found


def in_set(probabilities: NDArray[np.float64], smallest: float) -> NDArray[np.bool_]:
    """Which classes are in the set of each item, (N, C); the most probable one always is.

    Args:
        probabilities: of all classes, (N, C).
    """
    top = probabilities.argmax(axis=1)[:, None] == np.arange(probabilities.shape[1])
    return np.asarray((probabilities >= smallest) | top)
