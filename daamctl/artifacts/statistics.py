"""Intervals, paired tests and comparisons of methods, as records; `daamctl.evaluation` computes them.

Scores are fractions. Differences are the first method minus the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Interval:
    """Interval of one figure (`daamctl.evaluation.engine`).

    Args:
        level: level of the interval, e.g. 0.95.
        n_clusters: number of units.
        resamples: number of samples of the units that it is made of.
        method: korn-graubard (of a share, or of methods that agree on all items), jackknife, or, of a difference,
            sign-flip (all values that the test does not reject).
    """

    value: float
    low: float
    high: float
    level: float
    n_clusters: int
    resamples: int
    method: str


@dataclass(frozen=True, kw_only=True)
class CorrectedTTest:
    """Result of `daamctl.evaluation.statistics.nadeau_bengio`.

    Args:
        unit: name of the unit that the test takes as independent.
        p: two-sided p-value; None if the differences do not vary.
        t: statistic; None if the differences do not vary.
        df: degrees of freedom.
        ratio: n_test / n_train.
    """

    unit: str
    mean: float
    n: int
    p: float | None
    test: str = "nadeau-bengio"
    t: float | None
    df: int
    ratio: float


@dataclass(frozen=True)
class Design:
    """What the tests of a family have in common.

    Args:
        unit: "speaker", "item" (every item is its own speaker), "fold", or None if there is no test.
        unit_word: name of the unit, e.g. "author".
        source_word: name of what an item comes from, e.g. "speaker".
        n_units: number of units; None without a unit.
        n_speakers: number of speakers; None if unknown.
        n_folds: number of folds; 0 if the methods have other folds.
        seeds: method -> its seeds.
    """

    unit: str | None
    unit_word: str
    source_word: str
    reason: str
    n_units: int | None
    n_items: int
    n_speakers: int | None
    n_folds: int
    seeds: dict[str, list[int]]


@dataclass(frozen=True)
class Family:
    """Methods compared in pairs: tests that are corrected together by Holm, separately for each metric.

    Args:
        size: number of comparisons.
        alpha: two-sided level of the tests.
        floor: smallest possible p-value of the primary test; None without a test.
        reference: the method that all others are compared with; None if there is none.
    """

    methods: list[str]
    reference: str | None
    size: int
    alpha: float
    floor: float | None
    design: Design
    notes: list[str]

    @property
    def floor_holm(self) -> float | None:
        """`floor` after the correction."""
        return None if self.floor is None else min(1.0, self.floor * max(1, self.size))


class NonInferiority(NamedTuple):
    """Whether a method is at most a margin worse than a reference.

    value: the figure that is tested, over all items and averaged over seeds. difference: minus that of the reference;
    low, high: its interval. p: one-sided, of the hypothesis that it is worse by the margin or more. None without
    independent units.
    """

    value: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
