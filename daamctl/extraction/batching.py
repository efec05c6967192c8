"""Batch planning: group clips of similar length within a budget of samples, tokens or images, padding included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def plan_batches(
    sizes: np.ndarray,
    budget: int,
    *,
    equal_length: bool,
    max_useful: Callable[[int], int] | None = None,
    padded: Callable[[int], int] | None = None,
) -> list[np.ndarray]:
    """Group clips into batches, longest first; the plan depends only on the arguments.

    Args:
        sizes: (N,) cost of each clip: samples, tokens, or 1 per image.
        budget: largest cost of a batch, padding included; a longer clip gets a batch of its own.
        equal_length: only clips of exactly the same length may share a batch.
        max_useful: size of a clip -> number of clips that keeps the device busy, an upper limit; None: no limit.
        padded: size of the longest clip -> cost of each clip of its batch; None: that size.

    Returns:
        Row numbers of each batch; every row is in exactly one.
    """
    order = np.argsort(-sizes, kind="stable")
    batches: list[np.ndarray] = []
    start = 0
    while start < len(order):
        longest = int(sizes[order[start]])
        cost = longest if padded is None else padded(longest)
        size = budget // max(cost, 1)
        size = max(1, size if max_useful is None else min(size, max_useful(longest)))
        batch = order[start : start + size]
        if equal_length:
            batch = batch[sizes[batch] == longest]
        batches.append(batch)
        start += len(batch)
    return batches
