"""The benchmark of extraction memory compares two ways to the same vectors, and sees memory that is gone again."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "extraction_memory.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("extraction_memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["extraction_memory"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["extraction_memory"]


def test_both_ways_give_the_same_vectors(bench: ModuleType) -> None:
    encoder = bench.small_llama(3, 64, 50)
    ids = torch.arange(3, 53)
    pooled, kept = (bench.embed(encoder, way, ids) for way in bench.WAYS)
    assert pooled.shape == (3, 64)
    torch.testing.assert_close(pooled, kept, atol=1e-5, rtol=1e-4)


def test_a_passing_peak_is_seen(bench: ModuleType) -> None:
    before = bench.reset_peak()
    torch.ones(10_000_000).sum()  # 40 MB, freed at once
    peak = bench.memory("VmHWM") - before
    assert 30e6 < peak < 80e6
    bench.reset_peak()
    assert bench.memory("VmHWM") - before < peak


@pytest.mark.slow
def test_the_whole_benchmark(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["--tokens", "2048", "--width", "128", "--layers", "2", "--layers", "10", "--repeats", "1"]
    command = [sys.executable, str(SCRIPT), *words, "--out", str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = {(one["layers"], one["way"]): one["peak_bytes"]["median"] for one in json.loads(out.read_text())["runs"]}
    slopes = {way: (found[10, way] - found[2, way]) / 8 for way in ("pooled", "hidden states")}
    assert slopes["hidden states"] == pytest.approx(4 * 2048 * 128, rel=0.3)  # one float32 matrix per layer
    assert slopes["pooled"] < 0.3 * slopes["hidden states"]
    assert "per further layer" in done.stdout
