"""Linear probes in closed form: how well each layer, and simple fusions of all layers, separate the classes.

They are the probes of `daamctl.methods.probes`, chosen and fitted as stage `train` does it, so the probe of a layer has
the accuracy of `ridge-last` on that layer. Nothing is random.

Letters: N clips, B clips to score, L layers, D features, C classes, K folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float64, Integer
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from daamctl.compute.progress import progress
from daamctl.methods.base import FusionClassifier, at_least_float32
from daamctl.methods.probes import (
    Candidate,
    Layers,
    RidgeProbe,
    rank,
    ridge_average,
    ridge_concat,
    ridge_last,
    ridge_mean,
)
from daamctl.methods.settings import Sizes

Ids = NDArray[np.int64]
Values = NDArray[np.float64]

Scoring = Callable[[Ids, Tensor], dict[str, float]]
"""Figures by name, from row numbers (B,) and logits (B, C)."""

CONFIDENCE = 0.95
"""Confidence level of one-sided statements about differences over folds."""
WORTHWHILE = 0.01
"""Smallest gain in the primary figure that is worth a fusion: one point."""

Case = Literal["likely", "unlikely", "cannot be told"]


class FoldRows(NamedTuple):
    """Row numbers of one fold; dev may be empty."""

    train: Ids
    dev: Ids
    test: Ids


class Vectors(Protocol):
    """Features (N, L, D), in memory or on disk."""

    @property
    def shape(self) -> Sequence[int]:
        """N, L and D."""

    def __getitem__(self, key: Any, /) -> Any:
        """Features (B, D) of some rows of one layer."""


@dataclass(frozen=True)
class ProbeScores:
    """Results of one probe, one value per fold.

    Args:
        values: figure -> (K,) on the test group.
        ranks: sort keys of the probe among others, which do not see the test group; the smallest is the best.
    """

    values: dict[str, Values]
    ranks: tuple[tuple[float, ...], ...] = ()


class LayerProbes(NamedTuple):
    """Results of every probe.

    fusions: `mean` of the layers, `average` of the scores of their probes, and their `concatenation`. chance: always
    the most frequent class of the training clips.
    """

    layers: tuple[ProbeScores, ...]
    fusions: dict[str, ProbeScores]
    chance: ProbeScores


@dataclass(frozen=True)
class Difference:
    """A paired difference over folds.

    Args:
        per_fold: (K,).
        standard_error: of the mean; None for a single fold. It is too small rather than too large, because folds share
            training clips.
        margin: `standard_error` times the quantile of Student's t for `CONFIDENCE`, one-sided.
    """

    per_fold: Values
    mean: float
    standard_error: float | None
    margin: float | None


@torch.no_grad()
def fit_probe(
    x: Vectors,
    y: Integer[np.ndarray, " N"],
    rows: FoldRows,
    layers: Sequence[int],
    num_classes: int,
    *,
    refit: bool,
    build: Callable[[Sizes], FusionClassifier] = ridge_last,
) -> tuple[Tensor, Candidate]:
    """Fit a probe on one fold as stage `train` does.

    Args:
        x: finite, in any floating format; one layer at a time is read.
        rows: the fold; without a dev part the penalty is chosen by leaving out training clips.
        layers: places of the layers of the probe among the L layers.
        refit: fit again on train and dev with the chosen penalty.

    Returns:
        Logits (B, C) of the test clips, and the chosen penalty.
    """

    def part(own: Ids) -> Layers:
        return Layers(torch.from_numpy(y[own]), lambda index: torch.as_tensor(x[own, layers[index]]).cpu())

    train, dev, test = (part(own) for own in rows)
    probe = build(Sizes(len(layers), x.shape[2], num_classes))
    assert isinstance(probe, RidgeProbe)
    solution = probe.solve(train, dev if len(rows.dev) else None)
    chosen = solution.candidates[solution.chosen]
    if refit and len(rows.dev):
        probe.refit(train.join(dev), chosen)
    wide = [at_least_float32(test.layer(index)) for index in range(len(layers))]  # a mean in float16 would be rounded
    logits: Tensor = probe(torch.stack(wide, dim=1))
    return logits, chosen


def probe_layers(
    x: Vectors,
    y: Integer[np.ndarray, " N"],
    folds: Sequence[FoldRows],
    num_classes: int,
    score: Scoring,
    *,
    refit: bool = True,
) -> LayerProbes:
    """Probe every layer and the fusions of all layers, fold by fold; see `fit_probe`."""
    every = range(x.shape[1])
    probes: dict[int | str, tuple[Sequence[int], Callable[[Sizes], FusionClassifier]]] = {
        **{layer: ([layer], ridge_last) for layer in every},
        "mean": (every, ridge_mean),
        "average": (every, ridge_average),
        "concatenation": (every, ridge_concat),
    }
    figures: dict[int | str, list[dict[str, float]]] = {name: [] for name in (*probes, "chance")}
    ranks: dict[int | str, list[tuple[float, ...]]] = {name: [] for name in figures}
    with progress(len(folds) * len(probes), "probing the layers", "probes") as bar:
        for fold in folds:
            for name, (layers, build) in probes.items():
                logits, chosen = fit_probe(x, y, fold, layers, num_classes, refit=refit, build=build)
                figures[name].append(score(fold.test, logits))
                ranks[name].append(rank(chosen, held_out=len(fold.dev) > 0))
                bar.advance()
            # scores that are highest for the most frequent class
            counts = torch.from_numpy(np.bincount(y[fold.train], minlength=num_classes)).double()
            figures["chance"].append(score(fold.test, counts.expand(len(fold.test), -1)))
    found = {
        name: ProbeScores({one: np.array([fold[one] for fold in folds_of]) for one in folds_of[0]}, tuple(ranks[name]))
        for name, folds_of in figures.items()
    }
    fusions = {name: found[name] for name in probes if isinstance(name, str)}
    return LayerProbes(tuple(found[layer] for layer in every), fusions, found["chance"])


def choose(candidates: Sequence[ProbeScores]) -> tuple[ProbeScores, list[int]]:
    """Choose a candidate in every fold without looking at its test group, as `ridge-best-layer` chooses its layer.

    Results of the chosen candidates, and their K indices.
    """
    folds = range(len(candidates[0].ranks))
    # the first of equals, as `ridge-best-layer` takes it
    chosen = [min(range(len(candidates)), key=lambda index: candidates[index].ranks[fold]) for fold in folds]
    found = {
        name: np.array([candidates[index].values[name][fold] for fold, index in enumerate(chosen)])
        for name in candidates[0].values
    }
    return ProbeScores(found), chosen


def difference(values: Float64[np.ndarray, " K"], others: Float64[np.ndarray, " K"]) -> Difference:
    """Paired difference `values - others` over folds, each of shape (K,)."""
    per_fold = values - others
    number = len(per_fold)
    mean = float(per_fold.mean())
    if number < 2:
        return Difference(per_fold, mean, None, None)
    error = float(per_fold.std(ddof=1) / np.sqrt(number))
    return Difference(per_fold, mean, error, error * float(student.ppf(CONFIDENCE, number - 1)))


def judge(gain: Difference) -> Case:
    """Judge a gain. With fewer than three folds the answer is always "cannot be told".

    likely: mean - margin > 0. unlikely: mean + margin < `WORTHWHILE`. If both hold, the gain is certain but too small
    to matter: unlikely.
    """
    # of two differences Student's t has a quantile of 6, which says nothing
    if gain.margin is None or len(gain.per_fold) < 3:
        return "cannot be told"
    if gain.mean + gain.margin < WORTHWHILE:
        return "unlikely"
    return "likely" if gain.mean - gain.margin > 0 else "cannot be told"
