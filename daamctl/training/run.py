"""Train lists of folds: load the features, skip finished folds, track the others."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch

from daamctl.artifacts.embeddings import StoredVectors, check_settings, is_held, open_embeddings, read_head
from daamctl.artifacts.results import Fold
from daamctl.artifacts.splits import chosen_folds
from daamctl.artifacts.terms import percent, terms_of
from daamctl.config import Config
from daamctl.devices import resolve_device
from daamctl.engines.base import Engine, await_files
from daamctl.errors import TrainingError
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM
from daamctl.progress import progress
from daamctl.tracking import Tracker, send_missing
from daamctl.training.feature_split import StreamedSplit
from daamctl.training.fold import Features, FoldSpec, kept_fold
from daamctl.training.group import in_groups, train_fold, train_folds
from daamctl.training.search import grid_of, most_epochs, refits

log = logging.getLogger(__name__)

FOLDS_PER_GPU = 4
"""Default limit of folds that share a GPU on a cluster: the models are small, their features are not."""
GPU_HEADROOM = 8_000_000_000
"""Bytes of a GPU to leave free beside the features. The convolutional decoder keeps two maps of 512 channels for the
256 clips of an evaluation batch, which take 5.4 GB with 5120 features. On a small GPU, half of the memory is left
instead."""


def fold_specs(
    name: str,
    method: str,
    features: Features,
    config: Config,
    *,
    fold: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> list[FoldSpec]:
    """List the folds of a method, each with every seed.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of methods.
        features: the embeddings; their groups are the folds.
        config: all settings.
        fold: one fold, 1-based; None: all.
        seeds: seeds to train with; None: those of the settings.

    Raises:
        TrainingError: there is no such fold.
    """
    chosen = chosen_folds(features.clips["group"], fold)
    return [FoldSpec(name, method, number, seed, config) for number in chosen for seed in seeds or config.train.seeds]


def load_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Open the embeddings and decide where training reads them from: `open_features`, then `settle`."""
    return settle(open_features(layout, config, layers), config)


def open_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Open the embeddings on disk, without reading vectors; this suffices to tell which folds are finished.

    Raises:
        ArtifactError: they are missing or were made with other settings; names the settings and the command.
    """
    command = layout.command("extract")
    head = read_head(layout.embeddings, fix=f"make them: {command}")
    check_settings(head.settings, config, head.modality, what="embeddings", fix=f"make them again: {command}")
    clips, stored = open_embeddings(layout.embeddings, layers, fix=f"make them: {command}")
    return Features(head, clips, stored, stored.layers, stream=config.train.features == "stream")


def settle(features: Features, config: Config) -> Features:
    """Decide whether training holds the features in memory or streams them from disk in every epoch.

    Under `auto` they are read into memory if it is large enough (`is_held`). For a GPU see `to_gpu`.
    """
    stored = features.x
    if not isinstance(stored, StoredVectors):
        return features
    if is_held(stored.nbytes, config.train.features):
        return replace(features, x=torch.from_numpy(stored.load()), stream=False)
    log.info("the embeddings take %.1f GB in memory: every epoch reads them from disk", stored.nbytes / 1e9)
    return replace(features, stream=True)


def to_gpu(features: Features, config: Config, *, tasks: int = 1) -> Features:
    """Move all features to the training GPU if they fit; otherwise return them unchanged. All folds share them.

    Features on disk are read shard by shard, so they need not fit in main memory.

    Args:
        features: the embeddings.
        config: training settings; with `train.features=stream` nothing is held.
        tasks: number of processes that share the GPU, each with its own copy of the features.
    """
    device = resolve_device(config.train.device)
    if config.train.features == "stream" or features.x.nbytes > gpu_room(device, tasks):
        return features
    log.info("the embeddings take %.1f GB: held on %s", features.x.nbytes / 1e9, device)
    if isinstance(features.x, torch.Tensor):
        return replace(features, x=features.x.to(device))
    whole = StreamedSplit(features.x, np.arange(len(features.x)), features.targets())
    return replace(features, x=whole.hold(device).x, stream=False)


def gpu_room(device: str, tasks: int) -> float:
    """Bytes of a GPU that one of `tasks` processes may use for features; 0 on other devices."""
    if not device.startswith("cuda"):
        return 0
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cached by torch, which reuses it
    ours = min(free, total / tasks)
    return max(ours - GPU_HEADROOM, ours / 2)


def train_all(
    specs: list[FoldSpec],
    features: Features,
    folder: Path,
    layout: Layout,
    tracker: Tracker,
    *,
    force: bool,
    engine: Engine | None = None,
) -> list[Fold]:
    """Train the folds that are not finished; return all of them, in the order of `specs`.

    Args:
        specs: what to train.
        features: the embeddings; vectors on disk are read only if there is something to train.
        folder: will hold the folds.
        layout: provides the folder for unfinished work.
        tracker: logs the folds.
        force: train finished folds again.
        engine: where to train; None: in this process, one group after another.

    Raises:
        TrainingError: the splits or the numbers do not allow training, or a worker used other inputs.
        MethodError: the method does not fit the embeddings.
        WorkerError: a worker died too often.
    """
    kept = {id(spec): None if force else kept_fold(folder, spec, features) for spec in specs}
    todo = sum(fold is None for fold in kept.values())
    if todo < len(specs):
        log.info("%s: %d of %d folds are finished and kept", folder.name, len(specs) - todo, len(specs))
    missing = [spec for spec in specs if kept[id(spec)] is None]
    if not missing:
        made = {}
    elif engine is not None:
        made = _train_elsewhere(missing, settle(features, missing[0].config), folder, layout, tracker, engine)
    else:
        config = missing[0].config
        made = _train_here(missing, settle(to_gpu(features, config), config), folder, layout, tracker)
    return [kept[id(spec)] or made[spec.fold, spec.seed] for spec in specs]


def _train_here(
    specs: list[FoldSpec], features: Features, folder: Path, layout: Layout, tracker: Tracker
) -> dict[tuple[int, int], Fold]:
    """Train folds in this process, one group after another; a group is trained jointly."""
    work, folds = layout.work / "train" / layout.run_name, {}
    train = specs[0].config.train
    epochs = 1 if specs[0].method in CLOSED_FORM else most_epochs(grid_of(train), train.epochs, refit=refits(train))
    with progress(len(specs) * epochs, f"training {folder.name}", "epochs") as bar:
        ended = 0
        for group in in_groups(specs, features):
            live = len(group) == 1  # a single fold is tracked epoch by epoch
            if live:
                tracker.start(group[0].name, folder.name, group[0].fold, group[0].seed)
            made = train_folds(
                group,
                features,
                folder,
                work,
                root=layout.root,
                on_epoch=(lambda _, entry: tracker.epoch(entry)) if live else (lambda _, entry: None),
                on_step=bar.advance,
            )
            if live:
                tracker.finish(made[0])
            else:
                send_missing(tracker, made)
            ended += len(group)
            bar.advance(ended * epochs - bar.done)  # training may have ended early
            for fold in made:
                log.info("%s", summary_line(fold))
                folds[fold.result["run"]["fold"], fold.result["run"]["seed"]] = fold
    return folds


def _train_elsewhere(
    specs: list[FoldSpec], features: Features, folder: Path, layout: Layout, tracker: Tracker, engine: Engine
) -> dict[tuple[int, int], Fold]:
    """Train folds in parallel workers.

    Features in memory are passed as an array, which workers of one machine can share.

    Each worker copies the features to its GPU if they fit in its share of the GPU's memory.
    """
    array = features.x.numpy() if isinstance(features.x, torch.Tensor) else None
    without = replace(features, x=torch.empty(0)) if array is not None else features
    work, tasks = layout.work / "train" / layout.run_name, min(FOLDS_PER_GPU, len(specs))
    call = partial(_train_one, folder=folder, work=work, root=layout.root, tasks=tasks)
    results = engine.each(call, (without, array), specs, device=specs[0].config.train.device, per_gpu=FOLDS_PER_GPU)
    return collect(results, lambda spec: kept_fold(folder, spec, features), folder, len(specs), tracker)


def _train_one(
    shared: tuple[Features, np.ndarray | None], spec: FoldSpec, *, folder: Path, work: Path, root: Path, tasks: int
) -> Path:
    """Train one fold in a worker that shares its GPU with `tasks` workers in all; return the fold's folder."""
    features = to_gpu(shared_features(*shared), spec.config, tasks=tasks)
    return train_fold(spec, features, folder, work, root=root).folder


def shared_features(features: Features, array: np.ndarray | None) -> Features:
    """Wrap an array that several processes share as features; with None, return them as they are (on disk)."""
    if array is None:
        return features
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
        return replace(features, x=torch.from_numpy(array))


class Numbered(Protocol):
    """A fold to train."""

    @property
    def fold(self) -> int:
        """1-based."""

    @property
    def seed(self) -> int:
        """Initial weights and order of batches."""


Spec = TypeVar("Spec", bound=Numbered)


def collect(
    results: Iterable[tuple[Spec, Path]],
    read: Callable[[Spec], Fold | None],
    folder: Path,
    total: int,
    tracker: Tracker,
) -> dict[tuple[int, int], Fold]:
    """Read, log and count folds as workers finish them.

    Args:
        results: pairs of a spec and the folder of its finished fold.
        read: reads the finished fold; None if its inputs differ from those of this process.
        folder: parent folder of all folds.
        total: number of folds to expect.
        tracker: receives each fold once it is finished; its epochs are read from the folder.

    Raises:
        TrainingError: a worker trained on other inputs, or with another version of the code.
    """
    folds: dict[tuple[int, int], Fold] = {}
    with progress(total, f"training {folder.name}", "folds") as bar:
        for spec, path in results:
            await_files([path / "result.json"])
            fold = read(spec)
            if fold is None:
                raise TrainingError(
                    f"{folder.name} fold {spec.fold} seed {spec.seed}: a worker trained it on other inputs",
                    fix="install the same packages on every machine of the cluster, then run it again",
                )
            send_missing(tracker, [fold])
            log.info("%s", summary_line(fold))
            folds[spec.fold, spec.seed] = fold
            bar.advance()
    return folds


def summary_line(fold: Fold) -> str:
    """Summary line of a finished fold: accuracy by clip at the selected epoch and at the best epoch on the test group.

    It ends with signs that the fold may have learned nothing, if there are any.
    """
    run, metrics, meta = fold.result["run"], fold.result["metrics"], fold.result["meta"]
    dev, search = metrics["dev_accuracy"], fold.result.get("search")
    if run["method"] in CLOSED_FORM and search is not None:
        chosen, best = f"with penalty {search['candidates'][search['chosen']]['settings']['penalty']:g}", ""
    else:
        chosen = f"at epoch {metrics['selected_epoch']}"
        best = f", best on test {percent(metrics['accuracy_best_on_test'])}"
    return (
        f"{_name(fold)} fold {run['fold']}/{run['num_folds']} ({run['test_group']}) seed {run['seed']}: "
        f"accuracy {percent(metrics['accuracy'])} {chosen}"
        + (f" (dev {percent(dev)})" if dev is not None else "")
        + f"{best}, {meta['train_s']:.1f} s"
        + (f"; {' and '.join(signs)}: it may have learned nothing" if (signs := _signs(fold)) else "")
    )


def _signs(fold: Fold) -> list[str]:
    """Reasons to doubt that a fold learned anything."""
    run, metrics = fold.result["run"], fold.result["metrics"]
    predicted = fold.predictions()["logits"].list.arg_max().unique()
    signs = []
    if len(predicted) == 1 and fold.result["meta"]["num_test_clips"] > 1:
        clip = terms_of(fold.modality).clip
        signs.append(f"every test {clip} is taken for '{run['classes'][predicted[0]]}'")
    first = metrics.get("selected_epoch") == 1 and (metrics.get("epochs") or 0) > 1
    if first and run["config"]["train"]["selection"] != "last" and metrics.get("dev_accuracy") != 1.0:
        signs.append(f"epoch 1 of {metrics['epochs']} is selected")
    return signs


def _name(fold: Fold) -> str:
    """Name of the method's folder, with the layers of an ablation and the remarks that a reader needs."""
    return fold.folder.parent.name + fold.label.removeprefix(fold.result["run"]["method"])
