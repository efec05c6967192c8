"""Which methods an ablation uses: one to rank the layers by, and one to train on few of them.

The settings name them, or leave the choice open (null). Then it falls on a method that the pipeline lists and that, as
far as it is trained, learned something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from daamctl.analysis.ablation import RANK_FIRST, TRAIN_FIRST, candidates, first_fit
from daamctl.analysis.importance import layer_importance, mean_density, ties_all
from daamctl.artifacts.io import read_json
from daamctl.artifacts.results import SKIPPED_FILE, Fold, read_folds
from daamctl.config import Config
from daamctl.errors import MethodError
from daamctl.evaluation.fairness import learned_nothing
from daamctl.layout import Layout
from daamctl.methods import counterparts
from daamctl.methods.base import FusionClassifier
from daamctl.training.trials.fusion import build_method

TIED = "its scores tie all layers"

Sizes = tuple[int, int, int]
"""L, D and C."""


@dataclass(frozen=True)
class Choice:
    """A method that the settings name or leave open.

    Args:
        name: None: none of those listed will do.
        passed: methods that would come before it, or all where there is none, and why they will not do.
    """

    name: str | None
    passed: dict[str, str] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """Those passed over, in words."""
        return "; ".join(f"{name}: {why}" for name, why in self.passed.items())


def choose_ranking(layout: Layout, config: Config, sizes: Sizes) -> Choice:
    """The method whose Importance Factor ranks the layers; one that is not trained yet counts as fit.

    Args:
        layout: where folds lie.
        config: all settings.
        sizes: of the embeddings.
    """
    if config.ablate.rank_by is not None:
        return Choice(config.ablate.rank_by)
    names = (
        name
        for name in candidates(config.methods, RANK_FIRST)
        if (model := _built(name, config, sizes)) and model.has_density
    )
    return Choice(*first_fit(names, lambda name: _against(layout, config, name, ranking=True)))


def choose_method(layout: Layout, config: Config, sizes: Sizes, numbers: Iterable[int]) -> Choice:
    """The method that is trained on few layers; one that is not trained on all yet counts as fit.

    A density is degenerate on one layer, and what attends over the batch measures the batch (D1): neither is chosen.

    Args:
        layout: where folds lie.
        config: all settings.
        sizes: of the embeddings.
        numbers: of layers that it must fit, beside all of them.
    """
    if config.ablate.method is not None:
        return Choice(config.ablate.method)
    wanted = {sizes[0], *numbers}
    names = (
        name
        for name in candidates(config.methods, TRAIN_FIRST)
        if all(_measures_layers(_built(name, config, (number, *sizes[1:]))) for number in wanted)
    )
    return Choice(*first_fit(names, lambda name: _against(layout, config, name, ranking=False)))


def why_nothing(layout: Layout, config: Config, name: str) -> str | None:
    """Why a method learned nothing, as `evaluate` judges it; None where it learned something or is not trained."""
    folds = read_folds(layout.method(name))
    if not folds:
        return None
    listed = [probe for probe in counterparts(name) if probe in config.methods]
    probes = {probe: part for probe in listed if (part := read_folds(layout.method(probe)))}
    return learned_nothing(folds, probes, unit=config.evaluate.unit, margin=config.evaluate.margin)


def layer_scores(folds: Iterable[Fold]) -> dict[int, float]:
    """Layer -> mean Importance Factor of the mean map; empty without a density."""
    found = [(fold, density["trained"]) for fold in folds if (density := fold.density()) is not None]
    if not found:
        return {}
    scores = layer_importance(mean_density([trained for _, trained in found]))
    return dict(zip(found[0][0].result["run"]["layers"], scores.tolist(), strict=True))


def tied(scores: Mapping[int, float]) -> bool:
    """Whether a score ties all layers, so that it ranks none."""
    return ties_all(np.array(list(scores.values())))


def _against(layout: Layout, config: Config, name: str, *, ranking: bool) -> str | None:
    note = layout.method(name) / SKIPPED_FILE
    if note.exists():
        return f"not trained, {read_json(note).get('reason', 'skipped')}"
    if ranking and (folds := read_folds(layout.method(name))) and tied(layer_scores(folds)):
        return TIED
    return why_nothing(layout, config, name)


def _measures_layers(model: FusionClassifier | None) -> bool:
    return model is not None and not model.has_density and not model.traits.batch_dependent


def _built(name: str, config: Config, sizes: Sizes) -> FusionClassifier | None:
    """A method without numbers in it; None where it does not fit."""
    try:
        with torch.device("meta"):
            return build_method(name, config, *sizes)
    except MethodError:
        return None
