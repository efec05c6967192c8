"""Compare the audited methods: the contrast of the two kinds of score, and a summary in words.

A method has an Importance Factor (kind "importance") or layer weights (kind "weight"). The papers claim that the
Importance Factor shows which layers matter.

Letters: L layers, F folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.terms import counted
from daamctl.data.sign_flip import paired_sign_flip
from daamctl.evaluation.layer_scores import MethodLayerScores
from daamctl.evaluation.rank_tests import LEVEL, Values, standardized

NOTE = (
    "Unclear: more similar than by chance, but not more than other profiles that are equally smooth. p-values are "
    "one-sided, per method, and not corrected for the number of methods. Scores are computed on test {clip}s without "
    "labels, as in the papers. Deletion and insertion are per {clip}."
)
VERDICTS = {
    "better": "Importance Factors predict the usefulness of layers better than layer weights here",
    "worse": "Importance Factors predict the usefulness of layers worse than layer weights here",
    "undecided": "There is no evidence that Importance Factors predict the usefulness of layers better than layer "
    "weights here",
}
KINDS = {"importance": "Importance Factors", "weight": "Layer weights"}


class LearnedScore(NamedTuple):
    """Score (L,) that a method has learned, and fold -> advantage of deleting in its order; empty if not measured."""

    score: Values
    deletion: Mapping[int, float]


class KindDifference(NamedTuple):
    """Mean over the methods with an Importance Factor, mean over those with layer weights, and tests of both sides."""

    importance: float
    weights: float
    p_better: float
    p_worse: float


class Contrast(NamedTuple):
    """Whether Importance Factors predict the usefulness of layers better than layer weights.

    tracking: difference in the rank correlation with the probes; deletion: in the deletion advantage; None if not
    measured. verdict: better or worse if both p-values are at most the level of the audit.
    """

    tracking: KindDifference | None
    deletion: KindDifference | None
    verdict: Literal["better", "worse", "undecided"]


def summary(
    scores: Mapping[str, MethodLayerScores],
    tests: Sequence[LayerTest],
    advantages: Mapping[str, Mapping[int, float]],
    worth: Values | None,
) -> str:
    """Summary of the audit in one or two sentences.

    Args:
        advantages: method -> fold -> deletion advantage, averaged over seeds; empty if not measured.
        worth: (L,) accuracy of the linear probes; None if none was made.
    """
    if not scores:
        return "The layer scores were not tested against the usefulness of the layers."
    shown = {(one.method, one.test) for one in tests if one.score == "trained" and one.verdict == "yes"}
    counts: list[str] = []
    learned: dict[str, list[LearnedScore]] = {}
    for kind, name in KINDS.items():
        own = {method: scored for method, scored in scores.items() if scored.kind == kind}
        tracks, beats = (sum((method, test) in shown for method in own) for test in ("probe", "deletion"))
        learned[kind] = [
            LearnedScore(scored.mean, advantages.get(method, {})) for method, scored in own.items() if scored.learned
        ]
        if own:
            counts.append(
                f"{name}, {counted(len(own), 'audited method')}: layers with a higher score are also better for a "
                f"linear probe in {tracks}, and removing layers by score costs more accuracy than removing random "
                f"ones in {beats}"
            )
    text = ". ".join(counts)
    if worth is None or not learned["importance"] or not learned["weight"]:
        return f"{text}. The two kinds of score can only be compared if methods of both kinds are trained."
    found = contrast(learned["importance"], learned["weight"], worth)
    details = []
    for part, what, scale in (
        (found.tracking, "mean rank correlation with the probe {:+z.2f} against {:+z.2f}", 1),
        (found.deletion, "deletion advantage {:+z.1f} against {:+z.1f} points", 100),
    ):
        if part is not None:
            p = part.p_worse if found.verdict == "worse" else part.p_better  # of the side that the verdict is about
            details.append(f"{what.format(scale * part.importance, scale * part.weights)} (p = {p:.3f})")
    return f"{VERDICTS[found.verdict]}: {', '.join(details)}. {text}."


def contrast(importance: Sequence[LearnedScore], weights: Sequence[LearnedScore], worth: ArrayLike) -> Contrast:
    """Test whether Importance Factors predict the usefulness of layers, `worth` (L,), better than layer weights.

    Tracking: difference of the mean rho with `worth`; p by swapping the mean ranks of the two kinds layer by layer.
    Deletion: difference of the mean advantage; p by swapping the kinds fold by fold (averaged over seeds). A swap is a
    sign flip of the difference. Neighbouring layers are similar and folds share training clips, so both p-values are
    too small rather than too large; the verdict requires both.
    """
    tracking = deletion = None
    worth_ranks = standardized(rankdata(worth))
    importance_ranks, weight_ranks = _mean_ranks(importance), _mean_ranks(weights)
    if worth_ranks is not None and importance_ranks is not None and weight_ranks is not None:
        tracking = _swap_test(
            (importance_ranks - weight_ranks) * worth_ranks,
            importance=float(importance_ranks @ worth_ranks),
            weights=float(weight_ranks @ worth_ranks),
        )
    folds = sorted(_common_folds(importance) & _common_folds(weights))
    if folds:
        gains, weight_gains = _mean_deletion(importance, folds), _mean_deletion(weights, folds)
        deletion = _swap_test(gains - weight_gains, importance=float(gains.mean()), weights=float(weight_gains.mean()))
    parts = [tracking, deletion]
    verdict: Literal["better", "worse", "undecided"] = "undecided"
    if all(part is not None and part.p_better <= LEVEL for part in parts):
        verdict = "better"
    elif all(part is not None and part.p_worse <= LEVEL for part in parts):
        verdict = "worse"
    return Contrast(tracking, deletion, verdict)


def _mean_ranks(methods: Sequence[LearnedScore]) -> Values | None:
    """Mean of the standardised ranks of the scores, (L,); None if every score is constant."""
    ranks = [standardized(rankdata(method.score)) for method in methods]
    profiles = [rank for rank in ranks if rank is not None]
    return np.mean(profiles, axis=0) if profiles else None


def _common_folds(methods: Sequence[LearnedScore]) -> set[int]:
    """Folds in which the deletion advantage of every method was measured."""
    return set.intersection(*(set(method.deletion) for method in methods)) if methods else set()


def _mean_deletion(methods: Sequence[LearnedScore], folds: Sequence[int]) -> Values:
    """Deletion advantage per fold, averaged over methods."""
    return np.array([np.mean([method.deletion[fold] for method in methods]) for fold in folds])


def _swap_test(differences: Values, *, importance: float, weights: float) -> KindDifference:
    better = paired_sign_flip(differences, one_sided=True)
    worse = paired_sign_flip(-differences, one_sided=True)
    return KindDifference(importance, weights, better["p"], worse["p"])
