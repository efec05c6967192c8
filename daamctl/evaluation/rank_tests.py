"""Test whether two rankings of the layers agree more than by chance.

Scores and accuracies change smoothly along depth, so layers are not exchangeable. At a level of 5 %, a permutation test
calls 28 to 50 % of unrelated smooth profiles of 24 layers related (simulated: random walks, bumps, trends). Two more
tests preserve the smoothness: they rotate and mirror the profile, once as it is and once without its linear trend along
depth. All three together call 2 to 7 % of these profiles related. They find nine tenths of true relations at a
correlation of 0.9, and a sixth to a third of smooth ones at 0.5.

L is the number of layers. No p-value is ever 0, because the observed order counts among the random ones (Phipson and
Smyth, 2010).
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from daamctl.artifacts.audit import Verdict
from daamctl.evaluation.importance import num_distinct

Values = NDArray[np.float64]
Orders = NDArray[np.int64]

LEVEL = 0.05
"""Largest p-value for the verdict "yes"."""
LEAST_DISTINCT = 3
"""Fewest different values of a ranking: a constant score, or one layer against all others, is not a ranking."""
EXACT_UP_TO = 8
"""Up to this number of layers all permutations are used (8! = 40,320)."""
PERMUTATIONS = 100_000
"""Number of random permutations for more layers."""


def is_ranking(score: Float[np.ndarray, " L"]) -> bool:
    """Whether a score (L,) distinguishes the layers."""
    return num_distinct(score) >= LEAST_DISTINCT


class RankAgreement(NamedTuple):
    """Rank correlation of a score with the usefulness of the layers, and p-values of three tests.

    turned: share of the 2 L rotated and mirrored profiles with a rho at least as large; beside_depth: the same for the
    ranks without their linear trend along depth, of which nothing may remain (None). verdict: as in `LayerTest`.
    """

    rho: float
    p: float
    floor: float
    p_turned: float
    rho_beside_depth: float | None
    p_beside_depth: float | None
    verdict: Verdict


def agreement(score: ArrayLike, worth: ArrayLike, *, seed: int = 0) -> RankAgreement | None:
    """Test whether layers with a high score (L,) are more useful; None if one of the two is constant.

    Args:
        worth: (L,) usefulness, e.g. accuracy of a probe; both are in the order of depth.
        seed: of the random permutations; without effect up to `EXACT_UP_TO` layers.

    Raises:
        ValueError: the lengths differ.
    """
    a, b = np.asarray(score, dtype=np.float64), np.asarray(worth, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"scores of shape {a.shape} against {b.shape}")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    test = rank_test(a, b, seed=seed)
    ranks, others = standardized(rankdata(a)), standardized(rankdata(b))
    assert test is not None
    assert ranks is not None
    assert others is not None
    p_turned = _p_turned(ranks, others, test.rho)
    ranks_left, others_left = _beside_depth(ranks), _beside_depth(others)
    rho_beside = p_beside = None
    if ranks_left is not None and others_left is not None:
        rho_beside = float(ranks_left @ others_left)
        p_beside = _p_turned(ranks_left, others_left, rho_beside)
    floor = 1 / math.factorial(len(a)) if len(a) <= EXACT_UP_TO else 1 / (1 + PERMUTATIONS)
    verdict: Verdict = "yes"
    if floor > LEVEL:
        verdict = "cannot be told"
    elif test.p > LEVEL:
        verdict = "not shown"
    elif p_turned > LEVEL or p_beside is None or p_beside > LEVEL:
        verdict = "unclear"  # a profile that is nothing but its trend along depth is unclear too
    return RankAgreement(test.rho, test.p, floor, p_turned, rho_beside, p_beside, verdict)


class RankTest(NamedTuple):
    """Spearman's rho, and its one-sided p-value by permutation."""

    rho: float
    p: float


def rank_test(score: ArrayLike, worth: ArrayLike, *, seed: int = 0) -> RankTest | None:
    """Spearman's rho of layers or layer groups, and its one-sided permutation p; None if one of the two is constant."""
    ranks, others = standardized(rankdata(score)), standardized(rankdata(worth))
    if ranks is None or others is None:
        return None
    rho = float(ranks @ others)
    exact = len(ranks) <= EXACT_UP_TO
    if exact:
        orders = np.array(list(permutations(range(len(ranks)))))
    else:
        orders = random_orders(len(ranks), PERMUTATIONS, seed=seed)
    return RankTest(rho, _share(others[orders] @ ranks, rho, exact))


def random_orders(num_layers: int, number: int, *, seed: int = 0) -> Orders:
    """Random orders of the layers, (R, L)."""
    return np.random.default_rng(seed).permuted(np.tile(np.arange(num_layers), (number, 1)), axis=1)


def order_of(score: Float[np.ndarray, " L"]) -> Int64[np.ndarray, " L"]:
    """Indices (L,) of the layers by score, highest first; ties by depth."""
    return np.argsort(-np.asarray(score, dtype=np.float64), kind="stable")


def standardized(values: Float64[np.ndarray, " L"]) -> Float64[np.ndarray, " L"] | None:
    """Centre to mean 0 and scale to length 1; None for a constant."""
    centred = values - values.mean()
    length = float(np.sqrt(centred @ centred))
    return centred / length if length > 1e-9 * max(1.0, float(np.abs(values).max())) else None


def _beside_depth(ranks: Values) -> Values | None:
    """Standardised ranks without their linear trend over the layer number, standardised again."""
    depth = standardized(np.arange(len(ranks), dtype=np.float64))
    assert depth is not None
    return standardized(ranks - (ranks @ depth) * depth)


def _p_turned(left: Values, right: Values, observed: float) -> float:
    """p-value of a correlation over all rotated and mirrored profiles."""
    profiles = [np.roll(part, shift) for part in (left, left[::-1]) for shift in range(len(left))]  # 2 L of (L,)
    return _share(np.array(profiles) @ right, observed, exact=True)


def _share(statistics: Values, observed: float, exact: bool) -> float:
    """Share of statistics at least as large as the observed one; random ones do not include it, so it is added."""
    as_large = int((statistics >= observed - 1e-9 * max(1.0, abs(observed))).sum())
    return as_large / len(statistics) if exact else (1 + as_large) / (1 + len(statistics))
