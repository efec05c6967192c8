"""The generators that a training step may draw from: seeded together, read out, and set back.

torch draws dropout and layer drop, numpy the time masks of transformers' speech encoders; Python's own generator is
kept with them, for encoders that use it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_generators(number: int) -> None:
    """Seed the generators of torch, on every device, of numpy and of Python."""
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def generator_states() -> dict[str, Any]:
    """Their states, of tensors, numbers and words alone: what a resume file may hold."""
    name, keys, *rest = np.random.get_state(legacy=True)
    states: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Set them back; the generator of a device that was not there then, or is not now, stays as it is.

    Args:
        states: what `generator_states` gave.
    """
    torch.set_rng_state(states["torch"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states.get("cuda", []), strict=False):
            torch.cuda.set_rng_state(state, device)
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])
