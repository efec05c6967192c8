"""Train a method on some of the stored layers (`ablate`, `truncate`), or on all clips (`export`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import torch

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold
from daamctl.artifacts.splits import Split
from daamctl.config import Config
from daamctl.errors import MethodError
from daamctl.fit.features import Features
from daamctl.fit.runner import kept_fold, train_all, train_fold
from daamctl.fit.tracking import Tracker
from daamctl.fit.trial import FoldSpec, FusionTrial, build_method, candidates_of, trials_of
from daamctl.store.files import content_key


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
        layers: the layers to train on. With all of them, folds of the train stage are used if their inputs are equal.

    Raises:
        MethodError: the method does not fit these layers.
        TrainingError: the splits, numbers or memory do not allow training.
    """
    every = layers == features.layers
    if not every:
        features = features.subset(layers).to_memory(config)  # few layers may fit where all do not
    trials = trials_of(FusionTrial, layout, method, features, config)
    if every:
        kept = [fold for trial in trials if (fold := kept_fold(layout.method(method), trial)) is not None]
        if len(kept) == len(trials):
            return kept
    return train_all(trials, folder, layout, tracker, force=force)


class AllDataTrial(FusionTrial):
    """A training on all clips. Its test group is part of them, so its accuracy says nothing."""

    @cached_property
    def key(self) -> str:
        """Content key; differs from that of the fold."""
        return content_key(["all clips", self.key_when(stream=self.data.stream)])

    @cached_property
    def split(self) -> Split:
        """All rows train; those of the test group are only needed because a training tests."""
        rows = np.arange(len(self.clips.rows))
        return replace(super().split, dev_group=None, train=rows, dev=np.empty(0, np.int64))


def train_on_all(
    method: str, folds: Sequence[Fold], features: Features, layout: Layout, config: Config, seed: int, folder: Path
) -> Path:
    """Train a method on all clips.

    Learning rate, weight decay and standardisation are those that most folds chose (of equally frequent ones the
    first). It takes as many steps as a fold; where folds have selected epochs, as many as the lower median of these.

    Args:
        folds: its finished folds with this seed.
        folder: for the files of the training; a temporary one.

    Returns:
        The weights file.

    Raises:
        MethodError: part of the method is chosen on a held-out group.
        TrainingError: the data or numbers do not allow training.
    """
    # fold 1 only says which clips are scored, and these are among those trained on
    spec = FoldSpec(layout.run_name, method, 1, seed, config, layout)
    if FusionTrial(spec, features).build().traits.needs_dev:
        raise MethodError(f"{method}: part of it is chosen on a held-out group, so it cannot be trained on all data")
    # no group is left to choose by, so all that the folds have chosen is fixed
    fixed: dict[str, Any] = {"selection": "last", "search": "none", "refit": False}
    if config.train.steps is None:
        fixed["epochs"] = median_low([int(fold.result["metrics"]["selected_epoch"] or 1) for fold in folds])
    searches = [search for fold in folds if (search := fold.result.get("search")) is not None]
    chosen = Counter(
        # probes choose these in closed form, and choose them again
        tuple((name, value) for name, value in settings.items() if name not in ("penalty", "layer"))
        for settings in (search["candidates"][search["chosen"]]["settings"] for search in searches)
    )
    fixed |= candidates_of(method, config)[0]  # what all candidates share is in no record
    fixed |= dict(chosen.most_common(1)[0][0]) if chosen else {}
    train = config.train.model_copy(update=fixed)
    spec = replace(spec, config=config.model_copy(update={"train": train}))
    fold = train_fold(AllDataTrial(spec, features), folder / method, folder / "work", root=layout.root)
    weights = fold.weights()
    assert weights is not None
    return weights
