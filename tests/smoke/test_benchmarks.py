"""The benchmark makes a run that the real stages accept, and times them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from daamctl.artifacts.embeddings import read_embeddings
from daamctl.config import load_config
from daamctl.layout import Layout
from daamctl.stages import evaluate, importance, preflight
from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "large_corpus.py"


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("large_corpus", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["large_corpus"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["large_corpus"]


def test_the_real_stages_accept_what_it_makes(bench: ModuleType, tmp_path: Path) -> None:
    stored = bench.make(tmp_path, 600, 6, 64)
    config = load_config(tmp_path, bench.NAME)
    layout = Layout.of(tmp_path, bench.NAME, config)
    clips, vectors, layers = read_embeddings(layout.embeddings)
    assert vectors.shape == (600, 6, 64)
    assert vectors.dtype == np.float16
    assert layers == (1, 2, 3, 4, 5, 6)
    assert clips["group"].n_unique() == 5
    assert clips.select("group", "speaker").unique().height == clips["speaker"].n_unique() == 10
    assert clips["label"].n_unique() == 4
    assert stored > vectors.nbytes / 2
    found = json.loads(evaluate.run(layout, config).read_text(encoding="utf-8"))
    assert list(found["methods"]) == list(bench.METHODS)
    assert [len(entry["per_fold"]) for entry in found["methods"].values()] == [5] * 5
    assert found["comparison"]["result"]["design"]["unit"] == "speaker"
    summary = json.loads(importance.run(layout, config).read_text(encoding="utf-8"))
    assert {name: entry["kind"] for name, entry in summary["scores"].items()} == {
        "weighted-sum": "weight",
        "mha": "weight",
        "daam-v1": "importance",
        "daam-v2": "importance",
    }
    assert summary["audit"]["methods"] == {}
    probed = json.loads(preflight.run(layout, config).read_text(encoding="utf-8"))
    means = [one["accuracy"]["mean"] for one in probed["probe"]["layers"].values()]
    assert means[3] > means[0] + 0.1  # the signal peaks at two thirds of the depth, and the first layer has little
    assert max(means) < 0.95


def test_a_failing_command_says_why(bench: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").touch()
    with pytest.raises(RuntimeError, match=r"daamctl preflight --pipeline none failed:(.|\n)*unknown pipeline 'none'"):
        bench.timed(tmp_path, "preflight", "--pipeline", "none")
    seconds, peak = bench.timed(tmp_path, "ls", "metrics")
    assert seconds > 0
    assert 5e6 < peak < 5e9


def test_figures_have_median_and_range(bench: ModuleType) -> None:
    found = bench.figures([(3.0, 10), (1.0, 30), (2.0, 20)])
    assert found["seconds"] == {"runs": [3.0, 1.0, 2.0], "median": 2.0, "min": 1.0, "max": 3.0}
    assert found["peak_bytes"] == {"runs": [10, 30, 20], "median": 20, "min": 10, "max": 30}


@pytest.mark.slow
def test_the_whole_benchmark(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    words = ["--clips", "200", "--layers", "4", "--dim", "16", "--repeats", "2", "--out", str(out)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], check=True, capture_output=True, text=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["commands"]) == ["preflight", "report"]
    assert all(len(one["seconds"]["runs"]) == 2 for one in found["commands"].values())
    assert found["sizes"]["clips"] == 200
    assert "preflight" in done.stdout
