"""Fine-tuning loop: trains an adapter in an encoder, or the whole encoder, on items rather than stored vectors.

Loss, selection, history and seeds are the same as in the loop over frozen layers (`loop.py`), so that the two kinds of
method differ in nothing else. Threads read items while the encoder works. The batch order depends only on
(seed, epoch), and the resume file holds the state of the random generators. So a run resumed after any optimiser step
continues exactly as if it had not been interrupted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from daamctl.adapters import Effect, FineTuned, check_effect
from daamctl.artifacts.splits import Split
from daamctl.config import Config
from daamctl.devices import autocast
from daamctl.errors import DivergedError, TrainingError
from daamctl.training.batches import pieces, read_ahead, shuffled_batches
from daamctl.training.checkpoint import Saving, load_state, save_state
from daamctl.training.inference import accuracy_of, cross_entropy_of
from daamctl.training.loop import CHECKPOINT_EVERY_S, Epoch, Trained, epochs_waited, improves
from daamctl.training.losses import build_loss
from daamctl.training.rng import generator_states, restore_generators, seed_generators

log = logging.getLogger(__name__)

WARM_UP_FRACTION = 0.1
SAVING_FRACTION = 0.05

T = TypeVar("T")


class Collating(Protocol):
    """The part of an encoder's interface that this loop uses.

    Attributes:
        equal_length_batches: whether items of different lengths must not share a batch.
    """

    equal_length_batches: bool

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The model's inputs on its device, and the mask (B, T) of positions that count."""


@dataclass(frozen=True)
class ItemSet:
    """Items of a corpus, read on demand.

    Args:
        targets: (N,) class ids.
        sizes: (N,) length of each item.
        read: reads one item by row; called from several threads at once.
        plan: groups items of the given sizes into evaluation batches, longest first.
    """

    targets: Tensor
    sizes: np.ndarray
    read: Callable[[int], Tensor]
    plan: Callable[[np.ndarray], list[np.ndarray]]


@dataclass
class Finetuned(Trained):
    """Result of a finished fine-tuning, in addition to that of any training.

    Args:
        effect: what the activity check found before training.
        micro_batch: items per forward pass at the end, after any halving for lack of memory.
    """

    effect: Effect | None = None
    micro_batch: int = 0


@dataclass
class _Pass:
    """Progress within one pass over the training part.

    Args:
        steps: optimiser steps taken.
        loss: sum of the losses of the items seen, a scalar on the device.
        right: number of correct predictions among them, a scalar on the device.
    """

    steps: int
    loss: Tensor
    right: Tensor


def tune(
    model: FineTuned,
    encoder: Collating,
    items: ItemSet,
    split: Split,
    config: Config,
    *,
    seed: int,
    device: str,
    precision: str,
    work: Path,
    key: str,
    until: int | None = None,
    again: Finetuned | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    on_items: Callable[[int], None] = lambda count: None,
) -> Finetuned:
    """Fine-tune `model` in place; it ends up with the weights of the selected epoch.

    Args:
        model: freshly built, on its device.
        encoder: the encoder inside the model.
        items: items of the whole corpus.
        split: rows of the training, held-out and test part.
        config: the section `finetune`; loss and selection come from `train`.
        seed: batch order and dropout.
        device: resolved device.
        precision: resolved precision of the training step; evaluation does not use autocast.
        work: folder for the resume file.
        key: content key of the fold; a resume file with another key is ignored.
        until: stop after this epoch, with a resume file but without predictions; None: train to the end.
        again: a fine-tuning of the same model on fewer items; train for the number of epochs that it selected.
        on_epoch: called after each epoch with its history entry (also for epochs replayed from a resume file).
        on_items: called with the number of items just trained on or evaluated.

    Raises:
        TrainingError: the adapters have no effect, the loss is no longer finite, or one item does not fit in memory.
    """
    run = _Finetuning(model, encoder, items, split, config, device, precision, on_items)
    last = config.finetune.epochs if again is None else again.selected_epoch
    effect = run.effect(seed)
    for words in notes_on(model, effect):
        log.log(logging.WARNING if model.published or effect.silent else logging.INFO, "%s: %s", model.name, words)
    done = Finetuned(effect=effect)
    best: dict[str, Tensor] = {}
    state = load_state(work, key)
    if state is not None:
        run.restore(state)
        best, done.history, done.train_s = state["best"], state["history"], state["train_s"]
        done.selected_epoch = state["selected_epoch"]
        for entry in done.history:
            on_epoch(entry)
            on_items(run.items_per_epoch)
    clock = time.monotonic()

    def save() -> None:
        nonlocal clock
        done.train_s += time.monotonic() - clock
        told = {"best": best, "history": done.history, "train_s": done.train_s}
        save_state(work, key, {**run.state(), **told, "selected_epoch": done.selected_epoch})
        clock = time.monotonic()

    saving = Saving(save, every_s=CHECKPOINT_EVERY_S, fraction=SAVING_FRACTION)
    while len(done.history) < min(last, until or last) and not run.waited_enough(done.history):
        epoch = len(done.history) + 1
        entry = run.epoch(epoch, seed, saving.if_due)
        if again is not None:
            entry |= {name: again.history[epoch - 1][name] for name in ("dev_accuracy", "dev_loss")}
        done.history.append(entry)
        if improves(done.history, done.selected_epoch, config.train.selection):
            done.selected_epoch = epoch
            best = model.trainable_state()
        on_epoch(entry)
        saving.if_due()
    if until is not None:
        save()
        return done
    done.train_s += time.monotonic() - clock
    model.load_trainable(best)
    done.epochs = len((again or done).history)
    done.logits = predict(model, encoder, items, split.test)
    done.micro_batch = run.most
    return done


class _Finetuning:
    """Optimiser, learning rates and gradient scaler of one model, and its passes over the items."""

    def __init__(
        self,
        model: FineTuned,
        encoder: Collating,
        items: ItemSet,
        split: Split,
        config: Config,
        device: str,
        precision: str,
        on_items: Callable[[int], None],
    ) -> None:
        self.model, self.encoder, self.items, self.split = model, encoder, items, split
        self.settings, self.selection = config.finetune, config.train.selection
        self.device, self.precision, self.on_items = device, precision, on_items
        self.loss = build_loss(config.train)
        self.optimizer = torch.optim.AdamW(model.parameter_groups(self.settings.lr, self.settings.weight_decay))
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.scaler = torch.amp.grad_scaler.GradScaler(device.split(":")[0], enabled=precision == "float16")
        self.most = -(-self.settings.batch_size // self.settings.accumulate)
        self.steps_per_epoch = -(-len(split.train) // self.settings.batch_size)
        self.under_way: _Pass | None = None
        self.generators: dict[str, Any] | None = None  # states saved in the middle of a pass, until that pass resumes
        if self.settings.gradient_checkpointing:
            model.enable_gradient_checkpointing()

    @property
    def items_per_epoch(self) -> int:
        """Items trained on and evaluated in one epoch."""
        return len(self.split.train) + len(self.split.dev) + len(self.split.test)

    def state(self) -> dict[str, Any]:
        """State for the resume file: the optimiser and all trained tensors, but nothing frozen."""
        parts = {name: getattr(self, name).state_dict() for name in ("optimizer", "scaler")}
        if (seen := self.under_way) is not None:
            sums = {"loss": seen.loss.item(), "right": int(seen.right.item())}
            parts["pass"] = {"steps": seen.steps, **sums, "generators": generator_states()}
        return {**parts, "trained": self.model.trainable_state(), "most": self.most}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a saved `state`; one without a pass was saved between epochs."""
        self.model.load_trainable(state["trained"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.most = state["most"]
        where = f"epoch {len(state['history'])} of {self.settings.epochs}"
        if (seen := state.get("pass")) is not None:
            self.under_way = self._start(seen["steps"], seen["loss"], seen["right"])
            self.generators = seen["generators"]
            where += f" and {seen['steps']} of {self.steps_per_epoch} steps"
        log.info("resuming after %s", where)

    def effect(self, seed: int) -> Effect:
        """Check whether the adapters act, on the first piece of the first batch."""
        rows = self._batches(1, seed)[0]
        read = [self.items.read(row) for row in rows.tolist()]

        def check(most: int) -> Effect:
            piece = pieces(read, most, equal_length=self.encoder.equal_length_batches)[0]
            inputs, mask = self.encoder.collate([read[position] for position in piece])
            targets = self.items.targets[rows[piece]].to(self.device)
            return check_effect(self.model, inputs, mask, targets, self.loss)

        return self._within_memory(check, len(rows))

    def epoch(self, epoch: int, seed: int, after_step: Callable[[], None]) -> Epoch:
        """Train one epoch, or the rest of a resumed one, then evaluate.

        Args:
            epoch: 1-based.
            seed: seed of the run.
            after_step: called after every optimiser step, when the state is consistent.
        """
        lr = self._set_rates((epoch - 1) * self.steps_per_epoch)
        train_loss, train_accuracy = self._pass(epoch, seed, after_step)
        self.under_way = None
        dev, dev_loss = self._scores(self.split.dev)
        _check_finite("held-out", dev_loss or 0.0, epoch)
        test, _ = self._scores(self.split.test)
        return {
            "epoch": epoch,
            "lr": lr,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "dev_accuracy": dev,
            "dev_loss": dev_loss,
            "test_accuracy": test,
        }

    def _batches(self, epoch: int, seed: int) -> list[np.ndarray]:
        """Rows of each batch of an epoch, in training order."""
        train = self.split.train
        order = shuffled_batches(self.items.sizes[train], self.settings.batch_size, seed * 1_000_003 + epoch)
        return [train[batch] for batch in order]

    def waited_enough(self, history: list[Epoch]) -> bool:
        """Whether early stopping has run out of patience."""
        patience = self.settings.patience if len(self.split.dev) and not self.model.published else None
        return patience is not None and epochs_waited(history) >= patience

    def _scores(self, rows: np.ndarray) -> tuple[float | None, float | None]:
        """Accuracy and mean cross-entropy on the given rows; None if there are none."""
        if not len(rows):
            return None, None
        logits = predict(self.model, self.encoder, self.items, rows, on_items=self.on_items)
        targets = self.items.targets[rows]
        return accuracy_of(logits, targets), cross_entropy_of(logits, targets)

    def _start(self, steps: int = 0, loss: float = 0.0, right: int = 0) -> _Pass:
        exact = torch.float32 if self.device == "mps" else torch.float64  # mps has no float64
        loss_sum = torch.tensor(loss, device=self.device, dtype=exact)
        return _Pass(steps, loss_sum, torch.tensor(right, device=self.device, dtype=torch.int64))

    def _pass(self, epoch: int, seed: int, after_step: Callable[[], None]) -> tuple[float, float]:
        """Run one pass over the training part; return the mean loss and accuracy seen during training."""
        batches = self._batches(epoch, seed)
        seed_generators(seed * 1_000_003 + epoch)  # so that dropout, too, repeats after a resume
        self.under_way = seen = self.under_way or self._start()
        if self.generators is not None:
            restore_generators(self.generators)
            self.generators = None
            self.on_items(sum(map(len, batches[: seen.steps])))
        self.model.train_mode(self.settings.encoder_dropout)
        for rows, items in read_ahead(batches[seen.steps :], self.items.read):
            self._set_rates((epoch - 1) * self.steps_per_epoch + seen.steps)
            loss, right = self._step(items, self.items.targets[rows])
            seen.loss += loss * len(rows)
            seen.right += right
            seen.steps += 1
            self.on_items(len(rows))
            after_step()
        mean = seen.loss.item() / len(self.split.train)
        _check_finite("training", mean, epoch)
        return mean, seen.right.item() / len(self.split.train)

    def _step(self, items: Sequence[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
        """Take one optimiser step on a batch; return its mean loss and the number of correct predictions."""
        loss, right = self._within_memory(lambda most: self._gradients(items, targets, most), len(items))
        held = [value for group in self.optimizer.param_groups for value in group["params"]]
        if any(value.grad is not None for value in held):
            if self.settings.grad_clip_norm is not None:
                self.scaler.unscale_(self.optimizer)  # so that clipping sees true, unscaled gradients
                nn.utils.clip_grad_norm_(held, self.settings.grad_clip_norm)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss, right

    def _gradients(self, items: Sequence[Tensor], targets: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of a batch's mean loss over its pieces, however it is cut."""
        self.model.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        for piece in pieces(items, most, equal_length=self.encoder.equal_length_batches):
            inputs, mask = self.encoder.collate([items[position] for position in piece])
            y = targets[piece].to(self.device)
            with autocast(self.device, self.precision):
                logits = self.model(inputs, mask)
                loss = self.loss(logits, y) * (len(piece) / len(items))
            if loss.requires_grad:  # a published variant may train nothing at all (D3)
                self.scaler.scale(loss).backward()
            total += loss.detach()
            right += (logits.argmax(-1) == y).sum()
        return total, right

    def _within_memory(self, work: Callable[[int], T], size: int) -> T:
        """Run `work` with as many items at once as fit; after a failure, halve that number for the rest of the run.

        Raises:
            TrainingError: not even one item fits.
        """
        while True:
            try:
                return work(self.most)
            except torch.OutOfMemoryError:
                if self.most == 1:
                    raise TrainingError(
                        "not even one item fits in the device's memory",
                        fix="use --set finetune.gradient_checkpointing=true, a lower segment.max_duration_s or "
                        "finetune.max_tokens, or --device cpu",
                    ) from None
            self.model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.most = -(-min(self.most, size) // 2)
            log.warning("out of memory; from now on %d item(s) at once (raise finetune.accumulate)", self.most)

    def _set_rates(self, step: int) -> float:
        """Set the learning rates of a step, counted from 0; return the first."""
        factor = rate_factor(step, self.settings.epochs * self.steps_per_epoch, self.settings.schedule)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        return float(self.optimizer.param_groups[0]["lr"])


def _check_finite(what: str, loss: float, epoch: int) -> None:
    if not np.isfinite(loss):
        raise DivergedError(
            f"the {what} loss is {loss} in epoch {epoch}",
            fix="lower finetune.lr, or train with --set finetune.precision=float32",
        )


def notes_on(model: FineTuned, effect: Effect) -> list[str]:
    """Caveats for the report: remarks on the model, and adapters that do nothing (D2)."""
    notes = list(model.notes)
    if effect.silent:
        words = f"no gradient reaches {len(effect.silent)} of the {effect.tensors} tensors trained in the encoder"
        if effect.output_change == 0:
            words += ", and whatever they hold, no logit changes: the encoder stays as it was (D2)"
        notes.append(words)
    return notes


def rate_factor(step: int, steps: int, schedule: str) -> float:
    """Factor on the learning rate at a step.

    Args:
        step: counted from 0.
        steps: total number of steps.
        schedule: `linear`: warm-up over the first tenth of the steps, then linear decay to 0 one step after the last;
            `constant`: always 1.
    """
    if schedule == "constant":
        return 1.0
    warm_up = max(1, round(WARM_UP_FRACTION * steps))
    return min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))


@torch.no_grad()
def predict(
    model: FineTuned,
    encoder: Collating,
    items: ItemSet,
    rows: np.ndarray,
    *,
    on_items: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Logits (n, C) float32 on CPU, in eval mode and without autocast, in the order of `rows`."""
    model.eval()
    planned = items.plan(items.sizes[rows])
    found: list[tuple[np.ndarray, Tensor]] = []
    for positions, (_, read) in zip(planned, read_ahead([rows[batch] for batch in planned], items.read), strict=True):
        for piece in pieces(read, len(read), equal_length=encoder.equal_length_batches):
            found.append((positions[piece], _classify(model, encoder, [read[position] for position in piece])))
        on_items(len(read))
    order = np.argsort(np.concatenate([positions for positions, _ in found]))
    return torch.cat([logits for _, logits in found])[torch.from_numpy(order)]


def _classify(model: FineTuned, encoder: Collating, items: Sequence[Tensor]) -> Tensor:
    """Logits of a batch; if the device's memory is too small, the batch is split in halves.

    Raises:
        TrainingError: not even one item fits.
    """
    try:
        inputs, mask = encoder.collate(items)
        logits: Tensor = model(inputs, mask)
        return logits.float().cpu()
    except torch.OutOfMemoryError:
        if len(items) == 1:
            raise TrainingError(
                "one item does not fit in the device's memory",
                fix="use --device cpu, or a lower segment.max_duration_s or finetune.max_tokens",
            ) from None
    torch.cuda.empty_cache()
    log.warning("out of memory with %d items in a test batch; trying halves (lower extract.max_batch_…)", len(items))
    half = len(items) // 2
    return torch.cat([_classify(model, encoder, items[:half]), _classify(model, encoder, items[half:])])
