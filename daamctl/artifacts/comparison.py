"""Result of `daamctl compare`: `data/compare/<A>__<B>/comparison.json`.

Scores are fractions. Differences are first minus second.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from daamctl.artifacts.evaluation import MethodFairness
from daamctl.artifacts.layer_sets import OverRuns
from daamctl.artifacts.scores import Compared
from daamctl.artifacts.statistics import CorrectedTTest, Design
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
        item: id of the utterance or clip.
        speaker: None if unknown.
        first_right: share of the first method's seeds that are right.
        second_right: likewise for the second method.
        first_probability: mean probability of the true class under the first method.
        second_probability: likewise for the second method.
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
        first: name of the first method.
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
        alpha: two-sided level of the tests.
        floor: smallest possible p-value of the primary test of all pairs; None without a test.
        notes: notes for the reader of the results.
        kind: "paired".
    """

    settings: SettingDifferences
    alpha: float
    floor: float | None
    comparisons: list[Compared]
    pairs: list[PairedMethods]
    notes: list[str]
    kind: Literal["paired"] = "paired"


@dataclass(frozen=True)
class PrintCheck:
    """Whether a printed mean and deviation agree with the printed folds.

    Args:
        text: mean and deviation as printed; None if not printed.
        std_is: "sample", "population", "neither" or "not printed".
        disagrees: whether the mean or the deviation contradicts the folds.
    """

    text: str | None
    mean_agrees: bool
    std_is: str
    disagrees: bool


@dataclass(frozen=True)
class FoldAccuracy:
    """Accuracy of one fold.

    Args:
        fold: name of the column or of the test group.
        session: number of the session that was tested; None if columns are repeats or groups have no number.
    """

    fold: str
    session: int | None
    value: float


@dataclass(frozen=True)
class RowFigures:
    """Scores of a published row, or of a trained method reduced to what a published row has.

    Args:
        corpus: corpus, as the side spells it.
        fairness: how well a trained method was trained; None for published rows.
        print: check of the printed values; None for trained methods.
        as_published: accuracy under the published scoring (per clip, best epoch on the test group).
        as_reported: metric -> score as reported; None for published rows.
        folds: accuracy of every fold under the published scoring.
    """

    name: str
    label: str
    corpus: str
    fairness: MethodFairness | None
    print: PrintCheck | None
    as_published: OverRuns
    as_reported: dict[str, OverRuns] | None
    folds: list[FoldAccuracy]


@dataclass(frozen=True)
class SessionDifference:
    """Accuracies of two rows on the same session."""

    session: int
    first: float
    second: float
    difference: float


@dataclass(frozen=True)
class PrintedPair:
    """A published row beside a trained method or another published row.

    Args:
        second: name of the second row.
        figures: first and second: their scores.
        difference: difference of the accuracies under the published scoring.
        folds: differences by session; None if the folds cannot be paired.
        not_aligned: why the folds cannot be paired; else None.
        same_columns: whether the sessions are printed in the same order.
        test: None unless both rows are published and their folds can be paired.
        about_test: what the test assumes, or why there is none.
    """

    first: str
    second: str
    figures: dict[Side, RowFigures]
    difference: float
    folds: list[SessionDifference] | None
    not_aligned: str | None
    same_columns: bool
    test: CorrectedTTest | None
    about_test: str


@dataclass(frozen=True)
class PrintedResult:
    """Pairs of rows of which at least one is published.

    Args:
        settings: different settings, as far as a published table states them.
        notes: notes for the reader of the results.
        kind: "both-printed" if both sides are published, else "printed".
    """

    settings: SettingDifferences
    comparisons: list[PrintedPair]
    notes: list[str]
    kind: Literal["printed", "both-printed"]


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
    return parse_record({**found, "result": found}, ComparisonReport, path=path)
