"""Importance Factor (IF), layer contribution and layer ranking, from mean density maps DA of shape (L, D).

Source: "Density Adaptive Attention is All You Need", v4, section 5 and figures 2, 3 (FACTS 13). DA is the density
averaged over a test pass; nearer 1 means a feature nearer its head's mean. The papers compare no map with that of the
untrained module; here every map has an untrained one beside it, because standardising a few layers per head fixes
much of the pattern before any learning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.float64]


def importance_factor(density: NDArray[np.floating]) -> Map:
    """(DA - min DA) / (max DA - min DA), with one minimum and maximum for the whole map.

    A constant map carries no ranking and gives zeros.

    Args:
        density: DA, shape (L, D).

    Returns:
        Shape (L, D), in [0, 1].

    Raises:
        ValueError: the map is not a filled, finite matrix.
    """
    values = _checked(density)
    low, high = values.min(), values.max()
    if high == low:
        return np.zeros_like(values)
    return np.asarray((values - low) / (high - low))


def layer_contribution(density: NDArray[np.floating]) -> Map:
    """100 * sum_j DA[l, j] / sum DA: each layer's share of the density (inferred; the papers give no formula).

    A map that sums to zero has no shares and gives zeros.

    Args:
        density: DA, shape (L, D).

    Returns:
        Percent, shape (L,).

    Raises:
        ValueError: the map is not a filled, finite matrix.
    """
    values = _checked(density)
    total = values.sum()
    if total == 0:
        return np.zeros(len(values))
    return np.asarray(100.0 * values.sum(axis=1) / total)


def mean_density(densities: Sequence[NDArray[np.floating]]) -> Map:
    """Mean of the maps of several folds.

    Raises:
        ValueError: there is no map, or shapes differ.
    """
    shapes = {np.shape(density) for density in densities}
    if len(shapes) != 1:
        raise ValueError(f"need maps of one shape, met {sorted(shapes)}")
    return np.asarray(np.mean([_checked(density) for density in densities], axis=0))


def rank_layers(densities: Sequence[NDArray[np.floating]], layers: Sequence[int]) -> list[int]:
    """Layer numbers by mean IF of the mean map, highest first; ties by layer number.

    Args:
        densities: one map per fold, each of shape (L, D).
        layers: the L stored layer numbers, in the order of the rows.

    Raises:
        ValueError: shapes differ from each other or from `layers`.
    """
    density = mean_density(densities)
    if len(layers) != len(density):
        raise ValueError(f"{len(layers)} layer numbers for maps of {len(density)} rows")
    means = importance_factor(density).mean(axis=1)
    return [layer for _, layer in sorted(zip((-means).tolist(), layers, strict=True))]


def map_correlation(trained: NDArray[np.floating], untrained: NDArray[np.floating]) -> float | None:
    """Pearson correlation over all L * D entries; None when a map is constant.

    Raises:
        ValueError: shapes differ, or a map is not a filled, finite matrix.
    """
    left, right = _checked(trained), _checked(untrained)
    if left.shape != right.shape:
        raise ValueError(f"maps of shapes {np.shape(trained)} and {np.shape(untrained)} cannot be compared")
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return None
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])


def _checked(density: NDArray[np.floating]) -> Map:
    values = np.asarray(density, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"a density map has shape (L, D), met {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"density map holds {int((~np.isfinite(values)).sum())} values that are not finite")
    return values
