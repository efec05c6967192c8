"""Training of fusions over stored layers: a stack of one or several models of one method.

With a budget of steps, several are trained together, each on the batches of its trial and with its own rate:
candidates of a search and folds side by side. Batches are cut from an endless sequence of shuffled passes, the rate
falls to 0, and the last weights are kept. With epochs, as published, a stack has one model, and `train.selection`
selects the epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from daamctl.config import TrainConfig
from daamctl.devices import exact_dtype
from daamctl.errors import TrainingError
from daamctl.fit.feature_split import InBatches, InMemorySplit, Part, on_device, pass_seed
from daamctl.fit.graphs import GraphedStep, obstacle
from daamctl.fit.inference import (
    density_of,
    eval_batch,
    is_one_class,
    mean_density,
    mean_layer_weights,
    predict,
    scores,
)
from daamctl.fit.loop import RECORDS, Entry, Fit, Member, Trained, improves, test_score
from daamctl.fit.models import Many, One, order_weights
from daamctl.fit.optimizer import rate_factor, set_rate
from daamctl.fit.rng import generator_states, restore_generators
from daamctl.methods.base import FusionClassifier

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Fusion:
    """Model and data of a member.

    Args:
        model: freshly initialised, on the CPU.
        config: training settings, with those of the candidate.
        dev: held-out part; None for a refit, and without a held-out group.
        test: test part; None if this training does not look at it.
        seed: of the order of batches and of dropout.
        f1: part (`dev`, `test`) -> function of its logits that gives the primary figure, unless that is accuracy.
    """

    model: FusionClassifier
    config: TrainConfig
    train: Part
    dev: Part | None
    test: Part | None
    seed: int
    f1: Mapping[str, Callable[[Tensor], float]]


class Stack(Fit):
    """Train fusions; several if they are `stackable`, have a budget, and are in memory.

    Args:
        members: F trials with C candidates each, trial by trial.
        fusions: their models and data, in the same order.
        precision: resolved precision of the steps; evaluation is float32.

    Raises:
        TrainingError: a model needs a held-out part and there is none.
    """

    def __init__(self, members: Sequence[Member], fusions: Sequence[Fusion], device: str, precision: str) -> None:
        first = fusions[0]
        if first.model.traits.needs_dev and first.dev is None and members[0].first is None:
            raise TrainingError(
                "part of this method is chosen on a held-out group, which only train.selection=dev-group sets aside",
                fix="leave the method out, or train with --set train.selection=dev-group",
            )
        self.members, self.fusions, self.device, self.precision = members, fusions, device, precision
        self.config, self.trained = first.config, [member.begin() for member in members]
        num_trials = len({id(member.trial) for member in members})
        self.by_trial = fusions[:: len(members) // num_trials]  # the first candidate of each
        for member, fusion, result in zip(members, fusions, self.trained, strict=True):
            fusion.model.to(device)
            if member.final and fusion.test is not None:
                if fusion.model.has_density:
                    result.untrained_density = mean_density(fusion.model, fusion.test, device)
                result.untrained_layer_weights = mean_layer_weights(fusion.model, fusion.test, device)
        self.models: One | Many
        if len(members) == 1:
            self.models = One(first.model, first.config, device, precision)
        else:
            configs, shape = [one.config for one in fusions], (num_trials, len(members) // num_trials)
            self.models = Many([one.model for one in fusions], configs, shape, device, precision)
        held = isinstance(first.train, InMemorySplit) and first.train.x.device.type == device.split(":")[0]
        self.obstacle = obstacle(first.model, device, held=held) if first.config.graphs == "auto" else "off"
        self.take = self.models.step if self.obstacle else GraphedStep(self.models, device)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            torch.optim.SGD([torch.zeros(1)], lr=self.config.lr),
            mode="min" if self.config.selection == "last" else "max",
            factor=self.config.plateau_factor,
            patience=self.config.plateau_patience,
        )
        self.maps = EpochMaps() if first.model.has_density and self.config.density_maps == "all-epochs" else None
        self.generators: dict[str, Any] | None = None  # saved between two records, until the steps go on
        self.steps = self.in_record = self.rows = 0
        self.loss, self.right = (torch.zeros(len(members), dtype=exact_dtype(device), device=device) for _ in range(2))
        self.ended = members[0].trained

    def run(self) -> Iterator[int]:
        """See `Fit.run`; the unit of work is a step of one model."""
        config, recorded = self.config, len(self.trained[0].history)
        order = pass_seed(self.fusions[0].seed, recorded)
        torch.manual_seed(order)  # so that dropout repeats too
        if self.generators is not None:
            restore_generators(self.generators)
            self.generators = None
        for fusion in self.fusions:
            fusion.model.train()
        batches: Iterator[tuple[Tensor, Tensor]]
        if config.steps is not None:
            batches = islice(self._stream(self.steps), self._until(recorded + 1) - self.steps)
        else:
            every = self.fusions[0].train.batches(config.batch_size, order)
            batches = ((x[None], y[None]) for x, y in islice(every, self.in_record, None))
        for x, y in batches:
            set_rate(self.models.optimizer, self._factor(self.steps))
            y = y.to(self.device, non_blocking=self.device.startswith("cuda"))
            losses, logits = self.take(on_device(x, self.device), y)
            number = y.shape[-1]
            targets = y.repeat_interleave(len(self.members) // len(y), 0)  # (M, B)
            self.loss += losses.to(self.loss.dtype) * number
            self.right += (logits.argmax(-1) == targets).sum(-1)
            self.steps, self.in_record, self.rows = self.steps + 1, self.in_record + 1, self.rows + number
            yield len(self.members)

    def record(self) -> list[Entry]:
        """See `Fit.record`."""
        means = torch.stack([self.loss, self.right]).cpu().double() / self.rows
        factor, entries = self._factor(self.steps - 1), []
        with self.models.evaluating():
            for index, (member, fusion, result) in enumerate(
                zip(self.members, self.fusions, self.trained, strict=True)
            ):
                entry: Entry = {
                    "step": self.steps,
                    "epoch": None if self.config.steps else len(result.history) + 1,
                    "lr": fusion.config.lr * factor,
                    "train_loss": means[0, index].item(),
                    "train_accuracy": means[1, index].item(),
                    **self._evaluate(fusion, result),
                    **member.dev_of_candidate(len(result.history)),
                }
                result.history.append(entry)
                entries.append(entry)
        self.in_record = self.rows = 0
        self.loss.zero_()
        self.right.zero_()
        done = len(self.trained[0].history)
        if self.config.steps is None:
            self._end_epoch(self.trained[0])
        alone = len(self.members) == 1 and self.trained[0].diverged
        self.ended = alone or done >= (min(RECORDS, self.config.steps) if self.config.steps else self.config.epochs)
        return entries

    def state(self) -> dict[str, Any]:
        """See `Fit.state`."""
        names = ("steps", "in_record", "rows", "loss", "right", "ended")
        state = {name: getattr(self, name) for name in names}
        state["models"] = self.models.state()
        state |= {"plateau": self.plateau.state_dict(), "rate": self.plateau.optimizer.param_groups[0]["lr"]}
        state["trained"] = [one.state() for one in self.trained]
        if self.in_record:
            state["generators"] = generator_states()
        if self.maps is not None:
            state["maps"] = dict(vars(self.maps))
        return state

    def restore(self, state: dict[str, Any]) -> int:
        """See `Fit.restore`."""
        self.models.restore(state["models"])
        self.plateau.load_state_dict(state["plateau"])
        self.plateau.optimizer.param_groups[0]["lr"] = state["rate"]  # the schedule's own state lacks it
        for name in ("steps", "in_record", "rows", "ended"):
            setattr(self, name, state[name])
        self.loss.copy_(state["loss"])
        self.right.copy_(state["right"])
        for one, saved in zip(self.trained, state["trained"], strict=True):
            for name, value in saved.items():
                setattr(one, name, value)
        if self.maps is not None:
            vars(self.maps).update(state["maps"])
        self.generators = state.get("generators")
        return int(self.steps * len(self.members))

    def finish(self) -> None:
        """See `Fit.finish`."""
        for member, fusion, result in zip(self.members, self.fusions, self.trained, strict=True):
            model, test = fusion.model, fusion.test
            if not result.weights:
                kept = None if member.final or not member.trial.refits else member.trial.chosen_on_dev
                result.weights = _weights(model, kept)
            if not member.final or test is None:
                continue
            model.load_state_dict(result.weights)
            result.model, result.weights = model, {}
            with self.models.evaluating():
                result.logits = predict(model, test, self.device, eval_batch(model, fusion.config, self.device))
                if model.has_density:
                    result.density = self.maps.kept if self.maps else mean_density(model, test, self.device)
                result.layer_weights = mean_layer_weights(model, test, self.device)
            order_weights(model, torch.contiguous_format)  # the layout that files and other code expect

    def _until(self, record: int) -> int:
        """Steps taken when a record is made; records are evenly spaced."""
        assert self.config.steps is not None
        return record * self.config.steps // min(RECORDS, self.config.steps)

    def _factor(self, step: int) -> float:
        """Factor on the rates at a step; with epochs, that of the whole epoch."""
        config = self.config
        if config.schedule == "plateau":
            return float(self.plateau.optimizer.param_groups[0]["lr"] / config.lr)
        if config.steps is None:
            return rate_factor(config.schedule, len(self.trained[0].history), config.epochs)
        return rate_factor(config.schedule, step, config.steps)

    def _stream(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches (F, B, L, D) and (F, B) of a budget, from a step on."""
        size, first = self.config.batch_size, self.by_trial[0]
        if len(self.by_trial) == 1:
            for x, y in first.train.stream(size, first.seed, start):
                yield x[None], y[None]
            return
        held = [(one.train, one.seed) for one in self.by_trial if isinstance(one.train, InMemorySplit)]
        for found in zip(*(part.stream_rows(size, seed, start) for part, seed in held), strict=True):
            rows, y = (torch.stack(every) for every in zip(*found, strict=True))
            yield held[0][0].x[rows], y  # folds share the tensor

    def _evaluate(self, fusion: Fusion, result: Trained) -> Entry:
        """Accuracy, loss and entity F1 of the held-out and the test part."""
        model, dev = fusion.model, fusion.dev
        size = eval_batch(model, fusion.config, self.device)
        if dev is not None and model.traits.needs_dev:
            model.eval()
            with torch.no_grad():  # in batches: a held-out group may be larger than memory
                model.choose(InBatches(dev, self.device), dev.y.to(self.device))
        entry: Entry = {}
        for name, part in (("dev", dev), ("test", fusion.test)):
            logits = None if part is None else predict(model, part, self.device, size)
            entry[f"{name}_accuracy"], entry[f"{name}_loss"] = scores(logits, part)
            if name == "dev" and logits is not None:
                result.one_class = is_one_class(logits)
            if name in fusion.f1:
                entry[f"{name}_f1"] = None if logits is None else fusion.f1[name](logits)
        del entry["test_loss"]
        if self.maps is not None and fusion.test is not None:
            self.maps.add(model, fusion.test, self.device, fusion.config.batch_size)
        return entry

    def _end_epoch(self, result: Trained) -> None:
        """Select the epoch, and set the rate of the next one."""
        entry, selection = result.history[-1], self.config.selection
        if improves(result.history, result.selected_epoch, selection):
            result.selected_epoch = len(result.history)
            result.weights = _weights(self.fusions[0].model)
            if self.maps is not None:
                self.maps.keep()
        dev = entry.get("dev_f1", entry["dev_accuracy"])
        watched = {"dev-group": dev, "best-on-test": test_score(entry), "last": entry["train_loss"]}
        self.plateau.step(watched[selection] or 0.0)


def _weights(model: FusionClassifier, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Copy of the tensors of a model with these names, on the CPU; None: all."""
    every = model.state_dict()
    return {name: value.detach().cpu().clone() for name, value in every.items() if names is None or name in names}


class EpochMaps:
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
