"""Training of fusions: steps against NumPy, rates, records, selected epochs, resuming, and stacks against singles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daamctl.compute.cpu_formats import CpuFormats
from daamctl.compute.devices import full_float32
from daamctl.errors import DivergedError, TrainingError
from daamctl.fit import stack, steps
from daamctl.fit.features import InMemorySplit
from daamctl.fit.loop import fit
from daamctl.fit.stack import SingleModel, Stack, StackedModels, channels_last
from daamctl.fit.steps import adam, check_gradients, maps_of, predict
from daamctl.fit.trial import stackable
from daamctl.methods import FusionClassifier, Traits, build
from tests.fixtures.fits import (
    CLASSES,
    DIM,
    LAYERS,
    Toy,
    assert_close,
    assert_same,
    dense,
    drawn,
    flaky,
    linear,
    method,
    results,
    settings,
    state_after,
    toy,
    toys,
    trained,
)
from tests.fixtures.gpu import GPU, needs_gpu

PLAIN = {"weight_decay": 0.0, "schedule": "constant"}


def clips_of_test(trial: Toy) -> Tensor:
    """Test clips as the model sees them."""
    return trial.data.x[torch.from_numpy(trial.split.test)].float()


@pytest.mark.parametrize("decay", ["weights", "all"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_first_step_equals_numpy(optimizer: str, decay: str) -> None:
    """Adam's first step is lr * g / (|g| + eps); AdamW decays the tensor itself."""
    trial = toy(steps=1, batch_size=25, lr=0.1, weight_decay=0.5, optimizer=optimizer, decay=decay)
    before = {name: value.double().numpy() for name, value in trial.build().decoder.state_dict().items()}
    rows = torch.from_numpy(trial.split.train)
    x = trial.data.x[rows].flatten(1).double().numpy()  # all 25 clips in one batch
    assert len(x) == 25
    powers = np.exp(x @ before["weight"].T + before["bias"])
    error = (powers / powers.sum(1, keepdims=True) - np.eye(CLASSES)[trial.data.targets()[rows].numpy()]) / len(x)
    (found,) = results(fit([trial]))
    for name, gradient in (("weight", error.T @ x), ("bias", error.sum(0))):
        decayed = 0.5 if name == "weight" or decay == "all" else 0.0
        expected = before[name]
        if optimizer == "adam":
            gradient = gradient + decayed * before[name]
        else:
            expected = expected * (1 - 0.1 * decayed)
        expected = expected - 0.1 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(found.model.state_dict()[f"decoder.{name}"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("together", ["always", "never"])
@pytest.mark.parametrize("fusion", ["attentive", "static-gate"])
def test_matrices_of_a_fusion_have_a_rate_of_their_own(fusion: str, together: str) -> None:
    """Adam's first step is as long as the rate; the decay of a step is the same for all matrices. A gate is none."""
    given = {"steps": 1, "lr": 0.1, "schedule": "constant", "fusion_lr_factor": 0.25, "stack": together}
    kept, shrunk = (toys(make=method(fusion), weight_decay=decay, **given) for decay in (0.0, 0.5))
    before = dict(kept[0].build().named_parameters())
    results_of = [results(fit(one))[0].model for one in (kept, shrunk)]
    moved, further = (dict(model.named_parameters()) for model in results_of)
    for name, value in before.items():
        is_matrix = value.ndim > 1 and name != "fusion.weight"
        rate = 0.025 if is_matrix and name.startswith("fusion.") else 0.1
        steps_taken = (moved[name] - value).abs()
        assert steps_taken.max().item() == pytest.approx(rate, rel=1e-2), name
        torch.testing.assert_close(moved[name] - further[name], 0.05 * value * is_matrix, rtol=1e-3, atol=1e-6)


RATES = {
    "cosine": [(1 + math.cos(math.pi * k / 4)) / 2 for k in range(4)],
    "linear": [1.0, 0.75, 0.5, 0.25],
    "constant": [1.0] * 4,
}


@pytest.mark.parametrize("budget", [{"steps": 4}, {"epochs": 4}])
@pytest.mark.parametrize("schedule", RATES)
def test_recorded_rates_are_those_of_the_steps(monkeypatch: pytest.MonkeyPatch, schedule: str, budget: Any) -> None:
    """A step's with a budget, an epoch's without one; to 0 one step, or epoch, after the last."""
    used: list[float] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (used.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    found = trained(lr=0.1, schedule=schedule, **budget)
    expected = [0.1 * factor for factor in RATES[schedule]]
    assert [entry["lr"] for entry in found.history] == pytest.approx(expected)
    every = 7 if "epochs" in budget else 1  # 25 clips in batches of four
    assert used == pytest.approx(np.repeat(expected, every))


def test_plateau_lowers_the_rate_after_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "accuracy_of", lambda *_: 0.5)
    shared = {"epochs": 6, "lr": 0.1, "schedule": "plateau", "plateau_factor": 0.5}
    rates = [entry["lr"] for entry in trained(plateau_patience=1, **shared).history]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025])
    falling = [entry["lr"] for entry in trained(selection="last", plateau_patience=0, **{**shared, "lr": 1e-3}).history]
    assert falling == [1e-3] * 6  # then it watches the training loss, which falls


@pytest.mark.parametrize("selection", ["dev-group", "best-on-test"])
def test_plateau_watches_the_part_that_selects(monkeypatch: pytest.MonkeyPatch, selection: str) -> None:
    rising, flat = [0.1, 0.2, 0.3, 0.4], [0.5] * 4
    for watched, other in ((rising, flat), (flat, rising)):
        both = [value for pair in zip(watched, other, strict=True) for value in pair]
        scripted = iter(both if selection == "dev-group" else watched)
        monkeypatch.setattr(steps, "accuracy_of", lambda *_, values=scripted: next(values))
        found = trained(epochs=4, lr=0.1, schedule="plateau", plateau_patience=0, selection=selection)
        assert (len({entry["lr"] for entry in found.history}) == 1) is (watched is rising)


@pytest.mark.parametrize(
    ("steps", "expected"), [(25, [2, 5, 7, 10, 12, 15, 17, 20, 22, 25]), (3, [1, 2, 3]), (10, [*range(1, 11)])]
)
def test_records_come_at_tenths_of_the_budget(steps: int, expected: list[int]) -> None:
    found = trained(steps=steps)
    assert [entry["step"] for entry in found.history] == expected
    assert {entry["epoch"] for entry in found.history} == {None}
    assert found.selected_epoch is None
    assert found.last is found.history[-1]


def test_training_figures_weigh_every_clip_the_same() -> None:
    """25 clips in batches of four and a last one of one; the rate is too small to move anything."""
    trial = toy(lr=1e-12, epochs=1)
    rows = torch.from_numpy(trial.split.train)
    with torch.no_grad():
        logits, y = trial.build()(trial.data.x[rows].float()), trial.data.targets()[rows]
    entry = results(fit([trial]))[0].history[0]
    assert entry["train_loss"] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-5)
    assert entry["train_accuracy"] == pytest.approx((logits.argmax(1) == y).double().mean().item())


def watched() -> tuple[Any, list[float]]:
    """A model that notes the first value of every clip that it is trained on."""
    seen: list[float] = []

    class Watching(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.extend(x[:, 0, 0].tolist())
            return super().forward(x)

    return lambda: FusionClassifier(Watching(), nn.Linear(LAYERS * DIM, CLASSES)), seen


@pytest.mark.parametrize("budget", [{"epochs": 3}, {"steps": 19}])
def test_every_clip_is_seen_once_a_pass_in_an_order_of_seed_and_pass(budget: dict[str, int]) -> None:
    """With a budget, batches run on over the ends of passes: 19 of four clips are three passes of 25, and one clip."""

    def passes(seed: int) -> list[list[float]]:
        make, seen = watched()
        trained(make, seed=seed, stack="never", **budget)
        assert len(seen) == (75 if "epochs" in budget else 76)
        return [seen[start : start + 25] for start in (0, 25, 50)]

    trial = toy()
    rows = torch.from_numpy(trial.split.train)
    first = passes(1)
    assert [sorted(one) for one in first] == [sorted(trial.data.x[rows, 0, 0].tolist())] * 3
    assert len({tuple(one) for one in first}) == 3
    assert passes(1) == first
    assert passes(2) != first


DEV, TEST = [0.2, 0.6, 0.5, 0.6, 0.1], [0.3, 0.1, 0.7, 0.7, 0.4]


@pytest.mark.parametrize(("selection", "expected"), [("dev-group", 2), ("best-on-test", 3), ("last", 5)])
def test_of_epochs_the_first_of_the_best_is_kept(monkeypatch: Any, selection: str, expected: int) -> None:
    scripted = iter([value for pair in zip(DEV, TEST, strict=True) for value in pair])
    if selection != "dev-group":
        scripted = iter(TEST)
    monkeypatch.setattr(steps, "accuracy_of", lambda *_: next(scripted))
    monkeypatch.setattr(steps, "cross_entropy_of", lambda *_: 0.5)
    snapshots: list[Tensor] = []
    record = Stack.record

    def recording(self: Stack) -> Any:
        snapshots.append(self.fusions[0].model.decoder.weight.detach().clone())
        return record(self)

    monkeypatch.setattr(Stack, "record", recording)
    trial = toy(epochs=5, lr=0.1, selection=selection)
    (found,) = results(fit([trial]))
    assert found.selected_epoch == expected
    assert torch.equal(found.model.decoder.weight, snapshots[expected - 1])
    assert len({tuple(one.flatten().tolist()) for one in snapshots}) == 5
    with torch.no_grad():
        assert torch.equal(found.logits, found.model(clips_of_test(trial)))
    assert [entry["dev_accuracy"] for entry in found.history] == (DEV if selection == "dev-group" else [None] * 5)


def test_of_equally_accurate_epochs_the_lower_loss_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([0.9, 0.0, 0.3, 0.0, 0.5, 0.0])  # held out, and of the test part, which has no say
    monkeypatch.setattr(steps, "accuracy_of", lambda *_: 0.5)
    monkeypatch.setattr(steps, "cross_entropy_of", lambda *_: next(losses))
    assert trained(epochs=3).selected_epoch == 2


def test_one_class_is_the_answer_of_the_epoch_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True, False])
    monkeypatch.setattr(stack, "is_one_class", lambda _: next(answers))
    monkeypatch.setattr(stack, "improves", lambda history, *_: len(history) < 3)
    found = trained(epochs=3)
    assert (found.selected_epoch, found.one_class) == (2, True)


@pytest.mark.parametrize("limit", [0.01, None])
def test_gradients_are_clipped_to_the_norm_asked_for(monkeypatch: Any, limit: float | None) -> None:
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def recording(self: Any) -> Any:
        norms.append(torch.cat([p.grad.flatten() for group in self.param_groups for p in group["params"]]).norm())
        return step(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", recording)
    trained(grad_clip_norm=limit, lr=1e-5)
    assert len(norms) == 12
    assert min(norms) > 0.05 if limit is None else norms == pytest.approx([limit] * 12, rel=1e-3)


class Idle(nn.Flatten):
    """A fusion with a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(2))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)


@pytest.mark.parametrize("folds", [(2,), (1, 2)])
def test_parameter_without_gradient_stops_the_training(folds: tuple[int, ...]) -> None:
    make = lambda: FusionClassifier(Idle(), nn.Linear(LAYERS * DIM, CLASSES))  # noqa: E731
    with pytest.raises(
        TrainingError, match=r"^no gradient reaches (fusion.)?unused: they would never be trained$|unused"
    ):
        results(fit(toys(folds, make=make)))


@pytest.mark.parametrize(("budget", "where"), [({"epochs": 3}, "epoch 1"), ({"steps": 20}, "step 2")])
def test_loss_that_is_not_finite_says_when(budget: dict[str, int], where: str) -> None:
    data = drawn()
    data.x[:] = float("nan")
    with pytest.raises(DivergedError) as caught:
        trained(data=data, **budget)
    assert str(caught.value) == (
        f"the training loss is nan in {where}\n"
        "  lower train.lr, train.search_lr, train.search_weight_decay, or train with --set train.precision=float32"
    )


@pytest.mark.parametrize("rows", [[0, 2, 4, 6, 8, 10], [3], [1, 2, 3]], ids=["one class", "one clip", "few clips"])
@pytest.mark.parametrize("way", [{"epochs": 2}, {"steps": 5}, {"steps": 5, "stack": "never"}])
def test_little_data_trains(rows: list[int], way: dict[str, Any]) -> None:
    trials = toys((1, 2), **way)
    for trial in trials:
        vars(trial)["split"] = replace(trial.split, train=np.array(rows), test=np.array(rows[:1]))
    for found in results(fit(trials)):
        assert found.logits.shape == (1, CLASSES)
        assert found.history[-1]["train_loss"] < found.history[0]["train_loss"]  # type: ignore[operator]


class Centred(nn.Module):
    """Takes the batch mean away: a prediction depends on its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize("budget", [{"epochs": 2, "selection": "last"}, {"steps": 4}])
def test_batch_dependent_methods_are_evaluated_in_batches_of_training(budget: dict[str, Any]) -> None:
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(LAYERS * DIM, CLASSES))
    trial = toy(lambda: FusionClassifier(Centred(), decoder, Traits(batch_dependent=True)), fold=3, **budget)
    (found,) = results(fit([trial]))
    x = clips_of_test(trial)
    with torch.no_grad():
        torch.testing.assert_close(found.logits, torch.cat([found.model(x[:4]), found.model(x[4:])]))
        assert not torch.allclose(found.logits, found.model(x))


class Choosing(FusionClassifier):
    """Remembers what it was shown to choose by."""

    shown: list[tuple[int, bool]]

    def choose(self, x: Any, y: Tensor) -> None:
        self.shown.append((len(x), self.training))


@pytest.mark.parametrize(("budget", "records"), [({"epochs": 2}, 2), ({"steps": 3}, 3)])
def test_choices_are_made_on_the_held_out_group_at_every_record(budget: dict[str, int], records: int) -> None:
    model = Choosing(nn.Flatten(), nn.Linear(LAYERS * DIM, CLASSES), Traits(needs_dev=True))
    model.shown = []
    trained(lambda: model, **budget)
    assert model.shown == [(7, False)] * records
    with pytest.raises(TrainingError, match=r"held-out group, which only train\.selection=dev-group sets aside"):
        trained(lambda: model, selection="last", **budget)


def test_published_maps_are_means_over_batches_of_every_epoch_so_far() -> None:
    """Seven test clips in batches of four and three: the small batch counts as much as the full one (D19)."""
    trial = toy(dense, fold=3, epochs=3, density_maps="all-epochs")
    x, (found,) = clips_of_test(trial), results(fit([trial]))
    torch.testing.assert_close(found.maps["density"], (x[:4].mean(0) + x[4:].mean(0)) / 2)
    torch.testing.assert_close(found.untrained_maps["density"], x.mean(0))
    torch.testing.assert_close(trained(dense, fold=3, epochs=3).maps["density"], x.mean(0))


def test_published_maps_cover_the_epochs_up_to_the_selected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    add = stack.EpochMaps.add

    def watch(self: Any, model: FusionClassifier, part: InMemorySplit, device: str, size: int) -> None:
        with torch.no_grad():
            maps = [model(x.float(), return_density=True)[1].mean(0) for x, _ in part.batches(size)]
            seen.append(torch.stack(maps).mean(0))
        add(self, model, part, device, size)

    monkeypatch.setattr(stack.EpochMaps, "add", watch)
    make = method("daam-v1", num_heads=1, hidden_channels=4)
    found = trained(make, density_maps="all-epochs", epochs=5, lr=0.05, decay="all", schedule="constant")
    assert len(seen) == 5
    torch.testing.assert_close(found.maps["density"], torch.stack(seen[: found.selected_epoch]).mean(0))
    assert not torch.equal(seen[0], seen[1])


def test_published_maps_are_those_of_the_chosen_candidate() -> None:
    make, given = method("daam-v1", num_heads=1, hidden_channels=4), {"epochs": 5, "decay": "all"}
    for rates, best in (((0.001, 0.05), 1), ((0.05, 0.3), 0)):
        search = {"search": "grid", "search_lr": rates, "search_weight_decay": ()}
        found = trained(make, density_maps="all-epochs", **search, **given)
        assert found.search is not None
        assert found.search["chosen"] == best
        alone = trained(make, density_maps="all-epochs", lr=rates[best], **given)
        assert torch.equal(found.maps["density"], alone.maps["density"])
        final = alone.model.density(clips_of_test(toy())).mean(0)
        assert not torch.allclose(alone.maps["density"], final)


def test_maps_and_layer_weights_are_taken_before_and_after() -> None:
    trial = toy(method("attentive"), lr=0.05)
    with torch.no_grad():
        before = trial.build().layer_weights(clips_of_test(trial)).mean(0)
    (found,) = results(fit([trial]))
    torch.testing.assert_close(found.untrained_maps["layer_weights"], before)
    with torch.no_grad():
        torch.testing.assert_close(found.maps["layer_weights"], found.model.layer_weights(clips_of_test(trial)).mean(0))
    assert not torch.allclose(found.maps["layer_weights"], before)
    assert list(found.maps) == ["layer_weights"]
    found = trained(method("daam-v2"), lr=0.05, decay="all")
    assert not torch.equal(found.maps["density"], found.untrained_maps["density"])
    assert list(found.maps) == ["density"]


# Stacks


SEARCHED = {"search": "grid", "search_lr": (0.01, 0.05), "search_weight_decay": (0.0, 2.0)}
TOGETHER: dict[str, dict[str, Any]] = {
    "folds": {},
    "candidates": {**SEARCHED, "folds": (2,)},
    "folds and candidates": {**SEARCHED, "grad_clip_norm": 0.3},
    "refit": {**SEARCHED, "refit": True},
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "decay": "all", "loss": "focal", "schedule": "linear"},
    "standardised": {**SEARCHED, "search_standardize": ("feature", "layer", "whiten"), "search_weight_decay": ()},
    "last": {"selection": "last", "schedule": "constant"},
}


@pytest.mark.parametrize("name", TOGETHER)
def test_a_stack_is_its_models_alone(name: str) -> None:
    """Folds of unequal size, rates and decays of their own: losses, accuracies, logits and weights."""
    given = {"folds": (1, 2, 3), "lr": 0.02, **TOGETHER[name]}
    together, alone = (results(fit(toys(stack=one, **given))) for one in ("always", "never"))
    assert len(together) == len(given["folds"])
    for ours, theirs in zip(together, alone, strict=True):
        assert_close(ours, theirs)
        if theirs.search is not None:
            assert ours.search is not None
            assert ours.search["chosen"] == theirs.search["chosen"]
            for one, other in zip(ours.search["candidates"], theirs.search["candidates"], strict=True):
                assert one["settings"] == other["settings"]
                assert one["dev_loss"] == pytest.approx(other["dev_loss"], rel=2e-4)
            losses = [tuple(one["dev_loss"]) for one in theirs.search["candidates"]]
            assert len(set(losses)) == len(losses)


def test_folds_of_a_stack_have_equally_many_candidates() -> None:
    """Where `auto` stands for whitening in some folds alone, these have two candidates that are standardised alike."""
    data = drawn((10, 10, 10, 10, 10))
    first = torch.from_numpy((data.clips["group"] == "g1").to_numpy())
    x = data.x.float()
    x[first] = 5 * torch.randn(10, LAYERS, DIM, generator=torch.Generator().manual_seed(2))
    # one direction holds nearly all variance of the other groups
    x[~first] = 0.05 * x[~first] + 3 * torch.randn(40, LAYERS, 1, generator=torch.Generator().manual_seed(1))
    given = {**SEARCHED, "search_standardize": ("auto", "whiten"), "data": replace(data, x=x.half())}
    trials = toys(stack="always", **given)
    assert len({trial.is_collinear for trial in trials}) == 2
    for ours, theirs in zip(results(fit(trials)), results(fit(toys(stack="never", **given))), strict=True):
        assert ours.search is not None
        assert theirs.search is not None
        for one, other in zip(ours.search["candidates"], theirs.search["candidates"], strict=True):
            assert one["settings"] == other["settings"]
            assert one["dev_loss"] == pytest.approx(other["dev_loss"], rel=2e-4)


@pytest.mark.parametrize("name", ["daam-v2-mlp", "attentive", "mha-mlp"])
def test_methods_of_the_table_give_the_same_in_a_stack(name: str) -> None:
    base, *decoder = name.split("-mlp")
    make = method(base, **({"decoder": "mlp"} if decoder else {}), **({"num_heads": 2} if base == "mha" else {}))
    together, alone = (results(fit(toys(make=make, lr=1e-3, stack=one, steps=6))) for one in ("always", "never"))
    for ours, theirs in zip(together, alone, strict=True):
        for found in (ours, theirs):  # moved by rounding alone, and moves nothing
            for key in [key for key in found.model.state_dict() if key.endswith("in_proj_bias")]:
                found.model.get_parameter(key).data.zero_()
        assert_close(ours, theirs)


def test_a_member_that_diverges_takes_nobody_along() -> None:
    wild = {"search": "grid", "search_lr": (0.05, 1e30), "search_weight_decay": (), "grad_clip_norm": 1.0}
    data = drawn(skill=100.0)
    ours, calm = (trained(data=data, fold=2, **one) for one in (wild, {**wild, "search_lr": (0.05,)}))
    assert ours.search is not None
    assert ours.search["chosen"] == 0
    torch.testing.assert_close(ours.logits, calm.logits, atol=2e-4, rtol=2e-4)


# Resuming: `tests/fit/test_loop.py` has the search and the refit


KINDS: dict[str, dict[str, Any]] = {
    "dropout and batch norm": {"make": flaky, "steps": 13, "grad_clip_norm": 1.0},
    "epochs": {"make": flaky, "epochs": 2, "batch_size": 9},
    "plateau": {"epochs": 5, "batch_size": 16, "lr": 1.0, "schedule": "plateau", "plateau_patience": 1},
    "maps": {"make": dense, "epochs": 2, "batch_size": 8, "density_maps": "all-epochs"},
    "best layer": {"make": method("best-layer"), "epochs": 2, "batch_size": 12},
    "stack": {"folds": (1, 2, 3), "steps": 13},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_training_killed_at_any_step_resumes_to_the_same_bits(name: str) -> None:
    given = {"folds": (2,), "lr": 0.05, **KINDS[name]}
    whole, number = results(fit(toys(**given))), 0
    while (state := state_after(toys(**given), number)) is not None:
        for ours, theirs in zip(results(fit(toys(**given), state)), whole, strict=True):
            assert_same(ours, theirs)
        number += 1
    assert number >= 4
    assert len({entry["lr"] for entry in whole[0].history}) > 1  # on a plateau, what it remembers must go on


def test_a_resumed_training_takes_only_the_steps_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_after([toy()], 8)
    assert state is not None
    done, steps = state["under way"]["fit"]["steps"], []
    real = stack.SingleModel.step
    monkeypatch.setattr(stack.SingleModel, "step", lambda *given: (steps.append(1), real(*given))[1])
    results(fit([toy()], state))
    assert done + len(steps) == 12
    assert done > 3


# Evaluation


def part(number: int) -> InMemorySplit:
    return InMemorySplit(
        torch.randn(number, LAYERS, DIM, generator=torch.Generator().manual_seed(0)), torch.zeros(number)
    )


def test_predict_keeps_the_order_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "EVAL_BATCH", 4)
    model, data = linear().train(), part(11)
    with torch.no_grad():
        expected = model(data.x)
    found = predict(model, data, "cpu", 4)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert not model.training
    assert predict(model, InMemorySplit(data.x.half(), data.y), "cpu", 4).dtype == torch.float32


def test_mean_density_weighs_every_clip_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: the published code averages batch means, so that the clips of a short last batch count more."""
    monkeypatch.setattr(steps, "EVAL_BATCH", 4)
    model = dense()
    torch.testing.assert_close(maps_of(model, part(9), "cpu")["density"], part(9).x.mean(0))


class Undecided(nn.Module):
    """A decoder that must not be asked."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError


@pytest.mark.parametrize("name", ["daam-v1", "mixture-daam", "gqdaam-published", "gct-b0"])
def test_densities_are_those_of_a_whole_pass_without_one(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, num_layers=16, embed_dim=16, num_classes=2).eval()
    x = torch.randn(20, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        total = sum(model(rows, return_density=True)[1].double().sum(0) for rows in x.split(steps.EVAL_BATCH))
    model.decoder = Undecided()
    assert torch.equal(maps_of(model, InMemorySplit(x, torch.zeros(20)), "cpu")["density"], (total / 20).float())


class Small(nn.Flatten):
    """A device with room for so many clips."""

    room = 3

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.tried.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(x)


def test_evaluation_goes_on_in_halves_where_memory_runs_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fusion, data = Small(), part(30)
    model = FusionClassifier(fusion, nn.Linear(LAYERS * DIM, CLASSES))
    monkeypatch.setattr(steps, "EVAL_BATCH", 16)
    with caplog.at_level("INFO"):
        found = predict(model, data, "cpu", 4)
    assert fusion.tried == [16, 8, 4, 2, *[2] * 7, *[2] * 7]
    with torch.no_grad():
        torch.testing.assert_close(found, model.decoder(data.x.flatten(1)))
    assert caplog.messages[0] == "out of memory: from now on 8 items at once"
    fusion.room = 0
    with pytest.raises(torch.OutOfMemoryError):
        predict(model, data, "cpu", 16)
    assert fusion.tried[-1] == 1


def test_batches_on_which_predictions_depend_are_not_halved() -> None:
    fusion = Small()
    model = FusionClassifier(fusion, nn.Linear(LAYERS * DIM, CLASSES), Traits(batch_dependent=True))
    with pytest.raises(torch.OutOfMemoryError):
        predict(model, part(8), "cpu", 4)
    assert fusion.tried == [4]


@needs_gpu
@pytest.mark.parametrize("make", [linear, method("none", hidden_channels=4)])
def test_training_on_a_gpu_is_that_on_a_cpu(make: Any) -> None:
    full_float32()
    cpu, cuda = (trained(make, device=one, lr=0.01, grad_clip_norm=1.0) for one in ("cpu", "cuda"))
    torch.testing.assert_close(cuda.logits, cpu.logits, atol=1e-4, rtol=1e-3)
    losses = [[entry["train_loss"] for entry in one.history] for one in (cuda, cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@needs_gpu
@pytest.mark.parametrize("how", ["float32", "float16"])
def test_training_on_a_gpu_resumes(how: str) -> None:
    given = {"device": "cuda", "how": how, "lr": 0.01}
    (whole,) = results(fit([toy(**given)]))
    (resumed,) = results(fit([toy(**given)], state_after([toy(**given)], 9)))
    torch.testing.assert_close(resumed.logits, whole.logits, atol=1e-5, rtol=1e-4)


X = torch.randn(1, 4, LAYERS, DIM, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(4) % CLASSES)[None]
conv = method("none", hidden_channels=4)


def one(make: Any = linear, device: str = "cpu", how: str = "float16", **train: Any) -> SingleModel:
    """A model whose steps the tests take themselves."""
    torch.manual_seed(0)
    return SingleModel(make().to(device), settings(**train), device, how)


def numbers(model: SingleModel) -> torch.Tensor:
    """All weights."""
    return torch.cat([value.detach().flatten().cpu() for value in model.model.parameters()])


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Factors by which the losses of the coming steps are multiplied; the steps are otherwise those of float32."""
    factors: list[float] = []
    plain = FusionClassifier.training_loss

    def multiplied(self: FusionClassifier, x: Any, y: Any, loss: Any) -> Any:
        value, logits = plain(self, x, y, loss)
        return factors.pop(0) * value, logits

    monkeypatch.setattr(FusionClassifier, "training_loss", multiplied)
    monkeypatch.setattr(stack, "autocast", lambda device, _: torch.autocast(device.split(":")[0], enabled=False))
    return factors


@pytest.mark.parametrize(("clip", "expected"), [("scaled", 1 / 1024), ("unscaled", 1.0)])
def test_clipping_before_or_after_the_loss_scale_is_taken_away(
    scripted: list[float], clip: str, expected: float
) -> None:
    """D21: on gradients still multiplied by the loss scale 1024, a threshold of 1 is a true one of 1/1024."""
    scripted.append(1000.0)
    run = one(grad_clip_norm=1.0, grad_clip=clip, optimizer="adam", weight_decay=0.0)
    run.scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=1024.0)
    run.step(X, Y)
    means = torch.cat([state["exp_avg"].flatten() for state in run.optimizer.state.values()])
    assert means.norm().item() == pytest.approx(0.1 * expected, rel=1e-4)  # a tenth of the gradient, at first


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
@pytest.mark.parametrize("clip", ["scaled", "unscaled"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_fused_steps_under_a_loss_scale_are_the_plain_ones(
    scripted: list[float], monkeypatch: pytest.MonkeyPatch, clip: str, optimizer: str, device: str
) -> None:
    """The fused kernel takes the scale away and skips a step by itself, where the scaler does it for the plain one."""
    given = {"grad_clip_norm": 1.0, "grad_clip": clip, "optimizer": optimizer, "weight_decay": 0.5, "lr": 0.1}
    found = []
    for fused in (True, False):
        with monkeypatch.context() as context:
            if not fused:
                context.setattr(stack, "adam", lambda *words, **more: adam(*words, **more, fused=False))
            run = one(device=device, **given)
        run.scaler = torch.amp.grad_scaler.GradScaler(device, init_scale=1024.0, growth_interval=2)
        assert bool(run.optimizer.param_groups[0]["fused"]) == fused
        steps = [numbers(run)]
        scripted += [float("inf"), 1.0, 3.0, float("inf"), 2.0]
        for _ in range(5):
            run.step(X.to(device), Y.to(device))
            steps.append(numbers(run))
        assert torch.equal(steps[1], steps[0])
        assert torch.equal(steps[4], steps[3])
        assert {state["step"].item() for state in run.optimizer.state.values()} == {3.0}
        found.append((torch.stack(steps), run.scaler.state_dict()))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=1e-5)
    assert found[0][1] == found[1][1]


def test_a_training_in_float16_resumes_with_its_loss_scale() -> None:
    given: dict[str, Any] = {"how": "float16", "grad_clip_norm": 1.0, "grad_clip": "scaled", "lr": 0.01}
    (whole,) = results(fit([toy(**given)]))
    state = state_after([toy(**given)], 8)
    assert state is not None
    assert state["under way"]["fit"]["models"]["scaler"]["_growth_tracker"] > 0
    assert_same(results(fit([toy(**given)], state))[0], whole)


def test_a_state_saved_by_plain_steps_goes_on_by_fused_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a move from a device without them."""
    whole = trained(lr=0.01)
    with monkeypatch.context() as context:
        context.setattr(stack, "adam", lambda *words, **more: adam(*words, **more, fused=False))
        state = state_after([toy(lr=0.01)], 8)
    used: list[bool] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (used.append(self.param_groups[0]["fused"]), step(self))[1]
    )
    (resumed,) = results(fit([toy(lr=0.01)], state))
    assert set(used) == {True}
    assert len(used) < 12
    torch.testing.assert_close(resumed.logits, whole.logits)


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_adam_of_a_stack_is_adam_of_each(kind: str) -> None:
    """Two trials with two candidates: rates and decays of their own, on the same batches."""
    configs = [settings(lr=lr, weight_decay=decay, optimizer=kind) for lr, decay in
               ((0.1, 0.5), (0.01, 0.0), (0.02, 0.5), (0.1, 1.0))]  # fmt: skip
    made = []
    for seed in range(4):
        torch.manual_seed(seed)
        made.append(linear())
    twins = [linear() for _ in range(4)]
    for model, twin in zip(made, twins, strict=True):
        twin.load_state_dict(model.state_dict())
    stack = StackedModels(made, configs, (2, 2), "cpu", "float32")
    alone = [SingleModel(twin, config, "cpu", "float32") for twin, config in zip(twins, configs, strict=True)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(2, 4, LAYERS, DIM, generator=generator)
        losses, logits = stack.step(x, Y.expand(2, -1))
        for index, model in enumerate(alone):
            loss, found = model.step(x[index // 2][None], Y)
            torch.testing.assert_close(losses[index], loss[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(logits[index], found[0], atol=1e-5, rtol=1e-5)
    for model, twin in zip(made, twins, strict=True):
        for name, value in twin.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=1e-5)


def test_check_gradients_names_all() -> None:
    model = linear()
    with pytest.raises(TrainingError, match=r"no gradient reaches decoder.weight, decoder.bias: "):
        check_gradients({name: value.grad for name, value in model.named_parameters()})
    model(X[0]).sum().backward()
    check_gradients({name: value.grad for name, value in model.named_parameters()})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("weighted-sum", True), ("attentive", True), ("daam-v1", False), ("sls", False), ("best-layer", False),
     ("mha-published", False), ("ridge-last", False)],
)  # fmt: skip
def test_what_stacks(name: str, expected: bool) -> None:
    """Not convolutions, batch normalisation, choices on the held-out group, closed forms, or what sees its batch."""
    given = {"decoder": "mlp", "num_heads": 2} if name == "mha-published" else {}
    assert stackable(method(name, **given)()) == expected
    assert not stackable(flaky())


def test_order_in_memory_changes_rounding_alone_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for last in (False, True):
        monkeypatch.setattr(stack, "channels_last", lambda *_, last=last: last)
        done = trained(conv, lr=0.01)
        assert all(value.is_contiguous() for value in done.model.state_dict().values())
        found.append((done.logits, dict(done.model.state_dict())))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_state_saved_in_another_order_in_memory_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a move to another processor: the fused optimiser does not look at strides."""
    monkeypatch.setattr(stack, "channels_last", lambda *_: False)
    whole, state = trained(conv, lr=0.01), state_after([toy(conv, lr=0.01)], 8)
    monkeypatch.setattr(stack, "channels_last", lambda *_: True)
    (resumed,) = results(fit([toy(conv, lr=0.01)], state))
    torch.testing.assert_close(resumed.logits, whole.logits, atol=1e-5, rtol=1e-4)


def test_a_gpu_evaluates_in_the_contiguous_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And trains on in the other one, in the same memory."""
    monkeypatch.setattr(stack, "channels_last", lambda *_: True)
    run = one(conv, how="float32")
    weight = next(module.weight for module in run.model.modules() if isinstance(module, nn.Conv2d))
    address = weight.data_ptr()
    with run.evaluating():
        assert weight.is_contiguous(memory_format=torch.channels_last)
    run.device = "cuda"
    with run.evaluating():
        assert weight.is_contiguous()
        assert not weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.data_ptr() == address


def test_channels_last_by_measurement_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CpuFormats(channels_last={"float32": False, "bfloat16": True})
    monkeypatch.setattr(stack, "cpu_formats", lambda: found)
    assert channels_last("cpu", "bfloat16")
    assert not channels_last("cpu", "float32")
    assert channels_last("cuda:0", "bfloat16")
    assert not channels_last("cuda:0", "float32")
    assert not channels_last("mps", "float32")
