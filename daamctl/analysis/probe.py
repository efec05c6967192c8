"""How well each layer, and simple fusions of all layers, tell the classes apart: linear probes in closed form.

A probe is a ridge classifier: one-hot targets regressed on features that are standardised with the statistics of the
training clips, with an intercept; the largest score wins. Its penalty is the one of `PENALTIES` with the smallest
leave-one-out squared error on the training clips, which has a closed form (Hastie, Tibshirani and Friedman, "The
Elements of Statistical Learning", 2nd ed., section 7.10): the residual divided by 1 - h_ii - 1/N, where h is the hat
matrix of the centred features. It leaves out clips, not utterances, and keeps the standardisation. Nothing is random.

Letters here: N clips, B clips to score, L layers, D features, C classes, K folds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

Ids = NDArray[np.integer[Any]]
Values = NDArray[np.float64]

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""Ridge penalties that are tried, in units of the mean squared length of a standardised training vector."""
MAX_KERNEL_CLIPS = 12_000
"""Training clips above which the probe of all layers concatenated is left out: it solves N x N systems."""
KERNEL_ROWS = 1024
"""Rows of the kernel matrix that are computed at once."""
LEAST_LEVERAGE = 1e-6
"""Floor of 1 - h_ii - 1/N, against rounding."""
CONFIDENCE = 0.95
"""Of the one-sided statements about differences over folds."""
WORTHWHILE = 0.01
"""A gain in accuracy below one point is not worth a fusion."""

Case = Literal["likely", "unlikely", "cannot be told"]


class Rows(NamedTuple):
    """Row numbers of one fold; dev may be empty."""

    train: Ids
    dev: Ids
    test: Ids


@dataclass(frozen=True)
class Ridge:
    """A fitted probe.

    Args:
        penalty: the chosen one, in the units of `PENALTIES`.
        loo: (N, C) leave-one-out scores of the training clips.
        weights: (D, C), or (N, C) for a kernel.
        intercept: (C,).
    """

    penalty: float
    loo: Tensor
    weights: Tensor
    intercept: Tensor

    def scores(self, z: Tensor) -> Tensor:
        """Scores (B, C) of standardised features (B, D), or of kernel values (B, N) against the training clips."""
        return z @ self.weights + self.intercept


@dataclass(frozen=True)
class Scores:
    """Figures of one probe, each of shape (K,): one value per fold.

    Args:
        accuracy: on the test group.
        balanced_accuracy: on the test group; mean recall of the classes present.
        choice_accuracy: on the held-out group; without one, leave-one-out on the training clips.
        choice_balanced_accuracy: on the same clips.
    """

    accuracy: Values
    balanced_accuracy: Values
    choice_accuracy: Values
    choice_balanced_accuracy: Values


@dataclass(frozen=True)
class LayerProbes:
    """Figures of every probe.

    Args:
        layers: L of them.
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
        standard_error: of the mean; None for a single fold. Folds share training clips, so it is rather too small.
        margin: `standard_error` times the quantile of Student's t for `CONFIDENCE`, one-sided.
    """

    per_fold: Values
    mean: float
    standard_error: float | None
    margin: float | None


def ridge_probe(
    x_train: Tensor, y: Ids, x_test: Tensor, num_classes: int, *, penalties: Sequence[float] = PENALTIES
) -> Tensor:
    """Fit a probe on some clips and score others.

    Args:
        x_train: (N, D); float64 is computed in float64, all else in float32.
        y: (N,) class ids.
        x_test: (B, D).
        num_classes: C.
        penalties: see `PENALTIES`.

    Returns:
        Scores (B, C).
    """
    z = _standardised(torch.cat([x_train, x_test]), len(x_train))
    return fit_ridge(z[: len(x_train)], y, num_classes, penalties=penalties).scores(z[len(x_train) :])


def fit_ridge(z: Tensor, y: Ids, num_classes: int, *, penalties: Sequence[float] = PENALTIES) -> Ridge:
    """Fit a probe by one eigendecomposition: of D x D or of N x N, whichever is smaller.

    Args:
        z: (N, D), centred.
        y: (N,) class ids.
        num_classes: C.
        penalties: see `PENALTIES`.
    """
    targets, intercept = _targets(y, num_classes, z.dtype)
    primal = z.shape[1] <= z.shape[0]
    values, vectors = torch.linalg.eigh(z.mT @ z if primal else z @ z.mT)
    values = values.clamp_min(0.0)  # (R,), R the smaller of N and D
    basis = z @ vectors if primal else vectors  # (N, R)
    moments, squared = basis.mT @ targets, basis.square()  # (R, C), (N, R)
    scale = _scale(float(z.square().sum()) / len(z))
    best: tuple[float, float, Tensor] | None = None
    for penalty in penalties:
        inverse = 1.0 / (values + penalty * scale)
        shrink = inverse if primal else values * inverse
        residual = targets - basis @ (shrink[:, None] * moments)
        left_out = _left_out(residual, 1.0 - squared @ shrink)
        error = float(left_out.square().mean())
        if best is None or error < best[0]:
            best = error, penalty, left_out
    if best is None:
        raise ValueError("need at least one penalty")
    _, penalty, left_out = best
    weights = vectors @ (moments / (values + penalty * scale)[:, None])
    return Ridge(penalty, targets - left_out + intercept, weights if primal else z.mT @ weights, intercept)


def fit_kernel_ridge(kernel: Tensor, y: Ids, num_classes: int, *, penalties: Sequence[float] = PENALTIES) -> Ridge:
    """Fit a probe given only the inner products of its features.

    An eigendecomposition of thousands of clips takes minutes, a Cholesky factor a second: so every penalty is solved by
    itself, walking downhill from the middle one. With A = K + lambda I, the residual is lambda A^-1 y and
    1 - h_ii = lambda (A^-1)_ii.

    Args:
        kernel: (N, N) inner products of centred features; only the lower triangle is read.
        y: (N,) class ids.
        num_classes: C.
        penalties: see `PENALTIES`, ascending.

    Raises:
        ValueError: the kernel is not positive semidefinite, or not finite.
    """
    targets, intercept = _targets(y, num_classes, kernel.dtype)
    scale = _scale(float(kernel.diagonal().mean()))
    fits: dict[int, Ridge] = {}
    errors: dict[int, float] = {}

    def error(index: int) -> float:
        if index not in errors:
            ridge = penalties[index] * scale
            system = kernel.clone()
            system.diagonal().add_(ridge)
            factor, failed = torch.linalg.cholesky_ex(system)
            errors[index] = float("inf")
            if not failed:
                weights = torch.cholesky_solve(targets, factor)  # (N, C)
                left_out = _left_out(ridge * weights, ridge * torch.cholesky_inverse(factor).diagonal())
                errors[index] = float(left_out.square().mean())
                fits[index] = Ridge(penalties[index], targets - left_out + intercept, weights, intercept)
        return errors[index]

    place, last = -1, len(penalties) // 2
    while place != last:
        place = last
        near = [index for index in (place - 1, place + 1) if 0 <= index < len(penalties)]
        last = min([place, *near], key=error)
    if place not in fits or not np.isfinite(errors[place]):
        raise ValueError("the kernel is not positive semidefinite, or not finite")
    return fits[place]


def probe_layers(
    x: Tensor,
    y: Ids,
    folds: Sequence[Rows],
    num_classes: int,
    *,
    units: NDArray[Any] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> LayerProbes:
    """Probe every layer and the fusions of all, fold by fold: fit on train, score on dev and test.

    Args:
        x: (N, L, D), finite, in any floating format; one layer at a time is widened.
        y: (N,) class ids.
        folds: K of them.
        num_classes: C.
        units: (N,) utterance of each clip: scores are then averaged per utterance; None: every clip by itself.
        on_step: called K * (L + 2) times.
    """
    num_layers = x.shape[1]
    mean = _mean_of_layers(x)
    figures: dict[int | str, list[tuple[float, ...]]] = {}
    for fold in folds:
        order = np.concatenate([fold.train, fold.dev, fold.test])
        num_train, rows = len(fold.train), torch.from_numpy(order)
        train = y[fold.train]
        kernel = mean.new_zeros(len(order), num_train) if num_train <= MAX_KERNEL_CLIPS else None
        total = mean.new_zeros(len(order), num_classes)

        def record(name: int | str, scores: Tensor, fold: Rows = fold) -> None:
            figures.setdefault(name, []).append(_figures(scores, y, fold, units, num_classes))

        for layer in range(num_layers):
            z = _standardised(x[rows, layer], num_train)  # (N, D)
            fit = fit_ridge(z[:num_train], train, num_classes)
            scores = torch.cat([fit.loo, fit.scores(z[num_train:])])  # training clips: left out
            record(layer, scores)
            total += scores
            if kernel is not None:
                _add_products(kernel, z)
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
        counts = np.bincount(train, minlength=num_classes)
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

    The highest `choice_accuracy` wins, then the highest `choice_balanced_accuracy`, then the first.

    Returns:
        The figures of the chosen ones, and K indices of candidates.
    """
    chosen = []
    for fold in range(len(candidates[0].accuracy)):
        keys = [(one.choice_accuracy[fold], one.choice_balanced_accuracy[fold]) for one in candidates]
        chosen.append(keys.index(max(keys)))
    names = ("accuracy", "balanced_accuracy", "choice_accuracy", "choice_balanced_accuracy")
    values = [[getattr(candidates[index], name)[fold] for fold, index in enumerate(chosen)] for name in names]
    return Scores(*np.array(values, dtype=np.float64)), chosen


def difference(values: Values, others: Values) -> Difference:
    """Paired difference `values - others` over folds, each of shape (K,)."""
    per_fold = values - others
    number = len(per_fold)
    mean = float(per_fold.mean())
    if number < 2:
        return Difference(per_fold, mean, None, None)
    error = float(per_fold.std(ddof=1) / np.sqrt(number))
    return Difference(per_fold, mean, error, error * float(student.ppf(CONFIDENCE, number - 1)))


def judge(gain: Difference) -> Case:
    """Whether a gain is there, is not worth having, or cannot be told; fewer than three folds never tell.

    likely: mean - margin > 0. unlikely: mean + margin < `WORTHWHILE`. An interval that satisfies both is a sure but
    worthless gain: unlikely.
    """
    if gain.margin is None or len(gain.per_fold) < 3:
        return "cannot be told"
    if gain.mean + gain.margin < WORTHWHILE:
        return "unlikely"
    return "likely" if gain.mean - gain.margin > 0 else "cannot be told"


def _standardised(x: Tensor, num_train: int) -> Tensor:
    """Features (N, D) with mean 0 and deviation 1 over the first `num_train` rows; constant ones are 0."""
    wide = x if x.dtype == torch.float64 else x.float()
    z = wide - wide[:num_train].mean(0)
    z -= z[:num_train].mean(0)  # what rounding left of the mean would count for features that hardly vary
    deviation = z[:num_train].square().mean(0).sqrt()
    varies = wide[:num_train].amax(0) > wide[:num_train].amin(0)
    z *= torch.where(varies & (deviation > 0), 1.0 / deviation, 0.0)
    return z


def _targets(y: Ids, num_classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Centred one-hot targets (N, C) and their means (C,)."""
    targets = torch.zeros(len(y), num_classes, dtype=dtype)
    targets[torch.arange(len(y)), torch.as_tensor(y, dtype=torch.int64)] = 1.0
    means = targets.mean(0)
    return targets - means, means


def _scale(value: float) -> float:
    return value if value > 0 else 1.0  # nothing varies: any penalty will do


def _left_out(residual: Tensor, complement: Tensor) -> Tensor:
    """Leave-one-out residuals (N, C) from residuals (N, C) and 1 - h_ii (N,)."""
    return residual / (complement - 1.0 / len(residual)).clamp_min(LEAST_LEVERAGE)[:, None]


def _add_products(kernel: Tensor, z: Tensor) -> None:
    """Add inner products of rows z (B, D) with the first N to kernel (B, N); its upper triangle stays unfilled."""
    num_train = kernel.shape[1]
    for start in range(0, len(z), KERNEL_ROWS):
        stop = min(start + KERNEL_ROWS, len(z))
        width = min(stop, num_train)
        kernel[start:stop, :width].addmm_(z[start:stop], z[:width].mT)


def _mean_of_layers(x: Tensor) -> Tensor:
    total = torch.zeros(len(x), x.shape[2], dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    for layer in range(x.shape[1]):
        total += x[:, layer]
    return total / x.shape[1]


def _figures(
    scores: Tensor, y: Ids, fold: Rows, units: NDArray[Any] | None, num_classes: int
) -> tuple[float, float, float, float]:
    """The four figures of `Scores` from scores (N, C) of train, dev and test rows, in this order."""
    train, dev = len(fold.train), len(fold.train) + len(fold.dev)
    choice = (scores[train:dev], fold.dev) if len(fold.dev) else (scores[:train], fold.train)
    figures = []
    for part, rows in ((scores[dev:], fold.test), choice):
        targets, predictions = _items(part.double().numpy(), y[rows], None if units is None else units[rows])
        right = targets == predictions
        counts = np.bincount(targets, minlength=num_classes)
        hits = np.bincount(targets[right], minlength=num_classes)
        figures += [float(right.mean()), float((hits[counts > 0] / counts[counts > 0]).mean())]
    return figures[0], figures[1], figures[2], figures[3]


def _items(scores: Values, targets: Ids, units: NDArray[Any] | None) -> tuple[Ids, Ids]:
    """Targets and predictions of clips, or of utterances with the mean of their clips' scores."""
    if units is None:
        return targets, scores.argmax(axis=1)
    # an utterance with two labels is two items; the data checks name it
    _, number = np.unique(units, return_inverse=True)
    _, first, item = np.unique(number * scores.shape[1] + targets, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), scores.shape[1]))
    np.add.at(sums, item, scores)  # the largest sum is the largest mean
    return targets[first], sums.argmax(axis=1)
