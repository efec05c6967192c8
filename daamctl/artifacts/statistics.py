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
        method: bootstrap, jackknife, or sign-flip (all values that the test does not reject).
    """

    value: float
    low: float
    high: float
    level: float
    n_clusters: int
    resamples: int
    method: str


@dataclass(frozen=True)
class Intervals:
    """Intervals of the scores of one method.

    Args:
        unit: "speaker", "item", "fold", or None if there is no interval: what is resampled.
        unit_word: name of the unit, e.g. "author".
        metrics: metric -> interval; None without a unit.
    """

    unit: str | None
    unit_word: str
    reason: str
    metrics: dict[str, Interval | None]


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """A two-sided test that the mean of paired differences is zero.

    Args:
        unit: name of the unit that the test takes as independent.
        p: p-value; None if the differences do not vary.
        p_holm: `p` after Holm's correction within the family; None before the correction.
    """

    unit: str
    mean: float
    n: int
    p: float | None
    p_holm: float | None = None


@dataclass(frozen=True, kw_only=True)
class SignFlipTest(PairedTest):
    """Result of `daamctl.sign_flip.paired_sign_flip`.

    Args:
        floor: smallest p-value that these differences allow.
        exact: whether all sign flips were tried.
        flips: number of sign flips tried.
    """

    test: str = "sign-flip"
    floor: float
    exact: bool
    flips: int


@dataclass(frozen=True, kw_only=True)
class CorrectedTTest(PairedTest):
    """Result of `daamctl.evaluation.statistics.nadeau_bengio`.

    Args:
        t: statistic; None if the differences do not vary.
        df: degrees of freedom.
        ratio: n_test / n_train.
    """

    test: str = "nadeau-bengio"
    t: float | None
    df: int
    ratio: float


@dataclass(frozen=True)
class Detectable:
    """Smallest true difference that a paired t-test on as many units would detect.

    Args:
        points: the difference in percentage points; None for one unit or without spread.
        std: sample standard deviation of the differences (fraction); None for one unit.
        alpha: two-sided level.
    """

    points: float | None
    std: float | None
    power: float
    alpha: float
    n: int


@dataclass(frozen=True)
class MetricComparison:
    """Two methods compared in one metric. Values are over all test items, averaged over seeds.

    Args:
        second_value: score of the second method.
        difference: first minus second.
        primary: sign-flip test over the unit of the design; None without a unit.
        secondary: corrected t-test over folds; None with one fold.
        minimal_detectable: for the unit of the design; None without a unit.
        interval: interval of the difference; None without a unit.
    """

    first_value: float
    second_value: float
    difference: float
    primary: SignFlipTest | None
    secondary: CorrectedTTest | None
    minimal_detectable: Detectable | None
    interval: Interval | None


@dataclass(frozen=True)
class Comparison:
    """Two methods compared on the same test items.

    Args:
        second: name of the second method.
        wins: number of items that only `first` got right in more than half of its seeds.
        losses: number of items that only `second` got right in more than half of its seeds.
        ties: number of the other items.
        runs: number of runs (fold and seed) that both have.
        ahead: number of these runs in which `first` has the higher accuracy.
        behind: number of these runs in which `second` has the higher accuracy.
        metrics: metric -> comparison.
    """

    first: str
    second: str
    wins: int
    losses: int
    ties: int
    runs: int
    ahead: int
    behind: int
    metrics: dict[str, MetricComparison]


@dataclass(frozen=True)
class Family:
    """Tests that are corrected together, separately for each metric.

    Args:
        alpha: two-sided level of the tests.
        correction: "holm".
        floor: smallest possible p-value of the primary test; None without a test.
        floor_holm: `floor` after the correction.
        reference: the method that all others are compared with; None if there is none.
    """

    methods: list[str]
    size: int
    alpha: float
    correction: str
    floor: float | None
    floor_holm: float | None
    reference: str | None = None


@dataclass(frozen=True)
class Design:
    """What the tests of a family have in common.

    Args:
        unit: "speaker", "item" (every item is its own speaker), "fold", or None if there is no test.
        unit_word: name of the unit, e.g. "author".
        source_word: name of what an item comes from, e.g. "speaker".
        n_units: number of units; None without a unit.
        n_items: number of test items.
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
class Ranks:
    """Average ranks of methods over folds (Friedman's test, Nemenyi's critical difference).

    Args:
        average_ranks: method -> average rank, best first; 1 is best.
        critical_difference: methods whose ranks differ by less do not differ significantly.
        groups: groups of methods whose ranks span less than that; each as large as possible, best first.
        chi2: Friedman's statistic.
        k: number of methods.
    """

    average_ranks: dict[str, float]
    critical_difference: float
    groups: list[list[str]]
    chi2: float
    p: float
    n: int
    k: int
    alpha: float
    note: str


@dataclass(frozen=True)
class Comparisons:
    """Methods compared in pairs.

    Args:
        family: tests that are corrected together.
        design: unit of the tests, and the data.
        ranks: metric -> ranks over folds; None with fewer than three methods or two folds.
        notes: notes for the reader of the results.
    """

    family: Family
    design: Design
    comparisons: list[Comparison]
    ranks: dict[str, Ranks | None]
    notes: list[str]


class NonInferiority(NamedTuple):
    """Whether a method is at most a margin worse than a reference.

    accuracy: over all items, averaged over seeds; entity_f1: likewise, of words. difference: entity F1, or else
    accuracy, minus that of the reference; low, high: its interval. p: one-sided, of the hypothesis that it is worse by
    the margin or more; floor: the smallest p that the units allow. None without independent units.
    """

    accuracy: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    floor: float | None
    entity_f1: float | None = None
