"""How models take a step: float16's loss scale, clipping by member, Adam of a stack, and the order in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from daamctl.cpu_formats import CpuFormats
from daamctl.errors import TrainingError
from daamctl.fit import models
from daamctl.fit.loop import fit
from daamctl.fit.models import Many, One, channels_last, stackable
from daamctl.fit.optimizer import adam, check_gradients, clip_by_member, gradients_of
from daamctl.methods import FusionClassifier
from tests.fixtures.fits import (
    CLASSES,
    DIM,
    LAYERS,
    assert_same,
    flaky,
    linear,
    method,
    results,
    settings,
    state_after,
    toy,
    trained,
)
from tests.fixtures.gpu import GPU

X = torch.randn(1, 4, LAYERS, DIM, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(4) % CLASSES)[None]
conv = method("none", hidden_channels=4)


def one(make: Any = linear, device: str = "cpu", how: str = "float16", **train: Any) -> One:
    """A model whose steps the tests take themselves."""
    torch.manual_seed(0)
    return One(make().to(device), settings(**train), device, how)


def numbers(model: One) -> torch.Tensor:
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
    monkeypatch.setattr(models, "autocast", lambda device, _: torch.autocast(device.split(":")[0], enabled=False))
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
                context.setattr(models, "adam", lambda *words, **more: adam(*words, **more, fused=False))
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
        context.setattr(models, "adam", lambda *words, **more: adam(*words, **more, fused=False))
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
    stack = Many(made, configs, (2, 2), "cpu", "float32")
    alone = [One(twin, config, "cpu", "float32") for twin, config in zip(twins, configs, strict=True)]
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


def test_each_member_is_clipped_by_its_own_norm() -> None:
    gradients = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    gradients[1] *= 1e-3
    expected = []
    for one_of in gradients:
        value = nn.Parameter(torch.zeros(7))
        value.grad = one_of.clone()
        nn.utils.clip_grad_norm_([value], 0.1)
        expected.append(value.grad)
    clip_by_member(gradients, 0.1)
    torch.testing.assert_close(gradients, torch.stack(expected))


def test_check_gradients_names_all() -> None:
    model = linear()
    with pytest.raises(TrainingError, match=r"no gradient reaches decoder.weight, decoder.bias: "):
        check_gradients(gradients_of(model))
    model(X[0]).sum().backward()
    check_gradients(gradients_of(model))


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
        monkeypatch.setattr(models, "channels_last", lambda *_, last=last: last)
        done = trained(conv, lr=0.01)
        assert all(value.is_contiguous() for value in done.model.state_dict().values())
        found.append((done.logits, dict(done.model.state_dict())))
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-4)


def test_state_saved_in_another_order_in_memory_is_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a move to another processor: the fused optimiser does not look at strides."""
    monkeypatch.setattr(models, "channels_last", lambda *_: False)
    whole, state = trained(conv, lr=0.01), state_after([toy(conv, lr=0.01)], 8)
    monkeypatch.setattr(models, "channels_last", lambda *_: True)
    (resumed,) = results(fit([toy(conv, lr=0.01)], state))
    torch.testing.assert_close(resumed.logits, whole.logits, atol=1e-5, rtol=1e-4)


def test_a_gpu_evaluates_in_the_contiguous_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And trains on in the other one, in the same memory."""
    monkeypatch.setattr(models, "channels_last", lambda *_: True)
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
    monkeypatch.setattr(models, "cpu_formats", lambda: found)
    assert channels_last("cpu", "bfloat16")
    assert not channels_last("cpu", "float32")
    assert channels_last("cuda:0", "bfloat16")
    assert not channels_last("cuda:0", "float32")
    assert not channels_last("mps", "float32")
