"""Layer scores of trained folds, and of the same modules before training.

The score of a layer is its mean Importance Factor (kind "importance") or the weight that the fusion gives it (kind
"weight").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from daamctl.artifacts.results import Fold
from daamctl.errors import ArtifactError
from daamctl.evaluation.importance import Map, layer_importance, mean_density
from daamctl.methods import SINGLE_LAYER


class FoldMaps(NamedTuple):
    """Density maps of one fold, or their mean over folds; shape (L, D). The mean has fold 0 and seed 0."""

    fold: int
    seed: int
    trained: Map
    untrained: Map


@dataclass(frozen=True)
class MethodLayerScores:
    """The layer scores of one method, of F finished folds and L layers.

    Args:
        trained: scores by fold, shape (F, L); `untrained`: before training.
        mean: shape (L,): mean over folds of the weights, or the Importance Factor of the mean map.
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
        """Name of the method in reports."""
        return self.folds[0].label

    @property
    def learned(self) -> bool:
        """Whether training changed the score."""
        # absolute: a score is a share or a weight of about 1 / L, and rounding moves it by less
        return not np.allclose(self.trained, self.untrained, rtol=0, atol=1e-6)


def read_maps(folds: Sequence[Fold]) -> list[FoldMaps]:
    """Density maps: the mean over folds, then every fold. Empty for methods without a density.

    Raises:
        ArtifactError: a map does not fit its fold's layers or is not finite, or folds differ in shape.
    """
    found = []
    for fold in folds:
        density = fold.density()
        if density is not None:
            _check(fold, "density", density, 2)
            trained, untrained = density["trained"].astype(float), density["untrained"].astype(float)
            found.append(FoldMaps(fold.fold, fold.seed, trained, untrained))
    if not found:
        return []
    shapes = sorted({part.trained.shape for part in found} | {part.untrained.shape for part in found})
    _check_shapes(folds, "density maps", shapes)
    trained = mean_density([part.trained for part in found])
    untrained = mean_density([part.untrained for part in found])
    return [FoldMaps(0, 0, trained, untrained), *found]


def read_scores(folds: Sequence[Fold], maps: Sequence[FoldMaps]) -> MethodLayerScores | None:
    """Scores of a method: its Importance Factor, or its layer weights if it has no density, or None.

    Raises:
        ArtifactError: weights do not fit their fold's layers or are not finite, or folds differ in their number.
    """
    if maps:
        mean, *parts = maps
        by_key = {(fold.fold, fold.seed): fold for fold in folds}
        scored = [by_key[part.fold, part.seed] for part in parts]
        return MethodLayerScores(
            "importance",
            scored,
            scored[0].result["run"]["layers"],
            trained=np.array([layer_importance(part.trained) for part in parts]),
            untrained=np.array([layer_importance(part.untrained) for part in parts]),
            # of the mean map: the score is relative to its range, so the mean over folds would differ
            mean=layer_importance(mean.trained),
            mean_untrained=layer_importance(mean.untrained),
        )
    scored, weights = [], []
    for fold in folds:
        found = fold.layer_weights()
        if found is not None:
            _check(fold, "layer_weights", found, 1)
            scored.append(fold)
            weights.append(found)
    if not scored:
        return None
    _check_shapes(folds, "layer weights", sorted({found["trained"].shape for found in weights}))
    trained = np.array([found["trained"] for found in weights], dtype=float)
    untrained = np.array([found["untrained"] for found in weights], dtype=float)
    layers, method = scored[0].result["run"]["layers"], scored[0].result["run"]["method"]
    if method in SINGLE_LAYER[:2]:  # the choice is the training, and the refit begins with it: before, all are alike
        untrained[:] = 1 / len(layers)
    return MethodLayerScores("weight", scored, layers, trained, untrained, trained.mean(axis=0), untrained.mean(axis=0))


def _check(fold: Fold, name: str, values: Mapping[str, NDArray[Any]], num_axes: int) -> None:
    """Check the arrays of a fold against its number of layers."""
    path, num_layers = fold.folder / f"{name}.safetensors", len(fold.result["run"]["layers"])
    for part in ("trained", "untrained"):
        if part not in values:
            raise ArtifactError(f"{path} lacks the map '{part}'", path=path)
        if values[part].ndim != num_axes or len(values[part]) != num_layers:
            raise ArtifactError(
                f"{path}: map '{part}' has shape {values[part].shape}, but the fold has {num_layers} layers", path=path
            )
        if not np.isfinite(values[part]).all():
            raise ArtifactError(f"{path}: map '{part}' is not finite", path=path)


def _check_shapes(folds: Sequence[Fold], what: str, shapes: Sequence[tuple[int, ...]]) -> None:
    if len(shapes) > 1:
        path = folds[0].folder.parent
        raise ArtifactError(f"{what} of '{path.name}' have different shapes: {list(shapes)}", path=path)
