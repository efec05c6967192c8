"""How fast shards are read: from the disk or from what the system keeps of it, and what is left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.splits import Split
from daamctl.config import Config, load_config
from daamctl.layout import Layout
from daamctl.planning import reading
from daamctl.planning.artifact_status import ArtifactStatus
from daamctl.planning.reading import Reading, reading_rate, write_sample
from daamctl.planning.resources import ResourceEstimate
from daamctl.training.timing import ReadTimes

SHAPE = (10, 3, 8)


def needs(project: Path, changes: dict[str, Any]) -> ResourceEstimate:
    config: Config = load_config(project, "demo", {"train.device": "cpu", **changes})
    return ResourceEstimate(ArtifactStatus(Layout.of(project, "demo", config), config))


def test_sample_is_read_as_embeddings_are(tmp_path: Path) -> None:
    stored = write_sample(tmp_path, SHAPE, "float16")
    assert (stored.shape, stored.dtype, stored.nbytes) == (SHAPE, np.dtype("float16"), 10 * 3 * 8 * 2)
    assert stored.load().std() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("cached", [True, False])
def test_rate_is_that_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool) -> None:
    """A clock that ticks once a second, and a shard that takes one tick to read."""
    stored, forgotten, ticks = write_sample(tmp_path, SHAPE, "float16"), list[Path](), iter(range(100))
    monkeypatch.setattr(reading, "_forget", forgotten.append)
    monkeypatch.setattr(reading.time, "perf_counter", lambda: float(next(ticks)))
    assert reading_rate(stored, cached=cached, within_s=9.0) == stored.nbytes
    assert forgotten == ([] if cached else list(stored.paths))


def test_system_that_keeps_what_it_read_tells_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = write_sample(tmp_path, SHAPE, "float16")
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert reading_rate(stored, cached=False, within_s=9.0) is None
    assert (reading_rate(stored, cached=True, within_s=9.0) or 0) > 0


def test_rate_of_a_shard_that_is_gone_afterwards(project: Path) -> None:
    before = sorted(project.rglob("*"))
    found = Reading(needs(project, {"train.features": "stream"}), calibrate=True)
    assert (found.rate or 0) > 0
    assert not found.is_unknown()
    assert sorted(project.rglob("*")) == before


def test_rate_that_cannot_be_measured(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> StoredVectors:
        raise OSError("no space left on device")

    monkeypatch.setattr(reading, "write_sample", full)
    found = Reading(needs(project, {"train.features": "stream"}), calibrate=True)
    assert found.is_unknown()
    held = Reading(needs(project, {"train.features": "memory"}), calibrate=False)
    assert not held.is_unknown()


def test_shards_are_read_whole(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "reading_rate", lambda *_, **__: 1000.0)
    found = Reading(needs(project, {"train.features": "stream", "extract.shard_clips": 100}), calibrate=True)
    number, layer = found.needs.number or 0, 64 * 2 / 1000  # seconds for one layer of a clip
    rest = number % 100  # in the last shard
    split = Split(1, 5, "a", "b", np.array([0, 1, 150]), np.array([7]), np.array([number - 1]))
    assert found.times(split) == ReadTimes(
        once_s=pytest.approx(24 * layer * (100 + rest)), train_s=pytest.approx(24 * layer * 200)
    )
    monkeypatch.setattr(reading, "HELD_SHARE", 0.0)  # no room to hold a part
    assert found.times(split, 6) == ReadTimes(
        once_s=0.0,
        train_s=pytest.approx(6 * layer * 200),
        dev_s=pytest.approx(6 * layer * 100),
        test_s=pytest.approx(6 * layer * rest),
    )
