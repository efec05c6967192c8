"""The sign-flip test of paired differences. `scipy.stats.permutation_test` gives the same, but takes 9 s for 20."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXACT_FLIPS_UP_TO = 20
RANDOM_FLIPS = 100_000
BLOCK = 1_000_000
"""Largest number of random counts, swaps or signs (units x samples) in memory at once."""
CACHED = 50_000
"""Number of signs or words that stay in a processor's cache while they are summed."""
FEWER = 8
"""Units per kind of equal units from which on it is faster to draw how many of a kind are in a set."""
MANY = 4096
"""Units of a kind from which on a binomial number is drawn faster than bits are counted."""
WORD = 64
"""Bits that are drawn and counted together."""
SAME = 12
"""Digits to which equal differences agree, relative to the largest; the rest is rounding."""


class SignFlip(TypedDict):
    """Result of the test."""

    mean: float
    p: float
    floor: float
    """The smallest p-value that these differences allow; a difference of zero is no evidence and does not count."""
    n: int
    exact: bool
    flips: int
    """Number of combinations of signs that were examined."""


def paired_sign_flip(
    differences: Sequence[float] | Floats, sizes: Floats | None = None, *, one_sided: bool = False, seed: int = 0
) -> SignFlip:
    """Sign-flip test that paired differences are symmetric around zero (Fisher 1935); the statistic is their mean.

    With at most 20 differences other than zero, the test is exact: it examines all combinations of their signs. With
    more, it draws 100,000 random combinations and counts the observed one among them (Phipson and Smyth 2010), so p is
    never 0.

    Args:
        differences: one per independent unit, e.g. per speaker, with seeds averaged first. Folds share training clips,
            so for folds p is too small rather than too large.
        sizes: what a unit counts, (n,). They do not change the test, but with the sizes and seed of an interval
            (`engine.flip_interval`) the random signs are the same, so both agree.
        one_sided: test whether the differences are above zero; otherwise test for either side.
        seed: of random signs; without effect if the test is exact.

    Raises:
        ValueError: there is no difference, or one is not finite.
    """
    array = finite(differences)
    is_informative = np.abs(array) > 10.0**-SAME * np.abs(array).max()
    informative = int(is_informative.sum())
    exact = informative <= EXACT_FLIPS_UP_TO
    if exact:
        sets = all_sets(array[is_informative, None])
    else:
        sets = random_sets(
            np.stack([array, np.ones(len(array)) if sizes is None else sizes], axis=1), RANDOM_FLIPS, seed
        )
    sums = 2 * sets[:, 0] - array.sum()  # of the units in a set minus those outside
    statistics, observed = (sums, array.sum()) if one_sided else (np.abs(sums), abs(array.sum()))
    # Sums that are equal by value may differ by rounding.
    as_large = int((statistics >= observed - 1e-11 * np.abs(array).sum()).sum())
    p = as_large / len(sums) if exact else (as_large + 1) / (RANDOM_FLIPS + 1)
    return {
        "mean": float(array.mean()),
        "p": p,
        "floor": sign_flip_floor(informative, one_sided=one_sided),
        "n": len(array),
        "exact": exact,
        "flips": len(sums),
    }


def sign_flip_floor(n: int, *, one_sided: bool = False) -> float:
    """The smallest p-value of a sign-flip test of n differences other than zero; two-sided, it is 1 for n = 0 and 1."""
    exact = 2.0**-n if one_sided else min(1.0, 2.0 ** (1 - n))
    return exact if n <= EXACT_FLIPS_UP_TO else max(exact, 1 / (RANDOM_FLIPS + 1))


def power_of(effect: float, n: int, alpha: float) -> float:
    """Power of a two-sided t-test of n differences whose mean is `effect` standard deviations (Cohen 1988, ch. 2)."""
    from scipy import special  # most commands start without it

    limit = -special.stdtrit(n - 1, alpha / 2) if alpha > 0 else np.inf  # scipy gives minus infinity
    below = np.nan_to_num(special.nctdtr(n - 1, effect * n**0.5, (limit, -limit)))  # NaN far in the tail
    return float(1 - below[0] + below[1])


@lru_cache  # every pair of methods has the same n
def detectable_effect(n: int, alpha: float, power: float = 0.8) -> float:
    """Mean in standard deviations that a t-test of n differences detects with a given power, by bisection."""
    low, high = 0.0, 1.0
    while power_of(high, n, alpha) < power:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if power_of(middle, n, alpha) >= power else (middle, high)
    return high


def units_to_detect(effect: float, alpha: float, power: float = 0.8) -> int:
    """How many differences with a mean of `effect` standard deviations the sign-flip test needs for a power.

    It is the number of the t-test, at the largest p-value up to alpha that the signs of so few differences allow.
    """
    from scipy import special

    n = max(2, int(((special.ndtri(1 - alpha / 2) + special.ndtri(power)) / effect) ** 2))  # were the spread known
    while power_of(effect, n, alpha - alpha % sign_flip_floor(n) if n <= EXACT_FLIPS_UP_TO else alpha) < power:
        n += 1
    return n


def all_sets(units: Floats) -> Floats:
    """Sums over every set of units, the empty one first: (U, K) -> (2^U, K)."""
    sums = np.zeros((1, units.shape[1]))
    for unit in units:
        sums = np.concatenate([sums, sums + unit])
    return sums


def random_sets(units: Floats, samples: int, seed: int) -> Floats:
    """Sums over random sets of units, each unit in half of the sets: (U, K) -> (samples, K), which is read-only.

    Of units with the same values, only their number in a set is drawn, if there are many of each kind, e.g. single
    answers that are right or wrong.
    """
    return _random_sets(units.astype(np.float64).tobytes(), units.shape, samples, seed)


@lru_cache(maxsize=1)  # an interval follows the test of the same differences
def _random_sets(content: bytes, shape: tuple[int, int], samples: int, seed: int) -> Floats:
    units: Floats = np.frombuffer(content).reshape(shape)
    rng = np.random.default_rng(seed)
    kinds, counts = np.unique(units, axis=0, return_counts=True)
    if len(units) > FEWER * len(kinds):
        sums = np.zeros((samples, units.shape[1]))
        many = counts > MANY
        for kind, count in zip(kinds[many], counts[many].tolist(), strict=True):
            sums += rng.binomial(count, 0.5, (samples, 1)) * kind
        kinds, counts = kinds[~many], counts[~many]
        words = -(-counts // WORD)
        values, unused = np.repeat(kinds, words, axis=0), np.zeros(words.sum(), np.uint64)
        unused[np.cumsum(words) - 1] = WORD * words - counts  # bits of the last word of each kind
        rows = max(1, CACHED // max(1, len(values)))
        for at in range(0, samples, rows):
            coins = rng.integers(0, 2**WORD, (min(rows, samples - at), len(values)), np.uint64)
            coins >>= unused
            sums[at : at + rows] += np.bitwise_count(coins) @ values
    else:
        sums, at = np.empty((samples, units.shape[1])), 0
        rows = max(1, CACHED // len(units))
        signs = np.empty((rows, len(units)))
        for size in blocks(samples, len(units)):
            drawn = rng.integers(0, 256, (size, -(-len(units) // 8)), np.uint8)
            for start in range(0, size, rows):
                bits = np.unpackbits(drawn[start : start + rows], axis=1, count=len(units))
                signs[: len(bits)] = bits
                sums[at : at + len(bits)] = signs[: len(bits)] @ units
                at += len(bits)
    sums.flags.writeable = False
    return sums


def blocks(samples: int, number: int) -> list[int]:
    """Sizes of the blocks in which samples of so many numbers each are drawn."""
    width = max(1, BLOCK // number)
    return [min(width, samples - start) for start in range(0, samples, width)]


def finite(differences: Sequence[float] | Floats) -> Floats:
    """Differences as an array (n,).

    Raises:
        ValueError: there is none, or one is not finite.
    """
    array = np.asarray(differences, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        raise ValueError(f"differences must be one or more finite numbers, not {array.tolist()}")
    return array
