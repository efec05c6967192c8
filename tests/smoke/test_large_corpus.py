"""The benchmark makes a run that the real stages accept, and times them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import large_corpus
from daamctl.artifacts.embeddings import read_embeddings
from daamctl.artifacts.layout import Layout
from daamctl.config import load_config
from daamctl.stages import evaluate, importance, preflight


@pytest.mark.usefixtures("blank_pictures")
def test_the_real_stages_accept_what_it_makes(tmp_path: Path) -> None:
    stored = large_corpus.make(tmp_path, 600, 6, 64)
    config = load_config(tmp_path, large_corpus.NAME)
    layout = Layout.of(tmp_path, large_corpus.NAME, config)
    clips, vectors, layers = read_embeddings(layout.embeddings)
    assert vectors.shape == (600, 6, 64)
    assert vectors.dtype == np.float16
    assert layers == (1, 2, 3, 4, 5, 6)
    assert clips["group"].n_unique() == 5
    assert clips.select("group", "speaker").unique().height == clips["speaker"].n_unique() == 10
    assert clips["label"].n_unique() == 4
    assert stored > vectors.nbytes / 2
    found = json.loads(evaluate.run(layout, config).read_text(encoding="utf-8"))
    assert list(found["methods"]) == list(large_corpus.METHODS)
    assert [len(entry["runs"]) for entry in found["methods"].values()] == [5] * 5
    assert found["comparison"]["family"]["design"]["unit"] == "speaker"
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
