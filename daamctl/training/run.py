"""Train lists of folds: load what they need, keep what is finished, track the rest."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import torch

from daamctl.artifacts.embeddings import StoredVectors, check_settings, is_held, open_embeddings, read_head
from daamctl.artifacts.results import Fold
from daamctl.config import Config
from daamctl.layout import Layout
from daamctl.progress import progress
from daamctl.tracking import Tracker
from daamctl.training.fold import Features, FoldSpec, kept_fold, train_fold
from daamctl.training.loop import Epoch
from daamctl.training.splits import chosen_folds

log = logging.getLogger(__name__)


def fold_specs(
    name: str,
    method: str,
    features: Features,
    config: Config,
    *,
    fold: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> list[FoldSpec]:
    """The folds of a method, fold by fold, each with every seed.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of methods.
        features: the embeddings; their groups are the folds.
        config: all settings.
        fold: one fold, 1-based; None: all.
        seeds: None: those of the settings.

    Raises:
        TrainingError: there is no such fold.
    """
    chosen = chosen_folds(features.clips["group"], fold)
    return [FoldSpec(name, method, number, seed, config) for number in chosen for seed in seeds or config.train.seeds]


def load_features(layout: Layout, config: Config, layers: tuple[int, ...] | None = None) -> Features:
    """Read the embeddings that the settings ask for, or leave them on disk, see `settle`.

    Raises:
        ArtifactError: they are missing, or were made with other settings; names them and the command.
    """
    command = layout.command("extract")
    head = read_head(layout.embeddings, fix=f"make them: {command}")
    check_settings(head.settings, config, head.modality, what="embeddings", fix=f"make them again: {command}")
    clips, stored = open_embeddings(layout.embeddings, layers, fix=f"make them: {command}")
    return settle(Features(head, clips, stored, stored.layers), config)


def settle(features: Features, config: Config) -> Features:
    """Decide where training takes the features from: memory, the device, or the disk, epoch by epoch.

    Under `auto` they are read into memory where that is large enough (see `is_held`), and left for the folds to read to
    a GPU where all of them take at most half of what is free there.
    """
    stored, wanted = features.x, config.train.features
    if not isinstance(stored, StoredVectors):
        return features
    if is_held(stored.nbytes, wanted):
        return replace(features, x=torch.from_numpy(stored.load()), stream=False)
    stream = wanted == "stream" or stored.nbytes > _gpu_memory(config.train.device) / 2
    how = "every epoch reads them from disk" if stream else "every fold reads them to the GPU"
    log.info("the embeddings take %.1f GB in memory: %s", stored.nbytes / 1e9, how)
    return replace(features, stream=stream)


def _gpu_memory(device: str) -> int:
    """Free bytes of the GPU that training asks for; 0 without one."""
    if not torch.cuda.is_available() or not device.startswith(("auto", "cuda")):
        return 0
    return int(torch.cuda.mem_get_info("cuda" if device == "auto" else device)[0])


def train_all(
    specs: list[FoldSpec], features: Features, folder: Path, layout: Layout, tracker: Tracker, *, force: bool
) -> list[Fold]:
    """Train the folds that are not kept; returns all of them, in the order of `specs`."""
    folds: list[Fold] = []
    kept = {id(spec): None if force else kept_fold(folder, spec, features) for spec in specs}
    todo = sum(fold is None for fold in kept.values())
    if todo < len(specs):
        log.info("%s: %d of %d folds are finished and kept", folder.name, len(specs) - todo, len(specs))
    epochs = specs[0].config.train.epochs if specs else 0
    with progress(todo * epochs, f"training {folder.name}", "epochs") as bar:
        for spec in specs:
            fold = kept[id(spec)]
            if fold is None:
                tracker.start(spec.name, folder.name, spec.fold, spec.seed)

                def on_epoch(entry: Epoch) -> None:
                    tracker.epoch(entry)
                    bar.advance()

                fold = train_fold(
                    spec,
                    features,
                    folder,
                    layout.work / "train" / layout.run_name,
                    root=layout.root,
                    on_epoch=on_epoch,
                )
                tracker.finish(fold)
                log.info("%s", summary_line(fold))
            folds.append(fold)
    return folds


def summary_line(fold: Fold) -> str:
    """One line on a finished fold: accuracy by clip as selected, beside the best epoch on the test group."""
    run, metrics, meta = fold.result["run"], fold.result["metrics"], fold.result["meta"]
    dev = metrics["dev_accuracy"]
    return (
        f"{_name(fold)} fold {run['fold']}/{run['num_folds']} ({run['test_group']}) seed {run['seed']}: "
        f"accuracy {_percent(metrics['accuracy'])} at epoch {metrics['selected_epoch']}"
        + (f" (dev {_percent(dev)})" if dev is not None else "")
        + f", best on test {_percent(metrics['accuracy_best_on_test'])}, {meta['train_s']:.1f} s"
    )


def _name(fold: Fold) -> str:
    """The folder's name, which in an ablation also says which layers, with what a reader must know of the method."""
    return fold.folder.parent.name + fold.label.removeprefix(fold.result["run"]["method"])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
