"""Progress of long work: a bar with rate and remaining time on a terminal, occasional plain log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

LOG_EVERY_S = 10.0


class Progress:
    """Counts finished units.

    Args:
        total: expected number of units; a search that widens its grid may take more.
        what: description of the work, e.g. "extracting".
        unit: plural name of a unit, e.g. "clips".
        done: units finished before this call; they do not count for the rate.
    """

    def __init__(self, total: int, what: str, unit: str, done: int = 0) -> None:
        self.total, self.what, self.unit = total, what, unit
        self.done = self.done_before = done
        self.started = self.logged = time.monotonic()

    def advance(self, units: int = 1) -> None:
        """Count `units` more as finished."""
        self.done += units
        now = time.monotonic()
        if now - self.logged >= LOG_EVERY_S:
            self.logged = now
            log.info("%s", self.line())

    def line(self) -> str:
        """One line: description, progress, rate and remaining time."""
        if self.done > self.total:
            return f"{self.what}: {self.done} {self.unit}, {self.speed()}"
        rate = self._rate()
        left = f", {duration((self.total - self.done) / rate)} left" if rate > 0 else ""
        return f"{self.what}: {self.done} of {self.total} {self.unit}, {self.speed()}{left}"

    def speed(self) -> str:
        """Units per second; of slow ones, seconds each."""
        rate = self._rate()
        return f"{duration(1 / rate)} each" if 0 < rate < 0.1 else f"{rate:.1f} {self.unit}/s"

    def _rate(self) -> float:
        return (self.done - self.done_before) / max(time.monotonic() - self.started, 1e-9)


def duration(seconds: float) -> str:
    """84 -> "84 s", 5400 -> "1.5 h"; at least a second."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            number = seconds / size
            return f"{number:.{0 if number >= 10 else 1}f} {unit}"
    return f"{max(1, round(seconds))} s"


class _Bar(Progress):
    """Progress shown as a bar."""

    def __init__(self, total: int, what: str, unit: str, done: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        super().__init__(total, what, unit, done)
        rate = TextColumn("{task.fields[rate]}")
        console = Console(stderr=True)
        self.bar = RichProgress(
            "{task.description}", BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn(), console=console
        )
        self.task = self.bar.add_task(what, total=total, completed=done, rate="")

    def advance(self, units: int = 1) -> None:
        self.done += units
        self.bar.update(self.task, advance=units, total=max(self.total, self.done), rate=self.speed())


@contextmanager
def progress(total: int, what: str, unit: str, done: int = 0) -> Iterator[Progress]:
    """Show the progress of the block; see `Progress` for the arguments."""
    if sys.stderr.isatty():
        counter = _Bar(total, what, unit, done)
        with counter.bar:
            yield counter
    else:
        yield Progress(total, what, unit, done)
