"""Entity scores: of one set of predicted tags, of a tagger, and of all taggers of a run.

`daamctl.evaluation.entities` and `daamctl.evaluation.tagging` compute them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daamctl.artifacts.statistics import Interval, MetricComparison

Rule = Literal["lenient", "strict"]
"""How tags become entities, see `daamctl.evaluation.entities`."""


@dataclass(frozen=True)
class TypeScores:
    """Scores of one entity type, or of all together (micro average).

    Args:
        gold: number of true entities.
        predicted: number of predicted entities.
        correct: number of predicted entities that have the boundaries and the type of a true one.
        precision: correct / predicted; 0 if nothing is predicted.
        recall: correct / gold; 0 if there is no true entity.
        f1: 2 correct / (gold + predicted); 0 if both are 0.
    """

    gold: int
    predicted: int
    correct: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class SpanErrors:
    """What became of the true entities, and how many predicted entities have nothing to do with any.

    Every true entity is in exactly one of the first five counts.

    Args:
        exact: predicted with the same boundaries and type.
        wrong_type: predicted with the same boundaries, but another type.
        wrong_boundaries: overlaps a predicted entity of the same type, with other boundaries.
        wrong_both: overlaps predicted entities, with other boundaries and other types.
        missed: overlaps no predicted entity.
        spurious: predicted entities that overlap no true one.
    """

    exact: int
    wrong_type: int
    wrong_boundaries: int
    wrong_both: int
    missed: int
    spurious: int


@dataclass(frozen=True)
class EntityScores:
    """Entity scores of one set of predicted tags.

    Args:
        rule: how tags were read.
        micro: over all types together.
        per_type: entity type -> its scores.
    """

    rule: Rule
    micro: TypeScores
    per_type: dict[str, TypeScores]
    errors: SpanErrors


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
