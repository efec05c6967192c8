"""Workers for tests, where other processes can import them (quickly); what they do is noted in files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from daamctl.compute.engine import Units
from daamctl.errors import UnknownNameError


def note(folder: Path, line: str) -> None:
    """Append a line; short appends of several processes do not mix."""
    with (folder / "log").open("a") as stream:
        stream.write(f"{line}\n")


def notes(folder: Path, start: str) -> list[str]:
    """Sorted ends of the lines that begin with `start`."""
    lines = (folder / "log").read_text().splitlines()
    return sorted(line.removeprefix(start).strip() for line in lines if line.startswith(start))


def die_once(folder: Path) -> None:
    """The worst that can happen to a process, the first time it comes here."""
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Squares:
    """Squares numbers; 13 is an error and 666 the end of the process.

    Args:
        folder: where to note.
        device: noted.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.description, self.num_devices = folder, {"square": True}, 1
        note(folder, f"opened on {device} by {os.getpid()}")

    def work(self, tasks: Sequence[int]) -> Iterator[tuple[int, int] | Units]:
        """Squares, and who made them."""
        for task in tasks:
            if task == 13:
                raise UnknownNameError("number", "13", ["12", "14"])
            if task == 666:
                os.kill(os.getpid(), signal.SIGKILL)
            yield Units(task)
            yield task * task, os.getpid()


class Masks(Squares):
    """Tells which signals the process has blocked since it began, and what it makes of them."""

    def work(self, tasks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Number of signals of a terminal that cannot interrupt this process."""
        blocked = {signal.SIGINT, signal.SIGHUP} & signal.pthread_sigmask(signal.SIG_BLOCK, [])
        for _ in tasks:
            yield len(blocked), os.getpid()
