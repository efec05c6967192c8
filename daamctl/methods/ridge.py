"""Ridge classifiers in closed form, for the linear probes of `preflight` and the methods `ridge-*`.

One-hot targets are regressed on features that are standardised with the statistics of the training clips. The intercept
is not penalised, and the largest score wins. One decomposition serves all penalties. The leave-one-out residual has a
closed form (Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2nd ed., section 7.10): the
residual divided by 1 - h_ii - 1/N, where h is the hat matrix of the centred features. It leaves out clips, not
utterances, and keeps the standardisation. Nothing is random.

Letters: N clips, B clips to score, D features, C classes. Computes in float64 for float64 features, else in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from daamctl.methods.base import at_least_float32

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
"""Ridge penalties to try, in units of the mean squared length of a standardised training vector."""
MAX_KERNEL_CLIPS = 12_000
"""Training clips above which no N x N system is solved."""
KERNEL_ROWS = 1024
"""Rows of the kernel matrix that are computed at once."""
LEAST_LEVERAGE = 1e-6
"""Floor of 1 - h_ii - 1/N, against rounding."""


@dataclass(frozen=True)
class Scaling:
    """Standardisation of features; those that do not vary become 0.

    Args:
        rest: (D,) rounding error of the mean, which matters for features that hardly vary.
        scale: (D,) 1 over the standard deviation; 0 for features that do not vary.
    """

    mean: Float[Tensor, " D"]
    rest: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]

    def __call__(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Standardise x (N, D), in float32 at least."""
        z = at_least_float32(x) - self.mean
        z -= self.rest
        z *= self.scale
        return z


def scaling_of(x: Float[Tensor, "N D"]) -> Scaling:
    """The scaling after which the training features x (N, D) have mean 0 and deviation 1."""
    wide = at_least_float32(x)
    mean = wide.mean(0)
    z = wide - mean
    rest = z.mean(0)
    z -= rest
    deviation = z.square().mean(0).sqrt()
    varies = wide.amax(0) > wide.amin(0)
    return Scaling(mean, rest, torch.where(varies & (deviation > 0), 1.0 / deviation, 0.0))


class RidgePath:
    """Ridge regressions on the same features with any penalty, by one eigendecomposition.

    The decomposed matrix is D x D or N x N, whichever is smaller.

    Args:
        z: (N, D), centred.
    """

    def __init__(self, z: Float[Tensor, "N D"], y: Int[Tensor, " N"], num_classes: int) -> None:
        self.targets, self.intercept = one_hot(y, num_classes, z.dtype)  # (N, C) centred, (C,)
        self.z, self.primal = z, z.shape[1] <= z.shape[0]
        values, self.vectors = torch.linalg.eigh(z.mT @ z if self.primal else z @ z.mT)
        self.values = values.clamp_min(0.0)  # (R,), R the smaller of N and D
        self.basis: Tensor = z @ self.vectors if self.primal else self.vectors  # (N, R)
        self.moments = self.basis.mT @ self.targets  # (R, C)
        self.unit = _unit(float(z.square().sum()) / len(z))

    def weights(self, penalty: float) -> Float[Tensor, "D C"]:
        """Weights (D, C) for a penalty in the units of `PENALTIES`."""
        weights: Tensor = self.vectors @ (self.moments / (self.values + penalty * self.unit)[:, None])
        return weights if self.primal else self.z.mT @ weights

    def left_out(self, penalty: float) -> Float[Tensor, "N C"]:
        """Leave-one-out residuals (N, C) of the training clips for a penalty."""
        inverse = 1.0 / (self.values + penalty * self.unit)
        shrink = inverse if self.primal else self.values * inverse
        residual = self.targets - self.basis @ (shrink[:, None] * self.moments)
        return _left_out(residual, 1.0 - self._squared @ shrink)

    @cached_property
    def _squared(self) -> Tensor:
        return self.basis.square()  # (N, R); used with every penalty, or never


class KernelPath:
    """The same from the inner products K of the features alone, by one Cholesky factorisation per penalty.

    For thousands of clips an eigendecomposition takes minutes, a Cholesky factorisation a second. With
    A = K + lambda I, the residual is lambda A^-1 y and 1 - h_ii = lambda (A^-1)_ii.

    Args:
        kernel: (N, N) inner products of centred features; only the lower triangle is read.
    """

    def __init__(self, kernel: Float[Tensor, "N N"], y: Int[Tensor, " N"], num_classes: int) -> None:
        self.targets, self.intercept = one_hot(y, num_classes, kernel.dtype)
        self.kernel = kernel
        self.unit = _unit(float(kernel.diagonal().mean()))
        self._last: tuple[float, Tensor | None] | None = None

    def solvable(self, penalty: float) -> bool:
        """Whether the system with this penalty is positive definite in this number format."""
        return self._factor(penalty) is not None

    def weights(self, penalty: float) -> Float[Tensor, "N C"]:
        """Weights (N, C) of the training clips for a penalty in the units of `PENALTIES`.

        Raises:
            ValueError: the kernel is not positive semidefinite, or not finite.
        """
        weights: Tensor = torch.cholesky_solve(self.targets, self._solved(penalty))
        return weights

    def left_out(self, penalty: float) -> Float[Tensor, "N C"]:
        """Leave-one-out residuals (N, C) of the training clips for a penalty.

        Raises:
            ValueError: the kernel is not positive semidefinite, or not finite.
        """
        factor, ridge = self._solved(penalty), penalty * self.unit
        residual = ridge * torch.cholesky_solve(self.targets, factor)
        return _left_out(residual, ridge * torch.cholesky_inverse(factor).diagonal())

    def _solved(self, penalty: float) -> Tensor:
        factor = self._factor(penalty)
        if factor is None:
            raise ValueError("the kernel is not positive semidefinite, or not finite")
        return factor

    def _factor(self, penalty: float) -> Tensor | None:
        """Cholesky factor of A (N, N); the latest one is cached."""
        if self._last is None or self._last[0] != penalty:
            self._last = None  # frees the previous factor
            system = self.kernel.clone()
            system.diagonal().add_(penalty * self.unit)
            factor, failed = torch.linalg.cholesky_ex(system)
            self._last = penalty, None if failed else factor
        return self._last[1]


def downhill(number: int, error: Callable[[int], float]) -> tuple[int, float]:
    """Walk from the middle index to one whose neighbours have no smaller error; return that index and its error.

    Args:
        error: called once for every index on the way and its neighbours.
    """
    known = cache(error)
    place, last = -1, number // 2
    while place != last:
        place = last
        near = [index for index in (place - 1, place + 1) if 0 <= index < number]
        last = min([place, *near], key=known)
    return place, known(place)


def one_hot(
    y: Int[Tensor, " N"], num_classes: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "N C"], Float[Tensor, " C"]]:
    """Centred one-hot targets (N, C) and their means (C,)."""
    targets = torch.zeros(len(y), num_classes, dtype=dtype)
    targets[torch.arange(len(y)), torch.as_tensor(y, dtype=torch.int64)] = 1.0
    means = targets.mean(0)
    return targets - means, means


def loo_scores(path: RidgePath | KernelPath, left_out: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
    """Leave-one-out scores (N, C) of the training clips from their residuals (N, C)."""
    return path.targets - left_out + path.intercept


def add_products(kernel: Float[Tensor, "B N"], z: Float[Tensor, "B D"]) -> None:
    """Add inner products of rows z (B, D) with the first N to kernel (B, N); its upper triangle stays unfilled."""
    num_train = kernel.shape[1]
    for start in range(0, len(z), KERNEL_ROWS):
        stop = min(start + KERNEL_ROWS, len(z))
        width = min(stop, num_train)
        kernel[start:stop, :width].addmm_(z[start:stop], z[:width].mT)


def _unit(value: float) -> float:
    return value if value > 0 else 1.0  # no feature varies, so the penalty has no effect


def _left_out(residual: Tensor, complement: Tensor) -> Tensor:
    """Leave-one-out residuals (N, C) from residuals (N, C) and 1 - h_ii (N,)."""
    return residual / (complement - 1.0 / len(residual)).clamp_min(LEAST_LEVERAGE)[:, None]
