"""Rows of a plan: one per stage, of `train` and `finetune` one per method, and how their state follows from others."""

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
    """One stage, of `train` and `finetune` one method.

    Args:
        stage: the stage.
        method: of `train` and `finetune`.
        state: whether it is done, and if not, whether it can be.
        done: how much of it is finished.
        total: how much there is; None: not known yet.
        unit: what is counted, in the plural.
        reason: why it is not possible, or what is wrong with what is there.
        fix: what repairs that.
        work: what it works on, in words.
        disk_bytes: of all its results.
        disk_left_bytes: of those still to be written.
        memory_bytes: at its peak.
        memory_on: kind of device that has this memory: cpu, cuda or mps.
        time_s: still to go; 0 where it is done or takes next to nothing.
        took_s: of what is done, where that was recorded.
        basis: where `time_s` comes from. estimated: from what another stage takes; quick: seconds, or few minutes,
            that are not counted.
        at_least: the figures count only what is known yet.
        at_least_of: figures of which a part is not known, though the work is: `memory_bytes`, `time_s`.
        at_most: `time_s` counts every epoch allowed; training stops earlier where the held-out group improves no more.
        about: the figures rest on published durations, as the recordings have not been read yet.
        notes: what must be known of the figures.
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
    """State of a row from what is finished and what stands in its way.

    Args:
        row: with the counts of what is finished.
        obstacle: of its own.
        upstream: rows that it reads the results of.
        any_will_do: it can run once one of them is possible, otherwise it needs all of them.
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
    """Seconds that folds took to train; None without any."""
    return sum(fold.result["meta"]["train_s"] for fold in folds) if folds else None
