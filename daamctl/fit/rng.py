"""Random generators that a training step may draw from: seed them together, save and restore their states.

torch draws dropout and layer drop, and numpy draws the time masks of transformers' speech encoders. Python's generator
is included for encoders that use it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from daamctl.devices import choose_gpu_kernels


def seed_everything(seed: int, device: str) -> None:
    """Seed torch before a model is built; on a GPU also request deterministic kernels and full float32."""
    torch.manual_seed(seed)
    if device.startswith("cuda"):
        choose_gpu_kernels()  # evaluation is float32 whatever the precision of the training step
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=True)


def seed_generators(number: int) -> None:
    """Seed the generators of torch (on every device), numpy and Python."""
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def generator_states() -> dict[str, Any]:
    """States of all generators, as tensors, numbers and strings only, so that a resume file can hold them."""
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
    """Restore the states; skips generators of devices that were absent then or are absent now.

    Args:
        states: result of `generator_states`.
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
