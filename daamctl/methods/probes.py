"""Closed-form probes: ridge classifiers of one layer, of the mean of the standardised layers, and of all layers.

A trained fusion should reach at least their accuracy. They are solved (`daamctl.methods.ridge`), so they cannot be
undertrained and do not depend on a seed. Only the penalty is chosen, and for `ridge-best-layer` the layer:

- with a held-out group, by the highest accuracy there; ties go to the lower mean squared error there, then to the
  larger penalty, then to the first layer;
- without one, by the smallest leave-one-out squared error on the training clips.

The scores of a ridge classifier are regressed one-hot targets. As logits they would give every item nearly the same
probabilities. So the logits are the scores times one number, `sharpness`, which minimises the cross-entropy on the
clips that chose the penalty (temperature scaling: Guo et al., 2017, section 4.2). It changes no prediction.

Everything is computed on the CPU, in float32 (float64 for float64 features), so the probe does not depend on the
device. Letters: N clips, L layers, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from daamctl.errors import MethodError
from daamctl.methods.base import FusionClassifier, Standardize, Traits, at_least_float32
from daamctl.methods.ridge import (
    LARGEST_SYSTEM,
    PENALTIES,
    CholeskyPath,
    GramPath,
    KernelPath,
    RidgePath,
    Scaling,
    add_products,
    downhill,
    loo_scores,
    scaling_of,
)
from daamctl.methods.settings import Sizes
from daamctl.methods.single_layer import ChosenLayer, LastLayer
from daamctl.methods.weighted_sum import WeightedSum

SHARPNESS = (0.1, 30.0)
"""Range of `sharpness`, which would be infinite if every clip is right. Scores of two classes rarely differ by more
than 1, which at 30 is a probability of 1 - 1e-13."""
HALVINGS = 40
"""Halvings of that range: 30 / 2^40 is below the precision of float32."""
HELD_VALUES = 2**29
"""Most values of standardised or reduced layers that are held in memory, so that a layer is read once."""


@dataclass(frozen=True)
class Layers:
    """Clips whose layers are read one at a time, from memory or from disk.

    Args:
        y: (N,) class ids, on the CPU.
        layer: returns the features (N, D) of one of the L layers, on the CPU, in any floating-point format.
    """

    y: Int[Tensor, " N"]
    layer: Callable[[int], Tensor]

    def join(self, other: Layers) -> Layers:
        """These clips, followed by others."""
        y = torch.cat([self.y, other.y])
        return Layers(y, lambda index: torch.cat([self.layer(index), other.layer(index)]))


@dataclass(frozen=True)
class Candidate:
    """A penalty that was tried.

    Args:
        penalty: in the units of `PENALTIES`.
        layer: index of the best layer under this penalty; None for a probe that does not choose one.
        accuracy: on the held-out group; without one, leave-one-out on the training clips.
        error: mean squared error of the scores on the same clips.
        scores: (N, C) scores of these clips.
    """

    penalty: float
    layer: int | None
    accuracy: float
    error: float
    scores: Tensor


@dataclass(frozen=True)
class Solution:
    """How a probe was chosen.

    Args:
        candidates: one for each penalty that was tried, ascending.
    """

    candidates: tuple[Candidate, ...]
    chosen: int

    @property
    def penalty(self) -> float:
        """The chosen penalty."""
        return self.candidates[self.chosen].penalty


class StandardizedLinear(nn.Module):
    """Logits = sharpness * (W (x - mean) * scale + b); all zero until solved.

    The statistics are not folded into W and the bias, because large means would cost precision in float32.

    Args:
        shape: shape of the input per clip, (D,) or (L, D).
    """

    mean: Tensor
    scale: Tensor
    penalty: Tensor
    sharpness: Tensor

    def __init__(self, shape: tuple[int, ...], *, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))
        self.register_buffer("penalty", torch.zeros(()))
        self.register_buffer("sharpness", torch.ones(()))
        self.weight = nn.Parameter(torch.zeros(num_classes, *shape))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x: Float[Tensor, "B *L D"]) -> Float[Tensor, "B C"]:
        """Logits (B, C) of x (B, D) or (B, L, D), in float32 at least, also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            z = (at_least_float32(x) - self.mean) * self.scale
            scores = nn.functional.linear(z.flatten(1), self.weight.flatten(1), self.bias)
            return scores * self.sharpness

    @torch.no_grad()
    def set(
        self,
        scalings: Sequence[Scaling],
        weights: Sequence[Float[Tensor, "D C"]],
        intercept: Float[Tensor, " C"],
        penalty: float,
    ) -> None:
        """Set all tensors from a solution.

        Args:
            scalings: one for inputs (D,), L for inputs (L, D).
            weights: (D, C) for each.
        """
        self.mean.copy_(torch.stack([one.mean for one in scalings]).view_as(self.mean))
        self.scale.copy_(torch.stack([one.scale for one in scalings]).view_as(self.scale))
        self.weight.copy_(torch.stack([one.mT for one in weights], dim=1).view_as(self.weight))
        # what the mean lost to rounding goes into the bias, which is small enough to hold it
        rests = [(one.rest * one.scale) @ weight for one, weight in zip(scalings, weights, strict=True)]
        self.bias.copy_(intercept - torch.stack(rests).sum(0))
        self.penalty.fill_(penalty)


class RidgeProbe(FusionClassifier):
    """A probe that is solved instead of trained.

    Args:
        fusion: maps (B, L, D) to the classifier's input.
    """

    decoder: StandardizedLinear
    components: int | None = None
    """Number of principal components that each layer was reduced to; None: all."""

    def __init__(self, fusion: nn.Module, decoder: StandardizedLinear) -> None:
        super().__init__(fusion, decoder, Traits(closed_form=True))

    @torch.no_grad()
    def solve(self, train: Layers, dev: Layers | None = None) -> Solution:
        """Fit the probe on the CPU, layer by layer, and set its tensors.

        Args:
            dev: held-out group that chooses the penalty; None: leave-one-out on the training clips.

        Raises:
            MethodError: features are not finite, or too large for float32.
        """
        solution = self._solve(train, dev)
        y = train.y if dev is None else dev.y
        self.decoder.sharpness.fill_(_sharpness(solution.candidates[solution.chosen].scores, y))
        return solution

    @torch.no_grad()
    def refit(self, clips: Layers, chosen: Candidate) -> None:
        """Fit the probe to more clips, with the penalty and layer that were chosen; `sharpness` stays.

        Args:
            chosen: the chosen penalty and, for a probe that chooses one, layer.

        Raises:
            MethodError: features are not finite.
        """
        self._fit(clips, chosen)

    def _solve(self, train: Layers, dev: Layers | None) -> Solution:
        raise NotImplementedError

    def _fit(self, clips: Layers, chosen: Candidate) -> None:
        raise NotImplementedError


class VectorProbe(RidgeProbe):
    """A probe of one vector for each clip.

    Args:
        fusion: maps (B, L, D) to that vector (B, D); a `ChosenLayer` if there are several candidates.
        vectors: the candidates; each returns (N, D) for N clips, by statistics that it takes from those with `fit`.
    """

    def __init__(self, fusion: nn.Module, vectors: Sequence[Callable[..., Tensor]], sizes: Sizes) -> None:
        super().__init__(fusion, StandardizedLinear((sizes.embed_dim,), num_classes=sizes.num_classes))
        self._vectors = tuple(vectors)

    def _solve(self, train: Layers, dev: Layers | None) -> Solution:
        y = train.y if dev is None else dev.y
        key = partial(rank, held_out=dev is not None)
        # only the best candidate of a penalty is kept: weights of all layers may not fit into memory
        best: dict[float, tuple[Candidate, Scaling, Tensor, Tensor]] = {}  # for each penalty
        for index, vector in enumerate(self._vectors):
            x = vector(train, fit=True)
            scaling = _scaling(x)
            path = RidgePath(scaling(x), train.y, len(self.decoder.bias))
            held = None if dev is None else scaling(vector(dev, fit=False))
            for penalty in PENALTIES:
                weights = path.weights(penalty)
                scores = loo_scores(path, path.left_out(penalty)) if held is None else held @ weights + path.intercept
                found = _candidate(penalty, scores, y)
                if penalty not in best or key(found) < key(best[penalty][0]):
                    layer = index if len(self._vectors) > 1 else None
                    best[penalty] = replace(found, layer=layer), scaling, weights, path.intercept
        solution = _choose([one[0] for one in best.values()], dev)
        candidate, scaling, weights, intercept = best[solution.penalty]
        self.decoder.set([scaling], [weights], intercept, candidate.penalty)
        if candidate.layer is not None and isinstance(self.fusion, ChosenLayer):
            self.fusion.chosen.fill_(candidate.layer)
        return solution

    def _fit(self, clips: Layers, chosen: Candidate) -> None:
        x = self._vectors[chosen.layer or 0](clips, fit=True)
        scaling = _scaling(x)
        path = RidgePath(scaling(x), clips.y, len(self.decoder.bias))
        self.decoder.set([scaling], [path.weights(chosen.penalty)], path.intercept, chosen.penalty)


class MeanProbe(VectorProbe):
    """A probe of the mean of the layers, each of which is standardised first.

    Trained methods read standardised layers, too. In a mean of raw layers the one with the largest values, often the
    last, would hide the others.
    """

    standardize: Standardize

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(WeightedSum(num_layers=sizes.num_layers, learned=False), [self._mean], sizes)
        self.standardize = Standardize.empty("feature", sizes.num_layers, sizes.embed_dim)

    def _mean(self, clips: Layers, *, fit: bool) -> Tensor:
        # one layer at a time, because all of them may be on disk and larger than memory
        known, total = self.standardize, torch.zeros(())
        for index in range(len(known.mean)):
            x = at_least_float32(clips.layer(index))
            if fit:
                scaling = _scaling(x)
                known.mean[index], known.scale[index] = scaling.mean + scaling.rest, scaling.scale
            total = total + (x - known.mean[index]) * known.scale[index]
        return total / len(known.mean)


class AverageProbe(RidgeProbe):
    """A probe of every layer, all with the same penalty; the mean of their scores classifies."""

    def __init__(self, sizes: Sizes) -> None:
        shape = (sizes.num_layers, sizes.embed_dim)
        super().__init__(nn.Identity(), StandardizedLinear(shape, num_classes=sizes.num_classes))

    def _solve(self, train: Layers, dev: Layers | None) -> Solution:
        num_layers, num_classes = len(self.decoder.mean), len(self.decoder.bias)
        scalings: list[Scaling] = []
        weights: dict[float, list[Tensor]] = {penalty: [] for penalty in PENALTIES}
        totals: dict[float, Tensor] = {}
        for index in range(num_layers):
            x = train.layer(index)
            scalings.append(_scaling(x))
            path = RidgePath(scalings[-1](x), train.y, num_classes)
            held = None if dev is None else scalings[-1](dev.layer(index))
            for penalty in PENALTIES:
                own = path.weights(penalty)
                scores = loo_scores(path, path.left_out(penalty)) if held is None else held @ own + path.intercept
                # dividing the weights averages the scores, so that one linear map does both
                weights[penalty].append(own / num_layers)
                totals[penalty] = totals.get(penalty, 0.0) + scores / num_layers
        y = train.y if dev is None else dev.y
        solution = _choose([_candidate(penalty, total, y) for penalty, total in totals.items()], dev)
        self.decoder.set(scalings, weights[solution.penalty], path.intercept, solution.penalty)
        return solution

    def _fit(self, clips: Layers, chosen: Candidate) -> None:
        num_layers, scalings, weights = len(self.decoder.mean), [], []
        for index in range(num_layers):
            x = clips.layer(index)
            scalings.append(_scaling(x))
            path = RidgePath(scalings[-1](x), clips.y, len(self.decoder.bias))
            weights.append(path.weights(chosen.penalty) / num_layers)
        self.decoder.set(scalings, weights, path.intercept, chosen.penalty)


class ConcatProbe(RidgeProbe):
    """A probe of all layers side by side, each feature standardised.

    It is solved from the inner products of the features if these are fewer than the clips, else of the clips. If both
    are more than `LARGEST_SYSTEM`, each layer is reduced to its first principal components, so that it can be solved:
    a sample of the clips would cost more accuracy (docs/sources.md#closed-form-probes).
    """

    def __init__(self, sizes: Sizes) -> None:
        shape = (sizes.num_layers, sizes.embed_dim)
        super().__init__(nn.Identity(), StandardizedLinear(shape, num_classes=sizes.num_classes))

    def _solve(self, train: Layers, dev: Layers | None) -> Solution:
        scalings, path, parts = self._path(train)
        found, weights = dict[float, Candidate](), dict[float, Tensor]()

        def error(index: int) -> float:
            penalty = PENALTIES[index]
            if not path.solvable(penalty):  # in float32, the smallest penalty may be too small
                return float("inf")
            weights[penalty] = path.weights(penalty)
            found[penalty] = _candidate(penalty, loo_scores(path, path.left_out(penalty)), train.y)
            return found[penalty].error

        if dev is None:  # leave-one-out costs much more than solving, so do not try every penalty
            downhill(len(PENALTIES), error)
        else:
            weights |= {penalty: path.weights(penalty) for penalty in PENALTIES if path.solvable(penalty)}
            scores = torch.zeros(len(dev.y), 0)
            # all penalties at once: a layer may have to be read from disk
            for index, own in enumerate(parts(torch.cat(list(weights.values()), dim=1)) if weights else ()):
                share = scalings[index](dev.layer(index)) @ own
                scores = scores + share if index else share
            for penalty, own in zip(weights, scores.split(len(path.intercept), dim=1), strict=bool(weights)):
                found[penalty] = _candidate(penalty, own + path.intercept, dev.y)
        if not found:
            raise MethodError("the features are too large for a probe of all layers in float32")
        solution = _choose([found[penalty] for penalty in sorted(found)], dev)
        self.decoder.set(scalings, parts(weights[solution.penalty]), path.intercept, solution.penalty)
        return solution

    def _fit(self, clips: Layers, chosen: Candidate) -> None:
        scalings, path, parts = self._path(clips)
        if not path.solvable(chosen.penalty):
            raise MethodError("the features are too large for a probe of all layers in float32")
        self.decoder.set(scalings, parts(path.weights(chosen.penalty)), path.intercept, chosen.penalty)

    def _path(self, train: Layers) -> tuple[list[Scaling], CholeskyPath, Callable[[Tensor], list[Tensor]]]:
        """Scaling of every layer, the system of the clips, and what turns its weights into those of every layer.

        The last maps K columns of weights to L tensors (D, K).
        """
        (number, width), clips, num_classes = self.decoder.mean.shape, len(train.y), len(self.decoder.bias)
        kept = _kept(clips, number, width)
        self.components = None if kept in (None, width) else kept
        scalings: list[Scaling] = []

        def standardised() -> Iterator[Tensor]:
            """The layers in their order, each read once; notes their scalings."""
            for index in range(number):
                x = train.layer(index)
                scalings.append(_scaling(x))
                yield scalings[-1](x)

        def layer(index: int) -> Tensor:
            return scalings[index](train.layer(index))

        if kept is None:
            # the products of the clips sum over layers, so no layer has to stay in memory
            kernel: Tensor | None = None
            for z in standardised():
                kernel = z.new_zeros(clips, clips) if kernel is None else kernel
                add_products(kernel, z)
            assert kernel is not None
            path: CholeskyPath = KernelPath(kernel, train.y, num_classes)
            return scalings, path, lambda weights: [layer(index).mT @ weights for index in range(number)]
        if kept == width:
            part: Callable[[int], Tensor] = layer
            # the system reads every layer once for each other one, perhaps from disk
            if number * width * clips <= HELD_VALUES:
                part = list(standardised()).__getitem__
            else:
                scalings += [_scaling(train.layer(index)) for index in range(number)]
            path = GramPath(number, part, train.y, num_classes)
            return scalings, path, lambda weights: list(weights.split(width))
        bases, reduced = [], []
        for z in standardised():
            # `eigh` sorts in ascending order, so the last columns are the first principal components
            bases.append(torch.linalg.eigh(z.mT @ z).eigenvectors[:, -kept:])
            reduced.append(z @ bases[-1])
        path = GramPath(number, reduced.__getitem__, train.y, num_classes)
        return (
            scalings,
            path,
            lambda weights: [basis @ own for basis, own in zip(bases, weights.split(kept), strict=True)],
        )


def _kept(clips: int, num_layers: int, embed_dim: int) -> int | None:
    """Features of every layer in the system that `ConcatProbe` solves; None: the system is of the clips."""
    features = num_layers * embed_dim
    if features < clips and features <= LARGEST_SYSTEM:
        return embed_dim
    if clips <= LARGEST_SYSTEM:
        return None
    return max(1, min(LARGEST_SYSTEM, HELD_VALUES // clips) // num_layers)


def concat_bytes(clips: int, num_layers: int, embed_dim: int) -> int:
    """Memory that `ConcatProbe` takes beside the features, in float32: the system, its copy, and layers it holds."""
    kept = _kept(clips, num_layers, embed_dim)
    if kept is None:
        return 4 * 2 * clips**2
    rows = num_layers * kept
    return 4 * (2 * rows**2 + (rows * clips if kept < embed_dim or rows * clips <= HELD_VALUES else 0))


def _scaling(x: Tensor) -> Scaling:
    """Scaling of training features x (N, D)."""
    scaling = scaling_of(x)
    if not (scaling.mean.isfinite().all() and scaling.scale.isfinite().all()):
        raise MethodError("features of the training clips are not finite")
    return scaling


def _candidate(penalty: float, scores: Tensor, y: Tensor) -> Candidate:
    """Evaluate a penalty by its scores (N, C) of clips that it was not fitted to."""
    right = (scores.argmax(1) == y).double().mean()
    hot = nn.functional.one_hot(y, scores.shape[1])
    return Candidate(penalty, None, float(right), float((scores - hot).square().mean()), scores)


def rank(one: Candidate, *, held_out: bool) -> tuple[float, ...]:
    """Sort key, smallest for the best candidate, with or without a held-out group; see the module's docstring."""
    by_error = (one.error, -one.penalty)
    return (-one.accuracy, *by_error) if held_out else by_error


def _choose(candidates: Sequence[Candidate], dev: Layers | None) -> Solution:
    chosen = min(range(len(candidates)), key=lambda index: rank(candidates[index], held_out=dev is not None))
    return Solution(tuple(candidates), chosen)


def _sharpness(scores: Tensor, y: Tensor) -> float:
    """The factor within `SHARPNESS` that minimises the cross-entropy of scores (N, C) and class ids (N,).

    The cross-entropy is convex in the factor; its derivative is the mean score under the softmax minus the mean score
    of the true class.
    """
    wide = scores.double()
    true = wide.gather(1, y[:, None]).squeeze(1).mean()
    low, high = SHARPNESS
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        slope = ((middle * wide).softmax(1) * wide).sum(1).mean() - true
        low, high = (middle, high) if slope < 0 else (low, middle)
    return high


def _layer(index: int, clips: Layers, **_: bool) -> Tensor:
    return clips.layer(index)  # without statistics


def ridge_last(sizes: Sizes) -> FusionClassifier:
    """Closed-form probe: a ridge classifier of the last stored layer."""
    return VectorProbe(LastLayer(), [partial(_layer, sizes.num_layers - 1)], sizes)


def ridge_best_layer(sizes: Sizes) -> FusionClassifier:
    """Closed-form probe: a ridge classifier of every layer, of which the best on a held-out group is used."""
    vectors = [partial(_layer, index) for index in range(sizes.num_layers)]
    return VectorProbe(ChosenLayer(num_layers=sizes.num_layers), vectors, sizes)


def ridge_mean(sizes: Sizes) -> FusionClassifier:
    """Closed-form probe: a ridge classifier of the mean of the standardised layers."""
    return MeanProbe(sizes)


def ridge_concat(sizes: Sizes) -> FusionClassifier:
    """Closed-form probe: a ridge classifier of all layers side by side."""
    if sizes.num_layers == 1:  # the same probe, from all clips however many, and to the last digit
        return ridge_last(sizes)
    return ConcatProbe(sizes)


def ridge_average(sizes: Sizes) -> FusionClassifier:
    """Closed-form probe: a ridge classifier of every layer, their scores averaged."""
    return AverageProbe(sizes)
