"""The training loop: epochs, selection, early stopping, resume and refit, for every kind of trial.

A kind of training says how to run one pass over its training part and how to evaluate; see `FusionTraining` and
`AdapterTraining`. It advances one epoch at a time, so that `batched` can step several trainings together and `search`
can stop weak candidates early. The batch order depends only on (seed, epoch) and the training part. A training that
resumes therefore continues exactly as if it had not been interrupted.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from daamctl.artifacts.results import SearchPart
from daamctl.energy import Meter, total
from daamctl.errors import DivergedError
from daamctl.threads import continue_with
from daamctl.training.checkpoint import SaveTimer, load_state, save_state

log = logging.getLogger(__name__)

CHECKPOINT_EVERY_S = 5.0
SAVING_FRACTION = 0.05
"""Share of the time to spend on saving: the state of a fully fine-tuned encoder takes gigabytes."""
LEAST_GAIN = 0.01
"""Smallest drop of the held-out loss, in nats at equal accuracy, that counts as progress for early stopping."""

Epoch = dict[str, float | int | None]


@dataclass
class Trained:
    """Result of a finished training.

    Args:
        history: one entry per epoch: epoch, lr, train_loss, train_accuracy, dev_accuracy, dev_loss, test_accuracy; of
            taggers also dev_f1 and test_f1. A refit holds nothing out; its dev figures are copied from the training
            that it repeats.
        selected_epoch: 1-based epoch whose weights the model now holds.
        epochs: number of epochs to select from; for a refit, those of the training that it repeats.
        logits: (N_test, C) float32 at that epoch.
        density: mean density over the test clips, (L, D); None if the method has none.
        untrained_density: the same before the first step.
        layer_weights: mean over the test clips of each layer's weight, (L,); None if the method weighs no layers.
        untrained_layer_weights: the same before the first step.
        train_s: wall time spent in epochs, in seconds, without interruptions; a search counts all its candidates.
        joules: energy of the GPU in these seconds; None where the driver does not tell.
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
    joules: float | None = 0.0
    search: SearchPart | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingSetup:
    """What every training takes besides its model, data and settings.

    Args:
        seed: order of batches and dropout.
        device: resolved device.
        precision: resolved precision of the training step.
        work: folder for the resume file.
        key: content key of the training; a resume file with another key is ignored.
        may_diverge: if the loss is not finite, end this training instead of raising, so that other candidates continue.
        entity_f1: part (`dev`, `test`) -> function of its logits that gives the entity F1, for taggers; see `tagging`.
        first: result of the training that this one repeats with the held-out group included (a refit); it then runs for
            the selected number of epochs and keeps the last one.
        advance: called with the number of finished units of work.
    """

    seed: int
    device: str
    precision: str
    work: Path
    key: str
    may_diverge: bool = False
    entity_f1: Mapping[str, Callable[[Tensor], float]] = field(default_factory=dict)
    first: Trained | None = None
    advance: Callable[[int], None] = lambda units: None


class Training:
    """Train one model epoch by epoch; base class of the kinds of training.

    Subclasses implement `one_pass`, `evaluate`, `weights`, `state`, `restore` and `finish`, and call `resume` when
    their model exists. One that is expensive to hold also implements `prepare` and `release`.

    Args:
        setup: see `TrainingSetup`.
        section: section of the settings, `train` or `finetune`; for error messages.
        epochs: largest number of epochs.
        selection: rule that selects the epoch; see `improves`.
        patience: stop after this many epochs without progress on the held-out group; None: never.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        *,
        section: Literal["train", "finetune"],
        epochs: int,
        selection: str,
        patience: int | None,
    ) -> None:
        self.setup, self.section = setup, section
        self.seed, self.device, self.precision = setup.seed, setup.device, setup.precision
        self.work, self.key, self.advance, self.first = setup.work, setup.key, setup.advance, setup.first
        self.epochs, self.selection, self.patience = epochs, selection, patience
        self.done = Trained()
        if self.first is not None:
            self.epochs, self.selection, self.patience = self.first.selected_epoch, "last", None
            self.done.search = self.first.search
        self.diverged = False
        self.before_s = 0.0  # seconds spent in other trainings of this fold
        self.before_joules: float | None = 0.0
        self.meter = Meter(self.device)
        self.best: dict[str, Tensor] = {}
        self.on_epoch: Callable[[Epoch], None] = lambda entry: None
        self.save_timer = SaveTimer(every_s=CHECKPOINT_EVERY_S, fraction=SAVING_FRACTION)
        self.passed: tuple[float, float] | None = None  # loss and accuracy of a pass, until its evaluation is complete
        self.evaluated: dict[str, list[Tensor]] = {}  # part -> logits of its batches so far, until then
        self._pass_started: float | None = None
        self._share = 1.0

    def one_pass(self, order_seed: int) -> tuple[float, float]:
        """Run one pass over the training part; return its mean loss and accuracy.

        Args:
            order_seed: seed of the batch order and dropout of this epoch.
        """
        raise NotImplementedError

    def evaluate(self, epoch: int, loss: float, accuracy: float) -> Epoch:
        """Evaluate after a pass with this loss and accuracy; return the history entry of the epoch (1-based)."""
        raise NotImplementedError

    def weights(self) -> dict[str, Tensor]:
        """Copy of the trained tensors, on CPU, for the epoch that has just been selected."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What the resume file needs besides the results so far."""
        raise NotImplementedError

    def restore(self, state: dict[str, Any]) -> None:
        """Load a saved `state`; the results so far are still those from before it was loaded."""
        raise NotImplementedError

    def finish(self) -> None:
        """Load the weights of the selected epoch and fill in the results that need them."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make sure that the model is in memory."""

    def release(self) -> None:
        """Free what `prepare` can load again."""

    def pause(self) -> None:
        """Save the state, then release."""
        self.save()
        self.release()

    @property
    def ended(self) -> bool:
        """Whether all epochs are done, or early stopping has run out of patience."""
        history = self.done.history
        if self.diverged or len(history) >= self.epochs:
            return True
        return self.patience is not None and epochs_waited(history) >= self.patience

    def reached(self, epochs: int | None) -> bool:
        """Whether `epochs` epochs are done or the training has ended; with None, whether it has ended."""
        return self.ended or (epochs is not None and len(self.done.history) >= epochs)

    @property
    def order_seed(self) -> int:
        """Seed of the next epoch's batch order and dropout."""
        return self.seed * 1_000_003 + len(self.done.history) + 1

    def save_if_due(self) -> None:
        """Save the state if the last time is long enough ago."""
        self.save_timer.save_if_due(self.save)

    def follow(self, on_epoch: Callable[[Epoch], None]) -> None:
        """Call `on_epoch` with all epochs so far, and with each later one."""
        for entry in self.done.history:
            on_epoch(entry)
        self.on_epoch = on_epoch

    def train_until(self, epochs: int | None) -> None:
        """Train until `epochs` epochs are done; with None, to the end.

        Raises:
            TrainingError: the loss is no longer finite, or the model does not train.
        """
        if not self.reached(epochs):
            self.prepare()
        while not self.reached(epochs):
            self.train_epoch()

    def train_epoch(self) -> None:
        """Train one epoch: one pass over the training part, then evaluation, selection and checkpointing."""
        started = self.begin_pass()
        if self.passed is None:  # else an earlier process was interrupted in the evaluation
            self.passed = self.one_pass(self.order_seed)
        self.end_epoch(*self.passed, time.monotonic() - started)

    def begin_pass(self, share: float = 1.0) -> float:
        """Begin to count the time and energy of a pass, of which this training has a share; return the present time."""
        self.meter.start()
        self._share = share
        self._pass_started = time.monotonic()
        return self._pass_started

    def end_epoch(self, loss: float, accuracy: float, pass_s: float) -> None:
        """Evaluate after a pass, update the selection, call `on_epoch` and save the resume file if due.

        Args:
            loss: mean loss of the pass.
            accuracy: accuracy of the pass.
            pass_s: duration of the pass, in seconds.

        Raises:
            DivergedError: the loss is no longer finite.
        """
        started, done = time.monotonic(), self.done
        epoch = len(done.history) + 1
        self.passed = loss, accuracy
        if not math.isfinite(loss):
            self._diverge("training", loss, epoch)
            return
        entry = self.evaluate(epoch, loss, accuracy)
        dev_loss = entry["dev_loss"] or 0.0
        if not math.isfinite(dev_loss):
            self._diverge("held-out", dev_loss, epoch)
            return
        self.passed = self._pass_started = None
        self.evaluated.clear()
        if self.first is not None:
            before = self.first.history[epoch - 1]
            entry |= {name: before[name] for name in ("dev_accuracy", "dev_loss", "dev_f1") if name in before}
        done.history.append(entry)
        if improves(done.history, done.selected_epoch, self.selection):
            done.selected_epoch = epoch
            self.best = self.weights()
        epoch_s = pass_s + time.monotonic() - started
        done.train_s += epoch_s
        done.joules = total(done.joules, self.meter.used(epoch_s))
        self.meter.start()  # a joint training does not start it
        self.on_epoch(entry)
        if not self.ended:
            self.save_if_due()

    def complete(self) -> Trained:
        """Train the remaining epochs, load the selected epoch's weights and return the results.

        Raises:
            TrainingError: see `train_until`.
        """
        self.train_until(None)
        self.prepare()
        self.finish()
        self.done.train_s += self.before_s
        self.done.joules = total(self.done.joules, self.before_joules)
        self.done.epochs = len((self.first or self.done).history)
        return self.done

    def save(self) -> None:
        """Write the resume file."""
        done = self.done
        train_s, joules = done.train_s, done.joules
        if self._pass_started is not None:
            pass_s = (time.monotonic() - self._pass_started) * self._share
            train_s, joules = train_s + pass_s, total(joules, self.meter.used(pass_s))
        results: dict[str, Any] = {"history": done.history, "selected_epoch": done.selected_epoch}
        results |= {"train_s": train_s, "joules": joules}
        results["threads"] = torch.get_num_threads()
        if self.passed is not None:
            results["passed"] = self.passed
        if self.evaluated:
            results["evaluated"] = {
                name: {"logits": torch.cat(batches), "sizes": list(map(len, batches))}
                for name, batches in self.evaluated.items()
                if batches
            }
        save_state(self.work, self.key, {**self.state(), "best": self.best, **results})

    def resume(self) -> None:
        """Continue from the resume file, if there is one with this key; report epochs that are not known yet."""
        state, done = load_state(self.work, self.key), self.done
        if state is None:
            return
        known = len(done.history)
        continue_with(state.get("threads"))
        self.restore(state)
        self.best, done.history, done.train_s = state["best"], state["history"], state["train_s"]
        done.joules = state.get("joules")  # files of older versions have none
        done.selected_epoch = state["selected_epoch"]
        self.passed = state.get("passed")
        self.evaluated = {
            name: list(part["logits"].split(part["sizes"])) for name, part in state.get("evaluated", {}).items()
        }
        for entry in done.history[known:]:
            self.on_epoch(entry)

    def _diverge(self, what: str, loss: float, epoch: int) -> None:
        if not self.setup.may_diverge:
            raise DivergedError(
                f"the {what} loss is {loss} in epoch {epoch}",
                fix=f"lower {self.section}.lr, or train with --set {self.section}.precision=float32",
            )
        self.diverged = True


def improves(history: list[Epoch], selected: int, selection: str) -> bool:
    """Whether the newest epoch should be selected.

    On the held-out group, the higher accuracy wins (of taggers the higher entity F1), then the lower loss, because many
    epochs tie on a small group. On the test group, the first epoch with the highest figure wins, as published.

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
    return test_score(newest) > test_score(best)


def test_score(entry: Epoch) -> float:
    """Figure of an epoch on the test group: entity F1 of taggers, else accuracy."""
    return entry.get("test_f1", entry["test_accuracy"]) or 0.0


def dev_score(entry: Epoch) -> tuple[float, float]:
    """Sort key of an epoch on the held-out group: accuracy, or entity F1 of taggers, then the negated loss."""
    accuracy, loss = entry.get("dev_f1", entry["dev_accuracy"]), entry.get("dev_loss")
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
