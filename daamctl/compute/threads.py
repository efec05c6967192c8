"""How many threads torch computes in: no more than there are free cores.

Threads that share a core with another program make each other wait at the end of every operation: a stage then takes
four to ten times as long, with one thread per free core hardly longer than alone. So the processor time that others
take is measured over the start of the process (mostly the import of torch). The load average would not do: for a minute
it remembers stages that have ended.

The number of threads changes the order of sums, so results differ by rounding, as between machines with different
numbers of cores. Unfinished work therefore goes on with the number that it began with. Who sets OMP_NUM_THREADS (or
MKL_NUM_THREADS) decides everything himself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from daamctl.compute.control_groups import core_quotas
from daamctl.store.files import keep_json, kept_json

log = logging.getLogger(__name__)

SHORTEST_S = 0.25
"""Shortest time over which others are measured, in seconds."""
LONGEST_S = 20.0
"""Longest one: what they did before does not count."""
READERS, READERS_GPU = 2, 8
"""Most threads that read items while the CPU computes, and while a GPU computes and the CPU is mostly idle."""
PROC = Path("/proc")
IDLE = (3, 4)
"""Places of `idle` and `iowait` among the times of a processor in /proc/stat."""


@dataclass(frozen=True)
class _Times:
    """Processor time until some moment, in seconds.

    Args:
        busy: time that the allowed cores have worked for anything; None if the system does not tell.
    """

    at: float
    own: float
    busy: float | None

    @classmethod
    def now(cls) -> _Times:
        return cls(time.monotonic(), time.process_time(), _busy_s())


def allowed_cores() -> set[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _busy_s() -> float | None:
    allowed = {f"cpu{number}" for number in allowed_cores()}
    try:
        lines = [line.split() for line in (PROC / "stat").read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    ticks = [
        int(value)
        for name, *values in lines
        if name in allowed
        for place, value in enumerate(values[:8])  # the others, guests, are part of the first two
        if place not in IDLE
    ]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def cores() -> float:
    """Cores that this process may use: by its affinity, and by the quota of its control group (a container's limit)."""
    return min([float(len(allowed_cores())), *core_quotas()])


def num_readers(device: str) -> int:
    """Number of threads that read items while a device computes."""
    return min(READERS_GPU, max(1, int(cores()))) if device.startswith("cuda") else READERS


def others() -> float:
    """Cores that other programs have used since the start of this process, or lately if that is longer ago."""
    global _before
    since = _before
    if time.monotonic() - since.at > LONGEST_S:
        since = _Times.now()
    time.sleep(max(0.0, SHORTEST_S - (time.monotonic() - since.at)))
    now = _before = _Times.now()
    if now.busy is None or since.busy is None:
        return max(0.0, os.getloadavg()[0] - 1.0)
    return max(0.0, (now.busy - since.busy - (now.own - since.own)) / (now.at - since.at))


def is_given() -> bool:
    """Whether the user has set the number of threads."""
    return any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))


@lru_cache
def _usual() -> int:
    """Torch's own choice, before this module changes it."""
    import torch

    return torch.get_num_threads()


def use_free_cores(pin: Path | None = None) -> None:
    """Set torch's number of threads to the number of free cores, at least one; log if that is fewer than usual.

    Args:
        pin: file that keeps the number for work that may be interrupted; if it exists, its number is used.
    """
    if is_given():
        return
    kept = None if pin is None else kept_json(pin, "threads")
    if kept is not None:
        continue_with(kept)
        return
    usual, mine, taken = _usual(), cores(), others()
    threads = max(1, min(usual, int(mine - taken + 0.5)))
    _set(threads)
    if threads < usual:
        log.info(
            "%d of %d threads: other programs use %.1f of %g cores (OMP_NUM_THREADS sets a number)",
            *(threads, usual, taken, mine),
        )
    if pin is not None:
        keep_json(pin, "threads", threads)


def continue_with(threads: int | None) -> None:
    """Use the number of threads that some work began with, so that its rounding stays the same; None: unknown."""
    import torch

    if threads is None or is_given() or threads == torch.get_num_threads():
        return
    _usual()
    log.info("%d thread(s), as before the interruption (OMP_NUM_THREADS sets another number)", threads)
    _set(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread within the block. Threads of torch that begin in the meantime have one for good."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _set(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


_before = _Times.now()
