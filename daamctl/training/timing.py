"""Estimate how long training takes on this machine, from a few steps on random inputs.

It covers methods over stored layers and fine-tuning methods. The steps are those of the training loops. Nothing is
written, and the trained weights are discarded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from daamctl.adapters import build_finetune
from daamctl.artifacts.splits import Split
from daamctl.config import Config
from daamctl.devices import autocast, resolve_precision
from daamctl.methods import CLOSED_FORM
from daamctl.methods.base import FusionClassifier
from daamctl.methods.ridge import MAX_KERNEL_CLIPS, PENALTIES
from daamctl.training.batched import Program
from daamctl.training.feature_split import POOL_CLIPS, InMemorySplit
from daamctl.training.fusion_training import FusionTraining, train_precision
from daamctl.training.inference import eval_batch, predict
from daamctl.training.loop import TrainingSetup
from daamctl.training.losses import build_loss
from daamctl.training.search import grid_of, most_epochs, refits
from daamctl.training.trials.fusion import build_method

FEW_CLIPS = 2
"""A step is first tried with this many clips. If a whole batch takes too long, its time is scaled up from a part."""
FEW_STEPS, MOST_STEPS = 4, 64
MOST_CLIPS = 256
"""Largest number of different clips; further steps see them again."""
TRIED_SIDE = 256
"""Rows and columns of the matrix with which closed-form probes are timed."""
ADAM_BYTES = 12
"""Bytes per trained number besides itself: its gradient and Adam's two moments."""


@dataclass(frozen=True)
class MethodSize:
    """Size of a method, known without training it.

    Args:
        num_parameters: total number of parameters.
        density: whether it has a density.
        scored: whether its layers get a score, which the audit of `importance` tests.
    """

    num_parameters: int
    density: bool
    scored: bool


@dataclass(frozen=True)
class ReadTimes:
    """Time to read the parts of a fold from disk.

    Args:
        once_s: seconds for the parts that are read once and then held.
        train_s, dev_s, test_s: seconds per pass for the parts that are read in every epoch; 0 for the others.
    """

    once_s: float = 0.0
    train_s: float = 0.0
    dev_s: float = 0.0
    test_s: float = 0.0


@dataclass(frozen=True)
class MethodSpeed:
    """Measured speed of a method.

    Args:
        step_s: seconds per optimiser step on one batch; in joint training, one training's share of it.
        clip_s: seconds to evaluate one clip.
    """

    step_s: float
    clip_s: float

    def fold_s(self, split: Split, config: Config, *, density: bool, read: ReadTimes = ReadTimes()) -> float:
        """Seconds to train one fold with one seed, at most: all epochs of a search count, early stopping is ignored.

        The next shard is read while the last one is in use, so the longer of reading and computing counts. The
        exceptions are the time to fill the pool before the first batch and to drain it after the last shard.
        """
        train = config.train
        maps = 1 if density and train.density_maps == "all-epochs" else 0
        steps = -(-len(split.train) // train.batch_size) * self.step_s
        pool = min(1.0, POOL_CLIPS / max(len(split.train), 1))
        passed = pool * (read.train_s + steps) + (1 - pool) * max(read.train_s, steps)
        dev, test = (len(part) * self.clip_s for part in (split.dev, split.test))
        evaluated = max(read.dev_s, dev) + (1 + maps) * max(read.test_s, test)
        return read.once_s + most_epochs(grid_of(train), train.epochs, refit=refits(train)) * (passed + evaluated)


@dataclass(frozen=True)
class ProbeSpeed(MethodSpeed):
    """Speed of a closed-form probe: the number of multiplications, at two measured speeds.

    Args:
        step_s: seconds for the eigendecomposition of a matrix of `TRIED_SIDE` rows, which costs their cube.
        clip_s: seconds to evaluate one clip.
        product_s: seconds for one multiplication of a matrix product.
        method: its name.
        sizes: L, D and C.
    """

    product_s: float
    method: str
    sizes: tuple[int, int, int]

    def fold_s(self, split: Split, config: Config, *, density: bool, read: ReadTimes = ReadTimes()) -> float:
        """Seconds to solve one fold and to evaluate all its parts once; settings of optimiser steps do not matter."""
        num_layers, width, _ = self.sizes
        clips, held = len(split.train), len(split.dev)
        if self.method == "ridge-concat":
            clips = min(clips, MAX_KERNEL_CLIPS)
            triangle = clips * (clips / 2 + held) * num_layers * width
            solved = len(PENALTIES) * clips**3 / (6 if held else 2)  # leave-one-out inverts the factor
            fit_s, passes = (triangle + solved) * self.product_s, 2.0
        else:
            layers = num_layers if self.method in ("ridge-best-layer", "ridge-average") else 1
            side = min(clips, width)
            products = (2 * side + len(PENALTIES)) * clips * width * self.product_s
            fit_s = layers * (self.step_s * (side / TRIED_SIDE) ** 3 + products)
            passes = 1 / num_layers if self.method == "ridge-last" else 1.0
        evaluated = (len(split.train) + held + len(split.test)) * self.clip_s
        return read.once_s + (passes + 1) * (read.train_s + read.dev_s) + read.test_s + fit_s + evaluated


@dataclass(frozen=True)
class FinetuneSpeed:
    """Measured speed of a fine-tuning method.

    Args:
        train_s: seconds of training per sample, token or image.
        predict_s: seconds of evaluation per sample, token or image.
        num_trained: number of trained parameters.
        tried: largest cost that went through the encoder at once.
    """

    train_s: float
    predict_s: float
    num_trained: int
    tried: int


def method_size(method: str, config: Config, sizes: tuple[int, int, int]) -> MethodSize:
    """The size of a method, built on the meta device.

    Args:
        method: a name from the table of methods.
        config: settings of the method.
        sizes: L, D and C.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it does not fit these sizes, or the settings.
    """
    with torch.device("meta"):
        model = build_method(method, config, *sizes)
    scored = model.has_density or model.weighs_layers
    return MethodSize(sum(value.numel() for value in model.state_dict().values()), model.has_density, scored)


def time_method(
    method: str, config: Config, sizes: tuple[int, int, int], *, device: str, within_s: float, members: int = 1
) -> MethodSpeed:
    """Time a method on random vectors.

    Args:
        method: a name from the table of methods.
        config: settings of training and of the method.
        sizes: L, D and C.
        device: resolved device.
        within_s: approximate time limit in seconds; at least one step and one evaluation of two clips are made.
        members: number of jointly trained models; if not even a few joint steps fit in the time, the time of a single
            model's step is used instead.

    Raises:
        MethodError: it does not fit these sizes, or the settings.
    """
    if method in CLOSED_FORM:
        return _time_probe(method, config, sizes, device, within_s)
    trial = _RandomData(method, config, sizes, device)
    step = trial.step_s(within_s)
    clip = trial.clip_s(FEW_CLIPS)
    clip = trial.clip_s(max(FEW_CLIPS, min(MOST_CLIPS, int(within_s / 4 / clip))))
    if members > 1 and FEW_STEPS * members * step <= within_s / 2:
        step = trial.joint_step_s(members, min(MOST_STEPS, int(within_s / 2 / (members * step))))
    return MethodSpeed(step, clip)


def _time_probe(method: str, config: Config, sizes: tuple[int, int, int], device: str, within_s: float) -> ProbeSpeed:
    trial = _RandomData(method, config, sizes, device)
    clip = trial.clip_s(FEW_CLIPS)
    clip = trial.clip_s(max(FEW_CLIPS, min(MOST_CLIPS, int(within_s / 4 / clip))))
    x = torch.randn(TRIED_SIDE, TRIED_SIDE)
    seconds = []
    for call in (lambda: x @ x.mT, lambda: torch.linalg.eigh(x @ x.mT)):
        call()  # includes one-time preparation
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return ProbeSpeed(seconds[1], clip, seconds[0] / TRIED_SIDE**3, method, sizes)


class _RandomData:
    """A method on random vectors; for the arguments see `time_method`."""

    def __init__(self, method: str, config: Config, sizes: tuple[int, int, int], device: str) -> None:
        self.settings, self.sizes, self.device = config.train, sizes, device
        self.storage = getattr(torch, config.extract.storage)
        self.build = partial(build_method, method, config, *sizes)
        self.model = self.build()
        self.precision = train_precision(self.model, self.settings, device)
        self.few = self._part(FEW_CLIPS)

    def step_s(self, within_s: float) -> float:
        """Seconds for a step of a single training."""
        batch = self.settings.batch_size
        step = self._step_s(FEW_CLIPS, 1)  # includes one-time preparation
        if step < within_s:
            step = self._step_s(FEW_CLIPS, 1)
        fitting = min(batch, int(within_s / 2 / step * FEW_CLIPS))
        if fitting <= FEW_CLIPS:
            return step * batch / FEW_CLIPS
        step = self._step_s(fitting, 1)
        return self._step_s(fitting, max(1, min(MOST_STEPS, int(within_s / 2 / step)))) * batch / fitting

    def joint_step_s(self, members: int, steps: int) -> float:
        """Seconds per step and member when `members` models are trained jointly."""
        part = self._part(self.settings.batch_size * steps)
        with TemporaryDirectory() as work:  # for a resume file, in case the epoch takes long enough to write one
            trainings = [self._training(self.build(), part, work, epochs=2) for _ in range(members)]
            program = Program(trainings)
            program.epoch()  # whose first step runs member by member
            before_s = sum(one.done.train_s for one in trainings)
            program.epoch()
        return (sum(one.done.train_s for one in trainings) - before_s) / steps / members

    def clip_s(self, clips: int) -> float:
        """Seconds to evaluate one clip in batches of `clips`."""
        tried, size = self._part(clips), eval_batch(self.model, self.settings, self.device)
        started = time.perf_counter()
        predict(self.model, tried, self.device, size)
        return (time.perf_counter() - started) / clips

    def _step_s(self, clips: int, steps: int) -> float:
        with TemporaryDirectory() as work:  # stays empty: a file would only be written after a second epoch
            training = self._training(self.model, self._part(clips * steps), work, epochs=1, batch_size=clips)
            return training.complete().train_s / steps

    def _training(self, model: FusionClassifier, part: InMemorySplit, work: str, **settings: int) -> FusionTraining:
        changed = self.settings.model_copy(update=settings)
        dev = self.few if changed.selection == "dev-group" else None
        setup = TrainingSetup(0, self.device, self.precision, Path(work), key="")
        return FusionTraining(model, part, dev, self.few, changed, setup)

    def _part(self, clips: int) -> InMemorySplit:
        x = torch.randn(min(clips, MOST_CLIPS), *self.sizes[:2]).to(self.storage)
        rows = torch.arange(clips)
        return InMemorySplit(x, rows % self.sizes[2], rows % len(x))


def time_finetune(
    name: str, encoder: Any, item: Tensor, config: Config, *, num_classes: int, device: str, within_s: float
) -> FinetuneSpeed:
    """Time a fine-tuning method, with the steps of the real loop.

    Args:
        name: a name from the table of fine-tuning methods.
        encoder: open encoder in float32; pass a copy, because it is modified.
        item: an item of typical length; a batch consists of copies of it.
        config: settings of the method.
        num_classes: C.
        device: resolved device.
        within_s: approximate time limit in seconds; at least two steps on one item are made.

    Raises:
        MethodError: the encoder does not support the method.
    """
    settings, size = config.finetune, item.shape[0] if item.ndim == 1 else 1
    model = build_finetune(name, encoder, num_classes=num_classes, seed=0)
    if settings.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    model.train_mode(settings.encoder_dropout)
    optimizer = torch.optim.AdamW(model.parameter_groups(settings.lr, settings.weight_decay))
    loss_of, precision = build_loss(config.train), resolve_precision(settings.precision, device, cpu_auto=False)

    def seconds(items: Sequence[Tensor], *, train: bool) -> float:
        started = time.perf_counter()
        inputs, mask = encoder.collate(items)
        if train:
            model.zero_grad(set_to_none=True)
            with autocast(device, precision):
                loss = loss_of(model(inputs, mask), torch.arange(len(items), device=mask.device) % num_classes)
            if loss.requires_grad:  # a published variant may train nothing at all (D3)
                loss.backward()
                optimizer.step()
            loss.item()  # synchronises with the GPU
        else:
            with torch.no_grad():
                model(inputs, mask).cpu()
        return time.perf_counter() - started

    took = seconds([item], train=True)
    if took < within_s / 2:
        took = seconds([item], train=True)
    most = -(-settings.batch_size // settings.accumulate)
    number = max(1, min(most, int(within_s / 2 / took)))
    if number > 1:
        took = seconds([item] * number, train=True)
    forward = seconds([item] * number, train=False)
    trained = sum(value.numel() for value in model.trained().values())
    return FinetuneSpeed(took / number / size, forward / number / size, trained, number * size)
