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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy.typing import ArrayLike, NDArray
from scipy.stats import kendalltau, rankdata

from daamctl.analysis.importance import num_distinct

Values = NDArray[np.float64]
Orders = NDArray[np.int64]
Verdict = Literal["yes", "unclear", "not shown", "cannot be told"]

LEVEL = 0.05
"""Largest p-value for the verdict "yes"."""
LEAST_DISTINCT = 3
"""Fewest different values of a ranking: a constant score, or one layer against all others, is not a ranking."""
EXACT_UP_TO = 8
"""Up to this number of layers all permutations are used (8! = 40,320)."""
PERMUTATIONS = 100_000
"""Number of random permutations for more layers."""


@dataclass(frozen=True)
class Agreement:
    """Rank correlation of a score with the usefulness of the layers. p-values are one-sided unless stated otherwise.

    Args:
        num_layers: L.
        kendall_tau: tau-b.
        kendall_p: two-sided, from scipy: exact permutation distribution, or a normal approximation if there are ties.
        spearman_rho: correlation of the ranks.
        spearman_p: two-sided permutation test.
        p_one_sided: permutation test of rho.
        p_turned: share of the 2 L rotated and mirrored profiles with a rho at least as large.
        rho_beside_depth: correlation of the ranks without their linear trend along depth; None if nothing remains.
        p_beside_depth: as `p_turned`, for `rho_beside_depth`.
        floor: smallest possible p_one_sided with L layers; for the rotated profiles it is 1 / (2 L).
        verdict: yes: all three one-sided p-values are at most `LEVEL`; unclear: only that of the permutation test is;
            not shown: it is not; cannot be told: fewer than 4 layers.
    """

    num_layers: int
    kendall_tau: float
    kendall_p: float
    spearman_rho: float
    spearman_p: float
    p_one_sided: float
    p_turned: float
    rho_beside_depth: float | None
    p_beside_depth: float | None
    floor: float
    verdict: Verdict


def is_ranking(score: Float[NDArray[np.floating], " L"]) -> bool:
    """Whether a score (L,) distinguishes the layers."""
    return num_distinct(score) >= LEAST_DISTINCT


def agreement(score: ArrayLike, worth: ArrayLike, *, seed: int = 0) -> Agreement | None:
    """Test whether layers with a high score are more useful.

    Args:
        score: (L,).
        worth: (L,) usefulness, e.g. accuracy of a probe; both are in the order of depth.
        seed: seed of the random permutations; without effect up to `EXACT_UP_TO` layers.

    Returns:
        The test; None if one of the two is constant.

    Raises:
        ValueError: the lengths differ.
    """
    a, b = np.asarray(score, dtype=np.float64), np.asarray(worth, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"scores of shape {a.shape} against {b.shape}")
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    number = len(a)
    ranks, others = standardized(rankdata(a)), standardized(rankdata(b))
    assert ranks is not None
    assert others is not None
    rho, orders, exact = float(ranks @ others), _permutations(number, seed), number <= EXACT_UP_TO
    rhos = others[orders] @ ranks
    tau = kendalltau(a, b)
    p_one_sided = _share(rhos, rho, exact)
    p_turned = _turned(ranks, others, rho)
    left, right = _beside_depth(ranks), _beside_depth(others)
    rho_beside = float(left @ right) if left is not None and right is not None else None
    p_beside = _turned(left, right, rho_beside) if left is not None and right is not None else None
    floor = 1 / len(orders) if exact else 1 / (1 + PERMUTATIONS)
    kept = [p_turned, 1.0 if p_beside is None else p_beside]
    return Agreement(
        number, float(tau.statistic), float(tau.pvalue), rho, _share(np.abs(rhos), abs(rho), exact), p_one_sided,
        p_turned, rho_beside, p_beside, floor, _verdict(p_one_sided, kept, floor),
    )  # fmt: skip


def rank_test(score: ArrayLike, worth: ArrayLike, *, seed: int = 0) -> tuple[float, float] | None:
    """Spearman's rho of layers or layer groups, and its one-sided permutation p; None if one of the two is constant."""
    ranks, others = standardized(rankdata(score)), standardized(rankdata(worth))
    if ranks is None or others is None:
        return None
    rho = float(ranks @ others)
    orders = _permutations(len(ranks), seed)
    return rho, _share(others[orders] @ ranks, rho, len(ranks) <= EXACT_UP_TO)


def random_orders(num_layers: int, number: int, *, seed: int = 0) -> Orders:
    """Random orders of the layers, (R, L)."""
    return np.random.default_rng(seed).permuted(np.tile(np.arange(num_layers), (number, 1)), axis=1)


def order_of(score: Float[NDArray[np.floating], " L"]) -> Int64[Orders, " L"]:
    """Indices (L,) of the layers by score, highest first; ties by depth."""
    return np.argsort(-np.asarray(score, dtype=np.float64), kind="stable")


def _verdict(p: float, smooth: Sequence[float], floor: float) -> Verdict:
    if floor > LEVEL:
        return "cannot be told"
    if p > LEVEL:
        return "not shown"
    return "yes" if max(smooth) <= LEVEL else "unclear"


def standardized(values: Float64[Values, " L"]) -> Float64[Values, " L"] | None:
    """Centre to mean 0 and scale to length 1; None for a constant."""
    centred = values - values.mean()
    length = float(np.sqrt(centred @ centred))
    return centred / length if length > 1e-9 * max(1.0, float(np.abs(values).max())) else None


def _beside_depth(ranks: Values) -> Values | None:
    """Standardised ranks without their linear trend over the layer number, standardised again."""
    depth = standardized(np.arange(len(ranks), dtype=np.float64))
    assert depth is not None
    return standardized(ranks - (ranks @ depth) * depth)


def _turned(left: Values, right: Values, observed: float | None) -> float:
    """p-value over all rotated and mirrored profiles."""
    assert observed is not None
    profiles = [np.roll(part, shift) for part in (left, left[::-1]) for shift in range(len(left))]  # 2 L of (L,)
    return _share(np.array(profiles) @ right, observed, exact=True)


def _share(statistics: Values, observed: float, exact: bool) -> float:
    """Share of statistics at least as large as the observed one; random ones do not include it, so it is added."""
    as_large = int((statistics >= observed - 1e-9 * max(1.0, abs(observed))).sum())
    return as_large / len(statistics) if exact else (1 + as_large) / (1 + len(statistics))


def _permutations(number: int, seed: int) -> Orders:
    if number <= EXACT_UP_TO:
        return np.array(list(permutations(range(number))))
    return random_orders(number, PERMUTATIONS, seed=seed)
