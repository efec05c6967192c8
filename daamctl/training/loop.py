"""The training loop: the only one, for every method.

One call trains one model on one split and returns the selected weights, the history and the test predictions. The order
of batches is a function of (seed, epoch) and the part alone, so a run resumed after any epoch continues exactly as an
uninterrupted one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from daamctl.config import TrainConfig
from daamctl.devices import autocast
from daamctl.errors import TrainingError
from daamctl.methods.base import FusionClassifier
from daamctl.training.checkpoint import load_state, save_state
from daamctl.training.losses import build_loss
from daamctl.training.parts import InBatches, Part, on_device

log = logging.getLogger(__name__)

EVAL_BATCH = 256
CHECKPOINT_EVERY_S = 5.0

Epoch = dict[str, float | int | None]


@dataclass
class Trained:
    """What a finished training gives.

    Args:
        history: one entry per epoch: epoch, lr, train_loss, train_accuracy, dev_accuracy, test_accuracy.
        selected_epoch: 1-based epoch whose weights the model now holds.
        logits: (N_test, C) float32 at that epoch.
        density: mean density over the test clips, (L, D); None without one.
        untrained_density: the same before the first step.
        layer_weights: mean over the test clips of the weight each layer gets, (L,); None for methods that weigh none.
        untrained_layer_weights: the same before the first step.
        train_s: wall time spent in epochs, in seconds, interruptions not counted.
    """

    history: list[Epoch] = field(default_factory=list)
    selected_epoch: int = 0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    density: Tensor | None = None
    untrained_density: Tensor | None = None
    layer_weights: Tensor | None = None
    untrained_layer_weights: Tensor | None = None
    train_s: float = 0.0


def seed_everything(seed: int, device: str) -> None:
    """Seed torch's generators and, on a GPU, ask for kernels that repeat themselves to the bit."""
    torch.manual_seed(seed)
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses deterministic mode
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)


def fit(
    model: FusionClassifier,
    train: Part,
    dev: Part | None,
    test: Part,
    config: TrainConfig,
    *,
    seed: int,
    device: str,
    precision: str,
    work: Path,
    key: str,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train `model` in place and leave it holding the selected epoch's weights.

    Args:
        model: freshly initialised, on CPU.
        train: training part.
        dev: part that selects the epoch; None unless selection is `dev-group`.
        test: test part; its accuracy is recorded at every epoch and selects only under `best-on-test`.
        config: training settings.
        seed: order of batches.
        device: resolved device.
        precision: resolved precision of the training step; evaluation is float32.
        work: folder for the resume file.
        key: content key of the fold; a resume file of another key is ignored.
        on_epoch: called after each epoch with its history entry (also for epochs replayed from a resume file).

    Raises:
        TrainingError: the loss is no longer finite, or a trainable tensor gets no gradient.
    """
    run = _Run(model.to(device), config, device, precision)
    done = Trained()
    if model.traits.needs_dev and dev is None:
        raise TrainingError(
            "part of this method is chosen on a held-out group, which only train.selection=dev-group sets aside",
            fix="leave the method out, or train with --set train.selection=dev-group",
        )
    if model.has_density:
        done.untrained_density = mean_density(model, test, device)
    done.untrained_layer_weights = mean_layer_weights(model, test, device)
    maps = _EpochMaps() if model.has_density and config.density_maps == "all-epochs" else None
    best: dict[str, Tensor] = {}
    state = load_state(work, key)
    if state is not None:
        run.restore(state)
        best, done.history, done.train_s = state["best"], state["history"], state["train_s"]
        done.selected_epoch = state["selected_epoch"]
        if maps is not None:
            maps.__dict__.update(state["maps"])
        log.info("resuming after epoch %d of %d", len(done.history), config.epochs)
        for entry in done.history:
            on_epoch(entry)
    saved_at = time.monotonic()
    for epoch in range(len(done.history) + 1, config.epochs + 1):
        started = time.monotonic()
        entry = run.epoch(epoch, train, dev, test, seed)
        done.train_s += time.monotonic() - started
        done.history.append(entry)
        if maps is not None:
            maps.add(model, test, device, config.batch_size)
        if improves(done.history, done.selected_epoch, config.selection):
            done.selected_epoch = epoch
            if maps is not None:
                maps.keep()
            best = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        on_epoch(entry)
        if time.monotonic() - saved_at >= CHECKPOINT_EVERY_S and epoch < config.epochs:
            extra = {"best": best, "history": done.history, "train_s": done.train_s}
            if maps is not None:
                extra["maps"] = dict(maps.__dict__)
            save_state(work, key, {**run.state(), **extra, "selected_epoch": done.selected_epoch})
            saved_at = time.monotonic()
    model.load_state_dict(best)
    done.logits = predict(model, test, device, eval_batch(model, config))
    if model.has_density:
        done.density = mean_density(model, test, device) if maps is None else maps.kept
    done.layer_weights = mean_layer_weights(model, test, device)
    return done


class _EpochMaps:
    """Mean density as the published code keeps it: over batches of every epoch up to the selected one (D19)."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0
        self.kept: Tensor | None = None

    @torch.no_grad()
    def add(self, model: FusionClassifier, part: Part, device: str, batch_size: int) -> None:
        """Add one pass over a part; every batch counts the same, a small last one too."""
        model.eval()
        for x, _ in part.batches(batch_size):
            density = model(on_device(x, device), return_density=True)[1].cpu().double().mean(0)
            self.total = density if self.total is None else self.total + density
            self.count += 1

    def keep(self) -> None:
        """Remember the mean so far, (L, D) float32."""
        assert self.total is not None
        self.kept = (self.total / self.count).float()


class _Run:
    """Optimiser, schedule and scaler around one model."""

    def __init__(self, model: FusionClassifier, config: TrainConfig, device: str, precision: str) -> None:
        self.model, self.config, self.device, self.precision = model, config, device, precision
        self.loss = build_loss(config)
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        self.optimizer = kind(
            [p for p in model.parameters() if p.requires_grad], lr=config.lr, weight_decay=config.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer,
            mode="min" if config.selection == "last" else "max",
            factor=config.plateau_factor,
            patience=config.plateau_patience,
        )
        self.scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], enabled=precision == "float16")
        self.gradients_checked = False

    def state(self) -> dict[str, Any]:
        parts = ("model", "optimizer", "schedule", "scaler")
        return {name: getattr(self, name).state_dict() for name in parts}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "schedule", "scaler"):
            getattr(self, name).load_state_dict(state[name])

    def epoch(self, epoch: int, train: Part, dev: Part | None, test: Part, seed: int) -> Epoch:
        lr = self.optimizer.param_groups[0]["lr"]
        train_loss, train_accuracy = self._pass(epoch, train, seed)
        size = eval_batch(self.model, self.config)
        if dev is not None and self.model.traits.needs_dev:
            self.model.eval()
            with torch.no_grad():
                # a held-out group may be larger than memory
                self.model.choose(cast(Tensor, InBatches(dev, self.device)), dev.y.to(self.device))
        accuracy = {
            "dev": None if dev is None else accuracy_of(predict(self.model, dev, self.device, size), dev.y),
            "test": accuracy_of(predict(self.model, test, self.device, size), test.y),
        }
        if self.config.schedule == "plateau":
            watched = {"dev-group": accuracy["dev"], "best-on-test": accuracy["test"], "last": train_loss}
            self.schedule.step(watched[self.config.selection] or 0.0)
        return {
            "epoch": epoch,
            "lr": lr,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "dev_accuracy": accuracy["dev"],
            "test_accuracy": accuracy["test"],
        }

    def _pass(self, epoch: int, train: Part, seed: int) -> tuple[float, float]:
        """One pass over the training part; returns mean loss and accuracy, both as seen while training."""
        torch.manual_seed(seed * 1_000_003 + epoch)  # dropout, where a method has it, also repeats after a resume
        self.model.train()
        exact = torch.float32 if self.device == "mps" else torch.float64  # mps has no float64
        total = torch.zeros((), device=self.device, dtype=exact)
        correct = torch.zeros((), device=self.device, dtype=torch.int64)
        for x, y in train.batches(self.config.batch_size, seed * 1_000_003 + epoch):
            x = on_device(x, self.device)  # (B, L, D)
            y = y.to(self.device, non_blocking=self.device.startswith("cuda"))  # (B,)
            with autocast(self.device, self.precision):
                loss, logits = self.model.training_loss(x, y, self.loss)
            self._step(loss)
            total += loss.detach() * len(y)
            correct += (logits.argmax(-1) == y).sum()
        mean = total.item() / len(train)
        if not np.isfinite(mean):
            raise TrainingError(
                f"the training loss is {mean} in epoch {epoch}",
                fix="lower train.lr, or train with --set train.precision=float32",
            )
        return mean, correct.item() / len(train)

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if not self.gradients_checked:
            check_gradients(self.model)
            self.gradients_checked = True
        if self.config.grad_clip_norm is not None:
            if self.config.grad_clip == "unscaled":
                self.scaler.unscale_(self.optimizer)  # the threshold is meant for true gradients (D21)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def check_gradients(model: nn.Module) -> None:
    """Check after a backward pass that every trainable tensor has a gradient.

    Raises:
        TrainingError: names the tensors that have none: they would silently stay as they started.
    """
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise TrainingError(f"no gradient reaches {', '.join(without)}: they would never be trained")


def eval_batch(model: FusionClassifier, config: TrainConfig) -> int:
    """Clips per batch in evaluation: free, except where predictions depend on it; then that of training (FACTS 9)."""
    return config.batch_size if model.traits.batch_dependent else EVAL_BATCH


@torch.no_grad()
def predict(model: nn.Module, part: Part, device: str, batch_size: int = EVAL_BATCH) -> Tensor:
    """Logits (N, C) float32 on CPU, in eval mode and float32, in the order of the part."""
    model.eval()
    return torch.cat([model(on_device(x, device)).float().cpu() for x, _ in part.batches(batch_size)])


def mean_density(model: FusionClassifier, part: Part, device: str) -> Tensor:
    """Mean over clips of the density, (L, D) float32: every clip counts the same, whatever the batch size (D19)."""
    return _mean_over_clips(lambda x: model(x, return_density=True)[1], model, part, device)


def mean_layer_weights(model: FusionClassifier, part: Part, device: str) -> Tensor | None:
    """Mean over clips of the weight that every layer gets, (L,) float32; None for a fusion that weighs no layers."""
    weights_of: Callable[[Tensor], Tensor] | None = getattr(model.fusion, "layer_weights", None)
    return None if weights_of is None else _mean_over_clips(weights_of, model, part, device)


@torch.no_grad()
def _mean_over_clips(of: Callable[[Tensor], Tensor], model: nn.Module, part: Part, device: str) -> Tensor:
    """Mean over the N clips of what `of` gives per clip, in eval mode; summed in float64 on CPU, as mps has none."""
    model.eval()
    sums = [of(on_device(x, device)).cpu().double().sum(0) for x, _ in part.batches(EVAL_BATCH)]
    return (torch.stack(sums).sum(0) / len(part)).float()


def accuracy_of(logits: Tensor, targets: Tensor) -> float:
    """Share of rows whose largest logit is the target, in [0, 1]."""
    return (logits.argmax(-1) == targets.cpu()).double().mean().item()


def improves(history: list[Epoch], selected: int, selection: str) -> bool:
    """Whether the newest epoch is to be kept; the first of equals stays."""
    if selection == "last" or selected == 0:
        return True
    column = "dev_accuracy" if selection == "dev-group" else "test_accuracy"
    newest, best = history[-1][column], history[selected - 1][column]
    return newest is not None and best is not None and newest > best
