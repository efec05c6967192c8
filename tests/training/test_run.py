"""Where training takes its embeddings from, and that all of it works from disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from daamctl.artifacts import embeddings
from daamctl.artifacts.embeddings import StoredVectors
from daamctl.layout import Layout
from daamctl.tracking import make_tracker
from daamctl.training import run
from daamctl.training.fold import Features
from daamctl.training.run import fold_specs, load_features, settle, train_all
from tests.fixtures.embeddings import config, write_embeddings

BYTES = 120 * 24 * 16 * 2


@pytest.fixture
def layout(project: Path) -> Layout:
    write_embeddings(project / "data/extract/test", config(), shards=7)
    return Layout(project, "test", "test", "test")


def way(features: Features) -> str:
    if isinstance(features.x, StoredVectors):
        return "stream" if features.stream else "device"
    return "memory"


@pytest.mark.parametrize(
    ("wanted", "free", "gpu", "expected"),
    [
        ("auto", 4 * BYTES, 0, "memory"),
        ("auto", 4 * BYTES - 4, 0, "stream"),
        ("auto", 4 * BYTES - 4, 2 * BYTES, "device"),
        ("auto", 4 * BYTES - 4, 2 * BYTES - 2, "stream"),
        ("memory", 0, 0, "memory"),
        ("stream", 100 * BYTES, 100 * BYTES, "stream"),
    ],
)
def test_settings_and_memory_decide(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, wanted: str, free: int, gpu: int, expected: str
) -> None:
    monkeypatch.setattr(embeddings, "free_memory", lambda: free)
    monkeypatch.setattr(run, "_gpu_memory", lambda device: gpu)
    assert way(load_features(layout, config(features=wanted))) == expected


def test_few_layers_of_a_streamed_set_may_fit(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config()
    monkeypatch.setattr(embeddings, "free_memory", lambda: BYTES)
    monkeypatch.setattr(run, "_gpu_memory", lambda device: 0)
    features = load_features(layout, settings)
    assert way(features) == "stream"
    assert way(settle(features.subset(tuple(range(1, 13))), settings)) == "stream"
    few = settle(features.subset((6, 2)), settings)
    assert (way(few), few.layers) == ("memory", (6, 2))
    monkeypatch.undo()
    whole = load_features(layout, settings)
    assert isinstance(few.x, torch.Tensor)
    assert torch.equal(few.x, whole.subset((6, 2)).x)
    assert settle(whole, config(features="stream")) is whole


def test_what_is_left_on_disk_is_said(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_features(layout, config(features="stream"))
    assert caplog.messages == ["the embeddings take 0.0 GB in memory: every epoch reads them from disk"]


def test_no_gpu_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (asked.append(device), (7, 9))[1])
    assert [run._gpu_memory(name) for name in ("auto", "cuda:1", "cpu", "mps")] == [7, 7, 0, 0]
    assert asked == ["cuda", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run._gpu_memory("auto") == 0


def test_every_fold_is_trained_from_disk_and_kept(layout: Layout) -> None:
    settings = config(features="stream", epochs=1)
    features = load_features(layout, settings)
    specs = fold_specs("test", "weighted-sum", features, settings)
    tracker = make_tracker(layout.root, enabled=False)
    first = train_all(specs, features, layout.method("weighted-sum"), layout, tracker, force=False)
    stamps = [(fold.folder / "result.json").stat().st_mtime_ns for fold in first]
    again = train_all(specs, features, layout.method("weighted-sum"), layout, tracker, force=False)
    assert [(fold.folder / "result.json").stat().st_mtime_ns for fold in again] == stamps
    assert [fold.result["meta"]["features"] for fold in again] == ["stream"] * 5
