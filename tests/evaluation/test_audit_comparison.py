"""The contrast of scores that follow the usefulness of the layers with scores that do not."""

from __future__ import annotations

import numpy as np
import pytest

from daamctl.evaluation.audit_comparison import LearnedScore, contrast


def test_contrast_of_two_kinds():
    rng = np.random.default_rng(0)
    worth = rng.normal(size=24)
    folds = {fold: 0.1 + 0.01 * fold for fold in range(1, 6)}
    guide = [LearnedScore(worth + 0.1 * rng.normal(size=24), folds)]
    chance = [LearnedScore(rng.normal(size=24), dict.fromkeys(folds, -0.05)) for _ in range(2)]
    better = contrast(guide, chance, worth)
    assert better.verdict == "better"
    assert better.deletion is not None
    assert better.deletion.importance == pytest.approx(0.13)
    assert better.deletion.p_better == 1 / 32
    assert better.tracking is not None
    assert better.tracking.importance > 0.9
    assert better.tracking.p_better < 0.01
    assert contrast(chance, guide, worth).verdict == "worse"
    assert contrast(chance[:1], chance[1:], worth).verdict == "undecided"
    few = contrast(guide, [LearnedScore(chance[0].score, {})], worth)
    assert (few.deletion, few.verdict) == (None, "undecided")
    assert contrast([], guide, worth).tracking is None
