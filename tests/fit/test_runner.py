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
from daamctl.artifacts.results import Fold, read_fold
from daamctl.config import Config
from daamctl.engines.base import Engine
from daamctl.errors import TrainingError
from daamctl.fit import features as features_module
from daamctl.fit import runner
from daamctl.fit.features import Features, load_features, open_features, place_features, to_gpu
from daamctl.fit.runner import summary_line, train_all
from daamctl.fit.trial import Trial, trials_of
from daamctl.fit.trials.fusion import FusionTrial
from daamctl.layout import Layout
from daamctl.tracking import Tracker, make_tracker
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.folds import make_layout, predictions_frame, write_fold
from tests.fixtures.gpu import needs_gpu

BYTES = 120 * 24 * 16 * 2


@pytest.fixture
def layout(project: Path) -> Layout:
    write_embeddings(project / "data/extract/test", config(), shards=7)
    return Layout(project, "test", "test", "test")


def way(features: Features) -> str:
    assert isinstance(features.x, StoredVectors) is features.stream
    return "stream" if features.stream else "memory"


@pytest.mark.parametrize(
    ("wanted", "free", "expected"),
    [
        ("auto", 4 * BYTES, "memory"),
        ("auto", 4 * BYTES - 4, "stream"),
        ("memory", 0, "memory"),
        ("stream", 100 * BYTES, "stream"),
    ],
)
def test_settings_and_memory_decide(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, wanted: str, free: int, expected: str
) -> None:
    monkeypatch.setattr(embeddings, "free_memory", lambda: free)
    assert way(load_features(layout, config(features=wanted))) == expected


class Gpu:
    """A GPU as far as `to_gpu` can tell: what is put there stays in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: float) -> None:
        self.asked: list[tuple[str, int]] = []
        monkeypatch.setattr(
            features_module, "gpu_room", lambda device, tasks: (self.asked.append((device, tasks)), room)[1]
        )


@pytest.mark.parametrize("wanted", ["auto", "memory", "stream"])
@pytest.mark.parametrize(("room", "fits"), [(BYTES, True), (BYTES - 1, False)])
def test_what_fits_goes_to_the_gpu_whole(
    layout: Layout,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wanted: str,
    room: int,
    fits: bool,
) -> None:
    settings, expected = config(features=wanted), load_features(layout, config()).x
    Gpu(monkeypatch, room)
    assert isinstance(expected, torch.Tensor)
    for start in (open_features(layout, settings), load_features(layout, settings)):
        with caplog.at_level(logging.INFO):
            caplog.clear()
            found = to_gpu(start, settings)
        if wanted == "stream" or not fits:
            assert found is start
            assert caplog.messages == []
        else:
            assert isinstance(found.x, torch.Tensor)
            assert not found.stream
            assert torch.equal(found.x, expected)
            assert caplog.messages == ["the embeddings take 0.0 GB: held on cpu"]


def test_training_asks_the_gpu_before_it_reads(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds here share what is there; memory too small for the set does not matter."""
    settings = config(epochs=1)
    features = open_features(layout, settings)
    trials = trials_of(FusionTrial, layout, "daam-v1", features, settings)[:2]
    gpu, seen = Gpu(monkeypatch, BYTES), []
    monkeypatch.setattr(embeddings, "free_memory", lambda: 0)
    real = runner.train_group

    def watched(trials: list[FusionTrial], *words: Any, **options: Any) -> list[Fold]:
        for trial in trials:
            assert isinstance(trial.data.x, torch.Tensor)
            seen.append(trial.data.x.data_ptr())
        return real(trials, *words, **options)

    monkeypatch.setattr(runner, "train_group", watched)
    train_all(trials, layout.method("daam-v1"), layout, Tracker(), force=False)
    assert gpu.asked == [("cpu", 1)]
    assert len(set(seen)) == 1
    assert len(seen) == 2


def test_room_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gb = 1_000_000_000
    memory = {"free": 70 * gb, "total": 80 * gb}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory["free"], memory["total"]))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 6 * gb)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: gb)
    assert features_module.gpu_room("cuda", 1) == (70 + 5 - 8) * gb
    assert features_module.gpu_room("cuda:1", 4) == (20 - 8) * gb
    assert features_module.gpu_room("cuda", 8) == 5 * gb  # of 10
    memory["free"] = 4 * gb
    assert features_module.gpu_room("cuda", 1) == 4.5 * gb
    assert features_module.gpu_room("cpu", 1) == features_module.gpu_room("mps", 1) == 0


@needs_gpu
@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation")
@pytest.mark.parametrize("method", ["daam-v1", "weighted-sum"])
def test_folds_on_a_gpu_index_it(layout: Layout, method: str) -> None:
    """The second method is trained together there."""
    accuracies = {}
    for device in ("cpu", "cuda"):
        settings = config(device=device, batch_folds="always", precision="float32", epochs=6)
        features = open_features(layout, settings)
        trials, folder = trials_of(FusionTrial, layout, method, features, settings), layout.method(method) / device
        folds = train_all(trials, folder, layout, Tracker(), force=False)
        assert {fold.result["meta"]["features"] for fold in folds} == {"memory" if device == "cpu" else "device"}
        assert {fold.result["meta"].get("together") for fold in folds} == {5 if method == "weighted-sum" else None}
        accuracies[device] = sum(fold.result["metrics"]["accuracy"] for fold in folds) / len(folds)
    assert accuracies["cuda"] == pytest.approx(accuracies["cpu"], abs=0.1)


def test_few_layers_of_a_streamed_set_may_fit(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config()
    monkeypatch.setattr(embeddings, "free_memory", lambda: BYTES)
    features = load_features(layout, settings)
    assert way(features) == "stream"
    assert way(place_features(features.subset(tuple(range(1, 13))), settings)) == "stream"
    few = place_features(features.subset((6, 2)), settings)
    assert (way(few), few.layers) == ("memory", (6, 2))
    monkeypatch.undo()
    whole = load_features(layout, settings)
    assert isinstance(few.x, torch.Tensor)
    assert torch.equal(few.x, whole.subset((6, 2)).x)
    assert place_features(whole, config(features="stream")) is whole


def test_what_is_left_on_disk_is_said(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_features(layout, config(features="stream"))
    assert caplog.messages == ["the embeddings take 0.0 GB in memory: every epoch reads them from disk"]


def test_every_fold_is_trained_from_disk_and_kept(layout: Layout) -> None:
    settings = config(features="stream", epochs=1)
    features = load_features(layout, settings)
    trials = trials_of(FusionTrial, layout, "weighted-sum", features, settings)
    tracker = make_tracker(layout.root, enabled=False)
    first = train_all(trials, layout.method("weighted-sum"), layout, tracker, force=False)
    stamps = [(fold.folder / "result.json").stat().st_mtime_ns for fold in first]
    again = train_all(trials, layout.method("weighted-sum"), layout, tracker, force=False)
    assert [(fold.folder / "result.json").stat().st_mtime_ns for fold in again] == stamps
    assert [fold.result["meta"]["features"] for fold in again] == ["stream"] * 5


class Elsewhere(Engine):
    """An engine that is not here, as far as anyone can tell: its tasks see what would have travelled."""

    in_process = False

    def describe(self, open_worker: Any, device: str) -> Any:
        raise NotImplementedError

    def map(self, open_worker: Callable[[str], Any], tasks: Sequence[Any], *, device: str, **_: Any) -> Iterator[Any]:
        worker = pickle.loads(pickle.dumps(open_worker))(device)
        for task in reversed(tasks):
            yield from worker.work([pickle.loads(pickle.dumps(task))], lambda units: None)

    def close(self) -> None:
        pass


class Listing(Tracker):
    """Lists the runs that start here."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def start(self, name: str, method: str, fold: int, seed: int) -> None:
        self.started.append(fold)


@pytest.mark.parametrize(("number", "share"), [(5, 4), (2, 2)])
def test_folds_elsewhere_ask_for_their_part_of_a_gpu(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, number: int, share: int
) -> None:
    settings = config(epochs=1)
    features = open_features(layout, settings)
    trials, gpu = trials_of(FusionTrial, layout, "weighted-sum", features, settings)[:number], Gpu(monkeypatch, BYTES)
    monkeypatch.setattr(embeddings, "free_memory", lambda: 0)
    folder = layout.method("weighted-sum")
    folds = train_all(trials, folder, layout, Tracker(), force=False, engine=Elsewhere())
    assert gpu.asked == [("cpu", share)]  # once for a worker, whatever it trains
    assert {fold.result["meta"]["features"] for fold in folds} == {"memory"}


@pytest.mark.parametrize("wanted", ["memory", "stream"])
def test_folds_trained_elsewhere_are_those_trained_here(layout: Layout, wanted: str) -> None:
    settings = config(features=wanted, epochs=1)
    features = load_features(layout, settings)
    trials = trials_of(FusionTrial, layout, "weighted-sum", features, settings)
    tracker = Listing()
    folder = layout.method("weighted-sum")
    there = train_all(trials, folder, layout, tracker, force=False, engine=Elsewhere())
    assert [fold.result["run"]["fold"] for fold in there] == [1, 2, 3, 4, 5]
    kept = train_all(trials, folder, layout, tracker, force=False)
    assert [fold.result for fold in kept] == [fold.result for fold in there]
    assert tracker.started == []
    here = train_all(trials, folder, layout, tracker, force=True)
    assert [fold.result["metrics"] for fold in here] == [fold.result["metrics"] for fold in there]


def test_gpus_that_are_not_used_are_named(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(epochs=1)
    trials = trials_of(FusionTrial, layout, "mean", load_features(layout, settings), settings)
    monkeypatch.setattr(runner, "_train_in_process", lambda missing, *_: {(i, 1): None for i in range(1, 6)})
    caplog.set_level("INFO")
    for gpus, number, expected in ((1, 5, ""), (4, 1, ""), (4, 5, "4"), (8, 5, "5")):
        monkeypatch.setattr(runner, "worker_devices", lambda *_, gpus=gpus: ["cuda"] * gpus)
        caplog.clear()
        train_all(trials[:number], layout.method("mean"), layout, Tracker(), force=False)
        assert (f"--workers {expected} divides the folds" in caplog.text) == bool(expected)


def test_a_worker_with_other_inputs_is_found_out(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(epochs=1)
    features = load_features(layout, settings)
    trials = trials_of(FusionTrial, layout, "weighted-sum", features, settings, fold=2)
    real = runner.train_fold

    def other_version(trial: Trial, *words: Any, **options: Any) -> Fold:
        spec = replace(trial.spec, config=config(epochs=2))
        return real(FusionTrial(spec, trial.data), *words, **options)

    monkeypatch.setattr(runner, "train_fold", other_version)
    with pytest.raises(
        TrainingError, match=r"^weighted-sum fold 2 seed 1: a worker trained it on other inputs\n  install"
    ):
        train_all(trials, layout.method("weighted-sum"), layout, Tracker(), force=False, engine=Elsewhere())


def test_a_fold_that_may_have_learned_nothing_says_so(tmp_path: Path) -> None:
    settings, folds = Config(), make_layout(tmp_path)
    rows = predictions_frame(["a", "b", "c"], [0, 1, 2], [[0, 9, 0, 0], [1, 8, 0, 0], [0, 7, 0, 0]])

    def line(**changes: Any) -> str:
        records = {name.replace("__", "."): value for name, value in changes.items()}
        folder = write_fold(folds, settings, "none", 1, 1, rows, changes=records)
        return summary_line(read_fold(folder))

    assert line().endswith("12.5 s; every test clip is taken for 'happy': it may have learned nothing")
    both = line(metrics__selected_epoch=1)
    assert "every test clip is taken for 'happy' and epoch 1 of 6 is selected: it may have learned nothing" in both
    rows = predictions_frame(["a", "b"], [0, 1], [[9, 0, 0, 0], [1, 8, 0, 0]])
    assert line().endswith("12.5 s")
    assert line(metrics__selected_epoch=1).endswith("; epoch 1 of 6 is selected: it may have learned nothing")
    for changes in ({"metrics__epochs": 1}, {"metrics__dev_accuracy": 1.0}, {"run__config__train__selection": "last"}):
        assert line(metrics__selected_epoch=1, **changes).endswith("12.5 s")


def test_the_line_of_a_tagger_tells_entity_f1(tmp_path: Path) -> None:
    rows = predictions_frame(["a", "b"], [0, 1], [[9, 0, 0, 0], [1, 8, 0, 0]])
    f1 = {"metrics.entity_f1": 0.5, "metrics.entity_f1_best_on_test": 0.6, "metrics.dev_entity_f1": 0.4}
    folder = write_fold(make_layout(tmp_path), Config(), "none", 1, 1, rows, changes=f1)
    assert ": entity F1 50.0 % at epoch 3 (dev 40.0 %), 12.5 s" in summary_line(read_fold(folder))
