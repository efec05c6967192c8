"""Energy that the driver counts: of this GPU, shared by time, and unknown where nobody tells."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from daamctl.compute import energy
from daamctl.compute.energy import Meter, joules, total


def test_energy_is_what_the_driver_counts_of_this_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    nvml = ModuleType("pynvml")
    nvml.NVMLError = type("NVMLError", (Exception,), {})  # type: ignore[attr-defined]
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: asked.append(uuid) or "handle"  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetTotalEnergyConsumption = {"handle": 2_500}.get  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
    assert joules("cuda:1") == 2.5
    assert asked == ["GPU-12-34"]
    assert joules("cpu") is None

    def refuse(*_: str) -> None:
        raise nvml.NVMLError  # not supported, or no library of the driver

    monkeypatch.setattr(nvml, "nvmlDeviceGetTotalEnergyConsumption", refuse)
    assert joules("cuda") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the package is missing
    assert joules("cuda") is None


def test_work_takes_its_seconds_at_the_mean_power(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = 10.0, {"cuda:0": 500.0, "cuda:1": 900.0}
    monkeypatch.setattr(energy.time, "monotonic", lambda: now)
    monkeypatch.setattr(energy, "joules", used.get)
    meter, both, mixed, nowhere = Meter("cuda:0"), Meter("cuda:0", "cuda:1"), Meter("cuda:0", "cpu"), Meter()
    assert meter.used(1.0) == 0.0  # no time has passed
    now, used = 14.0, {"cuda:0": 1300.0, "cuda:1": 1300.0}
    monkeypatch.setattr(energy, "joules", used.get)
    assert meter.used(4.0) == pytest.approx(800.0)
    assert meter.used(1.0) == pytest.approx(200.0)  # one of four trainings that ran side by side
    assert both.used(4.0) == pytest.approx(1200.0)
    assert mixed.used(4.0) is None
    assert nowhere.used(4.0) is None
    meter.start()
    now += 1.0
    assert meter.used(1.0) == 0.0


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    assert total(1.0, 2.5) == 3.5
    assert total(1.0, None) is None
    assert total() == 0.0
