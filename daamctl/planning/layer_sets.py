"""Choose the methods of an ablation: one to rank the layers by, and one to train on few of them.

The settings name them, or leave the choice open (null). An open choice falls on a method that the pipeline lists and
that, if it is trained already, has learned something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_folds
from daamctl.artifacts.skipped import read_note
from daamctl.config import Config
from daamctl.errors import ArtifactError, MethodError
from daamctl.evaluation.fairness import judge
from daamctl.evaluation.importance import layer_importance, mean_density, order_layers, ties_all
from daamctl.fit.trial import build_method
from daamctl.methods import CLOSED_FORM, counterparts, resolve_method
from daamctl.methods.base import FusionClassifier
from daamctl.store.records import SKIPPED_FILE

log = logging.getLogger(__name__)

TIED = "its scores tie all layers"

Sizes = tuple[int, int, int]
"""L, D and C."""


class ChosenMethod(NamedTuple):
    """A method, None if none of those listed is suitable; the unsuitable that would have come first, with reasons."""

    name: str | None
    rejected: str = ""


def choose_ranking(layout: Layout, config: Config, sizes: Sizes) -> ChosenMethod:
    """Choose the method whose Importance Factor ranks the layers. A method that is not trained yet is suitable."""
    if config.ablate.rank_by is not None:
        return ChosenMethod(config.ablate.rank_by)
    built = {name: _built(name, config, sizes) for name in _trainable(config, "daam-v1")}
    # a method that does not fit these sizes is refused by `train`, with its reason
    dense = [name for name, model in built.items() if model is not None and model.has_density]
    return _first(layout, config, dense, ranking=True)


def choose_method(layout: Layout, config: Config, sizes: Sizes, numbers: Iterable[int]) -> ChosenMethod:
    """Choose the method that is trained on few layers. A method that is not trained on all of them yet is suitable.

    Methods with a density are not, because a density is degenerate on one layer; nor are methods that attend over the
    batch, because they measure the batch (D1).

    Args:
        numbers: numbers of layers that it must fit, besides all of them.
    """
    if config.ablate.method is not None:
        return ChosenMethod(config.ablate.method)
    fitting = []
    for name in _trainable(config, "none"):
        models = [_built(name, config, (number, *sizes[1:])) for number in {sizes[0], *numbers}]
        if all(one is not None and not one.has_density and not one.traits.batch_dependent for one in models):
            fitting.append(name)
    return _first(layout, config, fitting, ranking=False)


def why_nothing(layout: Layout, config: Config, name: str) -> str | None:
    """Why a method learned nothing, by the rule of `evaluate`; None if it learned something or is not trained."""
    folds = _folds(layout, name)
    if not folds:
        return None
    listed = [probe for probe in counterparts(name) if probe in config.methods]
    probes = {probe: part for probe in listed if (part := _folds(layout, probe))}
    found = judge(folds, probes, unit=config.evaluate.unit, margin=config.evaluate.margin)
    return "; ".join(found.reasons) if found.status == "learned nothing" else None


def layer_scores(folds: Iterable[Fold]) -> dict[int, float]:
    """Layer -> mean Importance Factor of the mean map; empty without a density."""
    found = [(fold, maps["trained"]) for fold in folds if (maps := fold.density()) is not None]
    if not found:
        return {}
    layers = found[-1][0].result["run"]["layers"]
    return dict(zip(layers, layer_importance(mean_density([one for _, one in found])).tolist(), strict=True))


def ranked(scores: Mapping[int, float]) -> list[int]:
    """Layers by score, highest first; empty without scores, or if all layers have the same one."""
    return order_layers(np.array(list(scores.values())), list(scores))


def tied(scores: Mapping[int, float]) -> bool:
    """Whether all layers have the same score, so that there is no ranking."""
    return ties_all(np.array(list(scores.values())))


def _folds(layout: Layout, name: str) -> list[Fold]:
    try:
        folds = read_folds(layout.method(name))
        for fold in folds:
            fold.check()
        return folds
    except ArtifactError as error:  # as if it were not trained yet
        log.warning("left out: %s", error.message)
        return []


def _trainable(config: Config, first: str) -> list[str]:
    """Methods of the pipeline without the closed-form ones; those of one fusion, with any decoder, first."""
    trained = [name for name in config.methods if name not in CLOSED_FORM]
    # False sorts before True; the sort is stable, so the order of the pipeline remains
    return sorted(trained, key=lambda name: resolve_method(name)[0] != first)


def _first(layout: Layout, config: Config, names: Iterable[str], *, ranking: bool) -> ChosenMethod:
    """The first method that has learned something, or is not trained yet, and why those before it are unsuitable."""
    rejected: list[str] = []
    for name in names:
        note = layout.method(name) / SKIPPED_FILE
        if note.exists():
            why: str | None = f"not trained, {read_note(note)['reason']}"
        elif ranking and (folds := _folds(layout, name)) and tied(layer_scores(folds)):
            why = TIED
        else:
            why = why_nothing(layout, config, name)
        if why is None:
            return ChosenMethod(name, "; ".join(rejected))
        rejected.append(f"{name}: {why}")
    return ChosenMethod(None, "; ".join(rejected))


def _built(name: str, config: Config, sizes: Sizes) -> FusionClassifier | None:
    """A method on the meta device; None if it does not fit these sizes."""
    try:
        with torch.device("meta"):
            return build_method(name, config, *sizes)
    except MethodError:
        return None
