"""Speed of an extraction: which clips and seconds count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from daamctl.extraction import stopwatch
from daamctl.extraction.stopwatch import Stopwatch
from daamctl.provenance import device_name


@pytest.mark.parametrize(
    ("batches", "timing"),
    [
        ([], {"clips": 0, "seconds": 0.0}),
        ([(8, 5.0)], {"clips": 8, "seconds": 5.0}),
        ([(8, 5.0), (8, 1.0)], {"clips": 16, "seconds": 6.0}),
        ([(8, 5.0), (92, 10.0)], {"clips": 92, "seconds": 10.0}),  # opening the encoder is left out
    ],
)
def test_speed_of_the_batches(
    monkeypatch: pytest.MonkeyPatch, batches: list[tuple[int, float]], timing: dict[str, float]
) -> None:
    now, seen = 100.0, list[int]()
    monkeypatch.setattr(stopwatch.time, "monotonic", lambda: now)

    def make(tasks: list[tuple[int, float]], advance: Callable[[int], None]) -> Iterator[int]:
        nonlocal now
        for clips, seconds in tasks:
            now += seconds
            advance(clips)
            yield clips

    watch = Stopwatch()
    assert list(watch.timed(make)(batches, seen.append)) == [clips for clips, _ in batches] == seen
    assert watch.timing("cpu") == {**timing, "device": device_name("cpu")}
