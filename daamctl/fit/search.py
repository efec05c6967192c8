"""The candidates of a search, and how long they are trained."""

from __future__ import annotations

from itertools import product

from daamctl.adapters import FINETUNES
from daamctl.adapters.released import is_published
from daamctl.config import Config, TrainConfig, TrainingStage
from daamctl.fit.loop import Settings
from daamctl.methods import CLOSED_FORM


def fusion_candidates(config: TrainConfig) -> list[Settings]:
    """Settings of each candidate of a fusion, in order; one that changes nothing if there is nothing to choose by.

    They are chosen by the held-out group alone; the test group is never used.
    """
    if config.search == "none" or config.selection != "dev-group":
        return [{}]
    rates, decays = sorted(config.search_lr), config.search_weight_decay or (config.weight_decay,)
    kinds = config.search_standardize or (config.standardize,)
    return [
        {"lr": rate, "weight_decay": decay, "standardize": kind} for kind, decay, rate in product(kinds, decays, rates)
    ]


def adapter_candidates(method: str, config: Config) -> list[Settings]:
    """Settings of each candidate of a fine-tuning method. Published variants keep the given rate."""
    searched = config.finetune.search != "none" and config.train.selection == "dev-group"
    if not searched or is_published(method):
        return [{}]
    return [{"lr": rate} for rate in sorted(config.finetune.search_lr)]


def refits(config: Config, stage: TrainingStage) -> bool:
    """Whether the final training includes the held-out group, once that group has chosen the settings.

    With `train.epochs`, and in fine-tuning at a constant rate, that group has chosen an epoch instead.
    """
    to_the_end = config.train.steps is not None if stage == "train" else config.finetune.schedule != "constant"
    return config.train.refit and config.train.selection == "dev-group" and to_the_end


def trainings(method: str, config: Config) -> int:
    """Trainings of a fold: every candidate, and the refit; 1 for a closed-form probe.

    Args:
        method: a name from the table of methods or of fine-tuning methods.
        config: all settings; for a fine-tuning method with its own applied (`Config.for_adapter`).
    """
    if method in CLOSED_FORM:
        return 1
    if method in FINETUNES:
        return len(adapter_candidates(method, config)) + refits(config, "finetune")
    return len(fusion_candidates(config.train)) + refits(config, "train")


def steps_of_training(method: str, config: Config, train: int, dev: int) -> int:
    """Optimiser steps of one training: of each candidate, and of the refit.

    Args:
        method: as in `trainings`.
        config: likewise.
        dev: held-out clips, which a refit trains on too.
    """
    if method in CLOSED_FORM:
        return 1
    if method in FINETUNES:
        return config.finetune.epochs * -(-train // config.finetune.batch_size)
    size = config.train.batch_size
    if config.train.steps is None:
        return config.train.epochs * -(-train // size)
    return max(config.train.steps, -(-config.train.passes * (train + dev) // size))


def clips_of_fold(method: str, config: Config, train: int, dev: int) -> int:
    """Clips in all steps of a fold, each as often as it is trained on; for the arguments see `steps_of_training`."""
    if method in CLOSED_FORM:
        return train
    if method in FINETUNES:
        return trainings(method, config) * config.finetune.epochs * train
    if config.train.steps is None:
        return trainings(method, config) * config.train.epochs * train
    return trainings(method, config) * steps_of_training(method, config, train, dev) * config.train.batch_size
