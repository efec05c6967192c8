"""Interrupted runs: the state of a fold, saved now and then and read back without unpickling code."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from daamctl.artifacts.io import atomic_path

FILE = "resume.pt"


class Saving:
    """Saves every so often, but seldom enough that it takes only a small part of the time.

    Args:
        save: does it.
        every_s: seconds from one saving to the next, at least.
        fraction: most of the time that saving may take: some states are gigabytes.
    """

    def __init__(self, save: Callable[[], None], *, every_s: float, fraction: float = float("inf")) -> None:
        self.save, self.every_s, self.fraction = save, every_s, fraction
        self.last, self.took_s = time.monotonic(), 0.0

    def if_due(self) -> None:
        """Save, if the time has come."""
        started = time.monotonic()
        if started - self.last >= max(self.every_s, self.took_s / self.fraction):
            self.save()
            self.last = time.monotonic()
            self.took_s = self.last - started


def save_state(work: Path, key: str, state: dict[str, Any]) -> None:
    """Write the state atomically under the fold's content key."""
    with atomic_path(work / FILE) as temporary:
        try:
            torch.save({"key": key, **state}, temporary)
        except RuntimeError as error:  # how torch words a full disk
            raise OSError(f"torch could not finish the file: {error}") from error


def load_state(work: Path, key: str) -> dict[str, Any] | None:
    """Read the state back; None if there is none, it is damaged, or it belongs to other inputs."""
    path = work / FILE
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file of any kind only costs the work it would have saved
        return None
    return state if isinstance(state, dict) and state.get("key") == key else None
