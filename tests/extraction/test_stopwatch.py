"""Speed of an extraction: which clips and seconds count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daamctl.extraction import stopwatch
from daamctl.extraction.shards import ShardResult
from daamctl.extraction.stopwatch import Stopwatch
from daamctl.store.provenance import device_name


@pytest.mark.parametrize(
    ("batches", "kept", "timing"),
    [
        ([], 0, {"clips": 0, "seconds": 0.0}),
        ([(8, 5.0)], 0, {"clips": 8, "seconds": 5.0}),
        ([(8, 5.0), (8, 1.0)], 0, {"clips": 16, "seconds": 6.0}),
        ([(8, 5.0), (92, 10.0)], 0, {"clips": 92, "seconds": 10.0}),  # opening the encoder is left out
        ([(30, 0.0), (8, 5.0), (8, 5.0)], 10, {"clips": 16, "seconds": 10.0}),  # 30 of an earlier process, in 3 parts
    ],
)
def test_speed_of_the_batches(
    monkeypatch: pytest.MonkeyPatch, batches: list[tuple[int, float]], kept: int, timing: dict[str, float]
) -> None:
    now, seen = 100.0, list[int]()
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now)

    def make(tasks: list[tuple[int, float]], advance: Callable[[int], None]) -> Iterator[ShardResult]:
        nonlocal now
        for clips, seconds in tasks:
            now += seconds
            advance(clips)
            yield ShardResult(Path(), clips, kept=kept)

    watch = Stopwatch()
    found = watch.timed(make)(batches, seen.append)
    assert [shard.num_clips for shard in found] == [clips for clips, _ in batches] == seen
    assert watch.timing("cpu") == {**timing, "device": device_name("cpu")}
