"""What a container, or a job of a scheduler, may use: the limits of the control groups around this process (Linux)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def core_quotas() -> list[float]:
    """Cores that each control group around this process may use, as time divided by period."""
    found = []
    for group, version in _groups("cpu"):
        files = ["cpu.max"] if version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        with suppress(OSError, ValueError, ZeroDivisionError):  # "max", or no such file
            quota, period = " ".join((group / file).read_text(encoding="ascii") for file in files).split()
            found += [int(quota) / int(period)] if int(quota) > 0 else []
    return found


def free_bytes() -> list[int]:
    """Bytes that each control group around this process may still take; what caches files is given back."""
    found = []
    for group, version in _groups("memory"):
        files, cache = ["memory.max", "memory.current"], "inactive_file"
        if version == 1:
            files, cache = ["memory.limit_in_bytes", "memory.usage_in_bytes"], "total_inactive_file"
        with suppress(OSError, ValueError, KeyError):  # "max", or no such file
            limit, used = (int((group / file).read_text(encoding="ascii")) for file in files)
            facts = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            found.append(max(0, limit - used + int(facts[cache])))
    return found


def _groups(kind: str) -> Iterator[tuple[Path, int]]:
    """The control groups that limit `cpu` or `memory` of this process, and their version; inner ones first."""
    try:
        lines = (PROC / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, kinds, name = line.split(":", 2)
        if number == "0" and not kinds:
            root, version = CGROUP, 2
        elif kind in kinds.split(","):
            root, version = CGROUP / kind, 1
        else:
            continue
        inside = Path(name.lstrip("/"))
        for group in (inside, *inside.parents):
            yield root / group, version
