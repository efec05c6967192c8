"""Train folds and seeds of one method, with or without a search; batches trainings together where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.results import Fold
from daamctl.devices import resolve_device
from daamctl.training.batched import separable, train_jointly
from daamctl.training.fold import Features, FoldJob, FoldSpec, build_method, train_precision
from daamctl.training.loop import Epoch, Training
from daamctl.training.search import Search, Trial

CPU_BATCH_NUMBERS = 100_000
"""Largest batch per training, B * L * D numbers, for which joint training pays on a CPU. Beyond it, memory traffic
limits the speed, not the number of kernels (benchmarks/training.py)."""
CPU_PARAMETERS = 300_000
"""Largest number of trainable parameters for which joint training pays on a CPU (same benchmark)."""
CPU_STEP_NUMBERS = 1_000_000
"""Numbers in the batches of all trainings that fit in a CPU's caches beside everything else."""
MOST_MEMBERS = 32


def in_groups(specs: Sequence[FoldSpec], features: Features) -> list[list[FoldSpec]]:
    """Group consecutive folds that can be trained jointly; the others form groups of one.

    Raises:
        MethodError: a method does not fit these sizes.
        ConfigError: the requested device or precision is not available.
    """
    groups: list[list[FoldSpec]] = []
    room = 0
    for spec in specs:
        last = groups[-1][-1] if groups else None
        alike = last is not None and (last.method, last.config) == (spec.method, spec.config)
        if not alike:
            most = most_members(spec, features)
        if alike and room:
            groups[-1].append(spec)
            room -= 1
        else:
            groups.append([spec])
            room = most - 1
    return groups


def most_members(spec: FoldSpec, features: Features) -> int:
    """Largest number of trainings like this one that can run jointly; 1 means only on its own."""
    train, device = spec.config.train, resolve_device(spec.config.train.device)
    if train.together == "never" or not _is_on(features.x, device):
        return 1
    with torch.device("meta"):
        sizes = (len(features.layers), features.head.embed_dim, len(features.head.classes))
        model = build_method(spec.method, spec.config, *sizes)
    if not separable(model) or train.density_maps == "all-epochs" or train_precision(model, train, device) == "float16":
        return 1
    numbers = train.batch_size * sizes[0] * sizes[1]
    if train.together == "always":
        return MOST_MEMBERS
    if device != "cpu" or numbers > CPU_BATCH_NUMBERS or sum(p.numel() for p in model.parameters()) > CPU_PARAMETERS:
        return 1
    return min(MOST_MEMBERS, CPU_STEP_NUMBERS // numbers)


def _is_on(x: Tensor | StoredVectors, device: str) -> bool:
    """Whether the features are held in memory on the training device; see `to_gpu` of `run`."""
    return isinstance(x, Tensor) and x.device.type == torch.device(device).type


def train_fold(
    spec: FoldSpec,
    features: Features,
    method_dir: Path,
    work: Path,
    *,
    root: Path,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_step: Callable[[], None] = lambda: None,
) -> Fold:
    """Train one fold and move its complete folder into place; for the arguments see `train_folds`."""
    return train_folds(
        [spec], features, method_dir, work, root=root, on_epoch=lambda _, entry: on_epoch(entry), on_step=on_step
    )[0]


def train_folds(
    specs: Sequence[FoldSpec],
    features: Features,
    method_dir: Path,
    work: Path,
    *,
    root: Path,
    on_epoch: Callable[[FoldSpec, Epoch], None] = lambda spec, epoch: None,
    on_step: Callable[[], None] = lambda: None,
) -> list[Fold]:
    """Train folds of one method and move each complete folder into place.

    Args:
        specs: one fold, or one group from `in_groups`.
        features: the embeddings passed to `in_groups`.
        method_dir: folder that will hold `fold<k>-seed<s>/`.
        work: folder for unfinished work, on the same file system.
        root: project folder, for the commit.
        on_epoch: called after each epoch of the training whose weights a fold keeps: in a search, of the chosen
            candidate or its refit.
        on_step: called after each trained epoch, candidates included.

    Returns:
        The folds, in the order of `specs`.

    Raises:
        TrainingError: the split or the numbers do not allow training.
        MethodError: the method does not fit these sizes.
    """
    jobs = [FoldJob(spec, features, method_dir, work) for spec in specs]
    folds: dict[int, Fold] = {}
    with ExitStack() as locks:
        for job in sorted(jobs, key=lambda job: job.folder):  # all processes lock in one order, to avoid deadlock
            locks.enter_context(job.locked())
        searches: list[tuple[FoldJob, Search]] = []
        for job in jobs:
            kept = job.made_meanwhile()
            if kept is not None:
                folds[id(job)] = kept
            else:
                searches.append((job, job.start(on_step)))
        members = most_members(specs[0], features) if searches else 1
        _search([search for _, search in searches], members)
        chosen = [(job, search.choose()) for job, search in searches]
        if chosen and chosen[0][0].refits:
            _train([training for _, training in chosen], None, members)
            chosen = [(job, job.refit(training)) for job, training in chosen]
        for job, training in chosen:
            training.follow(partial(on_epoch, job.spec))
        _train([training for _, training in chosen], None, members)
        for job, training in chosen:
            more = {"together": len(chosen)} if len(chosen) > 1 else {}
            folds[id(job)] = job.finish(training, root, **more)
    return [folds[id(job)] for job in jobs]


def _search(searches: Sequence[Search], members: int) -> None:
    """Train candidates until every search has one left."""
    while waiting := [pair for search in searches for pair in search.pending()]:
        for until in dict.fromkeys(until for _, until in waiting):
            trainings = [training for training, epochs in waiting if epochs == until]
            _train(trainings, until, members)
            for training in trainings:
                training.save()


def _train(trainings: Sequence[Trial], epochs: int | None, members: int) -> None:
    """Train until `epochs` epochs are done, jointly where allowed."""
    kinds: dict[tuple[str, ...], list[Training]] = {}  # jointly trained models must have the same tensors
    for training in trainings:
        if members == 1 or not isinstance(training, Training):
            training.train_until(epochs)
            continue
        kinds.setdefault(tuple(training.model.state_dict()), []).append(training)
    for alike in kinds.values():
        for start in range(0, len(alike), members):
            some = alike[start : start + members]
            if len(some) > 1:
                train_jointly(some, epochs)
            else:
                some[0].train_until(epochs)
