"""Training loop for fusion methods over stored layers.

`Training` fits one model on one split. It yields the selected weights, the history and the test predictions. It
advances one epoch at a time, so that `batched` can step several trainings in lockstep and `search` can stop weak
candidates early. The batch order depends only on (seed, epoch) and the training part, so a run resumed after any
epoch continues exactly as if it had not been interrupted.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daamctl.artifacts.results import SearchPart
from daamctl.config import TrainConfig
from daamctl.devices import autocast, cpu_has_bfloat16, full_float32
from daamctl.errors import DivergedError, TrainingError
from daamctl.methods.base import FusionClassifier
from daamctl.training.checkpoint import Saving, load_state, save_state
from daamctl.training.feature_split import InBatches, Part, on_device
from daamctl.training.inference import (
    density_of,
    eval_batch,
    mean_density,
    mean_layer_weights,
    predict,
    scores,
)
from daamctl.training.losses import build_loss

log = logging.getLogger(__name__)

CHECKPOINT_EVERY_S = 5.0
LEAST_GAIN = 0.01
"""Smallest drop of the held-out loss, in nats at equal accuracy, that counts as progress for early stopping."""

Epoch = dict[str, float | int | None]


@dataclass
class Trained:
    """Result of a finished training.

    Args:
        history: one entry per epoch: epoch, lr, train_loss, train_accuracy, dev_accuracy, dev_loss, test_accuracy. A
            refit holds nothing out; its dev_accuracy and dev_loss are copied from the training that it repeats.
        selected_epoch: 1-based epoch whose weights the model now holds.
        epochs: number of epochs to select from; for a refit, those of the training that it repeats.
        logits: (N_test, C) float32 at that epoch.
        density: mean density over the test clips, (L, D); None if the method has none.
        untrained_density: the same before the first step.
        layer_weights: mean over the test clips of each layer's weight, (L,); None if the method weighs no layers.
        untrained_layer_weights: the same before the first step.
        train_s: wall time spent in epochs, in seconds, without interruptions; a search counts all its candidates.
        search: record of the search; None without a search.
        notes: caveats that the report shows beside the figures.
    """

    history: list[Epoch] = field(default_factory=list)
    selected_epoch: int = 0
    epochs: int = 0
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    density: Tensor | None = None
    untrained_density: Tensor | None = None
    layer_weights: Tensor | None = None
    untrained_layer_weights: Tensor | None = None
    train_s: float = 0.0
    search: SearchPart | None = None
    notes: list[str] = field(default_factory=list)


def seed_everything(seed: int, device: str) -> None:
    """Seed torch's generators; on a GPU also request deterministic kernels and full float32."""
    torch.manual_seed(seed)
    if device.startswith("cuda"):
        full_float32()  # evaluation is float32 whatever the precision of the training step
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses deterministic mode
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)


class Training:
    """Train one model epoch by epoch, resuming from its checkpoint if there is one.

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
        key: content key of the fold; a resume file with another key is ignored.
        may_diverge: if the loss is not finite, end this training instead of raising, so that other candidates go on.
        untrained: a training of the same model on the same parts; its untrained density and layer weights are reused.
        first: a finished training whose epochs this one repeats on more clips; see `again`.
        on_step: called after each epoch trained in this process (not for resumed ones).

    Raises:
        TrainingError: the model needs a dev part and there is none.
    """

    def __init__(
        self,
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
        may_diverge: bool = False,
        untrained: Training | None = None,
        first: Training | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        if model.traits.needs_dev and dev is None and first is None:
            raise TrainingError(
                "part of this method is chosen on a held-out group, which only train.selection=dev-group sets aside",
                fix="leave the method out, or train with --set train.selection=dev-group",
            )
        self.model, self.train, self.dev, self.test, self.config = model, train, dev, test, config
        self.seed, self.work, self.key, self.on_step = seed, work, key, on_step
        self.on_epoch: Callable[[Epoch], None] = lambda epoch: None
        self.may_diverge, self.diverged, self.searched_s = may_diverge, False, 0.0
        self.first = first
        self.run = _Run(model.to(device), config, device, precision)
        self.done = Trained()
        if untrained is not None:
            self.done.untrained_density = untrained.done.untrained_density
            self.done.untrained_layer_weights = untrained.done.untrained_layer_weights
        else:
            if model.has_density:
                self.done.untrained_density = mean_density(model, test, device)
            self.done.untrained_layer_weights = mean_layer_weights(model, test, device)
        self.maps = _EpochMaps() if model.has_density and config.density_maps == "all-epochs" else None
        self.best: dict[str, Tensor] = {}
        self._resume()
        self.saving = Saving(self.save, every_s=CHECKPOINT_EVERY_S)

    @property
    def ended(self) -> bool:
        """Whether all epochs are done, or early stopping has run out of patience."""
        history, patience = self.done.history, self.config.patience
        if self.diverged or len(history) >= self.config.epochs:
            return True
        return patience is not None and self.dev is not None and epochs_waited(history) >= patience

    def reached(self, epochs: int | None) -> bool:
        """Whether `epochs` epochs are done or the training has ended; with None, whether it has ended."""
        return self.ended or (epochs is not None and len(self.done.history) >= epochs)

    @property
    def order_seed(self) -> int:
        """Seed of the next epoch's batch order and dropout."""
        return self.seed * 1_000_003 + len(self.done.history) + 1

    def train_epoch(self) -> None:
        """Train one epoch: one pass over the training part, then evaluation, selection and checkpointing."""
        started = time.monotonic()
        seen = self.run.one_pass(self.train, self.order_seed)
        self.end_epoch(seen, time.monotonic() - started)

    def end_epoch(self, seen: Seen, pass_s: float) -> None:
        """Evaluate after a pass, update the selection, call the callbacks and save the resume file if due.

        Args:
            seen: losses and predictions of the pass.
            pass_s: duration of the pass, in seconds.

        Raises:
            TrainingError: the loss is no longer finite.
        """
        started, done = time.monotonic(), self.done
        epoch = len(done.history) + 1
        loss, accuracy = seen.means()
        entry = self.run.evaluate(epoch, loss, accuracy, self.dev, self.test) if np.isfinite(loss) else None
        dev_loss = 0.0 if entry is None else entry["dev_loss"] or 0.0
        if entry is None or not np.isfinite(dev_loss):
            if not self.may_diverge:
                what, met = ("training", loss) if entry is None else ("held-out", dev_loss)
                raise DivergedError(
                    f"the {what} loss is {met} in epoch {epoch}",
                    fix="lower train.lr, or train with --set train.precision=float32",
                )
            self.diverged = True
            return
        if self.first is not None:
            chosen = self.first.done.history[: self.config.epochs]
            entry |= {name: chosen[epoch - 1][name] for name in ("dev_accuracy", "dev_loss")}
            self.run.set_rate(float(chosen[min(epoch, len(chosen) - 1)]["lr"] or 0.0))
        done.history.append(entry)
        done.train_s += pass_s + time.monotonic() - started
        if self.maps is not None:
            self.maps.add(self.model, self.test, self.run.device, self.config.batch_size)
        if improves(done.history, done.selected_epoch, self.config.selection):
            done.selected_epoch = epoch
            if self.maps is not None:
                self.maps.keep()
            self.best = {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}
        self.on_step()
        self.on_epoch(done.history[-1])
        if not self.ended:
            self.saving.if_due()

    def again(self, model: FusionClassifier, train: Part, *, work: Path, key: str) -> Training:
        """Return a refit: a fresh model trained on `train` for the selected number of epochs, at this training's rates.

        The refit holds nothing out. It keeps whatever this training chose on its held-out part.

        Args:
            model: freshly initialised, on CPU.
            train: training part.
            work: folder for the resume file.
            key: content key of the refit.
        """
        changes = {"epochs": self.done.selected_epoch, "selection": "last", "schedule": "constant"}
        if model.traits.needs_dev:
            model.load_state_dict({"fusion.chosen": self.best["fusion.chosen"]}, strict=False)
        return Training(
            model,
            train,
            None,
            self.test,
            self.config.model_copy(update=changes),
            seed=self.seed,
            device=self.run.device,
            precision=self.run.precision,
            work=work,
            key=key,
            first=self,
            on_step=self.on_step,
        )

    def follow(self, on_epoch: Callable[[Epoch], None]) -> None:
        """Call `on_epoch` with all epochs so far, and with each later one."""
        for entry in self.done.history:
            on_epoch(entry)
        self.on_epoch = on_epoch

    def train_until(self, epochs: int | None) -> None:
        """Train until `epochs` epochs are done; with None, to the end.

        Raises:
            TrainingError: the loss is no longer finite, or a trainable tensor gets no gradient.
        """
        while not self.reached(epochs):
            self.train_epoch()

    def complete(self) -> Trained:
        """Train the remaining epochs, load the selected epoch's weights and return the results.

        Raises:
            TrainingError: the loss is no longer finite, or a trainable tensor gets no gradient.
        """
        self.train_until(None)
        model, done, device = self.model, self.done, self.run.device
        model.load_state_dict(self.best)
        done.logits = predict(model, self.test, device, eval_batch(model, self.config, device))
        if model.has_density:
            done.density = mean_density(model, self.test, device) if self.maps is None else self.maps.kept
        done.layer_weights = mean_layer_weights(model, self.test, device)
        done.train_s += self.searched_s
        done.epochs = len((self.first or self).done.history)
        if self.first is not None:
            done.train_s += self.first.done.train_s + self.first.searched_s
            done.search = self.first.done.search
        order_weights(model, torch.contiguous_format)  # the layout that files and other code expect
        return done

    def save(self) -> None:
        """Write the resume file."""
        done = self.done
        state = {"best": self.best, "history": done.history, "train_s": done.train_s}
        if self.maps is not None:
            state["maps"] = dict(self.maps.__dict__)
        save_state(self.work, self.key, {**self.run.state(), **state, "selected_epoch": done.selected_epoch})

    def _resume(self) -> None:
        state, done = load_state(self.work, self.key), self.done
        if state is None:
            return
        self.run.restore(state)
        self.best, done.history, done.train_s = state["best"], state["history"], state["train_s"]
        done.selected_epoch = state["selected_epoch"]
        if self.maps is not None:
            self.maps.__dict__.update(state["maps"])
        log.info("resuming after epoch %d", len(done.history))


@dataclass
class Seen:
    """Losses and predictions of one pass over the training part, batch by batch.

    Args:
        losses: mean loss of each batch.
        logits: logits of each batch, (B, C).
        targets: class ids of each batch, (B,).
    """

    losses: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Record one batch without computing or synchronising anything."""
        self.losses.append(loss.detach())
        self.logits.append(logits.detach())
        self.targets.append(y)

    def means(self) -> tuple[float, float]:
        """Mean loss and accuracy over the clips; every clip has the same weight."""
        sizes = torch.tensor([len(y) for y in self.targets], dtype=torch.float64)
        loss = (torch.stack(self.losses).cpu().double() @ sizes / sizes.sum()).item()
        right = torch.cat(self.logits).argmax(-1) == torch.cat(self.targets)
        return loss, right.cpu().double().mean().item()


class _EpochMaps:
    """Mean density as in the published code: over the batches of every epoch up to the selected one (D19)."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.count = 0
        self.kept: Tensor | None = None

    @torch.no_grad()
    def add(self, model: FusionClassifier, part: Part, device: str, batch_size: int) -> None:
        """Add one pass over a part. Every batch has the same weight, even a smaller last one."""
        model.eval()
        for x, _ in part.batches(batch_size):
            density = density_of(model, on_device(x, device)).mean(0).cpu()
            self.total = density if self.total is None else self.total + density
            self.count += 1

    def keep(self) -> None:
        """Keep the mean up to this epoch, (L, D) float32."""
        assert self.total is not None
        self.kept = (self.total / self.count).float()


class _Run:
    """Loss, optimiser, learning-rate schedule and gradient scaler of one model."""

    def __init__(self, model: FusionClassifier, config: TrainConfig, device: str, precision: str) -> None:
        self.model, self.config, self.device, self.precision = model, config, device, precision
        if channels_last(device, precision):
            order_weights(model, torch.channels_last)
        self.loss = build_loss(config)
        self.optimizer = build_optimizer(model, config, fused=device != "mps")
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
        for saved, ours in zip(state["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True):
            saved["fused"] = ours["fused"]  # depends on the device; the scaler relies on how this optimiser was built
        for name in ("model", "optimizer", "schedule", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.align()

    def align(self) -> None:
        """Give the optimiser's state the memory layout of the weights: the fused kernel ignores strides."""
        for value, means in self.optimizer.state.items():
            for name, one in means.items():
                if one.stride() != value.stride() and one.shape == value.shape:
                    means[name] = torch.empty_like(value, requires_grad=False).copy_(one)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the coming epoch."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def one_pass(self, train: Part, order_seed: int) -> Seen:
        """Run one pass over the training part."""
        torch.manual_seed(order_seed)  # so that dropout, too, repeats after a resume
        self.model.train()
        seen = Seen()
        for x, y in train.batches(self.config.batch_size, order_seed):
            seen.add(*self.step(x, y))
        return seen

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Train on one batch, in the stored number format; returns its loss, logits (B, C) and class ids (B,)."""
        x = on_device(x, self.device)  # (B, L, D)
        y = y.to(self.device, non_blocking=self.device.startswith("cuda"))  # (B,)
        with autocast(self.device, self.precision):
            loss, logits = self.model.training_loss(x, y, self.loss)
        self._step(loss)
        return loss, logits, y

    def _step(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        if not self.gradients_checked:
            check_gradients(self.model)
            self.gradients_checked = True
        if self.config.grad_clip_norm is not None:
            if self.config.grad_clip == "unscaled":
                self.scaler.unscale_(self.optimizer)  # so that clipping sees true, unscaled gradients (D21)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def evaluate(self, epoch: int, loss: float, accuracy: float, dev: Part | None, test: Part) -> Epoch:
        """Evaluate both parts, step the schedule and return the history entry; `loss` and `accuracy` are the pass's."""
        lr = self.optimizer.param_groups[0]["lr"]
        size = eval_batch(self.model, self.config, self.device)
        if dev is not None and self.model.traits.needs_dev:
            self.model.eval()
            with torch.no_grad():
                # read in batches: a held-out group may be larger than memory
                self.model.choose(InBatches(dev, self.device), dev.y.to(self.device))
        of_dev, dev_loss = scores(self.model, dev, self.device, size)
        of_test, _ = scores(self.model, test, self.device, size)
        if self.config.schedule == "plateau":
            watched = {"dev-group": of_dev, "best-on-test": of_test, "last": loss}
            self.schedule.step(watched[self.config.selection] or 0.0)
        return {
            "epoch": epoch,
            "lr": lr,
            "train_loss": loss,
            "train_accuracy": accuracy,
            "dev_accuracy": of_dev,
            "dev_loss": dev_loss,
            "test_accuracy": of_test,
        }


def build_optimizer(model: nn.Module, config: TrainConfig, *, fused: bool) -> torch.optim.Optimizer:
    """Build the optimiser named in the settings for all trainable tensors; `fused` updates them in one kernel.

    With `decay: weights`, the tensors without weight decay form a second parameter group.
    """
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if config.decay == "all":
        return kind(list(trained.values()), lr=config.lr, weight_decay=config.weight_decay, fused=fused)
    decayed = {name for name, p in trained.items() if p.ndim > 1 and name.endswith("weight")}
    groups = [
        {"params": [p for name, p in trained.items() if (name in decayed) == chosen], "weight_decay": decay}
        for chosen, decay in ((True, config.weight_decay), (False, 0.0))
    ]
    return kind([group for group in groups if group["params"]], lr=config.lr, fused=fused)


def channels_last(device: str, precision: str) -> bool:
    """Whether 2-D convolutions use the channels-last memory format.

    Half-precision GPU kernels expect it. On a CPU with native bfloat16 it is faster in float32 as well; on older CPUs
    it is slower. It changes only the memory layout, not the shapes or values of the weights.
    """
    return cpu_has_bfloat16() if device == "cpu" else device.startswith("cuda") and precision != "float32"


def order_weights(model: nn.Module, order: torch.memory_format) -> None:
    """Set the memory format of the weights of 2-D convolutions."""
    model.to(memory_format=order)  # type: ignore[call-overload]  # torch's annotations lack it


def check_gradients(model: nn.Module) -> None:
    """Check after a backward pass that every trainable tensor has a gradient.

    Raises:
        TrainingError: tensors without a gradient, by name; they would silently keep their initial values.
    """
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise TrainingError(f"no gradient reaches {', '.join(without)}: they would never be trained")


def improves(history: list[Epoch], selected: int, selection: str) -> bool:
    """Whether the newest epoch should be selected.

    On the held-out group, the higher accuracy wins, then the lower loss, because many epochs tie on a small group. On
    the test group, the first epoch with the highest accuracy wins, as published.

    Args:
        history: all epochs so far.
        selected: 1-based epoch selected so far; 0: none.
        selection: dev-group, best-on-test or last.
    """
    if selection == "last" or selected == 0:
        return True
    newest, best = history[-1], history[selected - 1]
    if selection == "dev-group":
        return dev_score(newest) > dev_score(best)
    return (newest["test_accuracy"] or 0.0) > (best["test_accuracy"] or 0.0)


def dev_score(entry: Epoch) -> tuple[float, float]:
    """Sort key of an epoch on the held-out group: accuracy, then the negated loss."""
    accuracy, loss = entry["dev_accuracy"], entry.get("dev_loss")
    return (-math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss)


def epochs_waited(history: list[Epoch]) -> int:
    """Number of epochs since the held-out group last improved.

    An improvement is a higher accuracy, or the same accuracy with a loss lower by more than `LEAST_GAIN`.
    """
    best, last = (-math.inf, -math.inf), 0
    for number, entry in enumerate(history, start=1):
        accuracy, score = dev_score(entry)
        if accuracy > best[0] or (accuracy == best[0] and score > best[1] + LEAST_GAIN):
            best, last = (accuracy, score), number
    return len(history) - last
