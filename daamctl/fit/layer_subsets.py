"""Train a method on some of the stored layers, for `ablate` and `truncate`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from daamctl.artifacts.results import Fold
from daamctl.config import Config
from daamctl.errors import MethodError
from daamctl.fit.features import Features, place_features
from daamctl.fit.runner import kept_fold, train_all
from daamctl.fit.trial import trials_of
from daamctl.fit.trials.fusion import FusionTrial, build_method
from daamctl.layout import Layout
from daamctl.tracking import Tracker


def misfits(method: str, sizes: Iterable[int], features: Features, config: Config) -> dict[int, MethodError]:
    """The numbers of layers for which a method cannot be built, and why."""
    found = {}
    for size in sizes:
        try:
            with torch.device("meta"):
                build_method(method, config, size, features.head.embed_dim, len(features.head.classes))
        except MethodError as error:
            found[size] = error
    return found


def train_on_layers(
    method: str,
    features: Features,
    layers: tuple[int, ...],
    folder: Path,
    layout: Layout,
    config: Config,
    tracker: Tracker,
    *,
    force: bool = False,
) -> list[Fold]:
    """Train every fold and seed of a method on some of the layers; keep what is finished.

    Args:
        method: a name from the table of methods.
        layers: the layers to train on. With all of them, folds of the train stage are used if their inputs are equal.
        force: train again even what is finished.

    Raises:
        MethodError: the method does not fit these layers.
        TrainingError: the splits, numbers or memory do not allow training.
    """
    every = layers == features.layers
    if not every:
        features = place_features(features.subset(layers), config)  # few layers may fit where all do not
    trials = trials_of(FusionTrial, layout, method, features, config)
    if every:
        kept = [fold for trial in trials if (fold := kept_fold(layout.method(method), trial)) is not None]
        if len(kept) == len(trials):
            return kept
    return train_all(trials, folder, layout, tracker, force=force)
