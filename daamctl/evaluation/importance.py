"""Importance Factor (IF), layer contribution and layer ranking, from mean density maps DA of shape (L, D).

Source: "Density Adaptive Attention is All You Need", v4, section 5 and figures 2, 3
(docs/sources.md#importance-factor). DA is the density averaged over a test pass; a value closer to 1 means that the
feature is closer to the mean of its head. The papers compare a map neither with that of the untrained module nor with
those of other folds. This module does both, because standardising a few layers per head determines much of the pattern
before training (D29). A map that is no filled, finite matrix is a ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from daamctl.artifacts.importance import HeadPositions

Map = NDArray[np.float64]

GEOMETRY_CORRELATION = 0.9
"""A map with a higher correlation with the untrained map is called mostly geometry: four fifths of its variance (r^2)
existed before training."""
GEOMETRY_SHARE = 0.5
"""If the position in the head explains a larger adjusted share of the differences between layers, it is called their
main cause: it then explains more than all other causes together."""
GEOMETRY_LEVEL = 0.01
"""Largest p of that share: with few layers, a large share also occurs by chance."""
REARRANGEMENTS = 20_000
"""Number of random permutations of the layers that p is computed from."""
ROUNDING = 1e-6
"""Values that differ by less than this share of the largest are considered equal: maps are stored as float32, whose
rounding error is 6e-8, and are means over many batches."""


def importance_factor(density: Float[np.ndarray, "L D"]) -> Float64[np.ndarray, "L D"]:
    """(DA - min DA) / (max DA - min DA), in [0, 1], with one minimum and maximum for the whole map.

    A map that is constant within `ROUNDING` has no ranking and gives zeros.
    """
    values = _checked(density)
    if ties_all(values):
        return np.zeros_like(values)
    low, high = values.min(), values.max()
    return np.asarray((values - low) / (high - low))


def layer_contribution(density: Float[np.ndarray, "L D"]) -> Float64[np.ndarray, " L"]:
    """100 * sum_j DA[l, j] / sum DA: each layer's share of the density in percent; the papers give no formula.

    A map that sums to zero has no shares and gives zeros.
    """
    values = _checked(density)
    total = values.sum()
    if total == 0:
        return np.zeros(len(values))
    return np.asarray(100.0 * values.sum(axis=1) / total)


def mean_density(densities: Sequence[Float[np.ndarray, "L D"]]) -> Float64[np.ndarray, "L D"]:
    """Mean of the maps of several folds; a ValueError if there is none, or shapes differ."""
    shapes = {np.shape(density) for density in densities}
    if len(shapes) != 1:
        raise ValueError(f"need maps of one shape, got {sorted(shapes)}")
    return np.asarray(np.mean([_checked(density) for density in densities], axis=0))


def layer_importance(density: Float[np.ndarray, "L D"]) -> Float64[np.ndarray, " L"]:
    """Mean IF of every layer, shape (L,), of DA (L, D).

    If the mean densities of all layers are equal within `ROUNDING`, all get the same value, because on a map with a
    small range IF would turn rounding errors into differences.
    """
    scores = np.asarray(importance_factor(density).mean(axis=1))
    return np.full_like(scores, scores.mean()) if ties_all(_checked(density).mean(axis=1)) else scores


def order_layers(scores: Float[np.ndarray, " L"], layers: Sequence[int]) -> list[int]:
    """Layer numbers by score (L,), highest first; ties by layer number. Empty if all layers have the same score."""
    if len(layers) > 1 and ties_all(scores):
        return []
    return [layer for _, layer in sorted(zip((-scores).tolist(), layers, strict=True))]


def num_distinct(scores: NDArray[np.floating]) -> int:
    """Number of different values; those within `ROUNDING` of the largest count as one."""
    values = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    if not values.size:
        return 0
    return 1 + int((np.diff(values) > ROUNDING * np.abs(values).max()).sum())


def ties_all(scores: NDArray[np.floating]) -> bool:
    """Whether all values are equal within `ROUNDING`, so that none is the highest."""
    values = np.asarray(scores, dtype=np.float64)
    return not values.size or float(np.ptp(values)) <= ROUNDING * float(np.abs(values).max())


def ties(score: float, other: float, scores: Float[np.ndarray, " L"]) -> bool:
    """Whether two of the scores (L,) are equal within `ROUNDING` of the largest."""
    return abs(score - other) <= ROUNDING * float(np.abs(scores).max())


def stability(scores: Sequence[NDArray[np.floating]]) -> dict[str, Any]:
    """Kendall's tau-b between the layer scores (L,) of every two runs (folds and seeds).

    tau_mean and tau_min over the pairs, None without pairs; pairs: their number. Pairs with a constant score are left
    out, because they have no tau.
    """
    taus = [tau for left, right in combinations(scores, 2) if (tau := rank_correlation(left, right)) is not None]
    mean = float(np.mean(taus)) if taus else None
    return {"tau_mean": mean, "tau_min": min(taus, default=None), "pairs": len(taus)}


def rank_correlation(left: Float[np.ndarray, " L"], right: Float[np.ndarray, " L"]) -> float | None:
    """Kendall's tau-b of two arrays of shape (L,); None when one is constant."""
    if ties_all(left) or ties_all(right):
        return None
    from scipy.stats import kendalltau  # not for the report, which only reads what was tested

    return float(kendalltau(left, right).statistic)


def head_positions(scores: Float[np.ndarray, " L"], num_heads: int, *, seed: int = 0) -> HeadPositions | None:
    """How much of a layer score the position of a layer inside its head explains.

    Heads take floor(L / h) consecutive layers each, the last one also the remainder (docs/sources.md#heads). None with
    one head or fewer than two layers per head: the position then explains nothing, or everything.
    """
    number = len(scores)
    size = number // num_heads
    if num_heads < 2 or size < 2:
        return None
    positions = np.arange(number) - size * np.minimum(np.arange(number) // size, num_heads - 1)  # (L,)
    member = positions == np.arange(positions.max() + 1)[:, None]  # (P, L)
    counts = member.sum(axis=1)
    centred = np.asarray(scores, dtype=np.float64) - np.mean(scores)
    means = member @ centred / counts
    total = float(centred @ centred)
    share = adjusted = p = None
    if not ties_all(np.asarray(scores)):
        between = float(counts @ means**2)
        share = between / total
        adjusted = 1 - (1 - share) * (number - 1) / (number - len(counts))
        shuffled = np.random.default_rng(seed).permuted(np.tile(centred, (REARRANGEMENTS, 1)), axis=1)
        chance = (shuffled @ member.T) ** 2 @ (1 / counts)  # (R,)
        p = float((1 + (chance >= between * (1 - 1e-9)).sum()) / (1 + REARRANGEMENTS))
    return HeadPositions(num_heads, (means + np.mean(scores)).tolist(), counts.tolist(), share, adjusted, p)


def geometry_caution(
    correlation: float | None, positions: HeadPositions | None, widths: Sequence[int] = ()
) -> str | None:
    """Caution for a map that reflects geometry rather than learning, by `map_correlation` and `head_positions`.

    Args:
        widths: numbers of features of the layers of a hierarchical encoder.
    """
    if widths:
        return (
            f"The encoder's layers have {min(widths)} to {max(widths)} features. Those that a layer lacks are 0, where "
            "the density is highest, and features of two layers with the same number are not related. So the map says "
            "little about the layers."
        )
    found = []
    if correlation is not None and correlation > GEOMETRY_CORRELATION:
        found.append(f"it is almost equal to that of the untrained module (Pearson r = {correlation:.3f})")
    if positions is not None and positions.share is not None and is_geometry(positions):
        found.append(
            f"the position of a layer inside its head alone explains {100 * positions.share:.0f} % of the differences "
            "between layers"
        )
    if not found:
        return None
    return (
        f"The trained map is mostly geometry: {' and '.join(found)}. Standardising few layers per head "
        "creates such a pattern before training, so the map says little about what was learned."
    )


def is_geometry(positions: HeadPositions | None) -> bool:
    """Whether the position inside the head is the main cause of the differences between layers."""
    if positions is None or positions.adjusted_share is None or positions.p is None:
        return False
    return positions.adjusted_share > GEOMETRY_SHARE and positions.p <= GEOMETRY_LEVEL


def map_correlation(trained: Float[np.ndarray, "L D"], untrained: Float[np.ndarray, "L D"]) -> float | None:
    """Pearson correlation over all L * D entries; None when a map is constant. A ValueError if shapes differ."""
    left, right = _checked(trained), _checked(untrained)
    if left.shape != right.shape:
        raise ValueError(f"maps of shapes {np.shape(trained)} and {np.shape(untrained)} cannot be compared")
    if ties_all(left) or ties_all(right):
        return None
    return float(np.corrcoef(left.ravel(), right.ravel())[0, 1])


def _checked(density: NDArray[np.floating]) -> Map:
    values = np.asarray(density, dtype=np.float64)
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"a density map has shape (L, D), got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"a density map has {int((~np.isfinite(values)).sum())} values that are not finite")
    return values
