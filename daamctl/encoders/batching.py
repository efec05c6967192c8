"""Which clips share a batch: neighbours in length, within a budget of samples, padding included."""

from __future__ import annotations

import numpy as np


def plan_batches(num_samples: np.ndarray, budget: int, *, equal_length: bool) -> list[np.ndarray]:
    """Group clips into batches, longest first; the plan depends on nothing but the arguments.

    Args:
        num_samples: (N,) length of each clip.
        budget: most samples in a batch, counting padding; a longer clip makes a batch of its own.
        equal_length: only clips of exactly the same length may share a batch.

    Returns:
        Row numbers of each batch; every row stands in exactly one.
    """
    order = np.argsort(-num_samples, kind="stable")
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        longest = int(num_samples[order[start]])
        size = max(1, budget // max(longest, 1))
        batch = order[start : start + size]
        if equal_length:
            batch = batch[num_samples[batch] == longest]
        batches.append(batch)
        start += len(batch)
    return batches
