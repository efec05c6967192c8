"""Mean and standard deviation of the training part, for `train.standardize`."""

from __future__ import annotations

import torch
from torch import Tensor

from daamctl.fit.feature_split import Part
from daamctl.methods.base import Standardize

BATCH = 1024
"""Clips per read."""


def fit_standardize(part: Part, kind: str, device: str) -> Standardize:
    """Measure the mean and standard deviation of a training part.

    Args:
        part: N clips of shape (L, D), in memory or on disk.
        kind: layer: one mean and deviation per layer, over clips and features; feature: one per layer and feature.
        device: where to compute; sums are in float64, so mps, which lacks it, falls back to the CPU.
    """
    where = "cpu" if device == "mps" else device
    mean, squares, clips = torch.zeros((), device=where), torch.zeros((), device=where), 0
    for x, _ in part.batches(BATCH):
        wide = x.to(where, torch.float64)  # (B, L, D)
        clips, before = clips + len(wide), clips
        centre = wide.mean(0)
        shift = centre - mean
        # update of Chan, Golub and LeVeque: sums of squares would cancel if the mean is large compared to the spread
        squares = squares + (wide - centre).square().sum(0) + shift.square() * (before * len(wide) / clips)
        mean = mean + shift * (len(wide) / clips)
    variance = squares / clips
    if kind == "layer":
        overall = mean.mean(-1, keepdim=True)
        variance = (variance + (mean - overall).square()).mean(-1, keepdim=True)
        mean = overall
    return Standardize(_float(mean), _float(_without_rounding(variance.sqrt(), mean)))


def _without_rounding(deviation: Tensor, mean: Tensor) -> Tensor:
    """Deviations, with 0 where a value is only the rounding error of a constant."""
    return torch.where(deviation > 1e-9 * mean.abs(), deviation, 0)


def _float(x: Tensor) -> Tensor:
    return x.float().cpu()
