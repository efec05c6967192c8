"""Number of threads: by the cores that are free on made-up machines, and as before for interrupted work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daamctl.compute import control_groups, threads
from daamctl.compute.threads import continue_with, cores, num_readers, one_thread, others, use_free_cores
from daamctl.fit.loop import fit
from tests.fixtures.fits import results, state_after, toy


class Machine:
    """Four cores, a clock, and the time that this process and all others have used."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.own, self.busy, self.slept = 100.0, 1.0, 10.0, 0.0
        self.allowed, self.folder = {0, 1, 2, 3}, folder
        (folder / "proc" / "self").mkdir(parents=True)
        (folder / "proc" / "self" / "cgroup").write_text("0::/\n")
        monkeypatch.setattr(threads, "PROC", folder / "proc")
        monkeypatch.setattr(control_groups, "PROC", folder / "proc")
        monkeypatch.setattr(control_groups, "CGROUP", folder / "cgroup")
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: self.allowed)
        monkeypatch.setattr(threads.os, "sysconf", lambda _: 100)
        times = {"monotonic": lambda: self.clock, "process_time": lambda: self.own, "sleep": self.run}
        monkeypatch.setattr(threads, "time", SimpleNamespace(**times))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        self.others = 0.0
        self._write()
        monkeypatch.setattr(threads, "_before", threads._Times.now())

    def run(self, seconds: float, *, own: float = 1.0) -> None:
        """Let time pass, in which this process uses `own` cores and others `self.others`."""
        self.clock += seconds
        self.own += own * seconds
        self.busy += (own + self.others) * seconds
        self.slept += seconds
        self._write()

    def _write(self) -> None:
        each = round(100 * self.busy / 4)
        lines = [f"cpu{number} {each - 7} 0 3 999 999 0 0 4 55 55" for number in range(4)]  # guests count as users
        lines += ["cpu 1 2 3 4 5 6 7 8 9 10", "cpu4 9999 0 0 0 0 0 0 0 0 0", "intr 5"]
        (self.folder / "proc" / "stat").write_text("\n".join(lines) + "\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "_usual", lambda: 4)
    yield Machine(tmp_path, monkeypatch)
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("taken", "expected"), [(0.0, 4), (0.4, 4), (0.6, 3), (1.0, 3), (2.0, 2), (3.0, 1), (3.9, 1), (9.0, 1)]
)
def test_there_are_as_many_threads_as_free_cores_and_at_least_one(
    machine: Machine, caplog: Any, taken: float, expected: int
) -> None:
    caplog.set_level("INFO", "daamctl")
    machine.others = taken
    machine.run(2.0)  # e.g. the import of torch
    use_free_cores()
    assert torch.get_num_threads() == expected
    told = f"{expected} of 4 threads: other programs use {taken:.1f} of 4 cores"
    assert [told in line for line in caplog.messages] == ([] if expected == 4 else [True])


def test_what_others_did_long_ago_does_not_count(machine: Machine) -> None:
    machine.others = 3.0
    machine.run(100.0)
    machine.others = 1.0
    assert others() == pytest.approx(1.0, abs=0.1)
    assert machine.slept == 100.25  # a short measurement of its own


def test_a_second_stage_of_this_process_does_not_count_the_first(machine: Machine) -> None:
    machine.others = 1.0
    machine.run(2.0)
    use_free_cores()
    machine.others = 0.0
    machine.run(10.0, own=3.0)
    use_free_cores()
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS"])
def test_the_number_of_the_user_stays(machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "3")
    torch.set_num_threads(3)
    machine.others = 4.0
    machine.run(2.0)
    use_free_cores(machine.folder / "threads")
    continue_with(2)
    assert torch.get_num_threads() == 3
    assert not (machine.folder / "threads").exists()


def test_interrupted_work_goes_on_with_its_number(machine: Machine) -> None:
    machine.others = 2.0
    machine.run(2.0)
    pin = machine.folder / "work" / "threads"
    use_free_cores(pin)
    assert torch.get_num_threads() == 2
    machine.others = 0.0
    machine.run(2.0)
    use_free_cores(pin)
    assert torch.get_num_threads() == 2
    pin.write_text("many")  # damaged: it is measured again
    use_free_cores(pin)
    assert torch.get_num_threads() == 4


def test_an_interrupted_training_goes_on_with_its_number(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(2)
    state = state_after([toy()], 3)
    torch.set_num_threads(1)
    results(fit([toy()], state))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {}, 4.0),
        ("0::/\n", {"cpu.max": "max 100000"}, 4.0),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1.5),
        ("0::/../../x\n", {"cpu.max": "200000 100000"}, 2.0),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpu,cpuacct:/a\n", {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, 4.0),
        ("3:memory:/a\n", {"cpu.max": "100000 100000"}, 4.0),
    ],
)
def test_limits_of_a_container_count(machine: Machine, cgroup: str, files: dict[str, str], expected: float) -> None:
    (machine.folder / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        path = machine.folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    assert cores() == expected


def test_only_the_cores_that_are_allowed_count(machine: Machine) -> None:
    machine.allowed = {1}
    machine.others = 4.0  # one on each core
    machine.run(2.0, own=0.0)
    assert cores() == 1.0
    machine.run(2.0, own=0.0)
    assert others() <= 1.1


def test_without_figures_of_the_system_the_load_average_serves(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "PROC", machine.folder / "nowhere")
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (3.0, 9.0, 9.0))
    assert others() == 2.0  # one of three is this process


def test_one_thread_within_the_block_alone() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_gpu_is_read_for_in_as_many_threads_as_there_are_cores(machine: Machine) -> None:
    assert [num_readers(device) for device in ("cpu", "cuda", "cuda:1")] == [2, 4, 4]
    machine.allowed = set(range(64))
    assert num_readers("cuda") == 8
    group = machine.folder / "cgroup"
    group.mkdir()
    (group / "cpu.max").write_text("50000 100000\n")
    assert num_readers("cuda") == 1
