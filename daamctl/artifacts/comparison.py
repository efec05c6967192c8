"""Result of `daamctl compare`: `data/compare/<A>__<B>/comparison.json` (with a hash where two pairs could share it).

Scores are fractions. Differences are first minus second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from daamctl.artifacts.evaluation import MethodFairness
from daamctl.artifacts.scores import Compared, Figure, Score
from daamctl.artifacts.statistics import Design
from daamctl.store.records import parse_record, read_sealed

Side = Literal["first", "second"]


@dataclass(frozen=True)
class SettingDifference:
    """A recorded fact in which two sides differ.

    Args:
        first: value of the first side, any JSON value.
        second: value of the second side.
        methods: the pairs of methods with this difference; None for all of them.
    """

    name: str
    first: Any
    second: Any
    methods: list[str] | None = None


@dataclass(frozen=True)
class SettingDifferences:
    """All facts in which two sides differ.

    Args:
        can_change: facts that can change the results.
        not_known: what a published table leaves open; None for trained methods.
    """

    can_change: list[SettingDifference]
    cannot_change: list[SettingDifference]
    not_known: str | None = None


@dataclass(frozen=True)
class Disagreement:
    """A test item on which two methods disagree.

    Args:
        first_right: share of the first method's seeds that are right.
        first_probability: mean probability of the true class under the first method.
    """

    item: str
    fold: int
    speaker: str | None
    label: str
    first_right: float
    second_right: float
    first_probability: float
    second_probability: float


@dataclass(frozen=True)
class PairedMethods:
    """What two trained methods are, besides their figures.

    Args:
        first_label: its name in results.
        fairness: first and second: how well the methods were trained.
        doubt: warning if a method was not trained well; else None.
        disagreements: the items on which the methods disagree most.
        design: unit of the tests, and the data.
        floor: smallest possible p-value of the primary test; None without a test.
    """

    first: str
    second: str
    first_label: str
    second_label: str
    fairness: dict[Side, MethodFairness]
    doubt: str | None
    disagreements: list[Disagreement]
    design: Design
    floor: float | None


@dataclass(frozen=True)
class PairedResult:
    """Pairs of trained methods, corrected as one family.

    Args:
        comparisons: every pair in every metric.
        floor: smallest possible p-value of the primary test of all pairs; None without a test.
    """

    settings: SettingDifferences
    alpha: float
    floor: float | None
    comparisons: list[Compared]
    pairs: list[PairedMethods]
    notes: list[str]
    kind: Literal["paired"] = "paired"


@dataclass(frozen=True)
class Row:
    """What a published row is, or a trained method reduced to what a published row has, besides its figures.

    Args:
        corpus: corpus, as the side spells it.
        printed: mean and deviation as printed; None if not printed, and for trained methods.
        wrong: what of these contradicts the printed folds: mean, deviation.
        fairness: how well a trained method was trained; None for published rows.
    """

    name: str
    label: str
    corpus: str
    printed: str | None = None
    wrong: list[str] = field(default_factory=list)
    fairness: MethodFairness | None = None

    @property
    def published(self) -> bool:
        """Whether it is a published row."""
        return self.fairness is None


@dataclass(frozen=True)
class PrintedPair:
    """A published row beside a trained method or another published row.

    Args:
        not_aligned: why the folds cannot be paired by session; else None.
        about_test: what the test assumes, or why there is none.
    """

    first: Row
    second: Row
    not_aligned: str | None
    about_test: str


@dataclass(frozen=True)
class PrintedResult:
    """Pairs of rows of which at least one is published.

    Args:
        settings: different settings, as far as a published table states them.
        figures: accuracy of every row under the published scoring (`BEST_ON_TEST`: per clip, best epoch on the test
            group), and of trained methods also the figures as reported.
        scores: the same accuracy of every fold, the mean over its seeds. fold: number of the session that was tested;
            None if columns are repeats or groups have no number. test_group: name of the column or of the test group.
        comparisons: of every pair in that accuracy; its test: `PrintedPair.about_test`.
        notes: notes for the reader of the results.
        kind: "both-printed" if both sides are published, else "printed".
    """

    settings: SettingDifferences
    figures: list[Figure]
    scores: list[Score]
    comparisons: list[Compared]
    pairs: list[PrintedPair]
    notes: list[str]
    kind: Literal["printed", "both-printed"]


def by_session(scores: Sequence[Score], row: Row) -> dict[int, float]:
    """Session -> accuracy of a row, in the order of its columns; without folds that are no sessions."""
    return {score.fold: score.value for score in scores if score.method == row.name and score.fold is not None}


@dataclass(frozen=True)
class ComparisonReport:
    """Two sides compared.

    Args:
        first: first side, as named on the command line.
        second: second side.
        unit: "utterance", "clip", or "as printed" for two published sides.
        item: word for the unit (utterance, clip, text or image); None for two published sides.
        unmatched: first and second: methods that only this side has.
        result: the comparison. In the file, its parts are on the same level as the fields above.
    """

    first: str
    second: str
    unit: str
    item: str | None
    matched: list[tuple[str, str]]
    unmatched: dict[Side, list[str]]
    result: PairedResult | PrintedResult

    def as_json(self) -> dict[str, Any]:
        """Content of the file."""
        found = asdict(self)
        result = found.pop("result")
        return {**found, **result}


def read_comparison(path: Path) -> ComparisonReport:
    """Read `comparison.json`.

    Raises:
        ArtifactError: the file is missing, is not JSON, or was made by an older version of daamctl.
    """
    found = read_sealed(path)
    # the parts of the result are on the same level in the file, and fields of one are ignored by the other
    return parse_record({**found, "result": found}, ComparisonReport, path=path)
