"""Memory of a container or job: the smallest of what its control groups may still take, in both of their versions."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from daamctl.compute import control_groups
from daamctl.compute.control_groups import free_bytes
from daamctl.compute.devices import free_memory


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    monkeypatch.setattr(control_groups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(control_groups, "CGROUP", tmp_path / "cgroup")
    return tmp_path


def group(root: Path, place: str, *, version: int, limit: str, used: int, cached: int = 0) -> None:
    folder = root / "cgroup" / place
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    own, other = ("inactive_file", "file") if version == 2 else ("total_inactive_file", "inactive_file")
    (folder / "memory.stat").write_text(f"anon 5\n{other} 7\n{own} {cached}\n")


def of_process(root: Path, lines: str) -> None:
    (root / "proc" / "self" / "cgroup").write_text(lines)


def test_second_version(root: Path) -> None:
    of_process(root, "0::/kubepods/pod1\n")
    group(root, "kubepods/pod1", version=2, limit="max", used=10)
    group(root, "kubepods", version=2, limit="1000", used=600, cached=100)
    assert free_bytes() == [500]
    assert free_memory() == 500


def test_first_version(root: Path) -> None:
    of_process(root, "4:memory:/slurm/job7\n1:cpu,cpuacct:/slurm\n0::/elsewhere\n")
    group(root, "memory/slurm/job7", version=1, limit="800", used=900, cached=50)
    group(root, "memory/slurm", version=1, limit="9223372036854771712", used=900)
    group(root, "cpu/slurm", version=1, limit="1", used=0)
    assert free_bytes() == [0, 9223372036854771712 - 900]
    assert free_memory() == 0


@pytest.mark.parametrize("lines", [None, "", "0::/\n", "3:memory:/gone\n"])
def test_without_a_limit_the_machine_counts(root: Path, lines: str | None) -> None:
    if lines is not None:
        of_process(root, lines)
    assert free_bytes() == []
    assert free_memory() > psutil.virtual_memory().total / 100


def test_figures_that_are_no_numbers_do_not_count(root: Path) -> None:
    of_process(root, "0::/\n")
    group(root, "", version=2, limit="1000", used=1)
    (root / "cgroup" / "memory.stat").write_text("anon 5\n")
    assert free_bytes() == []
