"""Entity scores of the taggers of a run, which `daamctl.evaluation.tagging` computes."""

from __future__ import annotations

from dataclasses import dataclass

from daamctl.artifacts.statistics import Interval, MetricComparison
from daamctl.data.spans import EntityScores


@dataclass(frozen=True)
class MethodEntities:
    """Entity scores of one tagger. Its F1 is micro-averaged, and the mean over the trials (seeds).

    Args:
        f1: F1 by the rule `lenient`, with its interval over sentences, or over documents where they are known.
        strict: F1 by the rule `strict`.
        per_trial: F1 of each seed, in the order of the seeds.
        scores: of the predictions of all trials together: per type, and kinds of errors.
        best_on_test: F1 at the epoch that is best on the test part, as some papers report; None: not recorded.
    """

    f1: Interval
    strict: float
    per_trial: list[float]
    scores: EntityScores
    best_on_test: float | None


@dataclass(frozen=True)
class Entities:
    """Entity scores of the taggers of one run.

    Args:
        reference: method that the others are compared with; None: no comparison.
        methods: method -> scores; methods with missing folds are left out.
        comparisons: method -> its F1 minus that of the reference.
        unit: what intervals and tests take as independent: "sentence", or "document" where documents are known.
        sentences: number of test sentences; None in files older than this field.
    """

    reference: str | None
    methods: dict[str, MethodEntities]
    comparisons: dict[str, MetricComparison]
    unit: str = "sentence"
    sentences: int | None = None
