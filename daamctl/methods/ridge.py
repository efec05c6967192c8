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
LARGEST_SYSTEM = 12_000
"""Rows above which no system is solved: of as many clips, or of as many features."""
KERNEL_ROWS = 1024
"""Rows of the kernel matrix that are computed at once."""
BLOCK_VALUES, MOST_BLOCKS = 2**23, 8
"""Features of all parts of the clips whose leverages are computed at once, unless these were more blocks."""
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
    spread = wide.amax(0) - wide.amin(0)
    # squares of very large or small values are beyond float32; in units of a power of two nothing is rounded
    unit = spread / (2 * torch.frexp(spread).mantissa)
    deviation = ((z / unit).square().mean(0).sqrt() * unit).clamp_min(torch.finfo(z.dtype).tiny)
    # a constant feature has a deviation of rounding errors, which would blow it up
    return Scaling(mean, rest, torch.where(spread > 0, 1.0 / deviation, 0.0))


class RidgePath:
    """Ridge regressions on the same features with any penalty, by one eigendecomposition.

    The decomposed matrix is D x D or N x N, whichever is smaller.

    Args:
        z: (N, D), centred.
    """

    def __init__(self, z: Float[Tensor, "N D"], y: Int[Tensor, " N"], num_classes: int) -> None:
        self.targets, self.intercept = one_hot(y, num_classes, z.dtype)  # (N, C) centred, (C,)
        self.z, self.primal = z, z.shape[1] <= z.shape[0]
        # of whichever product is smaller; both have the same eigenvalues but for zeros
        values, self.vectors = torch.linalg.eigh(z.mT @ z if self.primal else z @ z.mT)
        # rounding makes eigenvalues of zero slightly negative
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


class CholeskyPath:
    """Ridge regressions with any penalty, by one Cholesky factorisation each.

    For thousands of rows an eigendecomposition takes minutes, a Cholesky factorisation a second.

    Args:
        system: (R, R) symmetric; only the lower triangle is read.
        right: (R, C) right side.
        unit: of the penalties that are added to the diagonal.
        targets: (N, C) centred targets of the training clips.
        intercept: (C,).
    """

    def __init__(self, system: Tensor, right: Tensor, unit: float, targets: Tensor, intercept: Tensor) -> None:
        self.system, self.right, self.unit = system, right, _unit(unit)
        self.targets, self.intercept = targets, intercept
        self._last: tuple[float, Tensor | None] | None = None

    def solvable(self, penalty: float) -> bool:
        """Whether the system with this penalty is positive definite in this number format."""
        return self._factor(penalty) is not None

    def weights(self, penalty: float) -> Float[Tensor, "R C"]:
        """Weights (R, C) for a penalty in the units of `PENALTIES`.

        Raises:
            ValueError: the system is not positive semidefinite, or not finite.
        """
        weights: Tensor = torch.cholesky_solve(self.right, self._solved(penalty))
        return weights

    def left_out(self, penalty: float) -> Float[Tensor, "N C"]:
        """Leave-one-out residuals (N, C) of the training clips for a penalty. Errors as in `weights`."""
        raise NotImplementedError

    def _solved(self, penalty: float) -> Tensor:
        factor = self._factor(penalty)
        if factor is None:
            raise ValueError("the system is not positive semidefinite, or not finite")
        return factor

    def _factor(self, penalty: float) -> Tensor | None:
        """Cholesky factor of the system with a penalty (R, R); the latest one is cached."""
        if self._last is None or self._last[0] != penalty:
            self._last = None  # frees the previous factor
            # the sum on the diagonal depends on the penalty, and subtracting it again would round
            system = self.system.clone()
            system.diagonal().add_(penalty * self.unit)
            factor, failed = torch.linalg.cholesky_ex(system)
            self._last = penalty, None if failed else factor
        return self._last[1]


class KernelPath(CholeskyPath):
    """The same from the inner products K of the features alone; weights (N, C) of the training clips.

    With A = K + lambda I, the residual is lambda A^-1 y and 1 - h_ii = lambda (A^-1)_ii.

    Args:
        kernel: (N, N) inner products of centred features.
    """

    def __init__(self, kernel: Float[Tensor, "N N"], y: Int[Tensor, " N"], num_classes: int) -> None:
        targets, intercept = one_hot(y, num_classes, kernel.dtype)
        super().__init__(kernel, targets, float(kernel.diagonal().mean()), targets, intercept)

    def left_out(self, penalty: float) -> Float[Tensor, "N C"]:
        """See `CholeskyPath`."""
        factor, ridge = self._solved(penalty), penalty * self.unit
        residual = ridge * torch.cholesky_solve(self.targets, factor)
        return _left_out(residual, ridge * torch.cholesky_inverse(factor).diagonal())


class GramPath(CholeskyPath):
    """The same where all parts (layers) together have fewer features than there are clips; weights (P D, C) of these.

    With A = Z'Z + lambda I, h_ii = z_i' A^-1 z_i. Two parts are in memory at a time, or all of a block of clips.

    Args:
        part: returns the centred features (N, D) of one of the P parts.
    """

    def __init__(self, parts: int, part: Callable[[int], Tensor], y: Int[Tensor, " N"], num_classes: int) -> None:
        self.part, z = part, part(0)
        width, total = z.shape[1], parts * z.shape[1]
        self.places = [slice(start, start + width) for start in range(0, total, width)]
        targets, intercept = one_hot(y, num_classes, z.dtype)
        gram, right = z.new_zeros(total, total), z.new_zeros(total, num_classes)
        for index, rows in enumerate(self.places):
            z = part(index)
            right[rows] = z.mT @ targets
            for other, columns in enumerate(self.places[: index + 1]):
                gram[rows, columns] = z.mT @ (z if other == index else part(other))
        super().__init__(gram, right, float(gram.diagonal().sum()) / len(targets), targets, intercept)

    def left_out(self, penalty: float) -> Float[Tensor, "N C"]:
        """See `CholeskyPath`."""
        weights, factor, number = self.weights(penalty), self._solved(penalty), len(self.targets)
        residual, leverage = self.targets.clone(), torch.zeros_like(self.targets[:, 0])
        # in few blocks, because each reads all parts, perhaps from disk
        step = max(BLOCK_VALUES // len(weights), -(-number // MOST_BLOCKS))
        for start in range(0, number, step):
            clips = slice(start, start + step)
            # copies, because a view would keep all clips of its part in memory
            z = torch.cat([self.part(index)[clips].clone() for index in range(len(self.places))], dim=1)
            # with A = L L', h_ii is the squared norm of L^-1 z_i
            leverage[clips] = torch.linalg.solve_triangular(factor, z.mT, upper=False).square().sum(0)
            residual[clips] -= z @ weights
        return _left_out(residual, 1.0 - leverage)


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
        # the place itself comes first, so that equal errors end the walk
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


def loo_scores(path: RidgePath | CholeskyPath, left_out: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
    """Leave-one-out scores (N, C) of the training clips from their residuals (N, C)."""
    return path.targets - left_out + path.intercept


def add_products(kernel: Float[Tensor, "N N"], z: Float[Tensor, "N D"]) -> None:
    """Add inner products of the rows z (N, D) to kernel (N, N); its upper triangle stays unfilled."""
    for start in range(0, len(z), KERNEL_ROWS):
        stop = min(start + KERNEL_ROWS, len(z))
        kernel[start:stop, :stop].addmm_(z[start:stop], z[:stop].mT)


def _unit(value: float) -> float:
    return value if value > 0 else 1.0  # no feature varies, so the penalty has no effect


def _left_out(residual: Tensor, complement: Tensor) -> Tensor:
    """Leave-one-out residuals (N, C) from residuals (N, C) and 1 - h_ii (N,)."""
    return residual / (complement - 1.0 / len(residual)).clamp_min(LEAST_LEVERAGE)[:, None]
