"""What there is to do: one task per stage, or per method that it runs for, and how their states depend on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from daamctl.artifacts.skipped import Obstacle

State = Literal["done", "partly", "to do", "not possible"]
Basis = Literal["recorded", "measured", "estimated", "quick", "not known"]
Blockers = Mapping[str, Obstacle | None]


@dataclass
class Task:
    """One stage, or one method of `train` or `finetune`.

    Args:
        method: for `train` and `finetune`.
        state: whether it is done, and if not, whether it can be.
        done: how much of it is finished.
        total: how much there is; None: not known yet.
        unit: what is counted, in the plural.
        reason: why it is not possible, or what is wrong with the existing result.
        work: description of its input.
        disk_bytes: size of all its results.
        disk_left_bytes: size of the results still to be written.
        memory_bytes: peak memory.
        memory_on: kind of device with this memory: cpu, cuda or mps.
        memory_at_least: the memory is a lower bound, because activations are not counted.
        time_s: remaining time; 0 if it is done, None if it is not known or so short that it is not counted.
        took_s: recorded time of the finished part, if any.
        joules: energy of the GPU in the remaining time; None if finished work does not tell.
        basis: origin of `time_s`. recorded: time of finished work of the same kind, scaled by clips and epochs;
            measured: the same from a trial on a few clips; estimated: derived from the time of other work; quick:
            seconds or a few minutes, which are not counted.
        at_least: the figures are lower bounds, because not all items are known yet.
        about: the figures are based on published durations, because the recordings have not been read yet.
    """

    stage: str
    method: str | None = None
    state: State = "to do"
    done: int = 0
    total: int | None = None
    unit: str = ""
    reason: str | None = None
    fix: str | None = None
    work: str = ""
    disk_bytes: int | None = None
    disk_left_bytes: int | None = None
    memory_bytes: int | None = None
    memory_on: str = "cpu"
    memory_at_least: bool = False
    time_s: float | None = None
    took_s: float | None = None
    joules: float | None = None
    basis: Basis = "not known"
    at_least: bool = False
    about: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.state == "done"


def set_state(
    task: Task, obstacle: Obstacle | None, upstream: Sequence[Task] = (), *, any_upstream: bool = False
) -> None:
    """Set a task's state from what is finished and what prevents the rest.

    Args:
        task: with the counts of what is finished.
        upstream: tasks whose results it reads.
        any_upstream: it can run once any upstream task is possible; otherwise all must be.
    """
    if task.total and task.done >= task.total:
        task.state, task.reason, task.time_s, task.basis = "done", None, 0.0, "recorded"
        return
    task.state = "partly" if task.done else "to do"
    blocked = [one for one in upstream if one.state == "not possible"]
    if obstacle is None and blocked and (not any_upstream or len(blocked) == len(upstream)):
        obstacle = Obstacle(blocked[0].reason or "", blocked[0].fix)
    if obstacle is not None:
        task.state, task.reason, task.fix = "not possible", obstacle.reason, obstacle.fix
