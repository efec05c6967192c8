"""Time of training from a few steps: how it adds up, and that trying leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.artifacts.splits import Split
from daamctl.config import Config
from daamctl.errors import MethodError
from daamctl.methods import METHODS
from daamctl.training import timing
from daamctl.training.loop import Trained
from daamctl.training.timing import MethodSpeed, ReadTimes, method_size, time_finetune, time_method
from tests.fixtures.tiny_models import tiny

SIZES = (6, 16, 3)


def config(**train: Any) -> Config:
    return Config.model_validate({"train": {"batch_size": 4, "search": "none", "refit": False, **train}})


def test_time_of_a_fold() -> None:
    split = Split(1, 3, "a", "b", np.arange(10), np.arange(5), np.arange(7))
    speed = MethodSpeed(step_s=2.0, clip_s=0.1)
    plain = config(epochs=3)
    assert speed.fold_s(split, plain, density=True) == pytest.approx(3 * (3 * 2.0 + 12 * 0.1))
    every = config(epochs=3, density_maps="all-epochs")
    assert speed.fold_s(split, every, density=False) == pytest.approx(3 * (3 * 2.0 + 12 * 0.1))
    assert speed.fold_s(split, every, density=True) == pytest.approx(3 * (3 * 2.0 + 19 * 0.1))


def test_time_of_a_fold_counts_its_search() -> None:
    split = Split(1, 3, "a", "b", np.arange(10), np.arange(5), np.arange(7))
    speed, epoch_s = MethodSpeed(step_s=2.0, clip_s=0.1), 3 * 2.0 + 12 * 0.1
    rates = {"epochs": 10, "search_lr": (1e-3, 3e-3), "search_weight_decay": (0.01, 10.0), "search_epochs": 2}
    halving = config(search="halving", **rates)  # of four two leave after 2 epochs, one after 4, one has all ten
    assert speed.fold_s(split, halving, density=False) == pytest.approx((2 * 2 + 4 + 10) * epoch_s)
    short = config(search="halving", **{**rates, "epochs": 3})
    assert speed.fold_s(split, short, density=False) == pytest.approx((2 * 2 + 3 + 3) * epoch_s)
    full = config(search="full", **rates)
    assert speed.fold_s(split, full, density=False) == pytest.approx(4 * 10 * epoch_s)
    again = config(search="halving", refit=True, **rates)
    assert speed.fold_s(split, again, density=False) == pytest.approx((2 * 2 + 4 + 10 + 10) * epoch_s)
    no_dev = config(search="halving", selection="last", refit=True, **rates)
    assert speed.fold_s(split, no_dev, density=False) == pytest.approx(10 * epoch_s)


@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        (2000, 3 * (2000 + 1000.0)),  # all fit in the pool: none is computed before all are read
        (8192, 3 * (8192 / 2 + 8192 / 2 + 500.0)),  # half of it while the other half is read, which takes less
    ],
)
def test_reading_overlaps_beyond_the_pool(clips: int, expected: float) -> None:
    split = Split(1, 3, "a", "b", np.arange(clips), np.arange(0), np.arange(0))
    read = ReadTimes(train_s=1000.0)
    found = MethodSpeed(step_s=4.0, clip_s=0.0).fold_s(split, config(epochs=3), density=False, read=read)
    assert found == pytest.approx(expected)


def test_parts_to_evaluate_are_read_once_or_in_every_pass() -> None:
    split = Split(1, 3, "a", "b", np.arange(0), np.arange(10), np.arange(10))
    speed, every = MethodSpeed(step_s=1.0, clip_s=1.0), config(epochs=2, density_maps="all-epochs")
    assert speed.fold_s(split, every, density=True, read=ReadTimes(once_s=100.0)) == pytest.approx(100 + 2 * 30)
    read = ReadTimes(dev_s=5.0, test_s=40.0)
    assert speed.fold_s(split, every, density=True, read=read) == pytest.approx(2 * (10 + 2 * 40))


def test_members_of_a_group_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[int] = []

    class Counted(timing.Program):
        def __init__(self, trainings: Any) -> None:
            programs.append(len(trainings))
            super().__init__(trainings)

    monkeypatch.setattr(timing, "Program", Counted)
    assert time_method("none-mlp", config(), SIZES, device="cpu", within_s=60.0, members=3).step_s > 0
    assert programs == [3]
    time_method("none-mlp", config(), SIZES, device="cpu", within_s=1e-6, members=3)  # no time for all of them
    time_method("none-mlp", config(), SIZES, device="cpu", within_s=60.0)
    assert programs == [3]


@pytest.mark.parametrize(
    ("method", "density", "scored"), [("none", False, False), ("weighted-sum", False, True), ("daam-v2", True, True)]
)
def test_size_is_told_without_building(method: str, density: bool, scored: bool) -> None:
    found = method_size(method, config(), SIZES)
    assert (found.density, found.scored) == (density, scored)
    with torch.device("cpu"):
        built = timing.build_method(method, config(), *SIZES)
    assert found.num_parameters == sum(value.numel() for value in built.state_dict().values())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(MethodError, match=r"num_heads \(8\) must divide the number of layers \(6\)"):
        method_size("daam-v1", Config(method_settings={"daam-v1": {"num_heads": 8}}), SIZES)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("gqdaam-published", "gqa-published")])
def test_every_method_can_be_timed(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = time_method(method, config(), (24, 16, 3), device="cpu", within_s=0.01)
    assert found.step_s > 0
    assert found.clip_s > 0
    assert list(tmp_path.iterdir()) == []


def test_part_of_a_batch_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a second per clip: all 100 do not fit in the time, so a part is tried."""
    tried: list[tuple[int, int]] = []

    class Slow:
        def __init__(self, model: Any, train: Any, dev: Any, test: Any, settings: Any, setup: Any) -> None:
            tried.append((settings.batch_size, len(train) // settings.batch_size))
            self.train_s = float(len(train))

        def complete(self) -> Trained:
            return Trained(train_s=self.train_s)

    monkeypatch.setattr(timing, "FusionTraining", Slow)
    found = time_method("mean", config(batch_size=100), SIZES, device="cpu", within_s=20.0)
    assert found.step_s == pytest.approx(100.0)
    assert tried == [(2, 1), (2, 1), (10, 1), (10, 1)]
    tried.clear()
    found = time_method("mean", config(batch_size=100), SIZES, device="cpu", within_s=1.0)
    assert (found.step_s, tried) == (pytest.approx(100.0), [(2, 1)])


@pytest.mark.parametrize(
    ("model", "item"), [("wavlm", torch.randn(400)), ("bert", torch.full((9,), 3)), ("vit", torch.randn(3, 32, 32))]
)
@pytest.mark.parametrize("name", ["linear-probe", "lora-r4", "lora-r4-published"])
def test_ways_of_fine_tuning_can_be_timed(model: str, item: torch.Tensor, name: str) -> None:
    found = time_finetune(name, tiny(model), item, Config(), num_classes=3, device="cpu", within_s=0.05)
    assert found.train_s > 0
    assert found.predict_s > 0
    assert found.num_trained > 0
    size = len(item) if item.ndim == 1 else 1
    assert found.tried % size == 0
    assert size <= found.tried <= 8 * size  # at most a batch


def test_recomputed_and_accumulated() -> None:
    settings = Config.model_validate(
        {"finetune": {"batch_size": 8, "accumulate": 4, "gradient_checkpointing": True, "encoder_dropout": True}}
    )
    found = time_finetune(
        "lora-r4", tiny("bert"), torch.full((9,), 3), settings, num_classes=3, device="cpu", within_s=9
    )
    assert found.tried == 2 * 9


def test_time_of_a_closed_form_probe() -> None:
    split = Split(1, 3, "a", "b", np.arange(1000), np.arange(100), np.arange(50))
    read, settings = ReadTimes(train_s=6.0, dev_s=3.0, test_s=1.0), config(epochs=35)

    def seconds(method: str, width: int = 512, **speed: float) -> float:
        rates = {"step_s": 0.0, "clip_s": 0.0, "product_s": 0.0, **speed}
        return timing.ProbeSpeed(**rates, method=method, sizes=(6, width, 4)).fold_s(
            split, settings, density=False, read=read
        )

    assert seconds("ridge-last") == pytest.approx(1 + (1 + 1 / 6) * 9)  # one layer of six to fit, all to evaluate
    assert seconds("ridge-concat") == pytest.approx(1 + 3 * 9)
    assert seconds("ridge-mean", clip_s=1.0) == pytest.approx(1 + 2 * 9 + 1150)
    assert seconds("ridge-mean", step_s=1.0) == pytest.approx(1 + 2 * 9 + 2**3)
    assert seconds("ridge-mean", 4096, step_s=1.0) == pytest.approx(1 + 2 * 9 + (1000 / 256) ** 3)
    for method in ("ridge-average", "ridge-best-layer"):
        assert seconds(method, step_s=1.0) == pytest.approx(1 + 2 * 9 + 6 * 2**3)
    products = 1000 * 600 * 6 * 512 + 7 * 1000**3 / 6
    assert seconds("ridge-concat", product_s=1e-9) == pytest.approx(1 + 3 * 9 + products * 1e-9)


def test_settings_of_steps_do_not_change_the_time_of_a_probe() -> None:
    split = Split(1, 3, "a", "b", np.arange(100), np.arange(10), np.arange(5))
    speed = timing.ProbeSpeed(1.0, 1.0, 1.0, "ridge-mean", SIZES)
    few, many = (speed.fold_s(split, config(epochs=n, batch_size=n), density=False) for n in (1, 35))
    assert few == many
