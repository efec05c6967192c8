"""The loop: candidates to the end, the choice by the held-out group, the refit and its collapse, and interruptions."""

from __future__ import annotations

import gc
import itertools
import json
import weakref
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from daamctl.artifacts.splits import joined
from daamctl.config import Config
from daamctl.errors import DivergedError, TrainingError
from daamctl.fit import loop
from daamctl.fit.loop import Finished, Progress, Recorded, Trained, collapsed, fit, ranked, search_part
from daamctl.fit.stack import SingleModel, Stack, StackedModels
from daamctl.fit.trial import candidates_of
from daamctl.methods import FusionClassifier, Traits
from tests.fixtures.fits import (
    CLASSES,
    DIM,
    LAYERS,
    assert_same,
    drawn,
    linear,
    method,
    results,
    settings,
    state_after,
    toy,
    toys,
    trained,
)

SEARCH: dict[str, Any] = {"search": "grid", "search_lr": (0.001, 0.01, 0.05), "search_weight_decay": ()}
AGAIN: dict[str, Any] = {**SEARCH, "refit": True}
WAYS = ["always", "never"]


def chosen(found: Trained) -> dict[str, Any]:
    """Settings that a search has chosen."""
    assert found.search is not None
    return found.search["candidates"][found.search["chosen"]]["settings"]


def ended(*scores: tuple[float, float], train_loss: float = 0.1) -> Trained:
    """A training with these accuracies and losses on the held-out group."""
    entries = [{"step": step, "train_loss": train_loss, "dev_accuracy": one, "dev_loss": other}
               for step, (one, other) in enumerate(scores, start=1)]  # fmt: skip
    return Trained(history=entries)  # type: ignore[arg-type]


# The search


def test_the_chosen_candidate_keeps_its_weights() -> None:
    """Also where one that says the same class of everything has a lower loss, and is not chosen for that."""
    data = drawn((30, 30, 30, 30), seed=19, skill=0.0)
    labels = np.where(np.random.default_rng(19).random(120) < 0.8, "a", "b")
    data = replace(data, clips=data.clips.with_columns(label=pl.Series(labels)))
    given: dict[str, Any] = {"data": data, "steps": 100, "batch_size": 16}
    found = trained(search="grid", search_lr=(0.03, 0.1, 1.0), search_weight_decay=(), **given)
    assert found.search is not None
    losses = [one["dev_loss"][-1] for one in found.search["candidates"]]
    assert found.search["chosen"] != losses.index(min(losses))
    alone = trained(lr=chosen(found)["lr"], **given)
    torch.testing.assert_close(found.logits, alone.logits, atol=1e-3, rtol=1e-3)


def test_the_grid_has_every_combination() -> None:
    def of(**train: Any) -> Any:
        return candidates_of("mean", Config().model_copy(update={"train": settings(**train)}))

    found = of(**{**SEARCH, "search_weight_decay": (0.0, 1.0), "search_standardize": ("layer", "none")})
    assert len(found) == 12
    assert len({tuple(one.values()) for one in found}) == 12
    assert of(**SEARCH, weight_decay=0.3, standardize="layer") == [
        {"lr": lr, "weight_decay": 0.3, "standardize": "layer"} for lr in (0.001, 0.01, 0.05)
    ]
    for off in ({"search": "none"}, {"selection": "last"}):
        assert of(**{**SEARCH, **off}) == [{}]


def test_the_last_loss_decides_then_accuracy_then_order() -> None:
    trial = toy(**SEARCH)
    three = [ended((0.5, 1.0)), ended((0.9, 0.1), (0.9, 2.0)), ended((0.6, 1.0))]
    assert ranked(trial, three) == [2, 0, 1]
    assert ranked(trial, [three[0], three[0], three[2]]) == [2, 0, 1]
    assert ranked(trial, [three[0], ended((0.9, float("nan"))), three[1]]) == [0, 2]
    constant = replace(three[2], one_class=True)
    assert ranked(trial, [constant, *three[:2]]) == [1, 2, 0]
    assert ranked(trial, [constant]) == [0]


@pytest.mark.parametrize("stack", WAYS)
def test_every_candidate_is_trained_to_its_end_and_the_lowest_loss_is_chosen(stack: str) -> None:
    """A search is bookkeeping: training with the chosen rate alone gives the same."""
    found = trained(**SEARCH, stack=stack)
    assert found.search is not None
    assert found.search["steps"] == 12
    assert [one["settings"] for one in found.search["candidates"]] == [{"lr": lr} for lr in SEARCH["search_lr"]]
    assert {len(one["dev_loss"]) for one in found.search["candidates"]} == {10}
    last = [one["dev_loss"][-1] for one in found.search["candidates"]]
    assert found.search["chosen"] == last.index(min(last))
    assert found.search["edges"] == ["lr"]
    alone = trained(lr=chosen(found)["lr"])
    torch.testing.assert_close(found.logits, alone.logits, atol=2e-4, rtol=2e-4)
    assert [entry["dev_accuracy"] for entry in found.history] == [entry["dev_accuracy"] for entry in alone.history]
    if stack == "never":
        assert found.history == alone.history
        assert torch.equal(found.model.decoder.weight, alone.model.decoder.weight)


def test_epochs_are_searched_by_the_selected_one() -> None:
    found = trained(**SEARCH, epochs=3)
    assert found.search is not None
    assert found.selected_epoch is not None
    selected = found.history[found.selected_epoch - 1]
    assert found.history == trained(epochs=3, lr=chosen(found)["lr"]).history
    assert (
        selected["dev_loss"] == found.search["candidates"][found.search["chosen"]]["dev_loss"][found.selected_epoch - 1]
    )


def test_edges_are_those_of_three_values_or_more() -> None:
    tried = [{"lr": lr, "weight_decay": decay} for decay in (0.0, 1.0) for lr in (1.0, 2.0, 3.0)]
    found = [ended((0.5, 1.0))] * 6
    assert search_part(tried, found, 0)["edges"] == ["lr"]  # type: ignore[arg-type]
    assert search_part(tried, found, 4)["edges"] == []  # type: ignore[arg-type]
    assert search_part(tried, found, 5)["edges"] == ["lr"]  # type: ignore[arg-type]


WILD = {"search_lr": (0.01, 0.05, 1e30), "data": drawn(skill=100.0)}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("stack", WAYS)
def test_a_candidate_that_diverges_is_only_not_chosen(stack: str, again: bool) -> None:
    found = trained(**{**SEARCH, **WILD}, refit=again, stack=stack)
    assert chosen(found)["lr"] in (0.01, 0.05)
    assert found.search is not None
    assert len(found.search["candidates"][2]["dev_loss"]) < 10
    json.dumps(found.search, allow_nan=False)
    assert not found.collapsed
    assert found.notes == []


@pytest.mark.parametrize("stack", WAYS)
def test_every_candidate_diverged(stack: str) -> None:
    with pytest.raises(TrainingError) as caught:
        trained(**{**SEARCH, **WILD, "search_lr": (1e30, 1e31)}, stack=stack)
    assert str(caught.value) == (
        "the training loss is not finite at any of the learning rates tried (1e+30, 1e+31)\n"
        "  lower them (search_lr), or train with --set train.precision=float32"
    )
    with pytest.raises(DivergedError, match=r"loss is nan in step \d+\n  lower train\.lr"):
        trained(**{**SEARCH, **WILD, "search_lr": (1e30,)}, refit=True, stack=stack)


# The refit


@pytest.mark.parametrize("standardize", ["none", "feature"])
@pytest.mark.parametrize("stack", WAYS)
def test_a_refit_repeats_settings_and_steps_with_the_held_out_group(stack: str, standardize: str) -> None:
    """It is a training of its own on all but the test group, with the held-out figures of the candidate."""
    given = {"stack": stack, "standardize": standardize}
    before, after = trained(**SEARCH, **given), trained(**AGAIN, **given)
    assert after.search == before.search
    trial = toy(standardize=standardize, lr=chosen(after)["lr"])
    vars(trial)["split"] = joined(trial.split)
    assert len(trial.split.train) == 32
    assert len(trial.split.dev) == 0
    (by_hand,) = results(fit([trial]))
    torch.testing.assert_close(after.logits, by_hand.logits, atol=0, rtol=0)
    assert not torch.equal(after.logits, before.logits)
    for entry, hand, first in zip(after.history, by_hand.history, before.history, strict=True):
        assert entry["train_loss"] == hand["train_loss"] != first["train_loss"]
        assert entry["test_accuracy"] == hand["test_accuracy"]
        for name in ("step", "lr", "dev_accuracy", "dev_loss"):
            assert entry[name] == first[name]


def test_one_candidate_is_refitted_too() -> None:
    before, after = trained(), trained(refit=True)
    assert after.search is None
    assert not torch.equal(after.logits, before.logits)


@pytest.mark.parametrize("off", [{"selection": "last"}, {"epochs": 2}])
def test_there_is_no_refit_without_a_held_out_group_or_with_epochs(off: dict[str, Any]) -> None:
    assert_same(trained(refit=True, **off), trained(refit=False, **off))


def test_refits_of_folds_keep_the_settings_of_each() -> None:
    found = {
        stack: results(fit(toys((1, 2, 3, 4), **{**AGAIN, "search_lr": (0.02, 0.05, 0.3)}, stack=stack)))
        for stack in WAYS
    }
    rates = [[chosen(one)["lr"] for one in ours] for ours in found.values()]
    assert rates[0] == rates[1]
    assert len(set(rates[0])) > 1
    for ours, theirs in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours.logits, theirs.logits, atol=2e-4, rtol=2e-4)
        assert ours.history[0]["lr"] == chosen(ours)["lr"]


@pytest.mark.parametrize("make", [linear, method("best-layer")])
@pytest.mark.parametrize("given", [AGAIN, SEARCH, {"refit": True}], ids=["search and refit", "search", "refit"])
def test_labels_of_the_test_group_have_no_say(make: Any, given: dict[str, Any]) -> None:
    data, test = drawn(), np.arange(9, 17)
    labels = data.clips["label"].to_numpy().copy()
    labels[test] = np.roll(labels[test], 1)
    changed = replace(data, clips=data.clips.with_columns(pl.Series("label", labels)))
    first, second = (trained(make, data=one, **given) for one in (data, changed))
    assert first.history[-1]["test_accuracy"] != second.history[-1]["test_accuracy"]
    assert first.search == second.search
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_candidates_of_a_refit_do_not_look_at_the_test_group() -> None:
    entries = [event for event in fit([toy(**AGAIN)]) if isinstance(event, Recorded)]
    assert {event.entry["test_accuracy"] for event in entries if not event.member.final} == {None}
    assert None not in {event.entry["test_accuracy"] for event in entries if event.member.final}


@pytest.mark.parametrize("given", [AGAIN, {"refit": True, "lr": 0.05}])
def test_a_layer_chosen_on_the_held_out_group_stays_chosen(given: dict[str, Any]) -> None:
    data = drawn(seed=3)
    data.x[:, 1] += 5 * (2 * data.targets()[:, None] - 1).half()  # the second layer carries the class
    before, after = (trained(method("best-layer"), data=data, **{**given, "refit": again}) for again in (False, True))
    assert after.model.fusion.chosen == before.model.fusion.chosen == 1
    assert not torch.equal(after.logits, before.logits)


class Picks(FusionClassifier):
    """Classifies the second layer once it has seen a held-out group, which it notes in a buffer."""

    def __init__(self) -> None:
        super().__init__(nn.Identity(), nn.Linear(DIM, CLASSES), Traits(needs_dev=True))
        self.register_buffer("picked", torch.tensor([0]))
        self.norm = nn.BatchNorm1d(DIM)

    def forward(self, x: Any, **_: Any) -> Any:
        return self.decoder(self.norm(self.standardize(x).index_select(-2, self.picked).squeeze(-2)))

    def choose(self, x: Any, y: Any) -> None:
        self.picked.fill_(1)


@pytest.mark.parametrize("refit", [False, True])
def test_a_refit_takes_over_what_was_chosen_and_nothing_that_was_trained(refit: bool) -> None:
    given = {**AGAIN, "refit": refit, "standardize": "feature"}
    found = trained(Picks, **given)
    assert found.model.picked == 1
    assert torch.equal(found.model.standardize.mean, trained(**given).model.standardize.mean)
    once = trained(Picks, **{**given, "refit": False})
    assert found.model.norm.num_batches_tracked == once.model.norm.num_batches_tracked


# A refit that collapses


def training_losses(monkeypatch: pytest.MonkeyPatch, of: dict[tuple[int, bool], float]) -> list[tuple[int, bool]]:
    """Set the training loss of candidates and their refits; returns what has been trained, as it happens."""
    order: list[tuple[int, bool]] = []
    record = Stack.record

    def scripted(self: Stack) -> Any:
        entries = record(self)
        for member, result, entry in zip(self.members, self.trained, entries, strict=True):
            what = (member.number, member.first is not None)
            result.one_class = False
            entry["train_loss"] = of.get(what, 0.5)
            if not order or order[-1] != what:
                order.append(what)
            if not what[1]:
                entry["dev_loss"] = 1.0 + member.number  # so that they rank in their order
        return entries

    monkeypatch.setattr(Stack, "record", scripted)
    return order


NOTE = "refit(s) ended with a higher training loss than the candidate that they repeat, and the next candidate was"


@pytest.mark.parametrize("worse", [0.9, float("nan")])
def test_a_refit_that_collapses_is_replaced_by_the_next_candidate(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, worse: float
) -> None:
    order = training_losses(monkeypatch, {(0, True): worse})
    found = trained(**AGAIN, stack="never")
    assert order == [(0, False), (1, False), (2, False), (0, True), (1, True)]
    assert chosen(found) == {"lr": 0.01}
    assert (found.collapsed, found.replaced) == (False, 1)
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f"1 {NOTE}")
    assert "the refit with lr 0.001, weight_decay 0.01, standardize none has collapsed" in caplog.text


def test_the_last_candidate_is_kept_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    training_losses(monkeypatch, {(number, True): 0.9 for number in range(3)})
    found = trained(**AGAIN, stack="never")
    assert chosen(found) == {"lr": 0.05}
    assert (found.collapsed, found.replaced) == (True, 2)
    assert found.notes[0].startswith(f"3 {NOTE}")


def test_of_a_stack_only_the_collapsed_are_refitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Stack.record

    def scripted(self: Stack) -> Any:
        entries = record(self)
        for member, entry in zip(self.members, entries, strict=True):
            if member.first is not None and member.trial.spec.fold == 2 and len(self.members) == 3:  # type: ignore[attr-defined]
                entry["train_loss"] = 100.0
        return entries

    monkeypatch.setattr(Stack, "record", scripted)
    one, two, three = results(fit(toys((1, 2, 3), **AGAIN)))
    assert [found.replaced for found in (one, two, three)] == [0, 1, 0]
    assert one.notes == three.notes == []


def test_what_counts_as_collapsed() -> None:
    for begun, margin in ((0.8, 0.2), (5.0, 0.25)):
        first = ended((0.5, 0.5), (0.5, 0.5), train_loss=0.2)
        first.history[0]["train_loss"] = begun
        assert not collapsed(ended((0.5, 0.5), train_loss=0.19 + margin), first)
        assert collapsed(ended((0.5, 0.5), train_loss=0.21 + margin), first)


# Memory, time and order


def test_weights_of_candidates_are_dropped_in_time() -> None:
    """Those that are not the best so far, and with a refit all; a resume file would hold them otherwise."""
    for given, most in ((SEARCH, 1), (AGAIN, 0)):
        held = []
        for event in fit([toy(**given, stack="never")]):
            if isinstance(event, Progress):
                held.append(sum(bool(one["weights"]) for one in event.state()["done"].values()))
        assert max(held) == most


@pytest.mark.parametrize("stack", WAYS)
def test_the_first_trainings_are_gone_when_the_refit_begins(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    """Also what trained them, whose moments are twice as large; at once, not when garbage is collected."""
    alive: list[Any] = []
    for kind in (SingleModel, StackedModels):
        real = kind.__init__

        def watched(self: Any, *words: Any, real: Any = real) -> None:
            real(self, *words)
            alive.append(weakref.ref(self))

        monkeypatch.setattr(kind, "__init__", watched)
    gc.disable()
    try:
        for event in fit([toy(**AGAIN, stack=stack)]):
            if isinstance(event, Recorded):
                assert sum(one() is not None for one in alive) == 1
    finally:
        gc.enable()
    assert len(alive) == (2 if stack == "always" else 4)


def test_time_is_shared_by_a_stack_and_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = results(fit(toys((1, 2), steps=10)))
    whole = 10 * 2  # a record: a step and an evaluation
    assert [one.train_s for one in found] == [whole / 2] * 2
    assert trained(**AGAIN, stack="never", steps=10).train_s == 4 * whole


def test_progress_adds_up_to_all_steps_and_records_come_in_order() -> None:
    trial = toy(**AGAIN)
    events = list(fit([trial]))
    assert sum(event.units for event in events if isinstance(event, Progress)) == trial.units == 4 * 12
    recorded = [(event.member.number, event.member.final, event.entry["step"]) for event in events
                if isinstance(event, Recorded)]  # fmt: skip
    assert len(recorded) == 40
    assert all(not final for _, final, _ in recorded[:30])
    assert isinstance(events[-1], Finished)


# Interruptions


CUTS: dict[str, dict[str, Any]] = {
    "one by one": {**AGAIN, "search_lr": (0.01, 0.05), "stack": "never", "steps": 3},
    "in a stack": {**AGAIN, "search_lr": (0.01, 0.05), "steps": 3},
    "without a refit": {**SEARCH, "search_lr": (0.01, 0.05), "steps": 3},
    "epochs": {**SEARCH, "search_lr": (0.01, 0.05), "epochs": 2, "batch_size": 16},
    "maps": {
        **SEARCH,
        "search_lr": (0.01, 0.05),
        "epochs": 2,
        "batch_size": 16,
        "make": method("daam-v2"),
        "density_maps": "all-epochs",
    },
    "standardised": {
        **AGAIN,
        "search_lr": (0.05,),
        "search_standardize": ("none", "whiten"),
        "steps": 3,
        "folds": (1, 2),
    },
    "folds": {**AGAIN, "search_lr": (0.01, 0.02), "steps": 3, "folds": (1, 2, 3)},
    "best layer": {**AGAIN, "search_lr": (0.01, 0.05), "make": method("best-layer"), "steps": 2},
}


@pytest.mark.parametrize("name", CUTS)
def test_a_trial_killed_in_any_phase_resumes_to_the_same_bits(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(loop, "COLLAPSE", 10.0)  # the loss of single batches is noise
    given = {"folds": (2,), **CUTS[name]}
    everything, number = list(fit(toys(**given))), 0
    whole, units = results(iter(everything)), done_in(everything)
    assert units == sum(trial.units for trial in toys(**given))
    while (state := state_after(toys(**given), number)) is not None:
        events = list(fit(toys(**given), state))
        for ours, theirs in zip(results(iter(events)), whole, strict=True):
            assert_same(ours, theirs)
        assert done_in(events) == units
        number += 1
    assert number >= 5


def done_in(events: Iterable[Any]) -> int:
    """Units of work that are reported."""
    return sum(event.units for event in events if isinstance(event, Progress))


@pytest.mark.parametrize("stack", WAYS)
def test_a_trial_killed_after_a_collapse_resumes_where_it_was(monkeypatch: pytest.MonkeyPatch, stack: str) -> None:
    """The collapsed refit is not repeated, and what its successor has done is not lost."""
    given = {**AGAIN, "search_lr": (0.01, 0.05), "steps": 3, "stack": stack}
    training_losses(monkeypatch, {(0, True): 0.9})
    whole, number = trained(**given), 0
    assert whole.replaced == 1
    while (state := state_after([toy(**given)], number)) is not None:
        events = list(fit([toy(**given)], state))
        assert_same(results(iter(events))[0], whole)
        assert done_in(events) == 4 * 3
        number += 1
    assert number >= 10


def test_a_state_of_another_stack_does_no_harm() -> None:
    """As when a setting of the machine has changed: candidates that are done stay done."""
    alone = toy(**AGAIN, stack="never")
    state = state_after([alone], 70)
    assert state is not None
    assert len(state["done"]) == 3
    (found,) = results(fit([toy(**AGAIN, stack="always")], state))
    (whole,) = results(fit([toy(**AGAIN, stack="always")]))
    torch.testing.assert_close(found.logits, whole.logits, atol=2e-4, rtol=2e-4)


class Broken(nn.Flatten):
    """Memory that does not hold a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)


def test_a_step_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        trained(lambda: FusionClassifier(Broken(), nn.Linear(LAYERS * DIM, CLASSES)))
