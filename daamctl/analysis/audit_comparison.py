"""Compare the audited methods: one row each, the contrast of the two kinds of score, and a summary in words.

A method has an Importance Factor (kind "importance") or layer weights (kind "weight"). The papers claim that the
Importance Factor shows which layers matter.

Letters: L layers, F folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from daamctl.analysis.rank_tests import LEVEL, Values, standardized
from daamctl.analysis.scores import Scored
from daamctl.artifacts.audit import (
    Advantage,
    Advantages,
    AuditComparison,
    AuditedMethod,
    AuditRow,
    Contrast,
    KindDifference,
)
from daamctl.artifacts.terms import counted
from daamctl.sign_flip import paired_sign_flip

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


@dataclass(frozen=True)
class LearnedScore:
    """Score that a method has learned, for the contrast of the two kinds of score.

    Args:
        score: (L,).
        deletion: fold -> advantage of its order, averaged over seeds; empty if not measured.
    """

    score: Values
    deletion: Mapping[int, float]


def compare(
    scores: Mapping[str, Scored], audited: Mapping[str, AuditedMethod], worth: Values | None, clip: str
) -> AuditComparison:
    """Compare the audited methods.

    Args:
        scores: method -> scores of its layers.
        audited: method -> its audit.
        worth: (L,) accuracy of the linear probes; None if none was made.
        clip: word for a clip.
    """
    table = [_row(method, scores[method], entry) for method, entry in audited.items()]
    learned: dict[str, list[LearnedScore]] = {"importance": [], "weight": []}
    for row in table:
        if row.learned:
            scored = scores[row.method]
            learned[scored.kind].append(LearnedScore(scored.mean, _by_fold(scored, audited[row.method].deletion)))
    found = None
    if worth is not None and learned["importance"] and learned["weight"]:
        found = contrast(learned["importance"], learned["weight"], worth)
    return AuditComparison(table, found, _sentence(table, found), NOTE.format(clip=clip))


def contrast(importance: Sequence[LearnedScore], weights: Sequence[LearnedScore], worth: ArrayLike) -> Contrast:
    """Test whether Importance Factors predict the usefulness of layers better than layer weights.

    Tracking: difference of the mean rho with `worth`; p by swapping the mean ranks of the two kinds layer by layer.
    Deletion: difference of the mean advantage; p by swapping the kinds fold by fold (averaged over seeds). A swap is a
    sign flip of the difference. Neighbouring layers are similar and folds share training clips, so both p-values are
    too small rather than too large; the verdict requires both.

    Args:
        worth: (L,) usefulness of the layers.
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
    return KindDifference(importance, weights, p_better=better["p"], p_worse=worse["p"], floor=better["floor"])


def _row(method: str, scored: Scored, entry: AuditedMethod) -> AuditRow:
    agreement, agreement_untrained = entry.agreement, entry.agreement_untrained
    deletion, deletion_untrained = _both(entry.deletion)
    insertion, insertion_untrained = _both(entry.insertion)
    return AuditRow(
        method=method,
        label=scored.label,
        kind=scored.kind,
        learned=not np.allclose(scored.trained, scored.untrained, rtol=0, atol=1e-6),
        tracks_probe=agreement.verdict if agreement else None,
        spearman_rho=agreement.spearman_rho if agreement else None,
        p=agreement.p_one_sided if agreement else None,
        spearman_rho_untrained=agreement_untrained.spearman_rho if agreement_untrained else None,
        deletion_beats_random=deletion.verdict if deletion else None,
        deletion_advantage=deletion.advantage if deletion else None,
        deletion_p=deletion.p if deletion else None,
        deletion_advantage_untrained=deletion_untrained.advantage if deletion_untrained else None,
        insertion_beats_random=insertion.verdict if insertion else None,
        insertion_advantage=insertion.advantage if insertion else None,
        insertion_p=insertion.p if insertion else None,
        insertion_advantage_untrained=insertion_untrained.advantage if insertion_untrained else None,
    )


def _both(found: Advantages | None) -> tuple[Advantage | None, Advantage | None]:
    """Advantage of the trained and of the untrained score."""
    return (None, None) if found is None else (found.score, found.untrained)


def _by_fold(scored: Scored, deletion: Advantages | None) -> dict[int, float]:
    """Fold -> deletion advantage, averaged over seeds; empty unless every run has it."""
    if deletion is None or deletion.score is None or len(deletion.score.per_fold) != len(scored.folds):
        return {}
    by_fold: dict[int, list[float]] = {}
    for fold, advantage in zip(scored.folds, deletion.score.per_fold, strict=True):
        by_fold.setdefault(fold.fold, []).append(advantage)
    return {number: float(np.mean(advantages)) for number, advantages in by_fold.items()}


def _sentence(table: Sequence[AuditRow], found: Contrast | None) -> str:
    """Summary of the audit in one or two sentences."""
    if not table:
        return "The layer scores were not tested against the usefulness of the layers."
    by_kind = [[row for row in table if row.kind == kind] for kind in KINDS]
    counts = ". ".join(_counts(rows) for rows in by_kind if rows)
    if found is None:
        return f"{counts}. The two kinds of score can only be compared if methods of both kinds are trained."
    details = []
    if found.tracking is not None:
        means = f"{found.tracking.importance:+.2f} against {found.tracking.weights:+.2f}"
        details.append(f"mean rank correlation with the probe {means} (p = {_p(found.tracking, found):.3f})")
    if found.deletion is not None:
        means = f"{100 * found.deletion.importance:+.1f} against {100 * found.deletion.weights:+.1f} points"
        details.append(f"deletion advantage {means} (p = {_p(found.deletion, found):.3f})")
    return f"{VERDICTS[found.verdict]}: {', '.join(details)}. {counts}."


def _p(part: KindDifference, found: Contrast) -> float:
    """The p-value of the side that the verdict is about."""
    return part.p_worse if found.verdict == "worse" else part.p_better


def _counts(rows: Sequence[AuditRow]) -> str:
    tracks = sum(row.tracks_probe == "yes" for row in rows)
    beats = sum(row.deletion_beats_random == "yes" for row in rows)
    kind, methods = KINDS[rows[0].kind], counted(len(rows), "audited method")
    return (
        f"{kind}, {methods}: layers with a higher score are also better for a linear probe in {tracks}, and removing "
        f"layers by score costs more accuracy than removing random ones in {beats}"
    )
