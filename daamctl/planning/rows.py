"""Rows of a plan: one per stage (for `train` and `finetune` one per method), and how their states depend on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from daamctl.artifacts.results import Fold
from daamctl.artifacts.skipped import Obstacle

State = Literal["done", "partly", "to do", "not possible"]
Basis = Literal["measured", "recorded", "estimated", "quick", "not known"]
Lacking = Mapping[str, Obstacle | None]


@dataclass
class Row:
    """One stage, or one method of `train` or `finetune`.

    Args:
        stage: the stage.
        method: for `train` and `finetune`.
        state: whether it is done, and if not, whether it can be.
        done: how much of it is finished.
        total: how much there is; None: not known yet.
        unit: what is counted, in the plural.
        reason: why it is not possible, or what is wrong with the existing result.
        fix: how to repair that.
        work: description of its input.
        disk_bytes: size of all its results.
        disk_left_bytes: size of the results still to be written.
        memory_bytes: peak memory.
        memory_on: kind of device with this memory: cpu, cuda or mps.
        time_s: remaining time; 0 if it is done or takes next to none.
        took_s: time of the finished part, if it was recorded.
        basis: origin of `time_s`. estimated: from the time of another stage; quick: seconds or a few minutes, which are
            not counted.
        at_least: the figures are lower bounds: they count only what is known so far.
        at_least_of: single figures that are lower bounds: `memory_bytes`, `time_s`.
        at_most: `time_s` counts every allowed epoch; early stopping may end training sooner.
        about: the figures rest on published durations, because the recordings have not been read yet.
        notes: caveats on the figures.
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
    time_s: float | None = None
    took_s: float | None = None
    basis: Basis = "not known"
    at_least: bool = False
    at_least_of: list[str] = field(default_factory=list)
    at_most: bool = False
    about: bool = False
    notes: list[str] = field(default_factory=list)


def settle(row: Row, obstacle: Obstacle | None, upstream: Sequence[Row] = (), *, any_will_do: bool = False) -> None:
    """Set a row's state from what is finished and what prevents the rest.

    Args:
        row: the row, with the counts of what is finished.
        obstacle: the row's own obstacle.
        upstream: rows whose results it reads.
        any_will_do: it can run once any upstream row is possible; otherwise all must be.
    """
    if row.total and row.done >= row.total:
        row.state, row.reason, row.time_s, row.basis = "done", None, 0.0, "recorded"
        return
    row.state = "partly" if row.done else "to do"
    blocked = [one for one in upstream if one.state == "not possible"]
    if obstacle is None and blocked and (not any_will_do or len(blocked) == len(upstream)):
        obstacle = Obstacle(blocked[0].reason or "", blocked[0].fix)
    if obstacle is not None:
        row.state, row.reason, row.fix = "not possible", obstacle.reason, obstacle.fix


def took(folds: Sequence[Fold]) -> float | None:
    """Seconds that folds took to train; None if there are none."""
    return sum(fold.result["meta"]["train_s"] for fold in folds) if folds else None
