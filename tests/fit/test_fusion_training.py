"""The training loop by its parts: optimiser steps against NumPy, schedule, selection, clipping, resume."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daamctl.config import TrainConfig
from daamctl.cpu_formats import CpuFormats
from daamctl.devices import full_float32
from daamctl.errors import ArtifactError, TrainingError
from daamctl.fit import fusion_training, inference, loop
from daamctl.fit.checkpoint import FILE, load_state, save_state
from daamctl.fit.feature_split import InMemorySplit
from daamctl.fit.fusion_training import FusionTraining, check_gradients
from daamctl.fit.inference import mean_density, predict
from daamctl.fit.loop import Trained, TrainingSetup
from daamctl.methods import FusionClassifier, Traits, build
from tests.fixtures.damage import damages
from tests.fixtures.gpu import GPU, needs_gpu
from tests.fixtures.resume import WITHIN, Killed, State, evaluated, kill_when, save_after_epochs, save_always

LAYERS, DIM, CLASSES = 2, 3, 2


@pytest.fixture(autouse=True)
def _no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine saves none either, so trainings may share a folder; tests of checkpoints switch them on."""
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", float("inf"))


def part(number: int, seed: int = 0) -> InMemorySplit:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(number, LAYERS, DIM, generator=generator)
    return InMemorySplit(x, torch.arange(number) % CLASSES)


def linear(seed: int = 0) -> FusionClassifier:
    torch.manual_seed(seed)
    return FusionClassifier(nn.Flatten(), nn.Linear(LAYERS * DIM, CLASSES))


def train(model: FusionClassifier, work: Path, data: InMemorySplit | None = None, **settings: Any) -> Trained:
    seed, device, precision = (settings.pop(*option) for option in (("seed", 1), ("on", "cpu"), ("how", "float32")))
    config = TrainConfig.model_validate({"batch_size": 4, "epochs": 3, **settings})
    dev = part(6, 2) if config.selection == "dev-group" else None
    return FusionTraining(
        model,
        data or part(10),
        dev,
        part(6, 3),
        config,
        TrainingSetup(seed, device, precision, work, key="k"),
    ).complete()


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_first_step_equals_numpy(tmp_path: Path, optimizer: str) -> None:
    """One full batch, one epoch: Adam's first step is lr * g / (|g| + eps); AdamW decays the weight itself."""
    model, data = linear(), part(4)
    weight = model.decoder.weight.detach().double().numpy().copy()
    bias = model.decoder.bias.detach().double().numpy().copy()
    train(model, tmp_path, data, optimizer=optimizer, loss="cross-entropy", lr=0.1, weight_decay=0.5, epochs=1)
    x, y = data.x.flatten(1).double().numpy(), np.eye(CLASSES)[data.y.numpy()]
    powers = np.exp(x @ weight.T + bias)
    error = (powers / powers.sum(1, keepdims=True) - y) / 4
    gradient = error.T @ x
    if optimizer == "adam":
        gradient = gradient + 0.5 * weight
        expected = weight - 0.1 * gradient / (np.abs(gradient) + 1e-8)
    else:
        expected = weight * (1 - 0.1 * 0.5) - 0.1 * gradient / (np.abs(gradient) + 1e-8)
    np.testing.assert_allclose(model.decoder.weight.detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_training_figures_weigh_every_clip_the_same(tmp_path: Path) -> None:
    """Ten clips in batches of four, four and two; the rate is too small to move anything."""
    model, data = linear(), part(10)
    with torch.no_grad():
        logits = model(data.x)
    expected = nn.functional.cross_entropy(logits, data.y).item()
    entry = train(model, tmp_path, data, loss="cross-entropy", lr=1e-12, epochs=1).history[0]
    assert entry["train_loss"] == pytest.approx(expected, rel=1e-6)
    assert entry["train_accuracy"] == pytest.approx((logits.argmax(1) == data.y).double().mean().item())


def test_every_clip_is_seen_once_an_epoch_in_an_order_of_seed_and_epoch(tmp_path: Path) -> None:
    data = part(10)
    marks = data.x[:, 0, 0].tolist()

    class Watching(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.extend(marks.index(value) for value in x[:, 0, 0].tolist())
            return super().forward(x)

    def orders(seed: int) -> list[list[int]]:
        seen.clear()
        model = FusionClassifier(Watching(), nn.Linear(LAYERS * DIM, CLASSES))
        train(model, tmp_path, data, seed=seed)
        return [seen[i : i + 10] for i in (0, 10, 20)]

    seen: list[int] = []
    first = orders(1)
    assert [sorted(order) for order in first] == [list(range(10))] * 3
    assert len({tuple(order) for order in first}) == 3
    assert orders(1) == first
    assert orders(2) != first


def test_plateau_lowers_the_rate_after_its_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "accuracy_of", lambda *_: 0.5)
    settings = {"epochs": 6, "lr": 0.1, "plateau_factor": 0.5, "plateau_patience": 1}
    history = train(linear(), tmp_path, **settings).history
    assert [entry["lr"] for entry in history] == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025])
    history = train(linear(), tmp_path, schedule="constant", **settings).history
    assert [entry["lr"] for entry in history] == [0.1] * 6


def test_linear_schedule_falls_to_zero_after_the_last_epoch(tmp_path: Path) -> None:
    history = train(linear(), tmp_path, epochs=4, lr=0.1, schedule="linear", patience=None).history
    assert [entry["lr"] for entry in history] == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_plateau_watches_the_training_loss_when_the_last_epoch_is_taken(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(inference, "accuracy_of", lambda *_: 0.5)
    losses = iter([3.0, 2.0, 1.0, 1.0, 1.0])
    monkeypatch.setattr(fusion_training.Seen, "means", lambda *_: (next(losses), 0.5))
    done = train(linear(), tmp_path, selection="last", epochs=5, lr=0.1, plateau_patience=0, plateau_factor=0.5)
    assert [entry["lr"] for entry in done.history] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.05])


@pytest.mark.parametrize(
    ("selection", "column"), [("dev-group", "dev_accuracy"), ("best-on-test", "test_accuracy"), ("last", "-")]
)
def test_selection_keeps_the_first_of_equals(tmp_path: Path, monkeypatch: Any, selection: str, column: str) -> None:
    dev, test = [0.2, 0.6, 0.5, 0.6, 0.1], [0.7, 0.1, 0.7, 0.3, 0.4]
    values = {id(dev): iter(dev), id(test): iter(test)}
    order = [dev, test] if selection == "dev-group" else [test]
    calls: list[int] = []

    def scripted(*_: Any) -> float:
        calls.append(0)
        return next(values[id(order[(len(calls) - 1) % len(order)])])

    monkeypatch.setattr(inference, "accuracy_of", scripted)
    monkeypatch.setattr(inference, "cross_entropy_of", lambda *_: 0.5)
    snapshots: list[Tensor] = []
    model = linear()
    training = FusionTraining(
        model,
        part(10),
        part(6, 2) if selection == "dev-group" else None,
        part(6, 3),
        TrainConfig(epochs=5, lr=0.1, selection=selection, refit=False),
        TrainingSetup(1, "cpu", "float32", tmp_path, key="k"),
    )
    training.follow(lambda _: snapshots.append(model.decoder.weight.detach().clone()))
    done = training.complete()
    expected = {"dev_accuracy": 2, "test_accuracy": 1, "-": 5}[column]
    assert done.selected_epoch == expected
    assert torch.equal(model.decoder.weight, snapshots[expected - 1])
    assert len({tuple(s.flatten().tolist()) for s in snapshots}) == 5
    with torch.no_grad():
        assert torch.equal(done.logits, model(part(6, 3).x))
    assert [entry["dev_accuracy"] for entry in done.history] == (dev if selection == "dev-group" else [None] * 5)


@pytest.mark.parametrize("limit", [0.01, None])
def test_gradients_are_clipped_to_the_norm_asked_for(tmp_path: Path, monkeypatch: Any, limit: float | None) -> None:
    norms: list[float] = []
    real = torch.optim.AdamW.step

    def recording(self: Any, *args: Any, **kwargs: Any) -> Any:
        grads = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
        norms.append(torch.cat(grads).norm().item())
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", recording)
    train(linear(), tmp_path, grad_clip_norm=limit, loss="cross-entropy")
    assert len(norms) == 9
    if limit is None:
        assert min(norms) > 0.05
    else:
        assert norms == pytest.approx([limit] * 9, rel=1e-3)


class Idle(nn.Flatten):
    """A fusion with a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(2))
        self.frozen = nn.Parameter(torch.zeros(2), requires_grad=False)


def test_parameter_without_gradient_stops_the_training(tmp_path: Path) -> None:
    model = FusionClassifier(Idle(), nn.Linear(LAYERS * DIM, CLASSES))
    with pytest.raises(TrainingError, match=r"^no gradient reaches fusion.unused: they would never be trained$"):
        train(model, tmp_path)


def test_check_gradients_names_all() -> None:
    model = linear()
    with pytest.raises(TrainingError, match=r"no gradient reaches decoder.weight, decoder.bias: "):
        check_gradients(model)
    model(part(2).x).sum().backward()
    check_gradients(model)


def test_loss_that_is_not_finite_names_the_epoch(tmp_path: Path) -> None:
    data = part(10)
    data.x[3] = float("nan")
    with pytest.raises(TrainingError) as caught:
        train(linear(), tmp_path, data)
    assert str(caught.value) == (
        "the training loss is nan in epoch 1\n  lower train.lr, or train with --set train.precision=float32"
    )


def test_predict_keeps_the_order_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = linear().train(), part(11)
    with torch.no_grad():
        expected = model(data.x)
    monkeypatch.setattr(inference, "EVAL_BATCH", 4)
    found = predict(model, data, "cpu", 4)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert not model.training
    assert predict(model, InMemorySplit(data.x.half(), data.y), "cpu", 4).dtype == torch.float32


def test_mean_density_weighs_every_clip_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """D19: the published code averages batch means, so that the clips of a short last batch count more."""
    torch.manual_seed(0)
    model = build("daam-v2", num_layers=6, embed_dim=4, num_classes=2)
    x = torch.randn(9, 6, 4, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(inference, "EVAL_BATCH", 4)
    with torch.no_grad():
        expected = model(x, return_density=True)[1].mean(0)
    torch.testing.assert_close(mean_density(model, InMemorySplit(x, torch.zeros(9)), "cpu"), expected)


class Undecided(nn.Module):
    """A decoder that must not be asked."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError


@pytest.mark.parametrize("method", ["daam-v1", "mixture-daam", "gqdaam-published", "gct-b0"])
def test_densities_are_those_of_a_whole_pass_without_one(method: str) -> None:
    torch.manual_seed(0)
    model = build(method, num_layers=16, embed_dim=16, num_classes=2)
    x = torch.randn(20, 16, 16, generator=torch.Generator().manual_seed(1))
    model.eval()
    with torch.no_grad():
        sums = [model(rows, return_density=True)[1].double().sum(0) for rows in x.split(inference.EVAL_BATCH)]
    model.decoder = Undecided()
    found = mean_density(model, InMemorySplit(x, torch.zeros(20)), "cpu")
    assert torch.equal(found, (torch.stack(sums).sum(0) / 20).float())


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


def test_evaluation_goes_on_in_halves_where_memory_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    fusion, data = Small(), part(30)
    model = FusionClassifier(fusion, nn.Linear(LAYERS * DIM, CLASSES))
    with caplog.at_level("INFO"):
        found = predict(model, data, "cpu", 16)
    assert fusion.tried == [16, 8, 4, 2, *[2] * 7, *[2] * 7]
    with torch.no_grad():
        torch.testing.assert_close(found, model.decoder(data.x.flatten(1)))
    assert caplog.messages[0] == "no room on cpu to evaluate 16 clips at once: now 8"
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


def test_density_is_taken_before_and_after(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("daam-v2", num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES)
    test = part(6, 3)
    before = mean_density(model, test, "cpu")
    done = train(model, tmp_path, lr=0.05, decay="all")
    assert done.density is not None
    assert torch.equal(done.untrained_density, before)
    assert torch.equal(done.density, mean_density(model, test, "cpu"))
    assert not torch.equal(done.density, before)
    assert train(linear(), tmp_path).density is None


@pytest.mark.parametrize("content", [b"", b"not torch", b"PK\x03\x04 half"])
def test_damaged_resume_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    fresh = train(linear(), tmp_path / "fresh")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / FILE).write_bytes(content)
    again = train(linear(), tmp_path / "cut")
    assert again.history == fresh.history
    assert torch.equal(again.logits, fresh.logits)


def test_training_after_a_damaged_state_ends_as_an_undisturbed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the flip is in the number of an epoch or in a weight, which torch reads in silence."""
    fresh = train(linear(), tmp_path / "fresh", epochs=6)
    with monkeypatch.context() as saving:
        kill_when(saving, lambda state: len(state["history"]) == 4)
        with pytest.raises(Killed):
            train(linear(), tmp_path / "cut", epochs=6)
    saved = (tmp_path / "cut" / FILE).read_bytes()
    for damaged in damages(saved, flips=20, cuts=5):
        (tmp_path / "cut" / FILE).write_bytes(damaged)
        again = train(linear(), tmp_path / "cut", epochs=6)
        assert again.history == fresh.history
        assert torch.equal(again.logits, fresh.logits)


def test_state_is_found_by_its_key_alone(tmp_path: Path) -> None:
    assert load_state(tmp_path, "k") is None
    save_state(tmp_path, "k", {"history": [{"epoch": 1}], "best": {"w": torch.ones(2)}})
    state = load_state(tmp_path, "k")
    assert state is not None
    assert state["history"] == [{"epoch": 1}]
    assert torch.equal(state["best"]["w"], torch.ones(2))
    assert load_state(tmp_path, "other") is None
    torch.save([1], tmp_path / FILE)
    assert load_state(tmp_path, "k") is None


def test_half_written_state_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, "k", {"n": 1})

    def half(_: Any, path: Path) -> None:
        path.write_bytes(b"PK")
        raise KeyboardInterrupt

    monkeypatch.setattr("daamctl.fit.checkpoint.torch.save", half)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, "k", {"n": 2})
    state = load_state(tmp_path, "k")
    assert state is not None
    assert state["n"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_disk_that_takes_no_more_is_an_artifact_error(tmp_path: Path) -> None:
    save_state(tmp_path, "k", {"n": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))  # stands in for a full disk: torch words both alike
    try:
        with pytest.raises(ArtifactError, match=r"^cannot write .*resume\.pt: torch could not finish the file: "):
            save_state(tmp_path, "k", {"n": 2, "w": torch.ones(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    state = load_state(tmp_path, "k")
    assert state is not None
    assert state["n"] == 1


def test_checkpoints_are_written_after_every_epoch_but_the_last(tmp_path: Path, monkeypatch: Any) -> None:
    saved: list[int] = []
    save_always(monkeypatch, lambda state: None if WITHIN & state.keys() else saved.append(len(state["history"])))
    train(linear(), tmp_path, epochs=4)
    assert saved == [1, 2, 3]


def flaky(seed: int = 0) -> FusionClassifier:
    """With dropout, whose random numbers must go on, and statistics of batches."""
    torch.manual_seed(seed)
    layers = nn.Flatten(), nn.Dropout(0.3), nn.BatchNorm1d(LAYERS * DIM), nn.Linear(LAYERS * DIM, CLASSES)
    return FusionClassifier(nn.Identity(), nn.Sequential(*layers))


MOMENTS: dict[str, Callable[[State], bool]] = {
    "within the pass": lambda state: state["history"] != [] and len(state.get("pass", {"losses": ()})["losses"]) == 2,
    "after the pass": lambda state: "passed" in state and evaluated(state, "dev") == 1,
    "in the evaluation": lambda state: len(state["history"]) == 1 and evaluated(state, "test") == 2,
    "at the end": lambda state: len(state["history"]) == 3 and evaluated(state, "final") == 1,
}


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_training_killed_within_an_epoch_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(inference, "EVAL_BATCH", 2)
    settings = {"selection": "dev-group", "lr": 0.05, "refit": False}
    model = flaky()
    whole = train(model, tmp_path / "whole", **settings)
    kill_when(monkeypatch, MOMENTS[moment])
    with pytest.raises(Killed):
        train(flaky(), tmp_path / "cut", **settings)
    save_always(monkeypatch)
    batches: list[int] = []
    step = FusionTraining.step
    monkeypatch.setattr(FusionTraining, "step", lambda *given: (batches.append(1), step(*given))[1])
    again = flaky()
    resumed = train(again, tmp_path / "cut", **settings)
    assert len(batches) == {"within the pass": 4, "after the pass": 6, "in the evaluation": 3, "at the end": 0}[moment]
    assert resumed.history == whole.history
    assert torch.equal(resumed.logits, whole.logits)
    assert all(
        torch.equal(one, other) for one, other in zip(*(m.state_dict().values() for m in (model, again)), strict=True)
    )


class Density(nn.Module):
    """Passes its input on; the density is the input itself, so its mean can be computed by hand."""

    def forward(self, x: Tensor, *, return_density: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        return (x, x) if return_density else x


def test_published_maps_are_means_over_batches_of_every_epoch_so_far(tmp_path: Path) -> None:
    """Six test clips in batches of four and two: the small batch counts as much as the full one (D19)."""
    test = part(6, 3).x
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(LAYERS * DIM, CLASSES))
    model = FusionClassifier(Density(), decoder, Traits(density=True))
    done = train(model, tmp_path, density_maps="all-epochs")
    assert done.density is not None
    torch.testing.assert_close(done.density, (test[:4].mean(0) + test[4:].mean(0)) / 2)
    done = train(model, tmp_path / "b", density_maps="final-model")
    torch.testing.assert_close(done.density, test.mean(0))


def test_published_maps_cover_the_epochs_up_to_the_selected_one(tmp_path: Path, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    model = build("daam-v1", num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES, num_heads=1, hidden_channels=4)
    seen: list[Tensor] = []
    add = fusion_training._EpochMaps.add

    def watch(self: Any, model: FusionClassifier, part: InMemorySplit, device: str, size: int) -> None:
        with torch.no_grad():
            maps = [model(rows, return_density=True)[1].mean(0) for rows in part.x.split(size)]
            seen.append(torch.stack(maps).mean(0))
        add(self, model, part, device, size)

    monkeypatch.setattr(fusion_training._EpochMaps, "add", watch)
    done = train(model, tmp_path, density_maps="all-epochs", epochs=5, lr=0.05)
    assert len(seen) == 5
    torch.testing.assert_close(done.density, torch.stack(seen[: done.selected_epoch]).mean(0))


class Centred(nn.Module):
    """Takes the batch mean away: a prediction depends on its batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


def test_batch_dependent_methods_are_evaluated_in_batches_of_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Flatten(), nn.Linear(LAYERS * DIM, CLASSES))
    model = FusionClassifier(Centred(), decoder, Traits(batch_dependent=True))
    done = train(model, tmp_path, selection="last")
    x = part(6, 3).x
    with torch.no_grad():
        torch.testing.assert_close(done.logits, torch.cat([model(x[:4]), model(x[4:])]))
        assert not torch.allclose(done.logits, model(x))


class Choosing(FusionClassifier):
    """Remembers what it was shown to choose by."""

    shown: list[tuple[int, bool]]

    def choose(self, x: Tensor, y: Tensor) -> None:
        self.shown.append((len(x), self.training))


def test_choices_are_made_on_the_held_out_group_after_every_epoch(tmp_path: Path) -> None:
    model = Choosing(nn.Flatten(), nn.Linear(LAYERS * DIM, CLASSES), Traits(needs_dev=True))
    model.shown = []
    train(model, tmp_path, epochs=2)
    assert model.shown == [(6, False), (6, False)]
    with pytest.raises(TrainingError, match=r"held-out group, which only train\.selection=dev-group sets aside"):
        train(model, tmp_path, selection="last")


def half_precision(model: FusionClassifier, config: TrainConfig, device: str, work: Path) -> FusionTraining:
    """A training whose steps the tests take themselves, under a loss scale."""
    dev = part(6, 2) if config.selection == "dev-group" else None
    setup = TrainingSetup(1, device, "float16", work, key="k")
    return FusionTraining(model, part(4), dev, part(6, 3), config, setup)


@pytest.mark.parametrize(("clip", "expected"), [("scaled", 1 / 1024), ("unscaled", 1.0)])
def test_clipping_before_or_after_the_loss_scale_is_taken_away(tmp_path: Path, clip: str, expected: float) -> None:
    """D21: on gradients still multiplied by the loss scale 1024, a threshold of 1 is a true one of 1/1024."""
    model = linear()
    settings = {"grad_clip_norm": 1.0, "grad_clip": clip, "optimizer": "adam", "weight_decay": 0.0}
    run = half_precision(model, TrainConfig.model_validate(settings), "cpu", tmp_path)
    run.scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=1024.0)
    data = part(4)
    run.update(1000 * nn.functional.cross_entropy(model(data.x), data.y))
    means = torch.cat([state["exp_avg"].flatten() for state in run.optimizer.state.values()])
    assert means.norm().item() == pytest.approx(0.1 * expected, rel=1e-4)  # a tenth of the gradient, at first


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
@pytest.mark.parametrize("clip", ["scaled", "unscaled"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_fused_steps_under_a_loss_scale_are_the_plain_ones(
    tmp_path: Path, clip: str, optimizer: str, device: str
) -> None:
    """The fused kernel takes the scale away and skips a step by itself, where the scaler does it for the plain one."""
    settings = {"grad_clip_norm": 1.0, "grad_clip": clip, "optimizer": optimizer, "weight_decay": 0.5, "lr": 0.1}
    config, data, found = TrainConfig.model_validate(settings), part(4), []
    x, y = data.x.to(device), data.y.to(device)
    for fused in (True, False):
        model = linear().to(device)
        run = half_precision(model, config, device, tmp_path)
        run.scaler = torch.amp.grad_scaler.GradScaler(device, init_scale=1024.0, growth_interval=2)
        assert run.optimizer.param_groups[0]["fused"]
        if not fused:
            run.optimizer = fusion_training.build_optimizer(model, config, fused=False)
        steps = []
        for factor in (float("inf"), 1.0, 3.0, float("inf"), 2.0):
            run.update(factor * nn.functional.cross_entropy(model(x), y))
            steps.append(torch.cat([p.detach().flatten().cpu() for p in model.parameters()]))
        assert torch.equal(steps[0], torch.cat([p.detach().flatten() for p in linear().parameters()]))
        assert torch.equal(steps[3], steps[2])
        assert {state["step"].item() for state in run.optimizer.state.values()} == {3.0}
        found.append((torch.stack(steps), run.scaler.state_dict()))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-6, rtol=1e-5)
    assert found[0][1] == found[1][1]


def test_a_state_saved_by_plain_steps_goes_on_by_fused_ones(tmp_path: Path, monkeypatch: Any) -> None:
    """As after a move from a device without them."""
    save_after_epochs(monkeypatch)
    whole = train(linear(), tmp_path / "whole", lr=0.01, epochs=4)
    real = fusion_training.build_optimizer
    monkeypatch.setattr(
        fusion_training, "build_optimizer", lambda model, config, fused: real(model, config, fused=False)
    )
    train(linear(), tmp_path / "cut", lr=0.01, epochs=3)  # leaves the state after two epochs
    monkeypatch.setattr(fusion_training, "build_optimizer", real)
    used: list[bool] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (used.append(self.param_groups[0]["fused"]), step(self))[1]
    )
    resumed = train(linear(), tmp_path / "cut", lr=0.01, epochs=4)
    assert used == [True] * 6
    torch.testing.assert_close(resumed.logits, whole.logits)


def test_layer_weights_are_means_over_test_clips(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("attentive", num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES)
    with torch.no_grad():
        before = model.fusion.layer_weights(part(6, 3).x).mean(0)
    done = train(model, tmp_path, lr=0.05)
    assert done.layer_weights is not None
    torch.testing.assert_close(done.untrained_layer_weights, before)
    with torch.no_grad():
        torch.testing.assert_close(done.layer_weights, model.fusion.layer_weights(part(6, 3).x).mean(0))
    assert not torch.allclose(done.layer_weights, before)
    assert train(linear(), tmp_path).layer_weights is None


def conv(seed: int = 0) -> FusionClassifier:
    torch.manual_seed(seed)
    return build("none", num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES, hidden_channels=4)


def test_order_in_memory_changes_rounding_alone_and_is_not_kept(tmp_path: Path, monkeypatch: Any) -> None:
    found = []
    for last in (False, True):
        monkeypatch.setattr(fusion_training, "channels_last", lambda *_, last=last: last)
        model = conv()
        done = train(model, tmp_path / str(last), lr=0.01)
        assert all(value.is_contiguous() for value in model.state_dict().values())
        found.append((done.logits, dict(model.state_dict())))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_state_saved_in_another_order_in_memory_is_taken_up(tmp_path: Path, monkeypatch: Any) -> None:
    """As after a move to another processor: the fused optimiser does not look at strides."""
    save_after_epochs(monkeypatch)
    monkeypatch.setattr(fusion_training, "channels_last", lambda *_: False)
    whole = train(conv(), tmp_path / "whole", lr=0.01, epochs=4)
    train(conv(), tmp_path / "cut", lr=0.01, epochs=3)  # leaves the state after two epochs
    monkeypatch.setattr(fusion_training, "channels_last", lambda *_: True)
    resumed = train(conv(), tmp_path / "cut", lr=0.01, epochs=4)
    torch.testing.assert_close(resumed.logits, whole.logits, atol=1e-5, rtol=1e-4)


def test_a_gpu_evaluates_in_the_contiguous_order(tmp_path: Path, monkeypatch: Any) -> None:
    save_after_epochs(monkeypatch)
    whole = train(conv(), tmp_path / "whole", lr=0.01, epochs=3)
    monkeypatch.setattr(fusion_training, "channels_last", lambda *_: True)
    monkeypatch.setattr(fusion_training, "evaluates_channels_last", lambda _: False)
    seen = set()

    def look(module: torch.nn.Conv2d, _: Any) -> None:
        if not module.weight.is_contiguous() or not module.weight.is_contiguous(memory_format=torch.channels_last):
            seen.add((module.training, module.weight.is_contiguous()))

    def watched() -> FusionClassifier:
        model = conv()
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_pre_hook(look)
        return model

    done = train(watched(), tmp_path / "order", lr=0.01, epochs=3)
    assert seen == {(True, False), (False, True)}
    torch.testing.assert_close(done.logits, whole.logits, atol=1e-5, rtol=1e-4)
    train(watched(), tmp_path / "cut", lr=0.01, epochs=2)  # leaves the state after an epoch
    resumed = train(watched(), tmp_path / "cut", lr=0.01, epochs=3)
    assert torch.equal(resumed.logits, done.logits)


def test_channels_last_by_measurement_and_precision(monkeypatch: Any) -> None:
    found = CpuFormats(channels_last={"float32": False, "bfloat16": True})
    monkeypatch.setattr(fusion_training, "cpu_formats", lambda: found)
    assert fusion_training.channels_last("cpu", "bfloat16")
    assert not fusion_training.channels_last("cpu", "float32")
    assert fusion_training.channels_last("cuda:0", "bfloat16")
    assert not fusion_training.channels_last("cuda:0", "float32")
    assert not fusion_training.channels_last("mps", "float32")


@needs_gpu
def test_training_on_a_gpu_is_that_on_a_cpu(tmp_path: Path) -> None:
    full_float32()
    found = [train(conv(), tmp_path / on, on=on, lr=0.01, grad_clip_norm=1.0) for on in ("cpu", "cuda")]
    torch.testing.assert_close(found[1].logits, found[0].logits, atol=1e-4, rtol=1e-3)
    assert [entry["train_loss"] for entry in found[1].history] == pytest.approx(
        [entry["train_loss"] for entry in found[0].history], rel=1e-4
    )


@needs_gpu
@pytest.mark.parametrize("how", ["float32", "float16"])
def test_training_on_a_gpu_resumes(tmp_path: Path, monkeypatch: Any, how: str) -> None:
    save_after_epochs(monkeypatch)
    settings = {"on": "cuda", "how": how, "lr": 0.01}
    whole = train(linear(), tmp_path / "whole", epochs=4, **settings)
    train(linear(), tmp_path / "cut", epochs=3, **settings)  # leaves the state after two epochs
    assert load_state(tmp_path / "cut", "k") is not None
    resumed = train(linear(), tmp_path / "cut", epochs=4, **settings)
    torch.testing.assert_close(resumed.logits, whole.logits, atol=1e-5, rtol=1e-4)
