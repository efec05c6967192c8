"""Training of a fusion over stored layers: optimiser, learning rates, one pass, evaluation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from daamctl.config import TrainConfig
from daamctl.cpu_formats import cpu_formats
from daamctl.devices import autocast
from daamctl.errors import TrainingError
from daamctl.methods.base import FusionClassifier
from daamctl.training.feature_split import InBatches, InMemorySplit, Part, on_device
from daamctl.training.graphed import GraphedSteps, obstacle
from daamctl.training.inference import (
    density_of,
    eval_batch,
    mean_density,
    mean_layer_weights,
    predict,
    scores,
)
from daamctl.training.loop import Epoch, Trained, Training, TrainingSetup, test_score
from daamctl.training.losses import build_loss
from daamctl.training.rng import generator_states, restore_generators
from daamctl.training.search import refits

log = logging.getLogger(__name__)


class FusionTraining(Training):
    """Train a fusion classifier on one split, resuming from its checkpoint if there is one.

    Args:
        model: freshly initialised, on CPU.
        train: training part.
        dev: part that selects the epoch; None unless selection is `dev-group`.
        test: test part; its accuracy is recorded at every epoch and selects only under `best-on-test`. A training that
            a refit will repeat does not look at it.
        config: training settings.
        setup: see `TrainingSetup`. A refit also repeats the learning rates of the first training. `advance` is called
            with 1 after each epoch trained in this process (not for resumed ones).
        untrained: results of the same model on the same parts; its untrained density and layer weights are reused.

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
        setup: TrainingSetup,
        *,
        untrained: Trained | None = None,
    ) -> None:
        if model.traits.needs_dev and dev is None and setup.first is None:
            raise TrainingError(
                "part of this method is chosen on a held-out group, which only train.selection=dev-group sets aside",
                fix="leave the method out, or train with --set train.selection=dev-group",
            )
        patience = None if dev is None else config.patience
        super().__init__(setup, section="train", epochs=config.epochs, selection=config.selection, patience=patience)
        device, precision = setup.device, setup.precision
        self.model, self.train, self.dev, self.test, self.config = model.to(device), train, dev, test, config
        self.channels_last = channels_last(device, precision)
        if self.channels_last:
            order_weights(model, torch.channels_last)
        self.loss = build_loss(config)
        self.optimizer = build_optimizer(model, config, fused=device != "mps")
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer,
            mode="min" if self.selection == "last" else "max",
            factor=config.plateau_factor,
            patience=config.plateau_patience,
        )
        self.scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], enabled=precision == "float16")
        self.gradients_checked = False
        held = isinstance(train, InMemorySplit) and train.x.device.type == device.split(":")[0]
        self.obstacle = obstacle(model, device, precision, held=held)
        self.graphed = GraphedSteps(device) if config.graphs == "auto" and self.obstacle is None else None
        self.under_way: Seen | None = None
        self.generators: dict[str, Any] | None = None  # states saved in the middle of a pass, until that pass resumes
        if untrained is not None:
            self.done.untrained_density = untrained.untrained_density
            self.done.untrained_layer_weights = untrained.untrained_layer_weights
        else:
            with self.evaluating():
                if model.has_density:
                    self.done.untrained_density = mean_density(model, test, device)
                self.done.untrained_layer_weights = mean_layer_weights(model, test, device)
        self.maps = _EpochMaps() if model.has_density and config.density_maps == "all-epochs" else None
        self.resume()

    def one_pass(self, order_seed: int) -> tuple[float, float]:
        """Run one pass over the training part, or the rest of a resumed one; see `Training.one_pass`."""
        for _ in self.steps(order_seed):
            pass
        return self.end_pass()

    def steps(self, order_seed: int) -> Iterator[None]:
        """Take the steps of a pass, or the rest of those of a resumed one; yields after each. `end_pass` ends it."""
        torch.manual_seed(order_seed)  # so that dropout, too, repeats after a resume
        self.under_way = seen = self.under_way or Seen()
        if self.generators is not None:
            restore_generators(self.generators)
            self.generators = None
        self.model.train()
        if self.graphed is not None:
            yield from self.graphed.steps(self, order_seed, seen)
            return
        for x, y in islice(self.train.batches(self.config.batch_size, order_seed), len(seen.losses), None):
            seen.add(*self.step(x, y))
            self.save_if_due()
            yield

    def end_pass(self) -> tuple[float, float]:
        """End a pass whose steps are taken; see `Training.one_pass`."""
        assert self.under_way is not None
        seen, self.under_way = self.under_way, None
        return seen.means()

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Train on one batch, in the stored number format; returns its loss, logits (B, C) and class ids (B,)."""
        x = on_device(x, self.device)  # (B, L, D)
        y = y.to(self.device, non_blocking=self.device.startswith("cuda"))  # (B,)
        with autocast(self.device, self.precision):
            loss, logits = self.model.training_loss(x, y, self.loss)
        self.update(loss)
        return loss, logits, y

    def update(self, loss: Tensor) -> None:
        """Take the optimiser step for the loss of a batch.

        Raises:
            TrainingError: at the first step, if a trainable tensor gets no gradient.
        """
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

    def end_open_epoch(self) -> None:
        """Finish an epoch within which an earlier process was interrupted."""
        if self.under_way is not None or self.passed is not None:
            self.train_epoch()

    def evaluate(self, epoch: int, loss: float, accuracy: float) -> Epoch:
        """Evaluate the dev and test parts, set the next epoch's learning rate and return the history entry."""
        with self.evaluating():
            return self._evaluate(epoch, loss, accuracy)

    def _evaluate(self, epoch: int, loss: float, accuracy: float) -> Epoch:
        lr = self.optimizer.param_groups[0]["lr"]
        size = eval_batch(self.model, self.config, self.device)
        if self.dev is not None and self.model.traits.needs_dev:
            self.model.eval()
            with torch.no_grad():
                # read in batches: a held-out group may be larger than memory
                self.model.choose(InBatches(self.dev, self.device), self.dev.y.to(self.device))
        dev_accuracy, dev_loss = self._scores("dev", self.dev, size)
        repeated = refits(self.config) and self.first is None  # the result is that of the refit
        test_accuracy, _ = self._scores("test", None if repeated else self.test, size)
        entry: Epoch = {
            "epoch": epoch,
            "lr": lr,
            "train_loss": loss,
            "train_accuracy": accuracy,
            "dev_accuracy": dev_accuracy,
            "dev_loss": dev_loss,
            "test_accuracy": test_accuracy,
        }
        for name, f1 in self.setup.entity_f1.items():
            found = self.evaluated[name]
            entry[f"{name}_f1"] = f1(torch.cat(found)) if found else None
        if self.maps is not None:
            self.maps.add(self.model, self.test, self.device, self.config.batch_size)
        if self.first is not None:
            rates = [entry["lr"] for entry in self.first.history[: self.epochs]]
            self.set_rate(float(rates[min(epoch, len(rates) - 1)] or 0.0))
        elif self.config.schedule == "linear":
            self.set_rate(self.config.lr * max(0.0, 1 - epoch / self.config.epochs))
        elif self.config.schedule == "plateau":
            watched = {"dev-group": entry.get("dev_f1", dev_accuracy), "best-on-test": test_score(entry), "last": loss}
            self.schedule.step(watched[self.selection] or 0.0)
        self.advance(1)
        return entry

    def finish(self) -> None:
        """Load the weights of the selected epoch; compute predictions, density and layer weights on the test part."""
        model, done = self.model, self.done
        self.release()
        model.load_state_dict(self.best)
        size, found = eval_batch(model, self.config, self.device), self.evaluated.setdefault("final", [])
        with self.evaluating():
            done.logits = predict(model, self.test, self.device, size, found=found, on_batch=self.save_if_due)
            if model.has_density:
                done.density = mean_density(model, self.test, self.device) if self.maps is None else self.maps.kept
            done.layer_weights = mean_layer_weights(model, self.test, self.device)
        order_weights(model, torch.contiguous_format)  # the layout that files and other code expect

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Put copies in place of the weights, in the memory format in which this device evaluates."""
        if not self.channels_last or evaluates_channels_last(self.device):
            yield
            return
        trained = [(value, value.data) for value in self.model.parameters()]
        order_weights(self.model, torch.contiguous_format)
        try:
            yield
        finally:
            for value, data in trained:
                value.data = data  # a recorded step knows their addresses

    def release(self) -> None:
        """Free the memory of a recorded step."""
        if self.graphed is not None:
            self.graphed = GraphedSteps(self.device)

    def _scores(self, name: str, part: Part | None, size: int) -> tuple[float | None, float | None]:
        """Accuracy and mean cross-entropy on a part; goes on where an earlier process was interrupted."""
        found = self.evaluated.setdefault(name, [])
        return scores(self.model, part, self.device, size, found=found, on_batch=self.save_if_due)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the coming epoch."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def weights(self) -> dict[str, Tensor]:
        """Copy of all tensors of the model, on CPU; also keeps the maps, if they are means over the epochs so far."""
        if self.maps is not None:
            self.maps.keep()
        return {name: value.detach().cpu().clone() for name, value in self.model.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """States of model, optimiser, schedule and scaler; sums of the maps if they are means over epochs.

        Within a pass, also its progress.
        """
        if self.graphed is not None:
            self.graphed.graph.end()  # wait for steps that its stream still works on
        state = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "schedule", "scaler")}
        if (seen := self.under_way) is not None and seen.losses:
            state["pass"] = {**seen.state(), "generators": generator_states()}
        if self.maps is not None:
            state["maps"] = dict(self.maps.__dict__)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Load a saved `state`."""
        for saved, ours in zip(state["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True):
            saved["fused"] = ours["fused"]  # depends on the device; the scaler relies on how this optimiser was built
        for name in ("model", "optimizer", "schedule", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        if self.maps is not None:
            self.maps.__dict__.update(state["maps"])
        self.align()
        where = f"epoch {len(state['history'])}"
        if (seen := state.get("pass")) is not None:
            self.under_way = Seen.of(seen, self.config.batch_size, self.device)
            self.generators = seen["generators"]
            where += f" and {len(seen['losses'])} steps"
        log.info("resuming after %s", where)

    def align(self) -> None:
        """Give the optimiser's state the memory layout of the weights: the fused kernel ignores strides."""
        for value, means in self.optimizer.state.items():
            for name, mean in means.items():
                if mean.stride() != value.stride() and mean.shape == value.shape:
                    means[name] = torch.empty_like(value, requires_grad=False).copy_(mean)


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

    def state(self) -> dict[str, Tensor]:
        """Everything seen so far, in three tensors on the CPU."""
        return {
            "losses": torch.stack(self.losses).cpu(),
            "logits": torch.cat(self.logits).cpu(),
            "targets": torch.cat(self.targets).cpu(),
        }

    @classmethod
    def of(cls, state: dict[str, Tensor], batch_size: int, device: str) -> Seen:
        """What `state` has saved, of batches of this size."""
        logits, targets = (list(state[name].to(device).split(batch_size)) for name in ("logits", "targets"))
        return cls(list(state["losses"].to(device)), logits, targets)

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

    Half-precision GPU kernels expect it. On a CPU it is used where it was measured to be faster. It changes only the
    memory layout, not the shapes or values of the weights.
    """
    if device == "cpu":
        return cpu_formats().channels_last.get(precision, False)
    return device.startswith("cuda") and precision != "float32"


def evaluates_channels_last(device: str) -> bool:
    """Whether weights in the channels-last memory format keep it in evaluation, which is always float32.

    Not on NVIDIA GPUs, whose convolutions in full float32 are made for the contiguous format.
    """
    return not device.startswith("cuda")


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
