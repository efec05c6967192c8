"""Linear probes in closed form: how well each layer, and simple fusions of all layers, separate the classes.

A probe is a ridge classifier of `daamctl.methods.ridge`, on features that are standardised with the statistics of the
training clips. Its penalty is the one of `PENALTIES` with the smallest leave-one-out squared error on the training
clips. Nothing is random.

Letters: N clips, B clips to score, L layers, D features, C classes, K folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64, Integer, Shaped
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from daamctl.methods.ridge import (
    MAX_KERNEL_CLIPS,
    PENALTIES,
    add_products,
    fit_kernel_ridge,
    fit_ridge,
    scaling_of,
)

Ids = NDArray[np.integer[Any]]
Values = NDArray[np.float64]

EntityF1 = Callable[[Ids, Ids], float]
"""Entity F1 of some words, from their row numbers and the predicted class ids, both of shape (B,)."""

CONFIDENCE = 0.95
"""Confidence level of one-sided statements about differences over folds."""
WORTHWHILE = 0.01
"""Smallest gain in accuracy or entity F1 that is worth a fusion: one point."""

Case = Literal["likely", "unlikely", "cannot be told"]


class Rows(NamedTuple):
    """Row numbers of one fold; dev may be empty."""

    train: Ids
    dev: Ids
    test: Ids


@dataclass(frozen=True)
class Scores:
    """Results of one probe, each of shape (K,): one value per fold.

    Args:
        accuracy: on the test group.
        balanced_accuracy: on the test group; mean recall of the classes present.
        choice_accuracy: on the held-out group; without one, leave-one-out on the training clips.
        choice_balanced_accuracy: on the same clips.
        entity_f1: of tagged words, on the test group; None for other items.
        choice_entity_f1: on the clips of `choice_accuracy`.
    """

    accuracy: Values
    balanced_accuracy: Values
    choice_accuracy: Values
    choice_balanced_accuracy: Values
    entity_f1: Values | None = None
    choice_entity_f1: Values | None = None

    @property
    def compared(self) -> Values:
        """What probes are compared by: entity F1 of tagged words, accuracy of other items."""
        return self.accuracy if self.entity_f1 is None else self.entity_f1

    @property
    def choice(self) -> Values:
        """What a candidate is chosen by."""
        return self.choice_accuracy if self.choice_entity_f1 is None else self.choice_entity_f1


@dataclass(frozen=True)
class LayerProbes:
    """Results of every probe.

    Args:
        layers: one per layer.
        mean: on the mean of the layers.
        average: the mean of the scores of the L probes.
        concatenation: on all layers side by side, each standardised; None above `MAX_KERNEL_CLIPS`.
        chance: always the most frequent class of the training clips.
    """

    layers: tuple[Scores, ...]
    mean: Scores
    average: Scores
    concatenation: Scores | None
    chance: Scores

    def fusions(self) -> dict[str, Scores]:
        """The fusions of all layers, by name."""
        found = {"mean": self.mean, "average": self.average, "concatenation": self.concatenation}
        return {name: scores for name, scores in found.items() if scores is not None}


@dataclass(frozen=True)
class Difference:
    """A paired difference over folds.

    Args:
        per_fold: (K,).
        mean: over folds.
        standard_error: of the mean; None for a single fold. It is too small rather than too large, because folds share
            training clips.
        margin: `standard_error` times the quantile of Student's t for `CONFIDENCE`, one-sided.
    """

    per_fold: Values
    mean: float
    standard_error: float | None
    margin: float | None


def ridge_probe(
    x_train: Float[Tensor, "N D"],
    y: Integer[Ids, " N"],
    x_test: Float[Tensor, "B D"],
    num_classes: int,
    *,
    penalties: Sequence[float] = PENALTIES,
) -> Float[Tensor, "B C"]:
    """Fit a probe on some clips and score others.

    Args:
        x_train: (N, D); float64 is computed in float64, other formats in float32.
        y: (N,) class ids.
        x_test: (B, D).
        num_classes: C.
        penalties: see `PENALTIES`.

    Returns:
        Scores (B, C).
    """
    z = _standardised(torch.cat([x_train, x_test]), len(x_train))
    targets = torch.from_numpy(y)
    return fit_ridge(z[: len(x_train)], targets, num_classes, penalties=penalties).scores(z[len(x_train) :])


def probe_layers(
    x: Float[Tensor, "N L D"],
    y: Integer[Ids, " N"],
    folds: Sequence[Rows],
    num_classes: int,
    *,
    units: Shaped[NDArray[Any], " N"] | None = None,
    entity_f1: EntityF1 | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> LayerProbes:
    """Probe every layer and the fusions of all layers, fold by fold: fit on train, score on dev and test.

    Args:
        x: (N, L, D), finite, in any floating format; one layer at a time is converted.
        y: (N,) class ids.
        folds: K of them.
        num_classes: C.
        units: (N,) utterance of each clip, to average scores per utterance; None: score every clip.
        entity_f1: for tagged words, which have no `units`; None for other items.
        on_step: called K * (L + 2) times.
    """
    num_layers = x.shape[1]
    mean = _mean_of_layers(x)
    figures: dict[int | str, list[tuple[float, ...]]] = {}
    for fold in folds:
        order = np.concatenate([fold.train, fold.dev, fold.test])
        num_train, rows = len(fold.train), torch.from_numpy(order)
        train = torch.from_numpy(y[fold.train])
        kernel = mean.new_zeros(len(order), num_train) if num_train <= MAX_KERNEL_CLIPS else None
        total = mean.new_zeros(len(order), num_classes)

        def record(name: int | str, scores: Tensor, fold: Rows = fold) -> None:
            figures.setdefault(name, []).append(_figures(scores, y, fold, units, num_classes, entity_f1))

        for layer in range(num_layers):
            z = _standardised(x[rows, layer], num_train)  # (N, D)
            fit = fit_ridge(z[:num_train], train, num_classes)
            scores = torch.cat([fit.loo, fit.scores(z[num_train:])])  # training clips: left out
            record(layer, scores)
            total += scores
            if kernel is not None:
                add_products(kernel, z)
            on_step()
        record("average", total)
        z = _standardised(mean[rows], num_train)
        fit = fit_ridge(z[:num_train], train, num_classes)
        record("mean", torch.cat([fit.loo, fit.scores(z[num_train:])]))
        on_step()
        if kernel is not None:
            fit = fit_kernel_ridge(kernel[:num_train], train, num_classes)
            record("concatenation", torch.cat([fit.loo, fit.scores(kernel[num_train:])]))
        on_step()
        counts = np.bincount(y[fold.train], minlength=num_classes)
        record("chance", torch.from_numpy(counts).to(total).expand(len(order), -1))
    found = {name: Scores(*np.array(values).T) for name, values in figures.items()}
    return LayerProbes(
        tuple(found[layer] for layer in range(num_layers)),
        found["mean"],
        found["average"],
        found.get("concatenation"),
        found["chance"],
    )


def choose(candidates: Sequence[Scores]) -> tuple[Scores, list[int]]:
    """Choose a candidate in every fold without looking at its test group.

    The highest `choice` wins, then the highest `choice_balanced_accuracy`, then the first.

    Returns:
        Results of the chosen candidates, and their K indices.
    """
    chosen = []
    for fold in range(len(candidates[0].accuracy)):
        keys = [(one.choice[fold], one.choice_balanced_accuracy[fold]) for one in candidates]
        chosen.append(keys.index(max(keys)))
    names = [name for name, values in vars(candidates[0]).items() if values is not None]
    values = [[getattr(candidates[index], name)[fold] for fold, index in enumerate(chosen)] for name in names]
    return Scores(*np.array(values, dtype=np.float64)), chosen


def difference(values: Float64[Values, " K"], others: Float64[Values, " K"]) -> Difference:
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
    if gain.margin is None or len(gain.per_fold) < 3:
        return "cannot be told"
    if gain.mean + gain.margin < WORTHWHILE:
        return "unlikely"
    return "likely" if gain.mean - gain.margin > 0 else "cannot be told"


def _standardised(x: Tensor, num_train: int) -> Tensor:
    """Features (N, D) with mean 0 and deviation 1 over the first `num_train` rows; constant features become 0."""
    return scaling_of(x[:num_train])(x)


def _mean_of_layers(x: Tensor) -> Tensor:
    total = torch.zeros(len(x), x.shape[2], dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    for layer in range(x.shape[1]):
        total += x[:, layer]
    return total / x.shape[1]


def _figures(
    scores: Tensor, y: Ids, fold: Rows, units: NDArray[Any] | None, num_classes: int, entity_f1: EntityF1 | None
) -> tuple[float, ...]:
    """The values of `Scores` from scores (N, C) of train, dev and test rows, in this order."""
    train, dev = len(fold.train), len(fold.train) + len(fold.dev)
    choice = (scores[train:dev], fold.dev) if len(fold.dev) else (scores[:train], fold.train)
    figures, f1 = [], []
    for part, rows in ((scores[dev:], fold.test), choice):
        targets, predictions = _items(part.double().numpy(), y[rows], None if units is None else units[rows])
        right = targets == predictions
        counts = np.bincount(targets, minlength=num_classes)
        hits = np.bincount(targets[right], minlength=num_classes)
        figures += [float(right.mean()), float((hits[counts > 0] / counts[counts > 0]).mean())]
        if entity_f1 is not None:
            f1.append(entity_f1(rows, predictions))
    return (*figures, *f1)


def _items(scores: Values, targets: Ids, units: NDArray[Any] | None) -> tuple[Ids, Ids]:
    """Targets and predictions of clips, or of utterances with the mean of their clips' scores."""
    if units is None:
        return targets, scores.argmax(axis=1)
    # an utterance with two labels counts as two items; the data checks report it
    _, number = np.unique(units, return_inverse=True)
    _, first, item = np.unique(number * scores.shape[1] + targets, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), scores.shape[1]))
    np.add.at(sums, item, scores)  # the largest sum is the largest mean
    return targets[first], sums.argmax(axis=1)
