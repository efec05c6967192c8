"""Batches of items of unequal length: whole, repeatable, with little padding, read in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from daamctl.fit.batches import BLOCK_BATCHES, pieces, read_ahead, shuffled_batches


@pytest.mark.parametrize(("number", "size"), [(1, 8), (7, 8), (300, 8), (1000, 3)])
def test_every_item_once_and_full_batches(number: int, size: int) -> None:
    batches = shuffled_batches(np.random.default_rng(0).integers(1, 99, number), size, seed=3)
    assert sorted(np.concatenate(batches)) == list(range(number))
    assert len(batches) == -(-number // size)
    assert sorted(map(len, batches))[1:] == [size] * (len(batches) - 1)


def test_order_depends_on_the_seed_alone() -> None:
    sizes = np.random.default_rng(0).integers(1, 99, 200)
    first, again, other = (shuffled_batches(sizes, 8, seed) for seed in (1, 1, 2))
    assert [list(batch) for batch in first] == [list(batch) for batch in again]
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in other}


def test_neighbours_in_length_share_a_batch_and_batches_are_in_no_order() -> None:
    sizes = np.random.default_rng(0).permutation(BLOCK_BATCHES * 8)
    batches = shuffled_batches(sizes, 8, seed=1)
    assert all(np.ptp(sizes[batch]) == 7 for batch in batches)  # one block: sorted through
    longest = [int(sizes[batch].max()) for batch in batches]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_equal_sizes_are_shuffled_freely() -> None:
    batches = shuffled_batches(np.ones(400, np.int64), 8, seed=1)
    assert not any(np.ptp(batch) == 7 for batch in batches)


def test_pieces() -> None:
    items = [torch.zeros(size) for size in (5, 3, 5, 5, 3)]
    assert pieces(items, 2, equal_length=False) == [[0, 1], [2, 3], [4]]
    assert pieces(items, 2, equal_length=True) == [[0, 2], [3], [1, 4]]


def test_items_are_read_in_order_and_errors_come_through() -> None:
    def read(row: int) -> Tensor:
        if row == 9:
            raise ValueError("row 9")
        return torch.tensor(row)

    batches = [np.array([3, 1]), np.array([2]), np.array([7, 0]), np.array([4])]
    found = [(rows.tolist(), [int(item) for item in items]) for rows, items in read_ahead(batches, read, "cpu")]
    assert found == [([3, 1], [3, 1]), ([2], [2]), ([7, 0], [7, 0]), ([4], [4])]
    with pytest.raises(ValueError, match="row 9"):
        list(read_ahead([*batches, np.array([9])], read, "cuda"))
