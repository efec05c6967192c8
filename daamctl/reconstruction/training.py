"""Train arms of a VQ-VAE, here or on an engine; score their reconstructions of the test crops, and write them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from daamctl.artifacts import reconstruction as files
from daamctl.artifacts.reconstruction import Crops, Reconstruction, training_of
from daamctl.artifacts.results import ENTRY
from daamctl.compute.devices import autocast, exact_dtype, is_out_of_memory, resolve_device, resolve_precision, sent
from daamctl.compute.engine import Units
from daamctl.config import Config
from daamctl.config.keys import key_settings
from daamctl.config.schema import ReconstructConfig
from daamctl.errors import DivergedError, TrainingError
from daamctl.fit.loop import Entry, Finished, Fit, Member, Progress, Trainable, Trained
from daamctl.fit.runner import fit_and_save, load_state
from daamctl.fit.stack import channels_last, order_weights
from daamctl.fit.steps import adam, seed_everything
from daamctl.methods.mixture import DensityBlock
from daamctl.reconstruction.codes import perplexity
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.scores import SCORES
from daamctl.reconstruction.vqvae import VQVAE
from daamctl.store.artifact import Artifact
from daamctl.store.files import content_key
from daamctl.store.provenance import device_name, versions
from daamctl.store.tables import write_frame

log = logging.getLogger(__name__)

VERSION = 1
"""Part of the key of a training; raised when its computation changes."""
COLLAPSED = 0.05
"""Share of the codes in use below which a warning says so."""
SUMS = ("loss", "reconstruction", "commitment")
"""Means over an epoch in the history."""


def key_of(arm: str, seed: int, config: Config, crops: Crops) -> str:
    """Hash of everything that can change a training: its block and seed, the settings, and the crops."""
    settings = key_settings(config, "reconstruct")
    return content_key({"version": VERSION, "arm": arm, "seed": seed, "settings": settings, "crops": crops.key})


def kept_trainings(
    folder: Path, arm: str, config: Config, crops: Crops, seeds: Sequence[int]
) -> dict[int, Reconstruction | None]:
    """What there is to do of an arm, and what is done: every seed, with its finished training if that is kept."""
    return {seed: training_of(folder, seed, key=key_of(arm, seed, config, crops)).keep() for seed in seeds}


def examples_of(crops: Crops, wanted: int) -> list[int]:
    """Rows of the test crops that are kept as pictures, evenly spaced."""
    number = crops.part("test").height
    return sorted({int(row) for row in np.linspace(0, number - 1, min(wanted, number))})


@dataclass(frozen=True, eq=False)
class ArmTrial(Trainable):
    """One arm with one seed.

    Args:
        arm: a name from `BLOCKS`.
        seed: of the start and of the order of crops.
    """

    arm: str
    crops: Crops
    config: Config
    device: str
    train: CropPixels
    test: CropPixels
    seed: int
    stage, calmer = "reconstruct", "lower reconstruct.lr"

    @property
    def key(self) -> str:
        """See `Trainable.key`."""
        return key_of(self.arm, self.seed, self.config, self.crops)

    @property
    def settings(self) -> ReconstructConfig:
        """Of the model and of training."""
        return self.config.reconstruct

    @property
    def what(self) -> str:
        """See `Trainable.what`."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def precision(self) -> str:
        """Number format of the forward pass."""
        return resolve_precision(self.settings.precision, self.device, work="convolutions")

    @property
    def units_of_training(self) -> int:
        """Optimiser steps; an incomplete last batch of an epoch is left out."""
        return self.settings.epochs * (len(self.train) // self.settings.batch_size)

    def start(self, members: Sequence[Member]) -> Fit:
        """See `Trainable.start`."""
        return VQVAEFit(members, self)


class VQVAEFit(Fit):
    """A training; its model is in evaluation mode at the end.

    It measures `scores`, name -> score of every test crop, (N,); `uses` of each code by the test crops, (K,);
    `reconstructions` of the examples, uint8 (E, 3, S, S); `change`, block -> before and after training; `densities`,
    `<block>.before` and `<block>.after`, see `examine`.

    Raises:
        TrainingError: there are fewer training crops than a batch has.
    """

    state_names = (*Fit.state_names, "sums", "model", "optimizer", "scaler")

    def __init__(self, members: Sequence[Member], trial: ArmTrial) -> None:
        super().__init__(members, trial.device)
        self.trial, settings, device = trial, trial.settings, trial.device
        self.per_epoch, self.precision = len(trial.train) // settings.batch_size, trial.precision
        if not self.per_epoch:
            raise TrainingError(
                f"{len(trial.train)} training crops are fewer than reconstruct.batch_size ({settings.batch_size})",
                fix="lower it, or raise crop.per_image",
            )
        seed_everything(trial.seed, device)
        self.model = VQVAE(trial.arm, settings).to(device)
        if device.startswith("cuda") and channels_last(device, self.precision):
            order_weights(self.model, torch.channels_last)
        self.shown = _as_input(next(trial.test.batches([examples_of(trial.crops, settings.examples)])), device)
        _, self.change, self.densities = examine(self.model, self.shown)
        # codes are no parameters: they follow the mean of what they stand for
        group = {"params": list(self.model.parameters()), "lr": settings.lr, "weight_decay": 0.0}
        self.optimizer = adam([group], device, decoupled=False, fused=device.startswith("cuda"))
        self.scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], enabled=self.precision == "float16")
        self.sums = torch.zeros(len(SUMS), dtype=exact_dtype(device), device=device)

    def run(self) -> Iterator[int]:
        """See `Fit.run`; the unit of work is a step. The order of an epoch depends on seed and epoch alone."""
        settings, train, epoch = self.trial.settings, self.trial.train, len(self.trained[0].history)
        order = np.random.default_rng([self.trial.seed, epoch]).permutation(len(train)).tolist()
        # a resumed epoch begins at its next batch
        starts = [at * settings.batch_size for at in range(self.in_record, self.per_epoch)]
        self.model.train()
        for images in train.batches([order[start : start + settings.batch_size] for start in starts]):
            given = _as_input(images, self.device)
            with autocast(self.device, self.precision):
                found = self.model(given)
            # the loss in float32: squares of small differences vanish in half precision
            difference = found.images.float() - given
            reconstruction = difference.square().mean() if settings.loss == "l2" else difference.abs().mean()
            commitment = found.quantised.distance
            loss = reconstruction + settings.commitment * commitment
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.sums += torch.stack((loss, reconstruction, commitment)).detach()
            self.steps, self.in_record = self.steps + 1, self.in_record + 1
            yield 1

    def record(self) -> list[Entry]:
        """See `Fit.record`.

        Raises:
            DivergedError: the loss is no longer finite.
        """
        history, means, what = self.trained[0].history, (self.sums / self.per_epoch).tolist(), self.trial.what
        epoch = len(history) + 1
        # once an epoch, because asking a GPU for a number waits for it
        if not np.isfinite(means).all():
            raise DivergedError(f"{what}: the loss is {means[0]} in epoch {epoch}", fix=self.trial.calmer)
        log.debug("%s, epoch %d: loss %.5f", what, epoch, means[0])
        history.append({"epoch": float(epoch), **dict(zip(SUMS, means, strict=True))})
        self.sums.zero_()
        self.in_record, self.ended = 0, epoch == self.trial.settings.epochs
        return history[-1:]

    @torch.no_grad()
    def finish(self) -> None:
        """See `Fit.finish`; warns if the test crops use few of the codes."""
        trial, model, size = self.trial, self.model.eval(), self.trial.settings.batch_size
        found: dict[str, list[Tensor]] = {name: [] for name in SCORES}
        uses = np.zeros(len(model.codes.codes), np.int64)
        rows = range(len(trial.test))
        for images in trial.test.batches([rows[start : start + size] for start in rows[::size]]):
            given = _as_input(images, self.device)
            with autocast(self.device, self.precision):
                made = model(given)
            pictures, originals = _as_picture(made.images), _as_picture(given)
            for name, score in SCORES.items():
                found[name].append(score(pictures, originals).cpu())
            uses += np.bincount(made.quantised.nearest.flatten().cpu().numpy(), minlength=len(uses))
        warn_if_collapsed(uses, trial.what)
        pictures, change, densities = examine(model, self.shown)
        self.trained[0].model = model
        self.trained[0].facts = {
            "scores": {name: torch.cat(values).numpy() for name, values in found.items()},
            "uses": uses,
            "reconstructions": (pictures * 255).round().to(torch.uint8),
            "change": {name: (self.change[name], change[name]) for name in change},
            "densities": {f"{name}.before": values for name, values in self.densities.items()}
            | {f"{name}.after": values for name, values in densities.items()},
        }


def warn_if_collapsed(uses: NDArray[np.int64], what: str) -> None:
    """Warn if the test crops use few of the codes."""
    used = int((uses > 0).sum())
    if used < COLLAPSED * len(uses):
        log.warning(
            "%s: the codebook has collapsed: test crops use %d of %d codes (perplexity %.1f)",
            *(what, used, len(uses), perplexity(uses)),
        )


@torch.no_grad()
def examine(model: VQVAE, images: Tensor) -> tuple[Tensor, dict[str, float], dict[str, Tensor]]:
    """What a model does to images in float32; its mode and its codes stay as they are.

    Args:
        images: inputs (E, 3, S, S).

    Returns:
        Reconstructions in [0, 1], (E, 3, S, S); block -> |block(x) - x| / |x|; DAAM block -> mean weight of every
        channel, (C,).
    """
    change: dict[str, float] = {}
    densities: dict[str, Tensor] = {}
    names, training = {block: name for name, block in model.blocks.items()}, model.training

    def look(block: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        (x,) = inputs
        change[names[block]] = float((output - x).norm() / x.norm())
        if isinstance(block, DensityBlock):
            densities[names[block]] = block.layers[0](x, return_density=True)[1].mean((0, 2, 3)).cpu()

    handles = [block.register_forward_hook(look) for block in names]
    pictures = _as_picture(model.eval()(images).images).cpu()
    for handle in handles:
        handle.remove()
    # the caller may be in the middle of an epoch
    model.train(training)
    return pictures, change, densities


def _as_input(images: Tensor, device: str) -> Tensor:
    """Pixels from 0 … 255 to -1 … 1."""
    return sent(images, device).float() / 127.5 - 1


def _as_picture(images: Tensor) -> Tensor:
    """Values from -1 … 1 to 0 … 1; those outside are limited."""
    return ((images.float() + 1) / 2).clamp(0, 1)


class ArmWorker:
    """Trains seeds of one arm; a task is a seed, and so is its result.

    Args:
        device: the setting, or the device of this worker.
        folder: will hold `seed<N>/`.
        work: folder for unfinished work, on the same file system.
        images: folder that the paths of images are relative to.
    """

    description = None
    num_devices = 1

    def __init__(
        self,
        arm: str,
        crops: Crops,
        config: Config,
        device: str,
        *,
        folder: Path,
        work: Path,
        images: Path,
        force: bool = False,
    ) -> None:
        self.folder, self.work_dir, self.force = folder, work, force
        train, test = (CropPixels(crops, part, images) for part in ("train", "test"))
        self.trial = partial(ArmTrial, arm, crops, config, resolve_device(device), train, test)

    def work(self, tasks: Sequence[int]) -> Iterator[int | Units]:
        """Train every seed; yield those that are finished, and the number of crops meanwhile.

        Raises:
            TrainingError: a step does not fit into memory, or there are fewer training crops than a batch has.
            DivergedError: a loss is no longer finite.
        """
        for trial in map(self.trial, tasks):
            artifact = training_of(self.folder, trial.seed, key=trial.key, work=self.work_dir)
            with artifact.lock(force=self.force) as made:
                if made is None:
                    yield from self._train(trial, artifact)
            yield trial.seed

    def _train(self, trial: ArmTrial, artifact: Artifact[Reconstruction]) -> Iterator[Units]:
        assert artifact.work is not None
        if trial.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(trial.device)
        try:
            for event in fit_and_save([trial], artifact.work, trial.key, load_state(artifact.work, trial.key)):
                if isinstance(event, Progress):
                    yield Units(event.units * trial.settings.batch_size)
                elif isinstance(event, Finished):
                    with artifact.make() as new:
                        artifact.seal(new, write_training(new, trial, event.trained))
        except (RuntimeError, MemoryError) as error:  # a step moves the codes, so it cannot be cut into pieces
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"{trial.what}: out of memory with {trial.settings.batch_size} crops in a step",
                fix="lower reconstruct.batch_size or crop.size, or end what else runs on this device",
            ) from error


def write_training(folder: Path, trial: ArmTrial, trained: Trained) -> Reconstruction:
    """Write all files of a finished training but `result.json`, and return what belongs into that."""
    model, found, device = trained.model, trained.facts, trial.device
    head = {"arm": trial.arm, "seed": trial.seed, "key": trial.key}
    weights = {name: value.contiguous().cpu() for name, value in model.state_dict().items()}
    # One entry: safetensors writes several in any order, so equal weights would be different files.
    save_file(weights, folder / files.WEIGHTS, metadata={ENTRY: json.dumps(head, sort_keys=True)})
    save_file({"reconstructions": found["reconstructions"], **found["densities"]}, folder / files.EXAMPLES)
    # in the order in which they were scored
    rows = trial.crops.part("test").select("crop_id", "utterance_id")
    scores = [pl.Series(name, values, dtype=pl.Float32) for name, values in found["scores"].items()]
    write_frame(folder / files.SCORES, rows.with_columns(scores), head)
    write_frame(folder / files.HISTORY, pl.DataFrame(trained.history), head)
    return Reconstruction(
        key=trial.key,
        arm=trial.arm,
        seed=trial.seed,
        settings=key_settings(trial.config, "reconstruct"),
        parameters=sum(one.numel() for one in model.parameters()),
        block_parameters=[sum(one.numel() for one in block.parameters()) for block in model.blocks.values()],
        steps=trial.units_of_training,
        perplexity=perplexity(found["uses"]),
        used=int((found["uses"] > 0).sum()),
        change=found["change"],
        train_s=trained.train_s,
        crops_per_s=trial.units_of_training * trial.settings.batch_size / trained.train_s,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else None,
        precision=trial.precision,
        device=device_name(device),
        meta={"versions": versions()},
    )
