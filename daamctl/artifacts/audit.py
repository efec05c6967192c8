"""Result of the audit: `audit` in `data/importance/<run>/summary.json`. Do layer scores reflect how useful layers are?

`daamctl.analysis.audit` builds these records; the report reads them. The JSON has the same names, nesting and order.
Layer numbers are the indices of Hugging Face's hidden states; as keys they are strings. Accuracies, areas and
differences of accuracies are fractions. p-values are one-sided unless stated otherwise.

Letters: L layers, F folds (with their seeds), R random orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from daamctl.artifacts.ablation import AloneTest

PerLayer = dict[str, float]
"""Layer number -> value."""
Verdict = Literal["yes", "unclear", "not shown", "cannot be told"]


@dataclass(frozen=True)
class Agreement:
    """Rank correlation of a score with the usefulness of the layers, see `daamctl.analysis.rank_tests`.

    Args:
        num_layers: L.
        kendall_tau: tau-b.
        kendall_p: two-sided, from scipy: exact permutation distribution, or a normal approximation if there are ties.
        spearman_p: two-sided permutation test.
        p_turned: share of the 2 L rotated and mirrored profiles with a rho at least as large.
        rho_beside_depth: correlation of the ranks without their linear trend along depth; None if nothing remains.
        p_beside_depth: as `p_turned`, for `rho_beside_depth`.
        floor: smallest possible p_one_sided with L layers; for the rotated profiles it is 1 / (2 L).
        verdict: yes: all three one-sided p-values are at most the level of the audit; unclear: only that of the
            permutation test is; not shown: it is not; cannot be told: fewer than 4 layers.
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


@dataclass(frozen=True)
class Advantage:
    """Area between the curve of an order and the mean curve of random orders; positive is better than random.

    Args:
        area: under the accuracy curve over the share of layers, mean over folds, in [0, 1].
        random_area: mean over folds and random orders.
        advantage: their difference, deletion: random minus own, insertion: own minus random.
        per_fold: (F,) advantages.
        p: (1 + number of random orders at least as good) / (1 + R). The random orders are the same in all folds, so a
            score that is stable over folds counts as one draw.
        floor: 1 / (1 + R).
        verdict: yes: p is at most the level of the audit; cannot be told: no random order is as good, but R is too
            small; else not shown.
    """

    area: float
    random_area: float
    advantage: float
    per_fold: list[float]
    p: float
    floor: float
    verdict: Verdict


@dataclass(frozen=True)
class Advantages:
    """Advantage of the order of the score, and of the score before training; None if not measured."""

    score: Advantage | None
    untrained: Advantage | None


@dataclass(frozen=True)
class ReplacedAccuracy:
    """Accuracy of a trained model with all of its layers, and with every layer replaced by its mean."""

    all_layers: float
    no_layer: float


@dataclass(frozen=True)
class TrainedAlone:
    """The method that the ablation trained on few layers, and the unit of its accuracies, "utterance" or "clip"."""

    method: str | None
    unit: str


@dataclass(frozen=True)
class MethodAloneTest(AloneTest, TrainedAlone):
    """Test of the score of one method on the layers that the ablation trained alone.

    The fields of the last base class come first.
    """


@dataclass(frozen=True)
class AuditedMethod:
    """Audit of one method.

    Args:
        agreement: of the score with the probes; None if not tested, or if one of the two is constant.
        agreement_untrained: of the score before training; None also if that score does not rank the layers.
        alone: tests on the layers that the ablation trained alone, per number of layers.
        deletion: replacing layers in the order of the score; None without curves.
        insertion: putting layers back in this order; None without curves.
        accuracy: ends of the curves; None without curves.
        missing: what could not be tested and why, with the command that repairs it.
    """

    agreement: Agreement | None
    agreement_untrained: Agreement | None
    alone: list[MethodAloneTest]
    deletion: Advantages | None
    insertion: Advantages | None
    accuracy: ReplacedAccuracy | None
    missing: list[str]
    seconds: float


@dataclass(frozen=True)
class AuditRow:
    """Whether the score of one method reflects how useful the layers are. None: not known.

    Args:
        kind: kind of the score, see `daamctl.artifacts.importance.LayerScores`.
        learned: whether training changed the score.
        tracks_probe: verdict on the rank correlation with linear probes of the layers.
        deletion_beats_random: verdict on replacing layers in the order of the score.
        deletion_advantage: area between the accuracy curve in the order of the score and that of random orders.
        deletion_advantage_untrained: the area for the score before training.
        insertion_beats_random: the same for putting layers back.
        insertion_advantage: likewise.
        insertion_p: likewise.
        insertion_advantage_untrained: likewise.
    """

    method: str
    label: str
    kind: str
    learned: bool
    tracks_probe: str | None
    spearman_rho: float | None
    p: float | None
    spearman_rho_untrained: float | None
    deletion_beats_random: str | None
    deletion_advantage: float | None
    deletion_p: float | None
    deletion_advantage_untrained: float | None
    insertion_beats_random: str | None
    insertion_advantage: float | None
    insertion_p: float | None
    insertion_advantage_untrained: float | None


@dataclass(frozen=True)
class KindDifference:
    """Difference between methods with an Importance Factor and methods with layer weights.

    Args:
        importance: mean over the methods with an Importance Factor.
        weights: mean over the methods with layer weights.
        p_better: p-value for a higher mean of the Importance Factors.
    """

    importance: float
    weights: float
    p_better: float
    p_worse: float
    floor: float


@dataclass(frozen=True)
class Contrast:
    """Whether Importance Factors predict the usefulness of layers better than layer weights.

    Args:
        tracking: difference in the rank correlation with the probes; None if not measured.
        deletion: difference in the deletion advantage; None if not measured.
        verdict: better or worse if both p-values are at most the level of the audit; else undecided.
    """

    tracking: KindDifference | None
    deletion: KindDifference | None
    verdict: Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class AuditComparison:
    """Audit of all methods.

    Args:
        contrast: of the two kinds of score; None if only methods of one kind were audited.
    """

    table: list[AuditRow]
    contrast: Contrast | None
    sentence: str | None
    note: str


@dataclass(frozen=True)
class AuditSettings:
    """Settings of the audit.

    Args:
        clips: largest number of test clips of a fold on which layers are replaced.
        orders: R.
        level: largest p-value for the verdict "yes".
    """

    clips: int
    orders: int
    unit: str
    level: float


@dataclass(frozen=True)
class AuditSeconds:
    """Time spent on linear probes, and on replacing layers."""

    probe: float
    replacement: float


@dataclass(frozen=True)
class Audit:
    """Whether layer scores reflect how useful the layers are.

    Args:
        missing: why there is no audit, with the command that makes it.
        no_ablation: why there are no tests on layers trained alone, with the commands that make them; else None.
        not_audited: method -> reason.
        steps: numbers of layers that are replaced or put back.
        methods: method -> its audit.
    """

    missing: list[str]
    no_ablation: str | None
    not_audited: dict[str, str]
    settings: AuditSettings
    steps: list[int]
    methods: dict[str, AuditedMethod]
    seconds: AuditSeconds
    comparison: AuditComparison
