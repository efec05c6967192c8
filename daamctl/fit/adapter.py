"""Fine-tuning: training of an adapter in an encoder, or of the whole encoder, on items rather than stored vectors.

Every training has an encoder of its own, so that nothing trained in one fold can reach another (D50). It goes through
`finetune.epochs` passes. At a rate that falls to 0 the last weights are kept; at a constant one, as published,
`train.selection` selects the epoch. Threads read items while the encoder works. The state holds the random generators,
so a training that resumes after any optimiser step continues exactly as if it had not been interrupted. On a GPU this
needs deterministic kernels; where an operation has none, the result has a note.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from daamctl.adapters import FINETUNES, Effect, FineTuned, build_finetune, check_effect
from daamctl.adapters.released import departures, own_input
from daamctl.artifacts.clips import ClipTable, clips_key
from daamctl.artifacts.splits import Split, joined
from daamctl.compute.devices import autocast, exact_dtype, free_on, is_out_of_memory, release_memory, sent
from daamctl.compute.engine import Engine
from daamctl.compute.threads import num_readers
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings, shared_with_finetuning
from daamctl.errors import TrainingError
from daamctl.fit.features import pass_seed
from daamctl.fit.loop import Entry, Fit, Member, Trained, improves
from daamctl.fit.steps import (
    BatchLimit,
    adam,
    build_loss,
    evaluated,
    is_one_class,
    rate_factor,
    restore_generators,
    seed_everything,
    seed_generators,
    set_rate,
)
from daamctl.fit.trial import Trial, steps_of_training
from daamctl.methods.weights import write_weights
from daamctl.methods.weights_metadata import ADAPTER, Origin, WeightsMetadata
from daamctl.store.files import content_key
from daamctl.store.provenance import FOLD_CODE, code_hash

log = logging.getLogger(__name__)

KEY_FORMAT = 3  # raise it when a change of the loop makes finished folds wrong
KEPT_SHARE = 0.1
"""Largest share of the free memory that an encoder may take to be kept for the next trainings."""
FREE_FACTS = frozenset({"name", "source", "revision", "transformers", "num_layers", "precision", "storage"})
"""Facts of an encoder that cannot change what it computes, given the other facts."""
BLOCK_BATCHES = 32  # a block of this many batches is sorted by length: little padding, yet close to a full shuffle
BATCHES_AHEAD = 2
NOT_DETERMINISTIC = " does not have a deterministic implementation"
"""What torch says of an operation that it refuses in deterministic mode; the name of the operation comes before it."""

T = TypeVar("T")


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
class EncoderAndItems:
    """A fresh encoder, and the corpus as items that it can read.

    Args:
        encoder: frozen, in eval mode, on its device: an `Encoder` (`daamctl.encoders.base`) or one like it.
    """

    encoder: Any
    facts: Mapping[str, Any]
    items: ItemSet


class EncoderSource:
    """The clips of a corpus, and a function that opens a fresh encoder for them.

    Opening one takes seconds, most of them to hash its weights. So one that is small beside the free memory of its
    device is kept as it was opened, and copied for every training. Open encoders are not pickled.

    Args:
        table: the clips; their groups are the folds.
        facts: of the encoder, if they are known without opening it.
    """

    def __init__(
        self, table: ClipTable, open: Callable[[], EncoderAndItems], facts: Mapping[str, Any] | None = None
    ) -> None:
        self.table, self.open, self._facts = table, open, facts
        self._opened: EncoderAndItems | None = None
        self._kept: EncoderAndItems | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Recorded facts of the encoder. Opens it if necessary; `take` then returns that encoder first."""
        if self._facts is None:
            self._opened = self.open()
            self._facts = self._opened.facts
        return self._facts

    @cached_property
    def _clips_key(self) -> str:
        return clips_key(self.table)

    def key(self, config: Config) -> str:
        """Content key of the training data: the items, and all that affects how the encoder reads them."""
        facts = {name: value for name, value in self.facts.items() if name not in FREE_FACTS}
        if "max_tokens" in facts:
            # a limit above that of fine-tuning changes nothing, so it must not change the key
            facts["max_tokens"] = min(facts["max_tokens"], config.finetune.max_tokens)
        if facts.get("pooling") == "all-frames":
            facts["pad_to_s"] = config.segment.max_duration_s
        settings = finetuning_data_settings(config, self.table.modality)
        return content_key({"clips": self._clips_key, "encoder": facts, "settings": settings})

    def ask_worker(self, engine: Engine, device: str) -> None:
        """Let a worker open the encoder and report its facts; this machine may lack the memory for it."""
        if self._facts is None:
            self._facts = engine.describe(partial(_FactsWorker, self), device)
            self._opened = None

    def take(self) -> EncoderAndItems:
        """Return a fresh encoder, without keeping a reference to it."""
        if self._kept is None:
            opened, self._opened = self._opened or self.open(), None
            # an encoder spread over several devices is too large to be copied
            devices = {value.device for value in opened.encoder.model.parameters()}
            size = sum(value.nbytes for value in opened.encoder.model.parameters())
            if len(devices) > 1 or size > KEPT_SHARE * free_on(opened.encoder.device)[0]:
                return opened
            self._kept = opened
        return replace(self._kept, encoder=deepcopy(self._kept.encoder))

    def to_gpu(self, config: Config, tasks: int = 1) -> EncoderSource:
        """Itself: items are read when they are needed."""
        return self

    def to_memory(self, config: Config) -> EncoderSource:
        """Itself, likewise."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_kept": None}


class _FactsWorker:
    """A worker that opens an encoder and has no tasks."""

    num_devices = 1

    def __init__(self, source: EncoderSource, device: str) -> None:
        self.description = dict(source.facts)

    def work(self, tasks: Sequence[None]) -> Iterator[None]:
        """Do nothing."""
        yield from tasks


class AdapterTrial(Trial):
    """One fold of a method that fine-tunes the encoder.

    Args:
        spec: which fold; its settings have this method's overrides applied (`Config.for_adapter`). `finetune` applies,
            and the part of `train` that it shares.
    """

    stage = "finetune"
    title = "fine-tuning"
    trials_per_gpu = 1
    data: EncoderSource

    @cached_property
    def key(self) -> str:
        """Content key of everything that affects the result; the machine does not."""
        return content_key(
            {
                "format": KEY_FORMAT,
                "data": self.data.key(self.config),
                "method": self.spec.method,
                "code": self._code,
                "finetune": key_settings(self.config, "finetune"),
                "train": shared_with_finetuning(self.config),
                "fold": self.spec.fold,
                "seed": self.spec.seed,
            }
        )

    @property
    def _code(self) -> list[str]:
        """Hashes of the code of the adapter, with fusions that it uses, of its classifier, and of attention."""
        head = "words" if self.clips.modality == "tokens" else "heads"
        modules = (FINETUNES.module_of(self.spec.method), f"daamctl.adapters.{head}")
        parts = ("daamctl.adapters", "daamctl.methods")
        return [
            *(code_hash(name, "daamctl", parts) for name in modules),
            code_hash("daamctl.compute.attention", "daamctl"),
        ]

    @property
    def units_of_training(self) -> int:
        """See `Trainable.units_of_training`."""
        return self._steps(self.split)

    @property
    def units(self) -> int:
        """See `Trial.units`; the refit takes more steps, since it has more items."""
        return len(self.candidates) * self.units_of_training + self.refits * self._steps(joined(self.split))

    def _steps(self, split: Split) -> int:
        """Steps of a training; a few more where a long sentence of tagged words is cut into several items."""
        items = len(set(self.clips.task.wholes(self.clips.rows["clip_id"][split.train])))
        return steps_of_training(self.spec.method, self.config, items, 0)

    def start(self, members: Sequence[Member]) -> Fit:
        """See `Trainable.start`."""
        (member,) = members
        trial = cast(AdapterTrial, member.trial)
        finetune = trial.config.finetune.model_copy(update=member.settings)
        config = trial.config.model_copy(update={"finetune": finetune})
        release_memory()  # what the training before this one has held
        seed_everything(trial.spec.seed, trial.device)
        opened = trial.data.take()
        method, number = trial.spec.method, len(trial.clips.classes)
        model = build_finetune(method, opened.encoder, num_classes=number, seed=trial.spec.seed)
        sections = {name: config.section(name) for name in ("extract", "train", "finetune")}
        model.notes += departures(method, trial.clips.modality, sections)
        if opened.facts.get("final_norm") is False:  # None: it has no final norm
            model.notes += ("it reads the encoder's output after the final norm, whatever extract.final_norm is",)
        return AdapterFit(members, opened, model, config)

    def result_parts(self, trained: Trained) -> dict[str, Any]:
        """See `Trial.result_parts`."""
        (opened, model), facts = trained.model, trained.facts
        config = {stage: self.config.section(stage) for stage in ("download", "segment", "extract", "finetune")}
        return {
            "run": {
                "layers": [max(opened.encoder.layers)],
                "embed_dim": opened.encoder.embed_dim,
                "num_parameters": sum(value.numel() for value in model.trained().values()),
                "reconstructed": "",
                "eval_batches": None,
                "config": {**config, "train": shared_with_finetuning(self.config), "method": {}},
                "finetune": True,
                "effect": facts["effect"],
                "adapted": list(model.adapted),
                "notes": [*facts["notes"], *trained.notes],
                "micro_batch": facts["micro_batch"],
            },
            "meta": {
                "code": {"training": code_hash(__name__, "daamctl", FOLD_CODE), "method": content_key(self._code)},
                "embeddings_key": self.data.key(self.config),
                "encoder": dict(opened.facts),
                "evaluation_precision": facts["evaluation_precision"],
            },
        }

    def write_weights(self, folder: Path, trained: Trained) -> None:
        """Write the trained tensors (`daamctl.methods.weights`), what was read, and how it is evaluated."""
        (opened, model), classes, modality = trained.model, self.clips.classes, self.clips.modality
        own = own_input(self.spec.method, modality)  # some published methods set it
        extract = finetuning_data_settings(self.config, modality)
        extract |= {path.removeprefix("extract."): own[path] for path in own if path.startswith("extract.")}
        facts = {name: value for name, value in opened.facts.items() if name != "storage"}
        facts["precision"] = trained.facts["evaluation_precision"]
        if "max_tokens" in facts:
            longest = own.get("finetune.max_tokens", self.config.finetune.max_tokens)
            facts["max_tokens"] = min(facts["max_tokens"], longest)
        origin = Origin.of(
            facts,
            classes=classes,
            layers=(max(opened.encoder.layers),),
            modality=modality,
            settings={"segment": key_settings(self.config, "segment"), "extract": extract},
            fold=self.owner,
        )
        metadata = WeightsMetadata(
            kind=ADAPTER,
            method=self.spec.method,
            settings={},
            num_layers=1,
            embed_dim=opened.encoder.embed_dim,
            num_classes=len(classes),
            head_parameters=sum(value.numel() for name, value in model.trained().items() if name.startswith("head.")),
            **vars(origin),
        )
        write_weights(folder / "weights.safetensors", model.trainable_state(), metadata)


class AdapterFit(Fit):
    """Fine-tune one encoder; a record is made after every pass over the training part.

    `Trained.facts` gets `effect` (what the activity check has found before training), `notes` on the model,
    `evaluation_precision` and `micro_batch`; `Trained.model` becomes the pair of
    the `EncoderAndItems` and the trained model.

    Args:
        members: only one. A training that a refit repeats does not look at the test part.
        opened: the encoder inside the model, and the items.
        model: the adapted encoder with its classifier, untrained.
        config: `finetune` with the settings of the candidate; loss and selection come from `train`.
    """

    state_names = (*Fit.state_names, "loss", "right", "optimizer", "scaler", "limit")

    def __init__(self, members: Sequence[Member], opened: EncoderAndItems, model: FineTuned, config: Config) -> None:
        (member,), trial = members, cast(Trial, members[0].trial)
        super().__init__(members, trial.device)
        self.opened, self.model, self.seed, self.precision = opened, model, trial.spec.seed, trial.precision
        self.settings, self.selection = config.finetune, config.train.selection
        self.loss_of = build_loss(config.train, finetuning=True)
        self.eval_precision = self.precision if self.settings.eval_precision == "same" else "float32"  # no autocast
        self.split, self.f1 = joined(trial.split) if member.first else trial.split, trial.f1
        self.tested = self.split.test if member.final or not trial.refits else self.split.test[:0]
        cuda, kind = self.device.startswith("cuda"), self.device.split(":")[0]
        groups = model.parameter_groups(self.settings.lr, self.settings.weight_decay)
        self.optimizer = adam(groups, self.device, fused=cuda)  # on a CPU it would change rounding
        self.scaler = torch.amp.grad_scaler.GradScaler(kind, enabled=self.precision == "float16")
        if self.settings.gradient_checkpointing:
            model.enable_gradient_checkpointing()
        self.limit = BatchLimit(-(-self.settings.batch_size // self.settings.accumulate))
        self.train_items = opened.items.of(self.split.train)
        self.steps_per_epoch = -(-len(self.train_items) // self.settings.batch_size)
        # summed over the rows of the pass
        self.loss = torch.zeros((), dtype=exact_dtype(self.device), device=self.device)
        self.right = torch.zeros((), dtype=torch.int64, device=self.device)
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
        for batch, read in read_ahead(batches[self.in_record :], items.read, self.device):
            set_rate(self.optimizer, self._factor(self.steps))
            loss, right = self.step(read, batch)
            self.loss += loss * len(items.rows(batch))
            self.right += right
            self.steps, self.in_record = self.steps + 1, self.in_record + 1
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
            "lr": self.optimizer.param_groups[0]["peak"] * self._factor(self.steps - self.in_record),
            "train_loss": self.loss.item() / number,
            "train_accuracy": self.right.item() / number,
        }
        for name, rows in (("dev", self.split.dev), ("test", self.tested)):
            logits = self._logits(rows) if len(rows) else None
            entry |= evaluated(name, logits, self.opened.items.targets[rows], self.f1)
            if name == "dev":
                one_class = logits is not None and is_one_class(logits)
        result.history.append(entry)
        result.facts["micro_batch"] = self.limit.most
        selects = self.settings.schedule == "constant"
        if not selects or improves(result.history, result.selected_epoch, self.selection):
            result.one_class = one_class
            if selects:
                result.selected_epoch, result.weights = len(result.history), self.model.trainable_state()
        self.in_record = 0
        self.loss.zero_()
        self.right.zero_()
        self.ended = result.diverged or len(result.history) >= self.settings.epochs
        return [entry]

    def state(self) -> dict[str, Any]:
        """See `Fit.state`; of the model only what is trained, nothing frozen."""
        return {**super().state(), "tensors": self.model.trainable_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """See `Fit.restore`."""
        super().restore(state)
        self.model.load_trainable(state["tensors"])
        if self.trained[0].notes:  # an operation was met that has no deterministic implementation
            torch.use_deterministic_algorithms(True, warn_only=True)

    def finish(self) -> None:
        """See `Fit.finish`."""
        member, result = self.members[0], self.trained[0]
        result.weights = result.weights or self.model.trainable_state()
        if member.final:
            self.model.load_trainable(result.weights)
            result.model, result.weights = (self.opened, self.model), {}
            result.logits = self._logits(self.split.test)
        elif member.trial.refits:
            result.weights = {}  # the refit starts anew
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
        precision = weights if self.eval_precision == "float32" else self.eval_precision
        result.facts = {"effect": asdict(effect), "notes": notes, "evaluation_precision": precision}

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
            return self.limit.attempt(lambda most: self._repeatable(lambda: work(most)), size)


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
def predict(model: FineTuned, opened: EncoderAndItems, rows: np.ndarray, *, precision: str = "float32") -> Tensor:
    """Logits (n, C) float32 on CPU, in eval mode, in the order of `rows`.

    Args:
        rows: (n,) which of them.
        precision: of autocast; float32: none.

    Raises:
        TrainingError: not even one item fits in memory.
    """
    model.eval()
    encoder, items = opened.encoder, opened.items
    chosen = items.of(rows)
    planned = [chosen[positions] for positions in items.plan(items.sizes[chosen])]
    limit, found, order = BatchLimit(max(map(len, planned))), list[Tensor](), list[np.ndarray]()
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
                found += limit.in_pieces(classify, len(piece))
    given = np.concatenate(order)  # the rows, in another order
    place = np.argsort(given)
    return torch.cat(found)[torch.from_numpy(place[np.searchsorted(given, rows, sorter=place)])]


def shuffled_batches(sizes: np.ndarray, batch_size: int, seed: int) -> list[np.ndarray]:
    """Shuffle all items, of lengths (N,), into batches of similar length for one pass: positions of each batch.

    The items are shuffled and cut into blocks. Each block is sorted by length and cut into batches, of which the last
    may be smaller, and the batches are shuffled again. The result depends only on the arguments.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sizes))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), BLOCK_BATCHES * batch_size):
        block = order[start : start + BLOCK_BATCHES * batch_size]
        block = block[np.argsort(sizes[block], kind="stable")]
        cut = [block[first : first + batch_size] for first in range(0, len(block), batch_size)]
        batches += [cut[index] for index in rng.permutation(len(cut))]
    return batches


def pieces(items: Sequence[Tensor], most: int, *, equal_length: bool) -> list[list[int]]:
    """Cut a batch into pieces of at most `most` items that go through the encoder one at a time: positions of each.

    The last axis of an item is its length; with `equal_length`, only items of one length share a piece.
    """
    groups: dict[int, list[int]] = {}
    for position, item in enumerate(items):
        groups.setdefault(item.shape[-1] if equal_length else 0, []).append(position)
    return [group[first : first + most] for group in groups.values() for first in range(0, len(group), most)]


def read_ahead(
    batches: Iterable[np.ndarray], read: Callable[[int], Tensor], device: str
) -> Iterator[tuple[np.ndarray, list[Tensor]]]:
    """Read batches of rows in several threads, a few ahead of the current one; exceptions of `read` are raised here."""
    with ThreadPoolExecutor(num_readers(device)) as pool:
        waiting: deque[tuple[np.ndarray, list[Future[Tensor]]]] = deque()

        def first() -> tuple[np.ndarray, list[Tensor]]:
            rows, futures = waiting.popleft()
            return rows, [future.result() for future in futures]

        try:
            for rows in batches:
                waiting.append((rows, [pool.submit(read, row) for row in rows.tolist()]))
                if len(waiting) > BATCHES_AHEAD:
                    yield first()
            while waiting:
                yield first()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
