"""Training of an adapter in an encoder, or of the whole encoder, on items rather than stored vectors.

Loss, selection, history and seeds are those of every training (`loop.py`), so that the two kinds of trial differ in
nothing else. Threads read items while the encoder works. The resume file holds the state of the random generators, so a
training that resumes after any optimiser step continues exactly as if it had not been interrupted. On a GPU this needs
deterministic kernels; where an operation has none, the result has a note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from daamctl.adapters import Effect, FineTuned, check_effect
from daamctl.artifacts.splits import Split
from daamctl.config import Config
from daamctl.devices import autocast, is_out_of_memory, release_memory, sent
from daamctl.errors import TrainingError
from daamctl.fit.batches import pieces, read_ahead, shuffled_batches
from daamctl.fit.inference import accuracy_of, cross_entropy_of
from daamctl.fit.loop import Epoch, Training, TrainingSetup
from daamctl.fit.losses import build_loss
from daamctl.fit.rng import generator_states, restore_generators, seed_everything, seed_generators
from daamctl.fit.search import refits

log = logging.getLogger(__name__)

WARM_UP_FRACTION = 0.1

NOT_DETERMINISTIC = " does not have a deterministic implementation"
"""What torch says of an operation that it refuses in deterministic mode; the name of the operation comes before it."""

T = TypeVar("T")


class Collating(Protocol):
    """The part of an encoder's interface that this loop uses.

    Attributes:
        equal_length_batches: whether items of different lengths must not share a batch.
        device: device that inputs go to.
    """

    equal_length_batches: bool
    device: str

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """The model's inputs on its device, and the mask (B, T) of positions that count."""


@dataclass(frozen=True)
class ItemSet:
    """Items of a corpus, read on demand. An item is a row of the clip table, or a sentence whose words are rows.

    Args:
        targets: (N,) class id of each row.
        sizes: (I,) length of each item.
        read: reads one item; called from several threads at once.
        plan: groups items of the given sizes into evaluation batches, longest first.
        members: the rows of each item, in the order of its logits; None: row i is item i.
    """

    targets: Tensor
    sizes: np.ndarray
    read: Callable[[int], Tensor]
    plan: Callable[[np.ndarray], list[np.ndarray]]
    members: Sequence[Sequence[int]] | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The items (n,) that hold the given rows; an item lies in one part of a split."""
        if self.members is None:
            return rows
        part = set(rows.tolist())
        return np.array([item for item, members in enumerate(self.members) if members[0] in part], np.int64)

    def rows(self, items: np.ndarray) -> np.ndarray:
        """Rows of the items, in the order of their logits."""
        if self.members is None:
            return items
        return np.array([row for item in items.tolist() for row in self.members[item]], np.int64)


class FinetunableEncoder(Collating, Protocol):
    """Interface of an encoder that can be fine-tuned.

    Attributes:
        model: the Hugging Face base model.
        layers: numbers of its layers.
        embed_dim: D.
    """

    model: Any
    layers: tuple[int, ...]
    embed_dim: int


@dataclass(frozen=True)
class Opened:
    """A fresh encoder, and the corpus as items that it can read.

    Args:
        encoder: frozen, in eval mode, on its device.
        facts: recorded facts of the encoder.
        items: one item for each row of the clip table.
    """

    encoder: FinetunableEncoder
    facts: Mapping[str, Any]
    items: ItemSet


@dataclass(frozen=True)
class Loaded:
    """Everything of a training that a pause releases.

    Args:
        opened: the encoder inside the model, and the items.
        model: the adapted encoder with its classifier, on its device.
        optimizer: of the trained tensors.
        rates: learning rate of each of its parameter groups, before the schedule's factor.
        scaler: gradient scaler.
    """

    opened: Opened
    model: FineTuned
    optimizer: torch.optim.Optimizer
    rates: tuple[float, ...]
    scaler: torch.amp.grad_scaler.GradScaler


@dataclass
class _Pass:
    """Progress within one pass over the training part.

    Args:
        steps: optimiser steps taken.
        loss: sum of the losses of the rows seen, a scalar on the device.
        right: number of correct predictions among them, a scalar on the device.
    """

    steps: int
    loss: Tensor
    right: Tensor


class AdapterTraining(Training):
    """Fine-tune one encoder. It is opened when training starts, and released while other candidates train.

    Args:
        open_model: opens a fresh encoder and adapts it; called again after a pause.
        split: rows of the training, held-out and test part.
        config: the section `finetune`; loss and selection come from `train`.
        setup: see `TrainingSetup`. `advance` is called with the number of rows trained on or evaluated, also by an
            earlier process if it left a resume file.
        patience: see `Training`.

    Attributes:
        effect: what the activity check found before training; None before that.
        micro_batch: items per forward pass; halved whenever memory runs out.
    """

    def __init__(
        self,
        open_model: Callable[[], tuple[Opened, FineTuned]],
        split: Split,
        config: Config,
        setup: TrainingSetup,
        *,
        patience: int | None,
    ) -> None:
        settings = config.finetune
        super().__init__(
            setup,
            section="finetune",
            epochs=settings.epochs,
            selection=config.train.selection,
            patience=patience if len(split.dev) else None,
        )
        self.open_model, self.split, self.config, self.settings = open_model, split, config, settings
        self.loss = build_loss(config.train)
        self.effect: Effect | None = None
        self.micro_batch = -(-settings.batch_size // settings.accumulate)
        # A training that a refit will repeat does not look at the test part.
        self.tested = split.test if setup.first is not None or not refits(config.train) else split.test[:0]
        self.under_way: _Pass | None = None
        self.generators: dict[str, Any] | None = None  # states saved in the middle of a pass, until that pass resumes
        self._loaded: Loaded | None = None

    @property
    def loaded(self) -> Loaded:
        """The model and its optimiser; valid after `prepare`."""
        assert self._loaded is not None
        return self._loaded

    @property
    def eval_precision(self) -> str:
        """Precision of autocast in evaluation; float32: no autocast."""
        return self.precision if self.settings.eval_precision == "same" else "float32"

    @cached_property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of one pass; valid after `prepare`."""
        return -(-len(self.loaded.opened.items.of(self.split.train)) // self.settings.batch_size)

    def prepare(self) -> None:
        """Open and adapt the encoder, check that the adapter acts, and resume.

        Raises:
            TrainingError: the adapters have no effect, or one item does not fit in memory.
            MethodError: this encoder does not support the method.
        """
        if self._loaded is not None:
            return
        seed_everything(self.seed, self.device)
        opened, model = self.open_model()
        optimizer = build_optimizer(
            model.parameter_groups(self.settings.lr, self.settings.weight_decay), fused=self.device.startswith("cuda")
        )
        rates = tuple(group["lr"] for group in optimizer.param_groups)
        scaler = torch.amp.grad_scaler.GradScaler(self.device.split(":")[0], enabled=self.precision == "float16")
        self._loaded = Loaded(opened, model, optimizer, rates, scaler)
        if self.device.startswith("cuda") and not self.done.notes:
            # With warnings only, the backward pass of attention keeps adding in any order.
            torch.use_deterministic_algorithms(True)
        if self.settings.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        if self.effect is None:
            self.effect = self._check_effect()
            for words in notes_on(model, self.effect):
                level = logging.WARNING if model.published or self.effect.silent else logging.INFO
                log.log(level, "%s: %s", model.name, words)
        self.resume()

    def release(self) -> None:
        """Release the encoder; `prepare` opens a fresh one."""
        if self._loaded is not None:
            self._loaded = None
            if torch.are_deterministic_algorithms_enabled():
                torch.use_deterministic_algorithms(True, warn_only=True)  # as every other training
            release_memory()

    def pause(self) -> None:
        """Save the state and release the encoder, if it is open."""
        if self._loaded is not None:
            super().pause()

    def one_pass(self, order_seed: int) -> tuple[float, float]:
        """Run one pass over the training part, or the rest of a resumed one; return its mean loss and accuracy."""
        items = self.loaded.opened.items
        epoch = len(self.done.history) + 1
        batches = self._batches(order_seed)
        seed_generators(order_seed)  # so that dropout, too, repeats after a resume
        self.under_way = seen = self.under_way or self._start()
        if self.generators is not None:
            restore_generators(self.generators)
            self.generators = None
            self.advance(sum(len(items.rows(batch)) for batch in batches[: seen.steps]))
        self.loaded.model.train_mode(self.settings.encoder_dropout)
        for batch, read in read_ahead(batches[seen.steps :], items.read, self.device):
            rows = items.rows(batch)
            factor = self._rate_factor((epoch - 1) * self.steps_per_epoch + seen.steps)
            for group, rate in zip(self.loaded.optimizer.param_groups, self.loaded.rates, strict=True):
                group["lr"] = rate * factor
            loss, right = self.step(read, batch)
            seen.loss += loss * len(rows)
            seen.right += right
            seen.steps += 1
            self.advance(len(rows))
            self.save_if_due()
        self.under_way = None
        number = len(self.split.train)
        return seen.loss.item() / number, seen.right.item() / number

    def step(self, read: Sequence[Tensor], items: np.ndarray) -> tuple[Tensor, Tensor]:
        """Take one optimiser step on a batch; return its mean loss and the number of correct predictions.

        Args:
            read: B items, as read.
            items: (B,) which ones they are.
        """
        optimizer, scaler = self.loaded.optimizer, self.loaded.scaler
        loss, right = self._within_memory(lambda most: self._gradients(read, items, most), len(read))
        held = [value for group in optimizer.param_groups for value in group["params"]]
        if any(value.grad is not None for value in held):
            if self.settings.grad_clip_norm is not None:
                scaler.unscale_(optimizer)  # so that clipping sees true, unscaled gradients
                nn.utils.clip_grad_norm_(held, self.settings.grad_clip_norm)
            try:
                scaler.step(optimizer)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                raise TrainingError(  # smaller pieces of a batch would not help, and some moments exist already
                    "the moments of the optimiser, two numbers for each trained one, do not fit in the device's memory",
                    fix="train fewer weights (e.g. lora-r8), or use --device cpu",
                ) from None
            scaler.update()
        return loss, right

    def evaluate(self, epoch: int, loss: float, accuracy: float) -> Epoch:
        """Evaluate the held-out and test parts; return the history entry, with the first learning rate of the epoch."""
        f1: dict[str, float | None] = {}
        dev_accuracy, dev_loss, f1["dev"] = self._scores("dev", self.split.dev)
        test_accuracy, _, f1["test"] = self._scores("test", self.tested)
        return {
            "epoch": epoch,
            "lr": self.loaded.rates[0] * self._rate_factor((epoch - 1) * self.steps_per_epoch),
            "train_loss": loss,
            "train_accuracy": accuracy,
            "dev_accuracy": dev_accuracy,
            "dev_loss": dev_loss,
            "test_accuracy": test_accuracy,
            **{f"{name}_f1": f1[name] for name in self.setup.entity_f1},
        }

    def finish(self) -> None:
        """Load the weights of the selected epoch and compute the predictions on the test part."""
        opened, model = self.loaded.opened, self.loaded.model
        model.load_trainable(self.best)
        found = self.evaluated.setdefault("final", [])
        given: dict[str, Any] = {"precision": self.eval_precision, "found": found, "on_batch": self.save_if_due}
        self.done.logits = self._repeatable(
            lambda: predict(model, opened.encoder, opened.items, self.split.test, **given)
        )

    def weights(self) -> dict[str, Tensor]:
        """Copy of the trained tensors, on CPU."""
        return self.loaded.model.trainable_state()

    def state(self) -> dict[str, Any]:
        """The optimiser and all trained tensors, but nothing frozen; within a pass, also its progress."""
        state: dict[str, Any] = {
            "optimizer": self.loaded.optimizer.state_dict(),
            "scaler": self.loaded.scaler.state_dict(),
            "trained": self.weights(),
            "most": self.micro_batch,
        }
        if (seen := self.under_way) is not None:
            sums = {"loss": seen.loss.item(), "right": int(seen.right.item())}
            state["pass"] = {"steps": seen.steps, **sums, "generators": generator_states()}
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Load a saved `state`; one without a pass was saved between epochs."""
        self.loaded.model.load_trainable(state["trained"])
        for saved, ours in zip(state["optimizer"]["param_groups"], self.loaded.optimizer.param_groups, strict=True):
            saved["fused"] = ours["fused"]  # depends on the device; the scaler relies on how this optimiser was built
        self.loaded.optimizer.load_state_dict(state["optimizer"])
        self.loaded.scaler.load_state_dict(state["scaler"])
        self.micro_batch = state["most"]
        epochs = len(state["history"])
        steps = self.steps_per_epoch if state.get("passed") is not None else 0
        if steps:
            self.advance(len(self.split.train))
        if (seen := state.get("pass")) is not None:
            steps = seen["steps"]
            self.under_way = self._start(steps, seen["loss"], seen["right"])
            self.generators = seen["generators"]
        new = epochs - len(self.done.history)
        if new or steps:
            within = f" and {steps} of {self.steps_per_epoch} steps" if steps else ""
            log.info("resuming after epoch %d of %d%s", epochs, self.settings.epochs, within)
        self.advance(new * (len(self.split.train) + len(self.split.dev) + len(self.tested)))

    def _check_effect(self) -> Effect:
        """Check whether the adapters act, on the first piece of the first batch."""
        opened, model = self.loaded.opened, self.loaded.model
        batch = self._batches(self.order_seed)[0]
        read = [opened.items.read(item) for item in batch.tolist()]

        def check(most: int) -> Effect:
            piece = pieces(read, most, equal_length=opened.encoder.equal_length_batches)[0]
            inputs, mask = opened.encoder.collate([read[position] for position in piece])
            return check_effect(model, inputs, mask, self._targets(batch[piece]), self.loss)

        return self._within_memory(check, len(batch))

    def _batches(self, order_seed: int) -> list[np.ndarray]:
        """Items of each batch of an epoch, in training order."""
        items = self.loaded.opened.items
        train = items.of(self.split.train)
        order = shuffled_batches(items.sizes[train], self.settings.batch_size, order_seed)
        return [train[batch] for batch in order]

    def _rate_factor(self, step: int) -> float:
        return rate_factor(step, self.settings.epochs * self.steps_per_epoch, self.settings.schedule)

    def _scores(self, name: str, rows: np.ndarray) -> tuple[float | None, float | None, float | None]:
        """Accuracy, mean cross-entropy and, for taggers, entity F1 on the given rows; None if there are none.

        It goes on where an earlier process was interrupted.
        """
        if not len(rows):
            return None, None, None
        opened, found = self.loaded.opened, self.evaluated.setdefault(name, [])
        given: dict[str, Any] = {"found": found, "on_items": self.advance, "on_batch": self.save_if_due}
        given["precision"] = self.eval_precision
        logits = self._repeatable(lambda: predict(self.loaded.model, opened.encoder, opened.items, rows, **given))
        targets = opened.items.targets[rows]
        f1 = self.setup.entity_f1.get(name)
        return accuracy_of(logits, targets), cross_entropy_of(logits, targets), None if f1 is None else f1(logits)

    def _start(self, steps: int = 0, loss: float = 0.0, right: int = 0) -> _Pass:
        exact = torch.float32 if self.device == "mps" else torch.float64  # mps has no float64
        loss_sum = torch.tensor(loss, device=self.device, dtype=exact)
        return _Pass(steps, loss_sum, torch.tensor(right, device=self.device, dtype=torch.int64))

    def _gradients(self, read: Sequence[Tensor], items: np.ndarray, most: int) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of a batch's mean loss over its pieces, however it is cut."""
        model, encoder, scaler = self.loaded.model, self.loaded.opened.encoder, self.loaded.scaler
        model.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        known = self.loaded.opened.items
        number = len(known.rows(items))
        for piece in pieces(read, most, equal_length=encoder.equal_length_batches):
            inputs, mask = encoder.collate([read[position] for position in piece])
            y = self._targets(items[piece])
            with autocast(self.device, self.precision):
                logits = model(inputs, mask)
                loss = self.loss(logits, y) * (len(y) / number)
            if loss.requires_grad:  # a published variant may train nothing at all (D3)
                scaler.scale(loss).backward()
            total += loss.detach()
            right += (logits.argmax(-1) == y).sum()
        return total, right

    def _targets(self, items: np.ndarray) -> Tensor:
        """Class ids of the rows of items, on the device."""
        known = self.loaded.opened.items
        return sent(known.targets[known.rows(items)], self.device)

    def _repeatable(self, work: Callable[[], T]) -> T:
        """Run `work` with deterministic kernels; if an operation has none, note that, and continue without."""
        try:
            return work()
        except RuntimeError as error:
            operation, refused, _ = str(error).partition(NOT_DETERMINISTIC)
            if not refused:
                raise
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.done.notes.append(
            f"another run would differ by rounding: {operation.split()[-1]} has no deterministic implementation on "
            f"{self.device.split(':')[0]}"
        )
        log.warning("%s", self.done.notes[-1])
        return work()

    def _within_memory(self, work: Callable[[int], T], size: int) -> T:
        """Run `work` with as many items at once as fit; after a failure, halve that number for good.

        Raises:
            TrainingError: not even one item fits.
        """
        while True:
            try:
                return self._repeatable(lambda: work(self.micro_batch))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if self.micro_batch == 1:
                    raise TrainingError(
                        "not even one item fits in the device's memory",
                        fix="use --set finetune.gradient_checkpointing=true, a lower segment.max_duration_s or "
                        "finetune.max_tokens, or --device cpu",
                    ) from None
            self.loaded.model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            self.micro_batch = -(-min(self.micro_batch, size) // 2)
            log.warning("out of memory; from now on %d item(s) at once (raise finetune.accumulate)", self.micro_batch)


def build_optimizer(groups: list[dict[str, Any]], *, fused: bool) -> torch.optim.Optimizer:
    """AdamW over parameter groups; `fused` updates all tensors in one kernel.

    On a CPU it is not fused: that would change rounding, and its steps take no time beside the encoder's.
    """
    return torch.optim.AdamW(groups, fused=fused or None)


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
    precision: str = "float32",
    found: list[Tensor] | None = None,
    on_items: Callable[[int], None] = lambda count: None,
    on_batch: Callable[[], None] = lambda: None,
) -> Tensor:
    """Logits (n, C) float32 on CPU, in eval mode, in the order of `rows`.

    Args:
        model: the model.
        encoder: the encoder in it.
        items: all items.
        rows: (n,) which of them.
        precision: of autocast; float32: none.
        found: logits of the first planned batches, as an interrupted call has left them; those of the others are
            appended. They are ignored if the batches are planned differently now.
        on_items: called with the number of finished rows.
        on_batch: called after each batch.
    """
    model.eval()
    chosen = items.of(rows)
    planned = [chosen[positions] for positions in items.plan(items.sizes[chosen])]
    found = [] if found is None else found
    if [len(one) for one in found] != [len(items.rows(batch)) for batch in planned[: len(found)]]:
        found.clear()
    on_items(sum(map(len, found)))
    left = planned[len(found) :]
    for batch, read in read_ahead(left, items.read, encoder.device):
        cut = pieces(read, len(read), equal_length=encoder.equal_length_batches)
        logits = torch.cat(
            [_classify(model, encoder, [read[position] for position in piece], precision) for piece in cut]
        )
        in_order = items.rows(batch)
        found.append(logits[_places(in_order, items.rows(batch[np.concatenate(cut)]))])
        on_items(len(in_order))
        on_batch()
    return torch.cat(found)[_places(rows, items.rows(np.concatenate(planned)))]


def _places(wanted: np.ndarray, given: np.ndarray) -> Tensor:
    """Where each of the wanted rows (n,) is among the given ones (n,), which are the same in another order."""
    order = np.argsort(given)
    return torch.from_numpy(order[np.searchsorted(given, wanted, sorter=order)])


def _classify(model: FineTuned, encoder: Collating, items: Sequence[Tensor], precision: str) -> Tensor:
    """Logits of a batch; if the device's memory is too small, the batch is split in halves.

    Raises:
        TrainingError: not even one item fits.
    """
    try:
        inputs, mask = encoder.collate(items)
        with autocast(encoder.device, precision):
            logits: Tensor = model(inputs, mask)
        return logits.float().cpu()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise TrainingError(
                "one item does not fit in the device's memory",
                fix="use --device cpu, or a lower segment.max_duration_s or finetune.max_tokens",
            ) from None
    torch.cuda.empty_cache()
    log.warning("out of memory with %d items in a test batch; trying halves (lower extract.max_batch_…)", len(items))
    half = len(items) // 2
    return torch.cat([_classify(model, encoder, part, precision) for part in (items[:half], items[half:])])
