"""Training of an adapter in an encoder, or of the whole encoder, on items rather than stored vectors.

Every training goes through `finetune.epochs` passes. At a rate that falls to 0 the last weights are kept; at a constant
one, as published, `train.selection` selects the epoch. Threads read items while the encoder works. The state holds the
random generators, so a training that resumes after any optimiser step continues exactly as if it had not been
interrupted. On a GPU this needs deterministic kernels; where an operation has none, the result has a note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from daamctl.adapters import Effect, FineTuned, check_effect
from daamctl.artifacts.splits import joined
from daamctl.config import Config
from daamctl.devices import autocast, exact_dtype, is_out_of_memory, sent
from daamctl.errors import TrainingError
from daamctl.fit.batches import pieces, read_ahead, shuffled_batches
from daamctl.fit.feature_split import pass_seed
from daamctl.fit.inference import accuracy_of, cross_entropy_of, is_one_class
from daamctl.fit.loop import Entry, Fit, Member, Trained, improves
from daamctl.fit.losses import build_loss
from daamctl.fit.memory import Room
from daamctl.fit.optimizer import adam, load_optimizer, rate_factor, set_rate
from daamctl.fit.rng import generator_states, restore_generators, seed_generators

if TYPE_CHECKING:
    from daamctl.fit.trial import Trial

log = logging.getLogger(__name__)

NOT_DETERMINISTIC = " does not have a deterministic implementation"
"""What torch says of an operation that it refuses in deterministic mode; the name of the operation comes before it."""

T = TypeVar("T")


class FinetunableEncoder(Protocol):
    """Interface of an encoder that can be fine-tuned.

    Attributes:
        model: the Hugging Face base model.
        layers: numbers of its layers.
        embed_dim: D.
        equal_length_batches: whether items of different lengths must not share a batch.
        device: device that inputs go to.
    """

    model: Any
    layers: tuple[int, ...]
    embed_dim: int
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


@dataclass(frozen=True)
class Opened:
    """A fresh encoder, and the corpus as items that it can read.

    Args:
        encoder: frozen, in eval mode, on its device.
    """

    encoder: FinetunableEncoder
    facts: Mapping[str, Any]
    items: ItemSet


class AdapterFit(Fit):
    """Fine-tune one encoder; a record is made after every pass over the training part.

    `Trained.facts` gets `effect` (what the activity check has found before training), `notes` on the model,
    `evaluation_precision` and `micro_batch`; `Trained.model` becomes the pair of the `Opened` and the trained model.

    Args:
        member: the only member. A training that a refit repeats does not look at the test part.
        opened: the encoder inside the model, and the items.
        model: the adapted encoder with its classifier, untrained.
        config: `finetune` with the settings of the candidate; loss and selection come from `train`.
    """

    def __init__(self, member: Member, opened: Opened, model: FineTuned, config: Config) -> None:
        trial = cast("Trial", member.trial)
        self.members, self.trained, self.device = (member,), [member.begin()], trial.device
        self.opened, self.model, self.seed, self.precision = opened, model, trial.spec.seed, trial.precision
        self.settings, self.selection, self.loss_of = (
            config.finetune,
            config.train.selection,
            build_loss(config.train, finetuning=True),
        )
        self.eval_precision = self.precision if self.settings.eval_precision == "same" else "float32"  # no autocast
        self.split = joined(trial.split) if member.refit else trial.split
        self.tested = self.split.test if member.tested else self.split.test[:0]
        self.f1 = trial.f1
        cuda, kind = self.device.startswith("cuda"), self.device.split(":")[0]
        groups = model.parameter_groups(self.settings.lr, self.settings.weight_decay)
        self.optimizer = adam(groups, self.device, fused=cuda)  # on a CPU it would change rounding
        self.scaler = torch.amp.grad_scaler.GradScaler(kind, enabled=self.precision == "float16")
        if self.settings.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        self.room = Room(-(-self.settings.batch_size // self.settings.accumulate))
        self.train_items = opened.items.of(self.split.train)
        self.steps_per_epoch = -(-len(self.train_items) // self.settings.batch_size)
        self.steps = self.in_epoch = 0
        # summed over the rows of the pass
        self.loss = torch.zeros((), dtype=exact_dtype(self.device), device=self.device)
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)
        self.generators: dict[str, Any] | None = None  # saved within a pass, until it goes on
        self.ended = member.trained
        if cuda and not self.trained[0].notes:
            # With warnings only, the backward pass of attention keeps adding in any order.
            torch.use_deterministic_algorithms(True)

    def run(self) -> Iterator[int]:
        """See `Fit.run`; the unit of work is an optimiser step.

        Raises:
            TrainingError: the adapters have no effect, or the memory is too small.
        """
        items, result = self.opened.items, self.trained[0]
        order = pass_seed(self.seed, len(result.history))
        cut = shuffled_batches(items.sizes[self.train_items], self.settings.batch_size, order)
        batches = [self.train_items[positions] for positions in cut]
        if not result.facts:
            self._check_effect(batches[0])
        seed_generators(order)  # so that dropout, too, repeats after a resume
        if self.generators is not None:
            restore_generators(self.generators)
            self.generators = None
        self.model.train_mode(self.settings.encoder_dropout)
        for batch, read in read_ahead(batches[self.in_epoch :], items.read, self.device):
            set_rate(self.optimizer, self._factor(self.steps))
            loss, right = self.step(read, batch)
            self.loss += loss * len(items.rows(batch))
            self.right += right
            self.steps, self.in_epoch = self.steps + 1, self.in_epoch + 1
            yield 1

    def step(self, read: Sequence[Tensor], items: np.ndarray) -> tuple[Tensor, Tensor]:
        """Take a step on B items, as read; return their mean loss and the number of correct predictions."""
        loss, right = self._within_memory(lambda most: self._gradients(read, items, most), len(read))
        held = [value for group in self.optimizer.param_groups for value in group["params"]]
        if any(value.grad is not None for value in held):  # a published variant may train nothing at all (D3)
            if self.settings.grad_clip_norm is not None:
                self.scaler.unscale_(self.optimizer)  # so that clipping sees true, unscaled gradients
                nn.utils.clip_grad_norm_(held, self.settings.grad_clip_norm)
            with _fitting(  # smaller pieces of a batch would not help, and some moments exist already
                "the moments of the optimiser, two numbers for each trained one, do not fit in the device's memory",
                "train fewer weights (e.g. lora-r8), or use --device cpu",
            ):
                self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss, right

    def record(self) -> list[Entry]:
        """See `Fit.record`; the entry has the first learning rate of the pass."""
        result, number = self.trained[0], len(self.split.train)
        entry: Entry = {
            "step": self.steps,
            "epoch": len(result.history) + 1,
            "lr": self.optimizer.param_groups[0]["peak"] * self._factor(self.steps - self.in_epoch),
            "train_loss": self.loss.item() / number,
            "train_accuracy": self.right.item() / number,
        }
        for name, rows in (("dev", self.split.dev), ("test", self.tested)):
            logits, targets = self._logits(rows) if len(rows) else None, self.opened.items.targets[rows]
            entry[f"{name}_accuracy"] = None if logits is None else accuracy_of(logits, targets)
            if name == "dev":
                entry["dev_loss"] = None if logits is None else cross_entropy_of(logits, targets)
                result.one_class = logits is not None and is_one_class(logits)
            if name in self.f1:
                entry[f"{name}_f1"] = None if logits is None else self.f1[name](logits)
        entry |= self.members[0].dev_of_candidate(len(result.history))
        result.history.append(entry)
        result.facts["micro_batch"] = self.room.most
        selects = self.settings.schedule == "constant"
        if selects and improves(result.history, result.selected_epoch, self.selection):
            result.selected_epoch, result.weights = len(result.history), self.model.trainable_state()
        self.in_epoch = 0
        self.loss.zero_()
        self.right.zero_()
        self.ended = result.diverged or len(result.history) >= self.settings.epochs
        return [entry]

    def state(self) -> dict[str, Any]:
        """See `Fit.state`; of the model only what is trained, nothing frozen."""
        names = ("steps", "in_epoch", "loss", "right", "ended")
        state: dict[str, Any] = {name: getattr(self, name) for name in names}
        state |= {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        state |= {"tensors": self.model.trainable_state(), "trained": self.trained[0].state()}
        state["micro_batch"] = self.room.most
        if self.in_epoch:
            state["generators"] = generator_states()
        return state

    def restore(self, state: dict[str, Any]) -> int:
        """See `Fit.restore`."""
        self.model.load_trainable(state["tensors"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        for name in ("steps", "in_epoch", "ended"):
            setattr(self, name, state[name])
        self.loss.copy_(state["loss"])
        self.right.copy_(state["right"])
        self.room.most = state["micro_batch"]
        self.trained = [Trained(**state["trained"])]
        self.generators = state.get("generators")
        if self.trained[0].notes:  # an operation was met that has no deterministic implementation
            torch.use_deterministic_algorithms(True, warn_only=True)
        return self.steps

    def finish(self) -> None:
        """See `Fit.finish`."""
        member, result = self.members[0], self.trained[0]
        result.weights = result.weights or self.model.trainable_state()
        if member.final:
            self.model.load_trainable(result.weights)
            result.model, result.weights = (self.opened, self.model), {}
            result.logits = self._logits(self.split.test)
        if torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(True, warn_only=True)  # as every other training
        del self.opened, self.model, self.optimizer  # their memory is free even if someone still holds this object

    def _factor(self, step: int) -> float:
        schedule, steps = self.settings.schedule, self.settings.epochs * self.steps_per_epoch
        return rate_factor("warm-up" if schedule == "linear" else schedule, step, steps)

    def _logits(self, rows: np.ndarray) -> Tensor:
        return self._repeatable(lambda: predict(self.model, self.opened, rows, precision=self.eval_precision))

    def _check_effect(self, batch: np.ndarray) -> None:
        """Check whether the adapters act, on the first piece of a batch, and note what is known of the model then."""
        model, encoder, result = self.model, self.opened.encoder, self.trained[0]
        read = [self.opened.items.read(item) for item in batch.tolist()]

        def check(most: int) -> Effect:
            piece = pieces(read, most, equal_length=encoder.equal_length_batches)[0]
            inputs, mask = encoder.collate([read[position] for position in piece])
            return check_effect(model, inputs, mask, self._targets(batch[piece]), self.loss_of)

        effect = self._within_memory(check, len(batch))
        notes = list(model.notes)
        if effect.silent:
            words = f"no gradient reaches {len(effect.silent)} of the {effect.tensors} tensors trained in the encoder"
            if effect.output_change == 0:
                words += ", and whatever they hold, no logit changes: the encoder stays as it was (D2)"
            notes.append(words)
        for words in notes:
            level = logging.WARNING if model.published or effect.silent else logging.INFO
            log.log(level, "%s: %s", model.name, words)
        weights = str(self.opened.facts.get("weights_dtype", "float32"))
        evaluated = weights if self.eval_precision == "float32" else self.eval_precision
        result.facts = {"effect": asdict(effect), "notes": notes, "evaluation_precision": evaluated}

    def _gradients(self, read: Sequence[Tensor], items: np.ndarray, most: int) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of a batch's mean loss over its pieces, however it is cut."""
        encoder, number = self.opened.encoder, len(self.opened.items.rows(items))
        self.model.zero_grad(set_to_none=True)
        total, right = torch.zeros((), device=self.device), torch.zeros_like(self.right)
        for piece in pieces(read, most, equal_length=encoder.equal_length_batches):
            inputs, mask = encoder.collate([read[position] for position in piece])
            y = self._targets(items[piece])
            with autocast(self.device, self.precision):
                logits = self.model(inputs, mask)
                loss = self.loss_of(logits, y) * (len(y) / number)
            if loss.requires_grad:
                self.scaler.scale(loss).backward()
            total += loss.detach()
            right += (logits.argmax(-1) == y).sum()
        return total, right

    def _targets(self, items: np.ndarray) -> Tensor:
        """Class ids of the rows of items, on the device."""
        known = self.opened.items
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
        self.trained[0].notes.append(
            f"another run would differ by rounding: {operation.split()[-1]} has no deterministic implementation on "
            f"{self.device.split(':')[0]}"
        )
        log.warning("%s", self.trained[0].notes[-1])
        return work()

    def _within_memory(self, work: Callable[[int], T], size: int) -> T:
        """Run `work` on a batch with as many items at once as fit."""
        with _fitting(
            "not even one item fits in the device's memory",
            "use --set finetune.gradient_checkpointing=true, a lower segment.max_duration_s or finetune.max_tokens, or "
            "--device cpu",
        ):
            return self.room.attempt(lambda most: self._repeatable(lambda: work(most)), size)


@contextmanager
def _fitting(what: str, fix: str) -> Iterator[None]:
    """Turn an out-of-memory error into a `TrainingError` with this message and fix."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(what, fix=fix) from None


@torch.no_grad()
def predict(model: FineTuned, opened: Opened, rows: np.ndarray, *, precision: str = "float32") -> Tensor:
    """Logits (n, C) float32 on CPU, in eval mode, in the order of `rows`.

    Args:
        opened: the encoder in it, and all items.
        rows: (n,) which of them.
        precision: of autocast; float32: none.

    Raises:
        TrainingError: not even one item fits in memory.
    """
    model.eval()
    encoder, items = opened.encoder, opened.items
    chosen = items.of(rows)
    planned = [chosen[positions] for positions in items.plan(items.sizes[chosen])]
    room, found, order = Room(max(map(len, planned))), list[Tensor](), list[np.ndarray]()
    for batch, read in read_ahead(planned, items.read, encoder.device):
        for piece in pieces(read, len(read), equal_length=encoder.equal_length_batches):
            order.append(items.rows(batch[piece]))

            def classify(start: int, stop: int, piece: Sequence[int] = piece, read: Sequence[Tensor] = read) -> Tensor:
                inputs, mask = encoder.collate([read[position] for position in piece[start:stop]])
                with autocast(encoder.device, precision):
                    logits: Tensor = model(inputs, mask)
                return logits.float().cpu()

            with _fitting(
                "one item does not fit in the device's memory",
                "use --device cpu, or a lower segment.max_duration_s or finetune.max_tokens",
            ):
                found += room.in_pieces(classify, len(piece))
    given = np.concatenate(order)  # the rows, in another order
    place = np.argsort(given)
    return torch.cat(found)[torch.from_numpy(place[np.searchsorted(given, rows, sorter=place)])]
