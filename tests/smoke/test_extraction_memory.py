"""The benchmark of extraction memory compares two ways to the same vectors, and sees memory that is gone again."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch

from benchmarks import extraction_memory
from benchmarks.harness import figures

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_both_ways_give_the_same_vectors() -> None:
    encoder = extraction_memory.small_llama(3, 64, 50)
    ids = torch.arange(3, 53)
    pooled, kept = (extraction_memory.embed(encoder, way, ids) for way in extraction_memory.WAYS)
    assert pooled.shape == (3, 64)
    torch.testing.assert_close(pooled, kept, atol=1e-5, rtol=1e-4)


def test_a_passing_peak_is_seen() -> None:
    before = extraction_memory.reset_peak()
    with mmap.mmap(-1, 40_000_000) as passing:  # pages of its own: malloc may hand out what it already holds
        for page in range(0, len(passing), mmap.PAGESIZE):
            passing[page] = 1
    peak = extraction_memory.memory("VmHWM") - before
    assert 30e6 < peak < 80e6
    extraction_memory.reset_peak()
    assert extraction_memory.memory("VmHWM") - before < peak


def test_slopes_are_told_round_by_round() -> None:
    peaks = {
        "pooled, 2 layers": [100.0, 110.0],
        "pooled, 6 layers": [140.0, 190.0],
        "hidden states, 2 layers": [300.0, 300.0],
        "hidden states, 6 layers": [700.0, 1100.0],
    }
    ways = {way: {"peak_bytes": figures(values)} for way, values in peaks.items()}
    found = extraction_memory.slopes(ways, 2, 6)
    assert found["pooled"]["bytes_per_layer"]["runs"] == [10, 20]
    assert found["hidden states"]["bytes_per_layer"]["runs"] == [100, 200]
