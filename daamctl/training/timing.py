"""How long training takes here, from a few steps on random inputs: a method's over stored layers, an adapter's.

The steps are those of the training loops; nothing is written, and what was trained is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from daamctl.adapters import build_finetune
from daamctl.config import Config
from daamctl.devices import autocast, resolve_precision
from daamctl.training.fold import build_method, train_precision
from daamctl.training.loop import Training
from daamctl.training.losses import build_loss
from daamctl.training.outputs import eval_batch, predict
from daamctl.training.parts import HeldPart
from daamctl.training.splits import Split

FEW_CLIPS = 2
"""A step is tried with so few clips first; where a whole batch takes too long, its time is that of a part, scaled."""
MOST_STEPS = 16
MOST_CLIPS = 256
ADAM_BYTES = 12
"""Bytes for each trained number beside itself: its gradient and the two means of Adam."""


@dataclass(frozen=True)
class MethodSize:
    """What is known of a method without training it.

    Args:
        num_parameters: numbers in its tensors.
        density: it has a density.
        scored: its layers get a score, which the audit of `importance` tests.
    """

    num_parameters: int
    density: bool
    scored: bool


@dataclass(frozen=True)
class MethodSpeed:
    """How fast a method is.

    Args:
        step_s: seconds for an optimiser step on one batch.
        clip_s: seconds to evaluate one clip.
    """

    step_s: float
    clip_s: float

    def fold_s(self, split: Split, config: Config, *, density: bool) -> float:
        """Seconds to train one fold with one seed."""
        train = config.train
        maps = 1 if density and train.density_maps == "all-epochs" else 0
        steps = -(-len(split.train) // train.batch_size)
        evaluated = len(split.dev) + (1 + maps) * len(split.test)
        return train.epochs * (steps * self.step_s + evaluated * self.clip_s)


@dataclass(frozen=True)
class TuneSpeed:
    """How fast a way of fine-tuning is.

    Args:
        train_s: seconds of training for one sample, token or image.
        predict_s: seconds of evaluation for one.
        num_trained: numbers that are trained.
        tried: most cost in what went through the encoder at once.
    """

    train_s: float
    predict_s: float
    num_trained: int
    tried: int


def method_size(method: str, config: Config, sizes: tuple[int, int, int]) -> MethodSize:
    """The size of a method, built on the meta device.

    Args:
        method: a name from the table of methods.
        config: all settings.
        sizes: L, D and C.

    Raises:
        UnknownNameError: there is no such method.
        MethodError: it does not fit these sizes, or the settings.
    """
    with torch.device("meta"):
        model = build_method(method, config, *sizes)
    scored = model.has_density or hasattr(model.fusion, "layer_weights")
    return MethodSize(sum(value.numel() for value in model.state_dict().values()), model.has_density, scored)


def time_method(
    method: str, config: Config, sizes: tuple[int, int, int], *, device: str, within_s: float
) -> MethodSpeed:
    """Time a method on random vectors.

    Args:
        method: a name from the table of methods.
        config: all settings.
        sizes: L, D and C.
        device: resolved device.
        within_s: about how long this may take, in seconds; a step and an evaluation of two clips are made at least.

    Raises:
        MethodError: it does not fit these sizes, or the settings.
    """
    model, settings = build_method(method, config, *sizes), config.train
    precision, size = train_precision(model, settings, device), eval_batch(model, settings, device)

    def part(number: int) -> HeldPart:
        x = torch.randn(number, *sizes[:2]).to(getattr(torch, config.extract.storage))
        return HeldPart(x, torch.arange(number) % sizes[2])

    few = part(FEW_CLIPS)
    dev = few if settings.selection == "dev-group" else None

    def step_s(clips: int, steps: int) -> float:
        once = settings.model_copy(update={"epochs": 1, "batch_size": clips})
        with TemporaryDirectory() as work:  # stays empty: a file would come with a second epoch
            training = Training(model, part(clips * steps), dev, few, once, seed=0, device=device, precision=precision,
                                work=Path(work), key="")  # fmt: skip
            return training.complete().train_s / steps

    def clip_s(clips: int) -> float:
        tried = part(clips)
        started = time.perf_counter()
        predict(model, tried, device, size)
        return (time.perf_counter() - started) / clips

    batch = settings.batch_size
    step = step_s(FEW_CLIPS, 1)  # with what the first step prepares
    if step < within_s:
        step = step_s(FEW_CLIPS, 1)
    fitting = min(batch, int(within_s / 2 / step * FEW_CLIPS))
    if fitting > FEW_CLIPS:
        step = step_s(fitting, 1)
        step = step_s(fitting, max(1, min(MOST_STEPS, int(within_s / 2 / step)))) * batch / fitting
    else:
        step *= batch / FEW_CLIPS
    clip = clip_s(FEW_CLIPS)
    return MethodSpeed(step, clip_s(max(FEW_CLIPS, min(MOST_CLIPS, int(within_s / 4 / clip)))))


def time_finetune(
    name: str, encoder: Any, item: Tensor, config: Config, *, num_classes: int, device: str, within_s: float
) -> TuneSpeed:
    """Time one way of fine-tuning, with the steps of the real one.

    Args:
        name: a name from the table of ways of fine-tuning.
        encoder: open encoder in float32; it is changed, so give it a copy.
        item: an item of typical length; a batch is made of its copies.
        config: all settings.
        num_classes: C.
        device: resolved device.
        within_s: about how long this may take, in seconds; two steps on one item are made at least.

    Raises:
        MethodError: the encoder cannot be fine-tuned in this way.
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
            if loss.requires_grad:  # a published form may train nothing at all (D3)
                loss.backward()
                optimizer.step()
            loss.item()  # waits for a GPU
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
    return TuneSpeed(took / number / size, forward / number / size, trained, number * size)
