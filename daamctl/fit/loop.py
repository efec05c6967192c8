"""Fit trials: train the candidates of each, choose by the held-out group, and refit: one loop for all that is trained.

`fit` is a generator. It yields what has happened, knows no folders, and can continue from a state that an earlier call
has given. A kind of training is a subclass of `Fit`: a stack of fusions, a closed-form probe, an adapter in an encoder,
a fusion before the head of a masked language model, a VQ-VAE.
"""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from daamctl.artifacts.results import SearchPart, edges_of
from daamctl.compute.energy import Meter, total
from daamctl.compute.threads import continue_with
from daamctl.errors import DivergedError, TrainingError
from daamctl.fit.steps import Stateful, generator_states

log = logging.getLogger(__name__)

RECORDS = 10
"""Records in the history of a training with a budget of steps."""
COLLAPSE = 0.25
"""A refit has collapsed if its training loss ends more than this share of the loss at the first record, or of 1 if that
is lower, above that of its candidate (docs/training.md)."""
COLLAPSED = (
    "{number} refit(s) ended with a higher training loss than the candidate that they repeat, and the next candidate "
    "was refitted where there was one"
)
Entry = dict[str, float | int | None]
Settings = dict[str, float | str]


@dataclass
class Trained:
    """A training, finished or not.

    Args:
        history: one entry per record: step, epoch (None with a budget of steps), lr, train_loss, train_accuracy,
            dev_accuracy, dev_loss, test_accuracy; of taggers also dev_f1 and test_f1. A refit holds nothing out; its
            dev figures are those of its candidate.
        selected_epoch: 1-based epoch whose weights are kept; None with a budget of steps, whose last weights are.
        weights: tensors of the selected epoch, or of the end; before a refit, only those that it takes over.
        train_s: seconds of training, of all candidates too once the trial is finished.
        joules: energy of the GPU in that time; None where the driver does not tell.
        facts: what only its kind knows or has measured, for the result.
        one_class: whether it answers, with these weights, every held-out item with the same class.
        model: the model with these weights, for the kinds that write it.
        logits: (N_test, C) float32.
        maps: means over the test clips, see `daamctl.fit.steps.maps_of`; before the end, only what the selected epoch
            has that its weights do not give again.
        untrained_maps: the same before the first step.
        search: candidates and choice; None without a search.
        collapsed: whether it is a refit that ended with a higher training loss than its candidate.
        replaced: number of refits of better candidates that collapsed before this one.
    """

    history: list[Entry] = field(default_factory=list)
    selected_epoch: int | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)
    train_s: float = 0.0
    joules: float | None = 0.0
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    one_class: bool = False
    model: Any = None
    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    maps: dict[str, Tensor] = field(default_factory=dict)
    untrained_maps: dict[str, Tensor] = field(default_factory=dict)
    search: SearchPart | None = None
    collapsed: bool = False
    replaced: int = 0

    @property
    def last(self) -> Entry:
        """The entry of the selected epoch, or the last one."""
        return self.history[-1 if self.selected_epoch is None else self.selected_epoch - 1]

    @property
    def diverged(self) -> bool:
        """Whether a loss is no longer finite."""
        return not all(math.isfinite(self.history[-1].get(name) or 0.0) for name in ("train_loss", "dev_loss"))

    def state(self) -> dict[str, Any]:
        """What the search needs of a candidate; a resume file can hold it."""
        names = ("history", "selected_epoch", "weights", "train_s", "joules", "notes", "facts", "one_class", "maps")
        return {name: getattr(self, name) for name in names}


class Trainable(ABC):
    """What `fit` trains: a fold, or a training that classifies nothing.

    Attributes:
        stage: stage that trains this kind; also its section of the settings, and its folder of unfinished work.
        candidates: settings of each candidate of the search; without a search, one that changes nothing.
        refits: whether to train again with the held-out group once the settings are chosen.
    """

    stage: ClassVar[str]
    candidates: Sequence[Settings] = ({},)
    refits: bool = False

    @property
    @abstractmethod
    def key(self) -> str:
        """Content key of everything that affects the result (the machine is not part of it)."""

    @property
    @abstractmethod
    def what(self) -> str:
        """The trial, for messages."""

    @property
    @abstractmethod
    def calmer(self) -> str:
        """Settings that help if the loss is no longer finite."""

    @property
    @abstractmethod
    def units_of_training(self) -> int:
        """Optimiser steps of one training, which the progress bar counts."""

    def stacks(self, members: Sequence[Member]) -> list[list[Member]]:
        """Divide trainings of trials like this one into stacks that are trained together."""
        return [[member] for member in members]

    @abstractmethod
    def start(self, members: Sequence[Member]) -> Fit:
        """Start a stack."""


@dataclass(frozen=True)
class Member:
    """One training of a trial.

    Args:
        settings: of the candidate; empty without a search.
        name: within a resume file.
        first: result of the candidate that this training repeats with the held-out group included; None: no refit.
        ready: result of a candidate that is final as it is; nothing is left to train.
        final: it gives the result of the trial, so it also looks at the test part.
    """

    trial: Trainable
    number: int
    settings: Settings
    name: str = ""
    first: Trained | None = None
    ready: Trained | None = None
    final: bool = False


class Fit(Stateful, ABC):
    """Trainings under way that take their steps together; mostly it is one.

    Attributes:
        trained: the results of the members so far, in the same order.
        steps: optimiser steps so far.
        in_record: those since the last record.
        ended: whether all steps are taken.
        state_names: names of all attributes that the coming steps depend on.
    """

    state_names: ClassVar[tuple[str, ...]] = ("steps", "in_record", "ended")

    def __init__(self, members: Sequence[Member], device: str) -> None:
        self.members, self.device = members, device
        self.trained = [Trained() if member.ready is None else replace(member.ready) for member in members]
        self.steps = self.in_record = 0
        self.ended = members[0].ready is not None
        self.generators: dict[str, Any] | None = None  # saved between two records; `run` restores them

    @abstractmethod
    def run(self) -> Iterator[int]:
        """Take the steps up to the next record; yields after each, with the number of units of work done."""

    @abstractmethod
    def record(self) -> list[Entry]:
        """Evaluate every member after `run`; add their entries to the histories, and return them."""

    @abstractmethod
    def finish(self) -> None:
        """Fill in the results of the final members."""

    def state(self) -> dict[str, Any]:
        """Everything that the coming steps depend on, as tensors, numbers and text."""
        return self.state_dict() | ({"generators": generator_states()} if self.in_record else {})

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.load_state_dict(state)
        self.generators = state.get("generators")


@dataclass(frozen=True)
class Progress:
    """Units of work have been done; until the generator goes on, `state` gives the one from which `fit` continues."""

    units: int
    state: Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Recorded:
    """A training has a new entry in its history."""

    member: Member
    entry: Entry


@dataclass(frozen=True)
class Finished:
    """A trial is finished."""

    trial: Trainable
    trained: Trained


Event = Progress | Recorded | Finished


def fit(trials: Sequence[Trainable], state: dict[str, Any] | None = None) -> Iterator[Event]:
    """Fit trials of one method on the same data.

    Every candidate is trained to its end, and the one with the lowest loss on the held-out group is chosen. If trials
    are refitted, it is trained once more with the held-out group included. A refit that collapses is replaced by that
    of the next candidate.

    Args:
        state: of an interrupted call with the same trials.

    Yields:
        What has happened.

    Raises:
        DivergedError: a loss is no longer finite, and there is no other candidate.
        TrainingError: the numbers or the memory do not allow training.
        MethodError: the method does not fit the data.
    """
    state = dict(state or {})
    continue_with(state.get("threads"))
    kind = trials[0]
    done = {name: Trained(**one) for name, one in state.get("done", {}).items()}  # of candidates
    if done:
        yield Progress(len(done) * kind.units_of_training, lambda: state)
    # nothing to choose by and nothing to repeat: the only training is the result
    plain = [trial for trial in trials if len(trial.candidates) == 1 and not trial.refits]
    candidates = {
        trial: [
            Member(trial, number, one, f"{trial.key} {number}", final=trial in plain)
            for number, one in enumerate(trial.candidates)
        ]
        for trial in trials
    }

    for together in kind.stacks([member for members in candidates.values() for member in members]):
        if not all(member.name in done for member in together):
            results = yield from _train(kind.start(together), done, state)
            for member, one in zip(together, results, strict=True):
                if not member.final:
                    done[member.name] = one
                elif one.diverged:
                    raise diverged(member.trial, one)
                else:
                    yield Finished(member.trial, one)
            # Drop weights, which may be large: only those of the best candidate count. Where a refit starts anew, `Fit`
            # keeps no more than it takes over.
            for trial, members in candidates.items():
                tried = [done[member.name] for member in members if member.name in done]
                finite = [one for one in tried if not one.diverged]
                best = min(finite, key=_order) if finite else None
                for one in tried:
                    if one is not best and not trial.refits:
                        one.weights = {}

    waiting = {
        trial: ranked(trial, [done[member.name] for member in members])
        for trial, members in candidates.items()
        if trial not in plain
    }
    rounds = 0  # of refits
    while waiting:
        finals, again = [], {}
        for trial, order in waiting.items():
            member = candidates[trial][order[0]]
            found, name = done[member.name], f"{member.name} refit"
            given = {"first": found} if trial.refits else {"ready": found}
            member = Member(trial, member.number, member.settings, name, **given, final=True)
            if member.name in done:  # its refit had collapsed before the interruption
                again[trial] = order[1:]
            else:
                finals.append(member)
        for together in kind.stacks(finals):
            results = yield from _train(kind.start(together), done, state)
            for member, result in zip(together, results, strict=True):
                trial, first, order = member.trial, member.first, waiting[member.trial]
                tried = [done[one.name] for one in candidates[trial]]
                worse = first is not None and collapsed(result, first)
                if first is not None and worse and len(order) > 1:
                    settings = ", ".join(
                        f"{name} {value if isinstance(value, str) else f'{value:g}'}"
                        for name, value in member.settings.items()
                    )
                    log.warning(
                        "%s: the refit with %s has collapsed (training loss %.3g, before %.3g); the next candidate is "
                        "refitted",
                        *(trial.what, settings, result.last["train_loss"], first.last["train_loss"]),
                    )
                    first.train_s, first.joules = first.train_s + result.train_s, total(first.joules, result.joules)
                    again[trial], result.model = order[1:], None  # frees it before the next one is made
                    done[member.name] = Trained(result.history)  # so that it is not repeated after an interruption
                    continue
                if result.diverged:
                    raise diverged(trial, result)
                result.collapsed, result.replaced = worse, rounds
                if rounds or worse:
                    result.notes.append(COLLAPSED.format(number=rounds + worse))
                if len(tried) > 1:
                    result.search = search_part(trial.candidates, tried, order[0])
                result.train_s += sum(one.train_s for one in tried)
                result.joules = total(result.joules, *(one.joules for one in tried))
                yield Finished(trial, result)
        waiting, rounds = again, rounds + 1


def _train(fitting: Fit, done: Mapping[str, Trained], state: dict[str, Any]) -> Generator[Event, None, list[Trained]]:
    """Train a stack to its end; returns the results of its members. What `state` has of it is taken out of `state`."""
    members = fitting.members
    names, seconds = [member.name for member in members], 0.0
    joules: float | None = 0.0

    # Called while the generator waits at a `yield`, so it tells the state of that very step.
    def resumable() -> dict[str, Any]:
        under_way = {"names": names, "trained": [one.state() for one in fitting.trained], "fit": fitting.state()}
        return {
            "done": {name: one.state() for name, one in done.items()},
            "under way": {**under_way, "train_s": seconds + spent, "joules": joules},
            "threads": torch.get_num_threads(),
        }

    meter, spent = Meter(fitting.device), 0.0
    earlier = state.get("under way")
    if earlier is not None and earlier["names"] == names:
        del state["under way"]
        seconds, joules = earlier["train_s"], earlier["joules"]
        for one, saved in zip(fitting.trained, earlier["trained"], strict=True):
            vars(one).update(saved)
        fitting.restore(earlier["fit"])
        log.info("resuming after %d steps", fitting.steps * len(members))
        yield Progress(fitting.steps * len(members), resumable)
        # whoever draws the curves starts anew, too
        for member, one in zip(members, fitting.trained, strict=True):
            for entry in one.history:
                yield Recorded(member, entry)
    while not fitting.ended:
        meter.start()
        began = time.monotonic()
        for units in fitting.run():
            spent += time.monotonic() - began
            yield Progress(units, resumable)  # what the consumer does with it is not counted
            began = time.monotonic()
        entries = fitting.record()
        spent += time.monotonic() - began
        seconds, joules, spent = seconds + spent, total(joules, meter.used(spent)), 0.0
        for member, entry in zip(members, entries, strict=True):
            if member.first is not None:  # the held-out figures of a refit are those of its candidate
                before = member.first.history[len(fitting.trained[0].history) - 1]
                entry |= {name: before[name] for name in ("dev_accuracy", "dev_loss", "dev_f1") if name in before}
            yield Recorded(member, entry)
        yield Progress(0, resumable)
    fitting.finish()
    for one in fitting.trained:
        one.train_s, one.joules = seconds / len(members), None if joules is None else joules / len(members)
    return fitting.trained


def ranked(trial: Trainable, found: Sequence[Trained]) -> list[int]:
    """Candidates from the lowest held-out loss at the end to the highest, then by accuracy; without diverged ones.

    Candidates that answer every held-out item with one class come last: the loss of a constant answer is low where the
    others are sure and often wrong, but it has learned nothing.

    Raises:
        TrainingError: every candidate diverged.
    """
    finite = [number for number, one in enumerate(found) if not one.diverged]
    if not finite:
        if len(found) == 1:
            raise diverged(trial, found[0])
        rates = ", ".join(f"{rate:g}" for rate in sorted({float(one["lr"]) for one in trial.candidates}))
        raise TrainingError(
            f"the training loss is not finite at any of the learning rates tried ({rates})",
            fix=f"lower them (search_lr), or train with --set {trial.stage}.precision=float32",
        )
    return sorted(finite, key=lambda number: _order(found[number]))


def _order(one: Trained) -> tuple[bool, float, float]:
    loss, accuracy = one.last["dev_loss"], one.last["dev_accuracy"]
    return one.one_class, math.inf if loss is None else loss, -(accuracy or 0.0)


def collapsed(refit: Trained, first: Trained) -> bool:
    """Whether a refit ended with a clearly higher training loss than the candidate that it repeats."""
    if refit.diverged:
        return True
    ours, theirs = (float(one.last["train_loss"] or 0.0) for one in (refit, first))
    return ours > theirs + COLLAPSE * min(1.0, float(first.history[0]["train_loss"] or 0.0))


def diverged(trial: Trainable, one: Trained) -> DivergedError:
    """The error for a loss that is no longer finite."""
    entry = one.history[-1]
    what = "held-out" if math.isfinite(entry["train_loss"] or 0.0) else "training"
    loss = entry["dev_loss" if what == "held-out" else "train_loss"]
    where = f"epoch {entry['epoch']}" if entry.get("epoch") else f"step {entry.get('step')}"
    return DivergedError(f"the {what} loss is {loss} in {where}", fix=trial.calmer)


def search_part(tried: Sequence[Settings], found: Sequence[Trained], chosen: int) -> SearchPart:
    """Record of a search, as in `result.json`; of a candidate that diverged, only the records before that."""
    finite = [[entry for entry in one.history if math.isfinite(entry["dev_loss"] or 0.0)] for one in found]
    names = [name for name in tried[0] if name == "lr" or len({one[name] for one in tried}) > 1]
    return {
        "steps": max((int(one.history[-1].get("step") or 0) for one in found), default=0),
        "candidates": [
            {
                "settings": {name: settings[name] for name in names},
                "dev_accuracy": [float(entry["dev_accuracy"] or 0.0) for entry in history],
                "dev_loss": [float(entry["dev_loss"] or 0.0) for entry in history],
            }
            for settings, history in zip(tried, finite, strict=True)
        ],
        "chosen": chosen,
        "edges": [name for name, ends in edges_of(tried).items() if tried[chosen][name] in ends],
    }


def improves(history: Sequence[Entry], selected: int | None, selection: str) -> bool:
    """Whether the newest epoch should be selected.

    On the held-out group, the higher accuracy wins (of taggers the higher entity F1), then the lower loss, because many
    epochs tie on a small group. On the test group, the first epoch with the highest figure wins, as published.

    Args:
        selected: 1-based epoch selected so far; None: none.
        selection: dev-group, best-on-test or last.
    """
    if selection == "last" or selected is None:
        return True
    if selection != "dev-group":
        return test_score(history[-1]) > test_score(history[selected - 1])

    def score(entry: Entry) -> tuple[float, float]:
        accuracy, loss = entry.get("dev_f1", entry["dev_accuracy"]), entry.get("dev_loss")
        return (-math.inf if accuracy is None else accuracy, -math.inf if loss is None else -loss)

    return score(history[-1]) > score(history[selected - 1])


def test_score(entry: Entry) -> float:
    """Figure of an epoch on the test group: entity F1 of taggers, else accuracy."""
    return entry.get("test_f1", entry["test_accuracy"]) or 0.0
