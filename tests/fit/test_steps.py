"""What steps are taken with: losses and random generators."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.config import TrainConfig
from daamctl.fit.steps import (
    build_loss,
    factors_of,
    focal_loss,
    generator_states,
    restore_generators,
    seed_generators,
    square_loss,
)
from daamctl.methods import Traits


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def sample() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return 2 * rng.standard_normal((7, 4)), rng.integers(0, 4, 7)


def test_focal_at_one_quarter() -> None:
    """docs/sources.md#focal-loss: at p = 1/4 the published loss is 0.25 (0.75 + 1e-6)^2.5 ln 4 = 0.16883."""
    found = focal_loss(torch.zeros(3, 4), torch.tensor([0, 2, 3]), gamma=2.5, alpha=0.25)
    assert found.item() == pytest.approx(0.16883, abs=5e-6)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("alpha", [0.25, 1.0])
def test_focal_equals_numpy(gamma: float, alpha: float) -> None:
    logits, targets = sample()
    p = softmax(logits)[np.arange(7), targets]
    expected = np.mean(alpha * (1 - p + 1e-6) ** gamma * -np.log(p))
    found = focal_loss(torch.from_numpy(logits), torch.from_numpy(targets), gamma=gamma, alpha=alpha)
    assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("classes", [2, 4, 20])
def test_squared_loss_is_zero_where_softmax_is_sure(classes: int) -> None:
    """One squared distance is lost where all logits are 0, four with the sign of the target's logit turned."""
    targets = torch.tensor([1, 0, 1])
    sure = np.log(0.95 / 0.05 * (classes - 1)) * torch.eye(classes)[targets]
    assert sure.softmax(1)[range(3), targets] == pytest.approx(0.95)
    assert [square_loss(scale * sure, targets).item() for scale in (1, 0, -1)] == pytest.approx([0, 1, 4], abs=1e-6)
    others = sure + 0.1 * sure.max() * (1 - torch.eye(classes)[targets])
    assert square_loss(others, targets).item() == pytest.approx(0.01 * (classes - 1))


def test_settings_choose_the_loss() -> None:
    logits, targets = sample()
    x, y = torch.from_numpy(logits), torch.from_numpy(targets)
    cross_entropy = -np.log(softmax(logits)[np.arange(7), targets]).mean()
    assert build_loss(TrainConfig(loss="cross-entropy"))(x, y).item() == pytest.approx(cross_entropy, rel=1e-5)
    assert build_loss(TrainConfig(loss="focal"))(x, y).item() == focal_loss(x, y, gamma=2.5, alpha=0.25).item()
    chosen = TrainConfig(loss="focal", focal_gamma=1.0, focal_alpha=0.5)
    assert build_loss(chosen)(x, y).item() == focal_loss(x, y, gamma=1.0, alpha=0.5).item()


@pytest.mark.parametrize("loss", ["focal", "cross-entropy"])
def test_half_precision_logits_are_widened(loss: str) -> None:
    logits, targets = sample()
    x, y = torch.from_numpy(logits).bfloat16(), torch.from_numpy(targets)
    found = build_loss(TrainConfig(loss=loss))(x, y)
    assert found.dtype == torch.float32
    assert found.item() == build_loss(TrainConfig(loss=loss))(x.float(), y).item()


@pytest.mark.parametrize("logit", [0.0, 60.0, -60.0])
def test_focal_and_its_gradient_stay_finite_at_the_ends(logit: float) -> None:
    """Without the 1e-6 inside the power, gamma < 1 has an infinite slope at p = 1."""
    x = torch.tensor([[logit, 0.0]], requires_grad=True)
    value = focal_loss(x, torch.tensor([0]), gamma=0.5, alpha=0.25)
    value.backward()
    assert value.isfinite()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def drawn() -> list[float]:
    """From each generator, the second half of a pair of Gaussians too, which numpy keeps."""
    return [torch.rand(()).item(), np.random.rand(), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_one_seed_sets_all_of_them() -> None:
    seed_generators(3)
    first = drawn()
    assert drawn() != first
    seed_generators(3)
    assert drawn() == first
    seed_generators(2**40)  # numpy takes seeds below 2**32


def test_states_come_back_from_a_file(tmp_path: Path) -> None:
    seed_generators(3)
    drawn()
    torch.save(generator_states(), tmp_path / "a.pt")
    first = drawn()
    seed_generators(4)
    restore_generators(torch.load(tmp_path / "a.pt", weights_only=True))
    assert drawn() == first


def test_states_of_devices_that_are_not_here_are_left_alone() -> None:
    seed_generators(3)
    states = {**generator_states(), "mps": torch.zeros(1, dtype=torch.uint8)}
    states["cuda"] = [*states.get("cuda", []), torch.zeros(1, dtype=torch.uint8)]  # one GPU more than there is
    first = drawn()
    restore_generators(states)
    assert drawn() == first


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {(0.25, 4.0): ["fusion.a.weight"], (1.0, 0.0): ["fusion.offset", "b"], (1.0, 1.0): ["decoder.weight"]}),
        (
            {"fusion_lr_factor": 1},
            {(1.0, 1.0): ["fusion.a.weight", "decoder.weight"], (1.0, 0.0): ["fusion.offset", "b"]},
        ),
        ({"decay": "all"}, {(0.25, 4.0): ["fusion.a.weight"], (1.0, 1.0): ["fusion.offset", "b", "decoder.weight"]}),
        (
            {"optimizer": "adam"},  # its decay is not multiplied by the rate
            {(0.25, 1.0): ["fusion.a.weight"], (1.0, 0.0): ["fusion.offset", "b"], (1.0, 1.0): ["decoder.weight"]},
        ),
    ],
)
def test_rates_and_decays_by_tensor(settings: dict[str, Any], expected: Any) -> None:
    sizes = {"fusion.a.weight": (2, 3), "fusion.offset": (2, 3), "b": (3,), "decoder.weight": (4, 3)}
    named = {name: torch.zeros(size) for name, size in sizes.items()}
    assert factors_of(named, TrainConfig(**settings), Traits()) == expected
    full = {(1.0, 1.0): ["fusion.a.weight", "decoder.weight"], (1.0, 0.0): ["fusion.offset", "b"]}
    assert factors_of(named, TrainConfig(), Traits(full_rate=True)) == full
    scales = {(1.0, 0.0): ["fusion.a.weight", "fusion.offset", "b"], (1.0, 1.0): ["decoder.weight"]}
    assert factors_of(named, TrainConfig(), Traits(gains=("fusion.a.weight",))) == scales
