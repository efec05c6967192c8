"""Where training takes its embeddings from, and that all of it works from disk."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl.artifacts import embeddings
from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.results import Fold
from daamctl.engines.base import Closing
from daamctl.errors import TrainingError
from daamctl.layout import Layout
from daamctl.tracking import NoTracker, make_tracker
from daamctl.training import run
from daamctl.training.fold import Features, FoldSpec
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


class Elsewhere(Closing):
    """An engine that is not here, as far as anyone can tell: its tasks see what would have travelled."""

    here = False

    def facts(self, open_worker: Any, device: str) -> Any:
        raise NotImplementedError

    def work(self, open_worker: Any, device: str, tasks: Any, advance: Any) -> Iterator[Any]:
        raise NotImplementedError

    def each(
        self, call: Callable[[Any, Any], Any], shared: Any, tasks: Sequence[Any], *, device: str, per_gpu: int
    ) -> Iterator[tuple[Any, Any]]:
        call, shared = pickle.loads(pickle.dumps((call, shared)))
        for task in reversed(tasks):
            yield task, call(shared, pickle.loads(pickle.dumps(task)))


class Listing(NoTracker):
    """Lists the runs that start here."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def start(self, name: str, method: str, fold: int, seed: int) -> None:
        self.started.append(fold)


@pytest.mark.parametrize("wanted", ["memory", "stream"])
def test_folds_trained_elsewhere_are_those_trained_here(layout: Layout, wanted: str) -> None:
    settings = config(features=wanted, epochs=1)
    features = load_features(layout, settings)
    specs = fold_specs("test", "weighted-sum", features, settings)
    tracker = Listing()
    folder = layout.method("weighted-sum")
    there = train_all(specs, features, folder, layout, tracker, force=False, engine=Elsewhere())
    assert [fold.result["run"]["fold"] for fold in there] == [1, 2, 3, 4, 5]
    kept = train_all(specs, features, folder, layout, tracker, force=False)
    assert [fold.result for fold in kept] == [fold.result for fold in there]
    assert tracker.started == []
    here = train_all(specs, features, folder, layout, tracker, force=True)
    assert [fold.result["metrics"] for fold in here] == [fold.result["metrics"] for fold in there]


def test_a_worker_with_other_inputs_is_found_out(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(epochs=1)
    features = load_features(layout, settings)
    specs = fold_specs("test", "weighted-sum", features, settings, fold=2)
    real = run.train_fold

    def other_version(spec: FoldSpec, *words: Any, **options: Any) -> Fold:
        return real(replace(spec, config=config(epochs=2)), *words, **options)

    monkeypatch.setattr(run, "train_fold", other_version)
    with pytest.raises(
        TrainingError, match=r"^weighted-sum fold 2 seed 1: a worker trained it on other inputs\n  install"
    ):
        train_all(specs, features, layout.method("weighted-sum"), layout, NoTracker(), force=False, engine=Elsewhere())
