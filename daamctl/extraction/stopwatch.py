"""Measure the speed of an extraction, which later plans use (`daamctl.planning.recorded`)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from daamctl.compute.energy import Meter
from daamctl.store.provenance import device_name

SMALL_PART = 0.1
"""The first batch may include opening the encoder. It is left out if it has at most this share of the clips."""


def timing_file(embeddings: Path) -> Path:
    """File with the encoder and the `Stopwatch.timing` of a folder of embeddings.

    It is outside the folder, because equal embeddings have equal files, however long they took.
    """
    return embeddings.parents[1] / ".work" / "timing" / f"{embeddings.name}.json"


class Stopwatch:
    """Counts finished clips, and the seconds and joules that they take.

    `kept` of them were embedded by an earlier process, which cost nothing now.

    Args:
        devices: resolved devices whose energy is counted; none if other machines do the work.
    """

    def __init__(self, *devices: str) -> None:
        self.started = self.ended = time.monotonic()
        self.clips = self.first_clips = self.kept = 0
        self.first_ended = self.started
        self.meter = self.later_meter = Meter(*devices)

    def count(self, clips: int) -> None:
        """Count the clips of a finished batch."""
        self.ended = time.monotonic()
        if self.clips == 0:
            self.first_clips, self.first_ended = clips, self.ended
            self.later_meter = Meter(*self.meter.devices)
        self.clips += clips

    def timing(self, device: str) -> dict[str, Any]:
        """Number of `clips`, the `seconds` that they took, the name of the `device`, and `joules` if it tells."""
        clips, started, meter = self.clips, self.started, self.meter
        if self.first_clips <= SMALL_PART * self.clips:
            clips, started, meter = self.clips - self.first_clips, self.first_ended, self.later_meter
        joules = meter.used(self.ended - started)
        return {
            "clips": max(clips - self.kept, 0),
            "seconds": round(self.ended - started, 3),
            "device": device_name(device),
            **({} if joules is None else {"joules": round(joules, 3)}),
        }
