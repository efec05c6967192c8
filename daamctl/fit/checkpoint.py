"""Resume files: save the state of an unfinished fold at intervals, and read it back without unpickling code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from daamctl.store.files import kept_path, open_kept

FILE = "resume.pt"
LONGEST_S = 50.0
"""Seconds without a checkpoint after which `fraction` no longer counts: a kill is to cost at most a minute."""
MOST_FRACTION = 0.25
"""Largest share of the time to spend on saving for that end."""


class SaveTimer:
    """Rate-limited checkpointing.

    Args:
        every_s: shortest time between two checkpoints, in seconds.
        fraction: share of the time to spend on saving; some states take gigabytes.
    """

    def __init__(self, *, every_s: float, fraction: float = float("inf")) -> None:
        self.every_s, self.fraction = every_s, fraction
        self.last, self.took_s = time.monotonic(), 0.0

    def save_if_due(self, save: Callable[[], None]) -> None:
        """Call `save` if the interval has passed."""
        started = time.monotonic()
        most = max(self.fraction, MOST_FRACTION)
        seldom = max(min(self.took_s / self.fraction, LONGEST_S), self.took_s / most)
        if started - self.last >= max(self.every_s, seldom):
            save()
            self.last = time.monotonic()
            self.took_s = self.last - started


def save_state(work: Path, key: str, state: dict[str, Any]) -> None:
    """Write the state atomically under the fold's content key."""
    with kept_path(work / FILE, key) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # how torch words a full disk
            raise OSError(f"torch could not finish the file: {error}") from error


def load_state(work: Path, key: str) -> dict[str, Any] | None:
    """Read the state back; None if it is missing, damaged, or has another key."""
    with open_kept(work / FILE, key) as file:
        if file is None:
            return None
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state
