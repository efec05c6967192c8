"""Interrupted runs: the state of a fold after an epoch, read back without unpickling code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from daamctl.artifacts.io import atomic_path

FILE = "resume.pt"


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
    except Exception:  # a damaged file of any kind only costs the epochs it would have saved
        return None
    return state if isinstance(state, dict) and state.get("key") == key else None
