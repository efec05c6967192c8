"""Scores of reconstructions compared over test images: intervals, paired tests against a reference, Holm's correction.

Crops of one image are alike, so the image is the unit. Seeds are averaged before any test. A test over images says
whether these trained models differ on other images; whether other trainings would differ, the seeds show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from daamctl.artifacts.reconstruction import ScoreOf
from daamctl.artifacts.statistics import SignFlipTest
from daamctl.evaluation.engine import mean_intervals
from daamctl.evaluation.statistics import (
    grouped_means,
    minimal_detectable_difference,
    with_holm,
)
from daamctl.sign_flip import paired_sign_flip


def compare_arms(
    values: Mapping[str, NDArray[np.float64]], images: Sequence[str], reference: str
) -> dict[str, ScoreOf]:
    """Compare arms in one score.

    Args:
        values: arm -> score of every seed and test crop, (S, N).
        images: image of every crop, (N,).
        reference: arm that the others are compared with.

    Returns:
        Arm -> figures. Holm's correction is over the arms other than the reference.
    """
    means = {arm: table.mean(0) for arm, table in values.items()}
    others = [arm for arm in values if arm != reference]
    gaps = {arm: means[arm] - means[reference] for arm in others}
    rows = [*means.values(), *gaps.values()]
    intervals = mean_intervals(np.stack(rows), images)
    of_gap = dict(zip(others, intervals[len(means) :], strict=True))
    by_image = {arm: grouped_means(gap, images) for arm, gap in gaps.items()}
    single = [SignFlipTest(unit="image", **paired_sign_flip(by_image[arm])) for arm in others]
    tests = dict(zip(others, with_holm(single), strict=True))
    found = {}
    for arm, interval in zip(means, intervals, strict=False):
        table = values[arm]
        plain = ScoreOf(value=interval.value, by_seed=table.mean(1).tolist(), interval=interval)
        if arm == reference:
            found[arm] = plain
            continue
        found[arm] = ScoreOf(
            value=interval.value,
            by_seed=plain.by_seed,
            interval=interval,
            difference=of_gap[arm].value,
            difference_by_seed=(table.mean(1) - values[reference].mean(1)).tolist(),
            difference_interval=of_gap[arm],
            test=tests[arm],
            detectable=minimal_detectable_difference(by_image[arm]),
        )
    return found
