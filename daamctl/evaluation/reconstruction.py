"""Scores of reconstructions compared over test images: intervals, paired tests against a reference.

Crops of one image are alike, so the image is the unit. Seeds are averaged before any test. A test over images says
whether these trained models differ on other images; whether other trainings would differ, the seeds show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daamctl.artifacts.layer_sets import over_runs
from daamctl.artifacts.scores import Compared, Figure, Score
from daamctl.evaluation.comparison import paired_columns, unit_sums
from daamctl.evaluation.engine import mean_intervals


def score_rows(
    metric: str, values: Mapping[str, NDArray[np.float64]], images: Sequence[str], seeds: Sequence[int], reference: str
) -> dict[str, list[Any]]:
    """Figures, scores and comparisons of one metric; `p_holm` of the comparisons stays empty.

    Args:
        values: arm -> metric of every seed and test crop, (S, N).
        images: image of every crop, (N,).
        reference: arm that the others are compared with.
    """
    means = {arm: table.mean(0) for arm, table in values.items()}
    of_seeds = {arm: table.mean(1) for arm, table in values.items()}
    gaps = {arm: means[arm] - means[reference] for arm in values if arm != reference}
    of_arm = dict(zip(means, mean_intervals(np.stack([*means.values()]), images), strict=True))
    codes = np.unique(np.asarray(images), return_inverse=True)[1]
    figures, scores, comparisons = [], [], []
    for arm, interval in of_arm.items():
        level = over_runs(of_seeds[arm].tolist())
        row: dict[str, Any] = {"mean": level.mean, "std": level.std, "runs": level.n, "pooled": interval.value}
        row |= {"low": interval.low, "high": interval.high, "resampled": "image", "units": interval.n_clusters}
        figures.append(Figure(method=arm, unit="image", metric=metric, **row))
        for seed, value in zip(seeds, of_seeds[arm], strict=True):
            scores.append(
                Score(method=arm, seed=seed, unit="image", metric=metric, value=float(value), items=len(images))
            )
    for arm, gap in gaps.items():
        by_seed = of_seeds[arm] - of_seeds[reference]
        row = {"difference": float(gap.mean()), "runs": len(seeds)}
        row |= paired_columns(*unit_sums(gap, np.ones(len(gap)), codes), "image", alpha=0.05, alike=None, seed=0)
        row |= {"ahead": int((by_seed > 0).sum()), "behind": int((by_seed < 0).sum())}
        row |= {"first_value": of_arm[arm].value, "second_value": of_arm[reference].value}
        comparisons.append(Compared(first=arm, second=reference, metric=metric, **row).turned())
    return {"figures": figures, "scores": scores, "comparisons": comparisons}
