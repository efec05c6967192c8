"""Training steps as graphs, with a recorder that runs on a CPU, against the same steps without one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from daamctl.errors import TrainingError
from daamctl.fit import graphs, stack
from daamctl.fit.graphs import WARM_UP, GraphedStep, obstacle
from daamctl.fit.loop import fit
from daamctl.fit.stack import SingleModel, Stack, StackedModels
from daamctl.fit.trial import stackable
from daamctl.methods import CLOSED_FORM, METHODS, build, settings_of
from tests.fixtures.fits import assert_same, flaky, linear, method, results, settings, state_after, toy, toys, trained

LAYERS, DIM, CLASSES, BATCH = 8, 16, 4, 4


class Recorder:
    """Records a function like a CUDA graph: does not execute it, and refuses to run it when an address has changed."""

    replays = records = 0
    within: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __init__(self, device: str) -> None:
        self.work: Callable[[], None] | None = None

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def record(self, work: Callable[[], None]) -> None:
        Recorder.records += 1
        self.work = work

    def replay(self) -> None:
        Recorder.replays += 1
        assert self.work is not None
        with Recorder.within():
            self.work()


@pytest.fixture(autouse=True)
def _recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "Graph", Recorder)
    monkeypatch.setattr(graphs, "DEVICES", ("cpu",))
    for name in ("replays", "records"):
        monkeypatch.setattr(Recorder, name, 0)
    monkeypatch.setattr(Recorder, "within", nullcontext)


SHAPES: dict[str, dict[str, Any]] = {
    "one": {"folds": (2,)},
    "convolutions": {"folds": (2,), "make": method("daam-v1", num_heads=1, hidden_channels=4)},
    "bfloat16": {"folds": (2,), "how": "bfloat16"},
    "float16 and its scaler": {"folds": (2,), "how": "float16", "grad_clip": "scaled"},
    "float16, unscaled": {"folds": (2,), "how": "float16"},
    "epochs with a smaller last batch": {"folds": (2,), "epochs": 3, "schedule": "plateau", "plateau_patience": 0},
    "stack": {},
    "candidates and refits": {"search": "grid", "search_lr": (0.01, 0.05), "refit": True},
    "adam": {"folds": (2,), "optimizer": "adam", "schedule": "linear", "loss": "focal"},
}


@pytest.mark.parametrize("name", SHAPES)
def test_replayed_steps_are_the_steps(name: str) -> None:
    """With clipping and a rate that falls; recorded once per stack, since rates do not belong to the record."""
    given = {"folds": (1, 2, 3), "grad_clip_norm": 0.5, **SHAPES[name]}
    theirs = results(fit(toys(graphs="never", **given)))
    assert Recorder.replays == 0
    for one, other in zip(results(fit(toys(graphs="auto", **given))), theirs, strict=True):
        assert_same(one, other)
    stacks = 2 if name == "candidates and refits" else 1
    assert Recorder.records == stacks
    assert Recorder.replays == (3 * 6 if "epochs" in given else 12 * stacks) - WARM_UP * stacks


def test_rates_on_a_gpu_are_tensors_there() -> None:
    """Recorded kernels read them; `set_rate` fills them."""
    with FakeTensorMode(), torch.device("cuda"):
        groups = SingleModel(linear(), settings(), "cuda", "float32").optimizer.param_groups
        assert [group["lr"].device.type for group in groups] == ["cuda", "cuda"]


def test_an_evaluation_in_another_order_leaves_the_weights_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU in bfloat16: the recorded step knows their addresses."""
    monkeypatch.setattr(stack, "channels_last", lambda *_: True)
    evaluating = SingleModel.evaluating

    def as_on_a_gpu(self: SingleModel) -> Any:
        self.device = "cuda"
        return evaluating(self)

    monkeypatch.setattr(SingleModel, "evaluating", as_on_a_gpu)
    monkeypatch.setattr(stack, "autocast", lambda *_: nullcontext())
    make = method("daam-v1", num_heads=1, hidden_channels=4)
    ours, theirs = (trained(make, graphs=one) for one in ("auto", "never"))
    assert_same(ours, theirs)
    assert Recorder.records == 1


def test_steps_are_recorded_again_where_weights_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Stack.record

    def moving(self: Stack) -> Any:
        entries = record(self)
        if len(self.trained[0].history) == 6:
            for value in self.fusions[0].model.parameters():
                value.data = value.data.clone()
        return entries

    monkeypatch.setattr(Stack, "record", moving)
    ours, theirs = (trained(graphs=one) for one in ("auto", "never"))
    assert_same(ours, theirs)
    assert Recorder.records == 2


@pytest.mark.parametrize("folds", [(2,), (1, 2, 3)])
@pytest.mark.parametrize(("first", "then"), [("auto", "auto"), ("auto", "never"), ("never", "auto")])
def test_a_resume_file_serves_with_and_without_graphs(folds: tuple[int, ...], first: str, then: str) -> None:
    whole = results(fit(toys(folds, graphs="never")))
    state = state_after(toys(folds, graphs=first), 12)
    assert state is not None
    done, before = state["under way"]["fit"]["steps"], Recorder.replays
    for one, other in zip(results(fit(toys(folds, graphs=then), state)), whole, strict=True):
        assert_same(one, other)
    assert 0 < done < 12 - WARM_UP
    assert Recorder.replays - before == (12 - done - WARM_UP if then == "auto" else 0)


def of(name: str) -> Any:
    return build(name, num_layers=LAYERS, embed_dim=DIM, num_classes=CLASSES, **settings_of(name, {}))


@pytest.mark.parametrize(
    ("name", "device", "held", "reason"),
    [
        ("daam-v1", "cpu", True, None),
        ("daam-v1", "mps", True, "mps records no graphs"),
        ("daam-v1", "cpu", False, "not in the memory"),
        ("best-layer", "cpu", True, "not the plain one"),
        ("mha-bn", "cpu", True, "batch normalisation"),
    ],
)
def test_what_trains_without_graphs(name: str, device: str, held: bool, reason: str | None) -> None:
    found = obstacle(of(name), device, held=held)
    assert found == reason or (found is not None and reason is not None and reason in found)
    assert obstacle(flaky(), "cpu", held=True) == "it has dropout or batch normalisation"


@pytest.mark.parametrize(("make", "train"), [(flaky, {}), (linear, {"graphs": "never"}), (method("best-layer"), {})])
def test_a_training_without_graphs_takes_no_replay(make: Any, train: dict[str, Any]) -> None:
    trained(make, **{"graphs": "auto", **train})
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


RECORDED = [name for name in METHODS if name not in CLOSED_FORM and obstacle(of(name), "cuda", held=True) is None]
STACKED = [name for name in RECORDED if stackable(of(name))]


def taken(model: SingleModel | StackedModels, trials: int) -> None:
    """Steps until one is replayed, under watch."""
    generator = torch.Generator().manual_seed(0)
    steps = GraphedStep(model, "cpu")
    for _ in range(WARM_UP + 2):
        x = torch.randn(trials, BATCH, LAYERS, DIM, generator=generator)
        losses, _ = steps(x, torch.arange(BATCH).expand(trials, -1))
        assert losses.isfinite().all()
    assert (Recorder.records, Recorder.replays) == (1, 2)


@pytest.mark.parametrize("how", ["float32", "float16"])
@pytest.mark.parametrize("name", RECORDED)
def test_no_recorded_step_asks_the_gpu_for_a_number(monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> None:
    monkeypatch.setattr(Recorder, "within", lambda: Asked("cpu"))
    if how == "float16":  # that of the scaler; the numbers may be those of float32
        monkeypatch.setattr(stack, "autocast", lambda *_: nullcontext())
    taken(SingleModel(of(name), settings(grad_clip_norm=1.0), "cpu", how), 1)


@pytest.mark.parametrize("name", STACKED)
def test_no_recorded_step_of_a_stack_asks_either(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(Recorder, "within", lambda: Asked("cpu"))
    configs = [settings(grad_clip_norm=1.0, lr=lr) for lr in (0.1, 0.01, 0.1, 0.01)]
    taken(StackedModels([of(name) for _ in configs], configs, (2, 2), "cpu", "float32"), 2)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_uses_no_tensor_outside_of_the_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors that pretend to be on a GPU; without one, torch has no backward pass for them."""

    def backward(loss: torch.Tensor) -> None:
        for value in run.model.parameters():
            value.grad = torch.empty_like(value) if value.requires_grad else None

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)  # its kernel pretends nothing
    with FakeTensorMode():
        with torch.device("cuda"):
            model = of(name)
        run = SingleModel(model, settings(grad_clip_norm=1.0), "cuda", "float32")
        x = torch.empty(1, BATCH, LAYERS, DIM, device="cuda")
        y = torch.zeros(1, BATCH, dtype=torch.int64, device="cuda")
        run.step(x, y)
        with Asked("cuda"):
            run.step(x, y)


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
def test_a_step_that_cannot_be_recorded_names_the_setting(monkeypatch: pytest.MonkeyPatch, error: RuntimeError) -> None:
    def record(self: Any, work: Any) -> None:
        raise error

    monkeypatch.setattr(Recorder, "record", record)
    with pytest.raises(type(error) if isinstance(error, torch.OutOfMemoryError) else TrainingError) as raised:
        results(fit([toy(graphs="auto")]))
    if isinstance(raised.value, TrainingError):
        assert "operation not permitted" in raised.value.message
        assert raised.value.fix == "train with --set train.graphs=never"
