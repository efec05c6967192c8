"""States of the generators: back to the bit, and in a form that a file read without unpickling code can hold."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from daamctl.fit.rng import generator_states, restore_generators, seed_generators


def drawn() -> list[float]:
    """From each generator, the second half of a pair of Gaussians too, which numpy keeps."""
    return [torch.rand(()).item(), np.random.rand(), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_one_seed_sets_all_of_them() -> None:
    seed_generators(3)
    first = drawn()
    assert drawn() != first
    seed_generators(3)
    assert drawn() == first
    seed_generators(2**40)  # numpy takes seeds below 2**32


def test_states_come_back_from_a_file(tmp_path: Path) -> None:
    seed_generators(3)
    drawn()
    torch.save(generator_states(), tmp_path / "a.pt")
    first = drawn()
    seed_generators(4)
    restore_generators(torch.load(tmp_path / "a.pt", weights_only=True))
    assert drawn() == first


def test_states_of_devices_that_are_not_here_are_left_alone() -> None:
    seed_generators(3)
    states = {**generator_states(), "mps": torch.zeros(1, dtype=torch.uint8)}
    states["cuda"] = [*states.get("cuda", []), torch.zeros(1, dtype=torch.uint8)]  # one GPU more than there is
    first = drawn()
    restore_generators(states)
    assert drawn() == first
