"""Training steps as graphs, with a recorder that runs on a CPU, against the same steps without one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from daamctl import energy
from daamctl.artifacts.results import Fold
from daamctl.config import TrainConfig
from daamctl.errors import TrainingError
from daamctl.fit import fusion_training, graphed, loop
from daamctl.fit.batched import train_jointly
from daamctl.fit.feature_split import InMemorySplit
from daamctl.fit.features import Features, load_features
from daamctl.fit.fusion_training import FusionTraining
from daamctl.fit.graphed import constants_of, obstacle
from daamctl.fit.loop import TrainingSetup
from daamctl.fit.runner import in_groups, train_group
from daamctl.fit.trial import FoldSpec
from daamctl.fit.trials import fusion
from daamctl.fit.trials.fusion import FusionTrial
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM, METHODS, build, settings_of
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.resume import Killed, kill_when, save_always

LAYERS, DIM, CLASSES = 8, 16, 4
CLIPS, BATCH = 45, 4
"""Eleven full batches and a partial one: two blocks, the second of which ends early."""
METHODS_TRIED = ("weighted-sum", "daam-v1", "daam-v1-mlp", "mha-mlp", "concat")


class Recorder:
    """Records a function like a CUDA graph: does not execute it, and refuses to run it when an address has changed."""

    replays = records = 0
    turns: ClassVar[list[int]] = []  # seeds of the trainings that have replayed a step

    def __init__(self, device: str) -> None:
        self.work: partial[None] | None = None

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def record(self, work: partial[None]) -> None:
        Recorder.records += 1
        self.work, self.constants = work, constants_of(work.args[0])

    def replay(self) -> None:
        Recorder.replays += 1
        assert self.work is not None
        Recorder.turns.append(self.work.args[0].seed)
        assert constants_of(self.work.args[0]) == self.constants
        self.work()


@pytest.fixture(autouse=True)
def _recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed, "Graph", Recorder)
    monkeypatch.setattr(graphed, "DEVICES", ("cpu",))
    monkeypatch.setattr(graphed, "BLOCK", 5)
    monkeypatch.setattr(Recorder, "replays", 0)
    monkeypatch.setattr(Recorder, "records", 0)
    monkeypatch.setattr(Recorder, "turns", [])
    monkeypatch.setattr(loop, "CHECKPOINT_EVERY_S", float("inf"))


def part(clips: int, seed: int, device: str = "cpu") -> InMemorySplit:
    x = torch.randn(clips + 3, LAYERS, DIM, generator=torch.Generator().manual_seed(seed)).half().to(device)
    y, rows = (torch.arange(clips, device=device) + start for start in (0, 2))
    return InMemorySplit(x, y % CLASSES, rows)


def training(
    method: str, work: Path, precision: str = "float32", seed: int = 1, device: str = "cpu", **settings: Any
) -> FusionTraining:
    torch.manual_seed(seed)
    with torch.device(device):
        model = build(method, num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES, **settings_of(method, {}))
    fixed = {"epochs": 6, "batch_size": BATCH, "lr": 0.01, "selection": "last", "graphs": "auto"}
    config = TrainConfig.model_validate({**fixed, **settings})
    dev = part(12, 4, device) if config.selection == "dev-group" else None
    setup = TrainingSetup(seed, device, precision, work, key="k")
    return FusionTraining(model, part(CLIPS, 2, device), dev, part(9, 3, device), config, setup)


def assert_equal(ours: FusionTraining, theirs: FusionTraining) -> None:
    assert ours.done.history == theirs.done.history
    assert torch.equal(ours.done.logits, theirs.done.logits)
    for name, value in theirs.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], value), name


def completed(run: FusionTraining) -> FusionTraining:
    run.complete()
    return run


DROPPING = {"selection": "best-on-test", "plateau_patience": 0, "plateau_factor": 0.5, "grad_clip_norm": 0.5}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS_TRIED)
def test_replayed_steps_are_the_steps(tmp_path: Path, method: str, precision: str) -> None:
    """Over several epochs with a smaller last batch, clipping, and a rate that falls."""
    ours, theirs = (
        completed(training(method, tmp_path / graphs, precision, graphs=graphs, **DROPPING))
        for graphs in ("auto", "never")
    )
    assert_equal(ours, theirs)
    rates = [entry["lr"] for entry in ours.done.history]
    assert len(set(rates)) > 1
    assert Recorder.records == sum(one != other for one, other in zip([None, *rates], rates, strict=False))
    assert Recorder.replays == 6 * 11 - graphed.WARM_UP


@pytest.mark.parametrize("schedule", ["linear", "constant"])
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_schedules_and_optimisers_hold(tmp_path: Path, schedule: str, optimizer: str) -> None:
    settings = {
        "schedule": schedule,
        "optimizer": optimizer,
        "weight_decay": 0.1,
        "selection": "dev-group",
        "loss": "focal",
    }
    ours, theirs = (
        completed(training("daam-v1", tmp_path / graphs, graphs=graphs, refit=False, **settings))
        for graphs in ("auto", "never")
    )
    assert_equal(ours, theirs)
    assert Recorder.records == (6 if schedule == "linear" else 1)


def test_an_evaluation_in_another_order_leaves_the_weights_in_place(tmp_path: Path, monkeypatch: Any) -> None:
    """As on a GPU in bfloat16; the recorder checks the addresses."""
    monkeypatch.setattr(fusion_training, "channels_last", lambda *_: True)
    monkeypatch.setattr(fusion_training, "evaluates_channels_last", lambda _: False)
    ours, theirs = (completed(training("daam-v1", tmp_path / one, graphs=one)) for one in ("auto", "never"))
    assert_equal(ours, theirs)
    assert Recorder.records == 1


def test_steps_are_recorded_again_where_weights_have_moved(tmp_path: Path) -> None:
    ours, theirs = (training("weighted-sum", tmp_path / one, graphs=one) for one in ("auto", "never"))
    for run in (ours, theirs):
        run.train_until(2)
        for value in run.model.parameters():
            value.data = value.data.clone()
        run.complete()
    assert_equal(ours, theirs)
    assert Recorder.records == 2


@pytest.mark.parametrize(
    ("first", "then", "within"),
    [("auto", "auto", True), ("auto", "auto", False), ("auto", "never", True), ("never", "auto", True)],
)
def test_a_resume_file_serves_with_and_without_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, then: str, within: bool
) -> None:
    whole = completed(training("daam-v1", tmp_path / "whole", graphs="never", **DROPPING))

    def stop(state: dict[str, Any]) -> bool:
        steps = len(state["pass"]["losses"]) if "pass" in state else 0
        return len(state["history"]) == 2 and steps == (10 if within else 0) and "passed" not in state

    with monkeypatch.context() as context:
        kill_when(context, stop)
        with pytest.raises(Killed):
            training("daam-v1", tmp_path / "cut", graphs=first, **DROPPING).complete()
    before = Recorder.replays
    resumed = completed(training("daam-v1", tmp_path / "cut", graphs=then, **DROPPING))
    assert_equal(resumed, whole)
    if then == "auto":
        steps = 3 * 11 + 1 if within else 4 * 11
        assert Recorder.replays - before == steps - graphed.WARM_UP
    else:
        assert Recorder.replays == before


def test_a_state_has_the_form_of_one_without_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: dict[str, Any] = {}
    for graphs in ("auto", "never"):
        saved = groups.setdefault(graphs, [])
        with monkeypatch.context() as context:
            save_always(context, lambda state, saved=saved: saved.append(deepcopy(state["optimizer"]["param_groups"])))
            training("concat", tmp_path / graphs, graphs=graphs, epochs=2).complete()
    assert groups["auto"][-1] == groups["never"][-1]
    assert all(one in groups["never"] for one in groups["auto"])


def test_a_paused_training_records_again(tmp_path: Path) -> None:
    ours, theirs = (training("weighted-sum", tmp_path / one, graphs=one) for one in ("auto", "never"))
    for run in (ours, theirs):
        run.train_until(2)
        run.pause()
        run.complete()
    assert_equal(ours, theirs)
    assert Recorder.records == 2
    assert Recorder.replays == 6 * 11 - 2 * graphed.WARM_UP


def test_trainings_side_by_side_take_turns_and_equal_those_alone(tmp_path: Path) -> None:
    """One has fewer clips, so it takes fewer steps an epoch; one has fewer epochs."""

    def three(work: Path, graphs: str) -> list[FusionTraining]:
        runs = [
            training("daam-v1", work / str(seed), seed=seed, graphs=graphs, epochs=epochs, **DROPPING)
            for seed, epochs in ((1, 6), (2, 6), (3, 4))
        ]
        runs[1].train = part(CLIPS - 10, 7)
        return runs

    ours, theirs = three(tmp_path / "ours", "auto"), three(tmp_path / "theirs", "never")
    train_jointly(ours, 3)
    assert [len(run.done.history) for run in ours] == [3, 3, 3]
    train_jointly(ours, None)
    for one, other in zip(ours, theirs, strict=True):
        assert_equal(completed(one), completed(other))
    assert Recorder.turns[:6] == [1, 2, 3, 1, 2, 3]


def test_a_state_within_a_shared_pass_counts_a_share_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    seconds: list[tuple[float, float]] = []
    save_always(monkeypatch, lambda state: seconds.append((state["train_s"], next(clock))) if "pass" in state else None)
    train_jointly([training("mean", tmp_path / str(seed), seed=seed, epochs=1) for seed in (1, 2)], None)
    assert len(seconds) > 2
    assert all(0 < counted < 0.5 * now for counted, now in seconds)


def test_one_that_is_interrupted_side_by_side_goes_on_alone_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both(work: Path, graphs: str = "auto") -> list[FusionTraining]:
        return [training("weighted-sum", work / str(seed), seed=seed, graphs=graphs, epochs=4) for seed in (1, 2)]

    wholes = [completed(run) for run in both(tmp_path / "whole", "never")]
    with monkeypatch.context() as context:
        kill_when(
            context, lambda state: len(state["history"]) == 2 and len(state.get("pass", {}).get("losses", "")) == 5
        )
        with pytest.raises(Killed):
            train_jointly(both(tmp_path / "cut"), None)
    again = both(tmp_path / "cut")
    assert [run.under_way is not None for run in again] == [True, False]
    train_jointly(again, None)
    for one, other in zip(again, wholes, strict=True):
        assert_equal(completed(one), other)


@pytest.fixture
def features(project: Path) -> Features:
    write_embeddings(project / "data/extract/test", config())
    return load_features(Layout(project, "test", "test", "test"), config())


def folds_of(method: str, held: Features, root: Path, **train: Any) -> list[Fold]:
    settings = config(batch_size=8, precision="float32", epochs=2, **train)
    specs = [FoldSpec("test", method, number, 1, settings) for number in (1, 2, 3)]
    groups = in_groups([FusionTrial(spec, held) for spec in specs])
    return [fold for group in groups for fold in train_group(group, root / "folds", root / "work", root=root)]


@pytest.mark.parametrize(("method", "searched"), [("daam-v1", False), ("weighted-sum", False), ("weighted-sum", True)])
def test_folds_side_by_side_are_those_one_by_one(
    features: Features, project: Path, method: str, searched: bool
) -> None:
    """Convolutions, which share no program; and a small method, which would; both search and refit."""
    more = {"search": "halving", "search_epochs": 1, "refit": True} if searched else {}
    ours = folds_of(method, features, project / "ours", graphs="auto", **more)
    theirs = folds_of(method, features, project / "theirs", graphs="never", batch_folds="never", **more)
    for one, other in zip(ours, theirs, strict=True):
        assert one.result["run"]["key"] == other.result["run"]["key"]
        assert one.result["meta"]["together"] == 3
        assert one.result["metrics"] == other.result["metrics"]
        assert one.predictions()["logits"].to_list() == other.predictions()["logits"].to_list()
        assert one.history().equals(other.history())


def test_folds_that_are_not_to_be_batched_have_a_graph_each_in_turn(features: Features, project: Path) -> None:
    folds = folds_of("daam-v1", features, project, graphs="auto", batch_folds="never")
    assert Recorder.records == 3
    assert all("together" not in fold.result["meta"] for fold in folds)


def test_the_log_says_once_why_a_method_has_no_graph(
    features: Features, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fusion._tell.cache_clear()
    with caplog.at_level("DEBUG", logger=fusion.__name__):
        folds_of("sls", features, project, graphs="auto")
        folds_of("ridge-last", features, project, graphs="auto")
    told = [message for message in caplog.messages if "CUDA graphs" in message]
    assert told == ["sls trains without CUDA graphs: it has dropout or batch normalisation"]


def test_embeddings_on_disk_are_trained_on_without_graphs(project: Path) -> None:
    write_embeddings(project / "data/extract/test", config())
    streamed = load_features(Layout(project, "test", "test", "test"), config(features="stream"))
    folds_of("weighted-sum", streamed, project, graphs="auto", features="stream")
    assert Recorder.records == 0


def of(method: str) -> Any:
    return build(method, num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES, **settings_of(method, {}))


@pytest.mark.parametrize(
    ("method", "device", "precision", "held", "reason"),
    [
        ("daam-v1", "cpu", "bfloat16", True, None),
        ("daam-v1", "mps", "float32", True, "mps records no graphs"),
        ("daam-v1", "cpu", "float32", False, "not in the memory"),
        ("daam-v1", "cpu", "float16", True, "float16 looks"),
        ("best-layer", "cpu", "float32", True, "not the plain one"),
        ("mha-bn", "cpu", "float32", True, "batch normalisation"),
    ],
)
def test_what_trains_without_graphs(method: str, device: str, precision: str, held: bool, reason: str | None) -> None:
    found = obstacle(of(method), device, precision, held=held)
    assert found == reason or (found is not None and reason is not None and reason in found)


def test_dropout_trains_without_graphs() -> None:
    model = of("mean")
    model.decoder = torch.nn.Sequential(model.decoder, torch.nn.Dropout(0.1))
    assert obstacle(model, "cpu", "float32", held=True) == "it has dropout or batch normalisation"


def test_a_training_without_graphs_takes_no_replay(tmp_path: Path) -> None:
    runs = [
        training("mha-bn", tmp_path / "norm", epochs=1),
        training("weighted-sum", tmp_path / "off", epochs=1, graphs="never"),
        training("best-layer", tmp_path / "choice", epochs=1, selection="dev-group"),
    ]
    for run in runs:
        run.complete()
    assert Recorder.replays == 0


class Asked(TorchDispatchMode):
    """Raises where an operation would wait for a GPU, or uses a tensor that is elsewhere."""

    WAITING = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "lift_fresh", "equal")

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in self.WAITING, func
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, found)):
            assert not isinstance(value, torch.Tensor) or value.device.type == self.device, func
        return found


def recorded(method: str) -> bool:
    return method not in CLOSED_FORM and obstacle(of(method), "cuda", "float32", held=True) is None


RECORDED = [name for name in METHODS if recorded(name)]


@pytest.mark.parametrize("method", RECORDED)
def test_no_recorded_step_asks_the_gpu_for_a_number(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(self: Any) -> None:
        with Asked("cpu"):
            self.work()

    monkeypatch.setattr(Recorder, "replay", replay)
    run = training(method, tmp_path, epochs=1, grad_clip_norm=1.0)
    run.complete()
    assert Recorder.records == 1


@pytest.mark.parametrize("method", RECORDED)
def test_a_recorded_step_uses_no_tensor_outside_of_the_gpu(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tensors that pretend to be on a GPU; without one, torch has no backward pass for them."""

    def backward(loss: torch.Tensor) -> None:
        for value in run.model.parameters():
            value.grad = torch.empty_like(value) if value.requires_grad else None

    monkeypatch.setattr(graphed, "DEVICES", ("cuda",))
    monkeypatch.setattr(energy, "joules", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_, **__: self)  # it is there from the start
    with FakeTensorMode():
        run = training(method, tmp_path, device="cuda", grad_clip_norm=1.0)
        x, y = (one[:BATCH] for one in (run.train.x, run.train.y))  # type: ignore[attr-defined]
        loss, logits, _ = run.step(x, y)
        assert run.graphed is not None
        run.graphed._allocate(loss.detach(), logits.detach())
        with Asked("cuda"):
            run.graphed._step(run)


@pytest.mark.parametrize("asks", [lambda x: x.item(), lambda x: x.nonzero(), lambda x: x + torch.tensor([1])])
def test_a_step_that_asks_is_found(asks: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(AssertionError), Asked("cpu"):
        asks(torch.ones(1))
    with FakeTensorMode():
        x = torch.ones(1, device="cuda")
        with pytest.raises(AssertionError), Asked("cuda"):
            x.cpu()


@pytest.mark.parametrize(
    "error", [RuntimeError("operation not permitted"), torch.OutOfMemoryError("CUDA out of memory")]
)
def test_a_step_that_cannot_be_recorded_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def record(self: Any, work: partial[None]) -> None:
        raise error

    monkeypatch.setattr(Recorder, "record", record)
    run = training("mean", tmp_path)
    with pytest.raises(type(error) if isinstance(error, torch.OutOfMemoryError) else TrainingError) as raised:
        run.complete()
    if isinstance(raised.value, TrainingError):
        assert "operation not permitted" in raised.value.message
        assert raised.value.fix == "train with --set train.graphs=never"
