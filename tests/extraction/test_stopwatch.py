"""Speed of an extraction: which clips and seconds count."""

from __future__ import annotations

import pytest

from daamctl.extraction import stopwatch
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
    now = 100.0
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now)
    watch = Stopwatch()
    for clips, seconds in batches:
        now += seconds
        watch.count(clips)
        watch.kept += kept
    assert watch.timing("cpu") == {**timing, "device": device_name("cpu")}
