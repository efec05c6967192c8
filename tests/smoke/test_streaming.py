"""The benchmark of training from disk: its set can be learned, and both ways of training on it are measured."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from daamctl.artifacts.embeddings import open_embeddings
from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "streaming.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("streaming", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["streaming"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["streaming"]


def test_both_ways_are_measured_on_what_it_makes(bench: ModuleType, tmp_path: Path) -> None:
    stored = bench.make(tmp_path, 1200, 3, 16)
    bench.make(tmp_path / "few", bench.FEW_CLIPS, 3, 16)
    clips, vectors = open_embeddings(bench.layout_of(tmp_path).embeddings)
    assert vectors.shape == (1200, 3, 16)
    assert len(vectors.paths) == 3
    assert stored > vectors.nbytes / 2
    assert dict(clips["group"].value_counts().iter_rows()) == {"test": 60, "train": 1140}
    settings = {"batch_size": 16, "device": "cpu", "selection": "last", "epochs": 2, "lr": 0.01}
    for way in bench.WAYS:
        found = bench.measure(tmp_path, "weighted-sum", {**settings, "features": way})
        assert found["accuracy"] > 0.6  # chance is 0.25
        assert found["clips_per_s"] == pytest.approx(1140 / found["epoch_s"])
        assert 0 <= found["added_bytes"] < found["peak_bytes"]


@pytest.mark.slow
def test_the_whole_benchmark(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["--clips", "600", "--layers", "2", "--dim", "16", "--repeats", "2", "--out", str(out)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], check=True, capture_output=True, text=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["ways"]) == ["memory", "stream"]
    assert all(len(one["clips_per_s"]["runs"]) == 2 for one in found["ways"].values())
    medians = [found["ways"][way]["clips_per_s"]["median"] for way in ("stream", "memory")]
    assert found["stream_by_memory"]["clips_per_s"] == pytest.approx(medians[0] / medians[1])
    assert "stream by memory: " in done.stdout
