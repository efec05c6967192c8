"""The layer scores of trained folds, each beside that of the untrained module.

A score is the mean Importance Factor of a layer (kind importance) or the weight that a fusion gives it (kind weight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daamctl.analysis.importance import Map, layer_importance, mean_density
from daamctl.artifacts.results import Fold
from daamctl.errors import ArtifactError


class Maps(NamedTuple):
    """Density maps of one fold, or their mean; shape (L, D)."""

    fold: int
    seed: int
    trained: Map
    untrained: Map


@dataclass(frozen=True)
class Scored:
    """The layer scores of one method.

    Args:
        kind: what the score is.
        folds: F finished folds.
        layers: L layer numbers.
        trained: (F, L).
        untrained: (F, L), before the first step.
        mean: (L,); of an Importance Factor that of the mean map.
        mean_untrained: the same before the first step.
    """

    kind: Literal["importance", "weight"]
    folds: list[Fold]
    layers: list[int]
    trained: Map
    untrained: Map
    mean: Map
    mean_untrained: Map

    @property
    def label(self) -> str:
        """The method's name as it stands beside a figure."""
        return self.folds[0].label


def read_maps(folds: Sequence[Fold], method: str, *, fix: str) -> list[Maps]:
    """Density maps: the mean over the folds, then every fold; empty for methods without a density.

    Args:
        folds: finished folds of the method.
        method: named in errors.
        fix: command that trains it again.

    Raises:
        ArtifactError: a map does not fit its fold's layers or is not finite, or folds differ in shape.
    """
    found = []
    for fold in folds:
        density = fold.density()
        if density is not None:
            _check(fold, "density", density, 2)
            found.append(Maps(fold.fold, fold.seed, density["trained"].astype(float),
                              density["untrained"].astype(float)))  # fmt: skip
    if not found:
        return []
    shapes = sorted({part.trained.shape for part in found} | {part.untrained.shape for part in found})
    _check_shapes(method, "density maps", shapes, fix)
    mean = [mean_density([part.trained for part in found]), mean_density([part.untrained for part in found])]
    return [Maps(0, 0, *mean), *found]


def read_scores(folds: Sequence[Fold], method: str, maps: Sequence[Maps], *, fix: str) -> Scored | None:
    """Scores of a method: its Importance Factor if it has one, else its layer weights, else None.

    Args:
        folds: finished folds of the method.
        method: named in errors.
        maps: see `read_maps`.
        fix: command that trains it again.

    Raises:
        ArtifactError: weights do not fit their fold's layers or are not finite, or folds differ in their number.
    """
    if maps:
        mean, *parts = maps
        keys = {(part.fold, part.seed) for part in parts}
        kept = [fold for fold in folds if (fold.fold, fold.seed) in keys]
        trained = np.array([layer_importance(part.trained) for part in parts])
        untrained = np.array([layer_importance(part.untrained) for part in parts])
        means = layer_importance(mean.trained), layer_importance(mean.untrained)
        return Scored("importance", kept, kept[0].result["run"]["layers"], trained, untrained, *means)
    weights = [(fold, found) for fold in folds if (found := fold.layer_weights()) is not None]
    if not weights:
        return None
    for fold, found in weights:
        _check(fold, "layer_weights", found, 1)
    _check_shapes(method, "layer weights", sorted({found["trained"].shape for _, found in weights}), fix)
    trained, untrained = (np.array([found[name] for _, found in weights], float) for name in ("trained", "untrained"))
    kept = [fold for fold, _ in weights]
    means = trained.mean(axis=0), untrained.mean(axis=0)
    return Scored("weight", kept, kept[0].result["run"]["layers"], trained, untrained, *means)


def _check(fold: Fold, name: str, values: Mapping[str, NDArray[Any]], num_axes: int) -> None:
    """Check what a fold stored against its own layers."""
    path, num_layers = fold.folder / f"{name}.safetensors", len(fold.result["run"]["layers"])
    again = f"delete {fold.folder} and train it again"
    for part in ("trained", "untrained"):
        if part not in values:
            raise ArtifactError(f"{path} lacks the map '{part}'", fix=again)
        if values[part].ndim != num_axes or len(values[part]) != num_layers:
            raise ArtifactError(
                f"{path}: map '{part}' has shape {values[part].shape}, but the fold has {num_layers} layers", fix=again
            )
        if not np.isfinite(values[part]).all():
            raise ArtifactError(f"{path}: map '{part}' is not finite", fix=again)


def _check_shapes(method: str, what: str, shapes: Sequence[tuple[int, ...]], fix: str) -> None:
    if len(shapes) > 1:
        raise ArtifactError(f"{what} of '{method}' have different shapes: {list(shapes)}", fix=fix)
