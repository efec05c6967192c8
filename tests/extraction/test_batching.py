"""Batches: every clip once, within the budget, neighbours in length, the same plan every time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from daamctl.extraction.batching import plan_batches

lengths = st.lists(st.integers(1, 90), max_size=40).map(np.array)


@settings(max_examples=150)
@given(lengths, st.integers(1, 400), st.booleans())
def test_plan(num_samples: np.ndarray, budget: int, equal_length: bool) -> None:
    num_samples = num_samples.astype(np.int64)
    batches = plan_batches(num_samples, budget, equal_length=equal_length)
    rows = [row for batch in batches for row in batch.tolist()]
    assert sorted(rows) == list(range(len(num_samples)))
    for batch in batches:
        own = num_samples[batch]
        assert len(batch) == 1 or len(batch) * own.max() <= budget
        assert not equal_length or len(set(own.tolist())) == 1
    ordered = num_samples[rows]
    assert (np.diff(ordered) <= 0).all()  # longest first: neighbours in length, and memory runs out at once or never
    again = plan_batches(num_samples, budget, equal_length=equal_length)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in batches]


@settings(max_examples=100)
@given(lengths, st.integers(1, 400))
def test_no_batch_could_take_the_next_clip(num_samples: np.ndarray, budget: int) -> None:
    num_samples = num_samples.astype(np.int64)
    batches = plan_batches(num_samples, budget, equal_length=False)
    for batch, following in pairwise(batches):
        assert (len(batch) + 1) * num_samples[batch].max() > budget
        assert len(following) > 0


def test_example_by_hand() -> None:
    num_samples = np.array([10, 50, 10, 30, 50])
    assert [b.tolist() for b in plan_batches(num_samples, 100, equal_length=False)] == [[1, 4], [3, 0, 2]]
    assert [b.tolist() for b in plan_batches(num_samples, 100, equal_length=True)] == [[1, 4], [3], [0, 2]]
    assert [b.tolist() for b in plan_batches(num_samples, 40, equal_length=False)] == [[1], [4], [3], [0, 2]]


def test_nothing_and_clips_without_samples() -> None:
    assert plan_batches(np.array([], np.int64), 100, equal_length=False) == []
    assert [b.tolist() for b in plan_batches(np.array([0, 0]), 100, equal_length=False)] == [[0, 1]]


def test_the_budget_counts_what_an_encoder_pads_to() -> None:
    sizes = np.array([10, 50, 10, 30, 50])
    found = plan_batches(sizes, 120, equal_length=False, padded=lambda size: max(size, 40))
    assert [batch.tolist() for batch in found] == [[1, 4], [3, 0, 2]]
    found = plan_batches(sizes, 120, equal_length=False, padded=lambda size: 60)
    assert [batch.tolist() for batch in found] == [[1, 4], [3, 0], [2]]


def test_no_batch_is_larger_than_what_is_enough() -> None:
    sizes = np.array([10] * 4 + [30] * 4)
    found = plan_batches(sizes, 1000, equal_length=False, max_useful=lambda size: 60 // size)
    assert [batch.tolist() for batch in found] == [[4, 5], [6, 7], [0, 1, 2, 3]]
    alone = plan_batches(sizes, 1000, equal_length=False, max_useful=lambda size: 0)
    assert [len(batch) for batch in alone] == [1] * 8
    tight = plan_batches(sizes, 30, equal_length=False, max_useful=lambda size: 99)  # the budget holds all the same
    assert [len(batch) for batch in tight] == [1, 1, 1, 1, 3, 1]
