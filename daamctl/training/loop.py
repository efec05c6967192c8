"""The training loop of a method over stored layers.

A `Training` trains one model on one split and gives the selected weights, the history and the test predictions. It
advances one epoch at a time, so that several can advance together (`batched`) and a search can stop all but one
(`search`). The order of batches is a function of (seed, epoch) and the part alone, so a run resumed after any epoch
continues exactly as an uninterrupted one.
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
"""By how many nats the held-out loss must fall, at the same accuracy, for training to go on."""

Epoch = dict[str, float | int | None]


@dataclass
class Trained:
    """What a finished training gives.

    Args:
        history: one entry per epoch: epoch, lr, train_loss, train_accuracy, dev_accuracy, dev_loss, test_accuracy. Of
            a refit, which holds nothing out, dev_accuracy and dev_loss are those of the training before it.
        selected_epoch: 1-based epoch whose weights the model now holds.
        epochs: number of epochs among which it was selected; of a refit those of the training before it.
        logits: (N_test, C) float32 at that epoch.
        density: mean density over the test clips, (L, D); None without one.
        untrained_density: the same before the first step.
        layer_weights: mean over the test clips of the weight each layer gets, (L,); None for methods that weigh none.
        untrained_layer_weights: the same before the first step.
        train_s: wall time spent in epochs, in seconds, interruptions not counted; of a search all of its candidates.
        search: what was tried before; None without a search.
        notes: what a reader of the figures must know.
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
    """Seed torch's generators and, on a GPU, ask for kernels that repeat themselves to the bit, in full float32."""
    torch.manual_seed(seed)
    if device.startswith("cuda"):
        full_float32()  # evaluation is float32 whatever the precision of the training step
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses deterministic mode
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)


class Training:
    """One training, an epoch at a time, from where it was interrupted.

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
        may_diverge: a loss that is not finite ends this training instead of raising: other candidates go on.
        untrained: a training of the same model on the same parts, whose untrained density and layer weights are taken.
        first: a training that has ended, whose epochs this one repeats on more clips; see `again`.
        on_step: called after each epoch that is trained here.

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
        """Whether every epoch is done, or the held-out group has not improved for as long as the settings allow."""
        history, patience = self.done.history, self.config.patience
        if self.diverged or len(history) >= self.config.epochs:
            return True
        return patience is not None and self.dev is not None and epochs_waited(history) >= patience

    def reached(self, epochs: int | None) -> bool:
        """Whether so many epochs are done, or it has ended before; None: whether it has ended."""
        return self.ended or (epochs is not None and len(self.done.history) >= epochs)

    @property
    def order_seed(self) -> int:
        """Decides the order of the batches of the coming epoch, and its dropout."""
        return self.seed * 1_000_003 + len(self.done.history) + 1

    def train_epoch(self) -> None:
        """One pass over the training part, and what follows it."""
        started = time.monotonic()
        seen = self.run.one_pass(self.train, self.order_seed)
        self.end_epoch(seen, time.monotonic() - started)

    def end_epoch(self, seen: Seen, pass_s: float) -> None:
        """Evaluate after a pass, select, tell and save.

        Args:
            seen: what the pass saw.
            pass_s: how long it took, in seconds.

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
        """A training of another model for the selected number of epochs, at the rates of this one, on other clips.

        Nothing is held out of it; what this training chose on its held-out part stays chosen.

        Args:
            model: freshly initialised, on CPU.
            train: training part.
            work: folder for the resume file.
            key: content key of it.
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
        """Call `on_epoch` with the epochs so far, and with each that follows."""
        for entry in self.done.history:
            on_epoch(entry)
        self.on_epoch = on_epoch

    def train_until(self, epochs: int | None) -> None:
        """Train until so many epochs are done, or with None to the end.

        Raises:
            TrainingError: the loss is no longer finite, or a trainable tensor gets no gradient.
        """
        while not self.reached(epochs):
            self.train_epoch()

    def complete(self) -> Trained:
        """Train the epochs that are left, give the model the selected epoch's weights, and say what came out of it.

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
        order_weights(model, torch.contiguous_format)  # as files and other readers expect it
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
    """What a pass over the training part saw, batch by batch.

    Args:
        losses: mean loss of each batch.
        logits: of each batch, (B, C).
        targets: of each batch, (B,) class ids.
    """

    losses: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)

    def add(self, loss: Tensor, logits: Tensor, y: Tensor) -> None:
        """Note one batch; nothing is computed or waited for."""
        self.losses.append(loss.detach())
        self.logits.append(logits.detach())
        self.targets.append(y)

    def means(self) -> tuple[float, float]:
        """Loss and accuracy over the clips; every clip counts the same."""
        sizes = torch.tensor([len(y) for y in self.targets], dtype=torch.float64)
        loss = (torch.stack(self.losses).cpu().double() @ sizes / sizes.sum()).item()
        right = torch.cat(self.logits).argmax(-1) == torch.cat(self.targets)
        return loss, right.cpu().double().mean().item()


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
            density = density_of(model, on_device(x, device)).mean(0).cpu()
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
            saved["fused"] = ours["fused"]  # a matter of this device; the scaler goes by how the optimiser was made
        for name in ("model", "optimizer", "schedule", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.align()

    def align(self) -> None:
        """Order the optimiser's state in memory as the weights are: the fused kernel goes by that, not by strides."""
        for value, means in self.optimizer.state.items():
            for name, one in means.items():
                if one.stride() != value.stride() and one.shape == value.shape:
                    means[name] = torch.empty_like(value, requires_grad=False).copy_(one)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the coming epoch."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def one_pass(self, train: Part, order_seed: int) -> Seen:
        """One pass over the training part."""
        torch.manual_seed(order_seed)  # dropout, where a method has it, also repeats after a resume
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
                self.scaler.unscale_(self.optimizer)  # the threshold is meant for true gradients (D21)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def evaluate(self, epoch: int, loss: float, accuracy: float, dev: Part | None, test: Part) -> Epoch:
        """Accuracies after a pass, and what the schedule makes of them; loss and accuracy are those of the pass."""
        lr = self.optimizer.param_groups[0]["lr"]
        size = eval_batch(self.model, self.config, self.device)
        if dev is not None and self.model.traits.needs_dev:
            self.model.eval()
            with torch.no_grad():
                # a held-out group may be larger than memory
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
    """The optimiser that the settings name, over everything trainable; fused does all tensors in one kernel.

    With `decay: weights` what is not decayed is a second group of parameters.
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
    """Whether convolutions keep the channels of a pixel together.

    On the GPU that is the format of half-precision kernels; on a CPU it pays where bfloat16 is native, in float32 as
    well, and costs on older ones. It moves only numbers in memory: shapes and values of the weights stay.
    """
    return cpu_has_bfloat16() if device == "cpu" else device.startswith("cuda") and precision != "float32"


def order_weights(model: nn.Module, order: torch.memory_format) -> None:
    """Order the weights of 2-D convolutions in memory."""
    model.to(memory_format=order)  # type: ignore[call-overload]  # torch's annotations lack it


def check_gradients(model: nn.Module) -> None:
    """Check after a backward pass that every trainable tensor has a gradient.

    Raises:
        TrainingError: names the tensors that have none: they would silently stay as they started.
    """
    without = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        raise TrainingError(f"no gradient reaches {', '.join(without)}: they would never be trained")


def improves(history: list[Epoch], selected: int, selection: str) -> bool:
    """Whether the newest epoch is to be kept.

    On the held-out group the higher accuracy wins, then the lower loss: a small group is soon answered equally well by
    many epochs. On the test group, as published, it is the first epoch of the highest accuracy.

    Args:
        history: all epochs so far.
        selected: 1-based epoch that is kept so far; 0: none.
        selection: dev-group, best-on-test or last.
    """
    if selection == "last" or selected == 0:
        return True
    newest, best = history[-1], history[selected - 1]
    if selection == "dev-group":
        return dev_score(newest) > dev_score(best)
    return (newest["test_accuracy"] or 0.0) > (best["test_accuracy"] or 0.0)


def dev_score(entry: Epoch) -> tuple[float, float]:
    """What epochs are compared by on the held-out group: accuracy, then the loss, negated."""
    accuracy, loss = entry["dev_accuracy"], entry.get("dev_loss")
    return (-math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss)


def epochs_waited(history: list[Epoch]) -> int:
    """Epochs since the held-out group was last answered better.

    Better is a higher accuracy, or the same one with a loss lower by `LEAST_GAIN`.
    """
    best, last = (-math.inf, -math.inf), 0
    for number, entry in enumerate(history, start=1):
        accuracy, score = dev_score(entry)
        if accuracy > best[0] or (accuracy == best[0] and score > best[1] + LEAST_GAIN):
            best, last = (accuracy, score), number
    return len(history) - last
