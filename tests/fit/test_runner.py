"""Where training takes its embeddings from, and that all of it works from disk."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from daamctl.artifacts.embeddings import StoredVectors
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import Fold, read_fold
from daamctl.compute import devices
from daamctl.compute.engine import Engine
from daamctl.config import Config
from daamctl.errors import TrainingError
from daamctl.fit import features as features_module
from daamctl.fit import runner, stack
from daamctl.fit import trial as fusion
from daamctl.fit.features import Features, load_features, open_features
from daamctl.fit.runner import (
    FILE,
    in_groups,
    kept_fold,
    load_state,
    save_state,
    summary_line,
    train_all,
    train_fold,
    train_group,
)
from daamctl.fit.tracking import Tracker, make_tracker
from daamctl.fit.trial import FusionTrial, Trial, trials_of
from daamctl.store import artifact
from tests.fixtures.damage import damages
from tests.fixtures.embeddings import config, write_embeddings
from tests.fixtures.folds import make_layout, predictions_frame, write_fold
from tests.fixtures.gpu import needs_gpu
from tests.fixtures.resume import Killed, kill_when, records

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
    monkeypatch.setattr(devices, "free_memory", lambda: free)
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
            found = start.to_gpu(settings)
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
    monkeypatch.setattr(devices, "free_memory", lambda: 0)
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
        settings = config(device=device, stack="always", precision="float32", epochs=6)
        features = open_features(layout, settings)
        trials, folder = trials_of(FusionTrial, layout, method, features, settings), layout.method(method) / device
        folds = train_all(trials, folder, layout, Tracker(), force=False)
        assert {fold.result["meta"]["features"] for fold in folds} == {"memory" if device == "cpu" else "device"}
        assert {fold.result["meta"].get("together") for fold in folds} == {5 if method == "weighted-sum" else None}
        accuracies[device] = sum(fold.result["metrics"]["accuracy"] for fold in folds) / len(folds)
    assert accuracies["cuda"] == pytest.approx(accuracies["cpu"], abs=0.1)


def test_few_layers_of_a_streamed_set_may_fit(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config()
    monkeypatch.setattr(devices, "free_memory", lambda: BYTES)
    features = load_features(layout, settings)
    assert way(features) == "stream"
    assert way(features.subset(tuple(range(1, 13))).to_memory(settings)) == "stream"
    few = features.subset((6, 2)).to_memory(settings)
    assert (way(few), few.layers) == ("memory", (6, 2))
    monkeypatch.undo()
    whole = load_features(layout, settings)
    assert isinstance(few.x, torch.Tensor)
    assert torch.equal(few.x, whole.subset((6, 2)).x)
    assert whole.to_memory(config(features="stream")) is whole


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


def test_only_folds_that_the_settings_no_longer_have_are_removed(layout: Layout) -> None:
    settings, folder = config(features="memory", epochs=1), layout.method("mean")
    trials = trials_of(FusionTrial, layout, "mean", load_features(layout, settings), settings, fold=1)
    for name in ("fold1-seed9", "fold1-seed1-my-copy", "notes"):
        (folder / name).mkdir(parents=True)
    train_all(trials, folder, layout, Tracker(), alone=True)
    assert sorted(path.name for path in folder.iterdir()) == ["fold1-seed1", "fold1-seed1-my-copy", "notes"]


class Elsewhere(Engine):
    """An engine that is not here, as far as anyone can tell: its tasks see what would have travelled."""

    in_process = False

    def describe(self, open_worker: Any, device: str) -> Any:
        raise NotImplementedError

    def map(self, open_worker: Callable[[str], Any], tasks: Sequence[Any], *, device: str, **_: Any) -> Iterator[Any]:
        worker = pickle.loads(pickle.dumps(open_worker))(device)
        for task in reversed(tasks):
            yield from worker.work([pickle.loads(pickle.dumps(task))])

    def close(self) -> None:
        pass


class Listing(Tracker):
    """Lists the runs that start here."""

    def __init__(self) -> None:
        super().__init__()
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
    monkeypatch.setattr(devices, "free_memory", lambda: 0)
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
    monkeypatch.setattr(runner, "_train_in_process", lambda *_, **__: {(i, 1): None for i in range(1, 6)})
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

    first = {"metrics__selected_epoch": 1, "metrics__epochs": 6}
    assert line().endswith("12.5 s; every test clip is taken for 'happy': it may have learned nothing")
    both = line(**first)
    assert "every test clip is taken for 'happy' and epoch 1 of 6 is selected: it may have learned nothing" in both
    rows = predictions_frame(["a", "b"], [0, 1], [[9, 0, 0, 0], [1, 8, 0, 0]])
    assert line().endswith("12.5 s")
    assert line(**first).endswith("; epoch 1 of 6 is selected: it may have learned nothing")
    for changes in ({"metrics__epochs": 1}, {"metrics__dev_accuracy": 1.0}, {"run__config__train__selection": "last"}):
        assert line(**{**first, **changes}).endswith("12.5 s")


def test_the_line_says_when_the_weights_are_from(layout: Layout) -> None:
    for budget, expected in (({"steps": 13}, "after 13 steps"), ({"epochs": 2, "selection": "last"}, "at epoch 2")):
        settings = config(**budget)
        trial = trials_of(FusionTrial, layout, "mean", load_features(layout, settings), settings, fold=2)[0]
        fold = train_fold(trial, layout.root / expected, layout.work, root=layout.root)
        assert f" % {expected}" in summary_line(fold)


def test_the_line_of_a_tagger_tells_entity_f1(tmp_path: Path) -> None:
    rows = predictions_frame(["a", "b"], [0, 1], [[9, 0, 0, 0], [1, 8, 0, 0]])
    f1 = {"run.modality": "tokens", "metrics.entity_f1": 0.5, "metrics.entity_f1_best_on_test": 0.6,
          "metrics.dev_entity_f1": 0.4, "metrics.selected_epoch": 3, "metrics.epochs": 6}  # fmt: skip
    folder = write_fold(make_layout(tmp_path), Config(), "none", 1, 1, rows, changes=f1)
    assert ": entity F1 50.0 % at epoch 3 (dev 40.0 %), 12.5 s" in summary_line(read_fold(folder))


# Groups: folds of a method that are trained together


BUDGET = {"steps": 12, "stack": "always", "precision": "float32"}


def group_of(layout: Layout, method: str = "weighted-sum", **train: Any) -> list[FusionTrial]:
    settings = config(**{**BUDGET, **train})
    return trials_of(FusionTrial, layout, method, load_features(layout, settings), settings)


def folds_of(trials: Sequence[FusionTrial], root: Path, **more: Any) -> list[Fold]:
    events = train_group(trials, root / "folds", root / "work", root=root, **more)
    return [event for event in events if isinstance(event, Fold)]


def logits(fold: Fold) -> list[list[float]]:
    found: list[list[float]] = fold.predictions()["logits"].to_list()
    return found


def test_a_group_is_its_folds_one_by_one(layout: Layout) -> None:
    trials = group_of(layout)
    assert in_groups(trials) == [trials]
    for ours, trial in zip(folds_of(trials, layout.root / "a"), trials, strict=True):
        theirs = train_fold(trial, layout.root / "b", layout.root / "c", root=layout.root)
        assert ours.result["run"] == theirs.result["run"]
        assert ours.result["metrics"] == pytest.approx(theirs.result["metrics"])
        torch.testing.assert_close(torch.tensor(logits(ours)), torch.tensor(logits(theirs)), atol=2e-4, rtol=2e-4)
        assert ours.result["meta"]["together"] == 5
        assert "together" not in theirs.result["meta"]
        assert kept_fold(layout.root / "a/folds", trial) is not None


@pytest.mark.parametrize(
    ("method", "train"),
    [
        ("daam-v1", {}),  # convolutions
        ("sls", {}),  # batch normalisation
        ("best-layer", {}),  # chooses on the held-out group
        ("mha-published-mlp", {}),  # sees its batch
        ("ridge-last", {}),  # takes no steps
        ("weighted-sum", {"stack": "never"}),
        ("weighted-sum", {"steps": None}),
        ("weighted-sum", {"features": "stream"}),
    ],
)
def test_what_trains_by_itself(layout: Layout, method: str, train: dict[str, Any]) -> None:
    trials = group_of(layout, method, **train)
    assert in_groups(trials) == [[trial] for trial in trials]


def test_groups_hold_one_method_and_what_caches_hold(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    trials, others = group_of(layout, stack="auto"), group_of(layout, "mean", stack="auto")
    assert in_groups(trials + others) == [trials, others]
    numbers = 16 * 24 * 16
    monkeypatch.setattr(fusion, "CPU_STEP_NUMBERS", 4 * numbers)
    assert [len(group) for group in in_groups(trials)] == [4, 1]
    with monkeypatch.context() as fewer:
        fewer.setattr(fusion, "CPU_PARAMETERS", 1000)
        assert [len(group) for group in in_groups(trials)] == [1] * 5
    monkeypatch.setattr(fusion, "CPU_BATCH_NUMBERS", numbers - 1)
    assert [len(group) for group in in_groups(trials)] == [1] * 5
    assert [len(group) for group in in_groups(group_of(layout))] == [5]  # stack: always


def test_the_machine_has_no_say_in_the_key(layout: Layout) -> None:
    alone, stacked = group_of(layout, stack="never")[0], group_of(layout)[0]
    assert alone.key == stacked.key
    assert alone.key != group_of(layout, steps=13)[0].key


CHOICES = {"search": "grid", "search_lr": (1e-3, 1e-2), "search_weight_decay": (), "refit": True}


@pytest.mark.parametrize("phase", ["1", "2", "refit"])
def test_a_group_of_which_some_folds_are_written_resumes_as_a_group(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Two folds are finished by other means meanwhile; the state of all five goes on, and the two are left alone."""
    root, trials = layout.root, group_of(layout, **CHOICES)
    whole = folds_of(trials, root / "whole")

    def far_enough(state: dict[str, Any]) -> bool:
        refit = "refit" in state["under way"]["names"][0]
        return refit == (phase == "refit") and len(records(state)) >= (1 if phase == "1" else 5)

    with monkeypatch.context() as context:
        kill_when(context, far_enough)
        with pytest.raises(Killed):
            folds_of(trials, root / "cut")
    assert list((root / "cut/work").glob(f"*/{FILE}"))
    stamps = []
    for trial in trials[:2]:
        train_fold(trial, root / "cut/folds", root / "cut/work", root=root)
        stamps.append((root / f"cut/folds/fold{trial.spec.fold}-seed1/result.json").stat().st_mtime_ns)
    resumed = folds_of(trials, root / "cut", missing=trials[2:])
    assert [fold.result["run"]["fold"] for fold in resumed] == [3, 4, 5]
    for ours, theirs in zip(resumed, whole[2:], strict=True):
        assert ours.result["meta"]["together"] == 5
        assert logits(ours) == logits(theirs)
        assert ours.result["metrics"] == theirs.result["metrics"]
        assert ours.result["search"] == theirs.result["search"]
    assert stamps == [
        (root / f"cut/folds/fold{trial.spec.fold}-seed1/result.json").stat().st_mtime_ns for trial in trials[:2]
    ]
    assert not list((root / "cut/work").glob(f"*/{FILE}"))


def test_a_group_without_a_state_trains_only_what_is_missing(layout: Layout) -> None:
    root, trials = layout.root, group_of(layout)
    made = folds_of(trials[:2], root)
    found = folds_of(trials, root, missing=trials[2:])
    assert [fold.result["run"]["fold"] for fold in found] == [3, 4, 5]
    assert [fold.result["meta"]["together"] for fold in [*made, *found]] == [2, 2, 3, 3, 3]


def test_what_another_process_finished_is_taken(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    root, trials = layout.root, group_of(layout)
    real = artifact.locked

    def waited(path: Path, **words: Any) -> Any:
        if "fold2" in path.name and not (root / "folds/fold2-seed1").exists():
            monkeypatch.setattr(artifact, "locked", real)
            train_fold(trials[1], root / "folds", root / "other", root=root)
        return real(path, **words)

    monkeypatch.setattr(artifact, "locked", waited)
    found = folds_of(trials, root)
    assert [(fold.result["run"]["fold"], fold.result["meta"].get("together")) for fold in found] == [
        (2, None), (1, 4), (3, 4), (4, 4), (5, 4)
    ]  # fmt: skip


TRAINER = """
import sys
from pathlib import Path
from daamctl.fit import runner
from daamctl.artifacts.layout import Layout
from daamctl.stages import train
from tests.fixtures.embeddings import config

begin, write = runner._train_in_process, runner.write_fold

def wait(*parts, **more):  # it has found no finished fold
    print("ready", flush=True)
    sys.stdin.readline()
    return begin(*parts, **more)

def count(*parts, **more):
    print("trained", flush=True)
    return write(*parts, **more)

runner._train_in_process, runner.write_fold = wait, count
layout = Layout(Path(sys.argv[1]), "test", "test", "test")
for force in (False, True):
    train.run(layout, config(seeds=(1,), epochs=1, stack="never"), method="weighted-sum", track=False, force=force)
    print("end", flush=True)
"""


def test_two_processes_that_start_together_train_a_fold_once(layout: Layout) -> None:
    command = [sys.executable, "-c", TRAINER, str(layout.root)]
    root = Path(__file__).resolve().parents[2]  # for the import of `tests`
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": root}
    pair: list[Any] = [subprocess.Popen(command, **piped) for _ in range(2)]
    for expected in ([5, 0], [5, 5]):  # the second time with force
        for process in pair:
            assert process.stdout.readline() == "ready\n"
        trained = []
        for process in pair:
            process.stdin.write("go\n")
            process.stdin.flush()
            trained.append(list(iter(process.stdout.readline, "end\n")).count("trained\n"))
        assert trained == expected
    for process in pair:
        process.communicate()
        assert process.returncode == 0


def test_a_damaged_resume_file_starts_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the flip is in the number of a step or in a weight, which torch reads in silence."""
    root, (trial,) = layout.root, group_of(layout, steps=6)[:1]
    whole = logits(train_fold(trial, root / "whole", root / "w", root=root))
    with monkeypatch.context() as context:
        kill_when(context, lambda state: len(records(state)) == 4)
        with pytest.raises(Killed):
            train_fold(trial, root / "cut", root / "work", root=root, force=True)
    (path,) = (root / "work").glob(f"*/{FILE}")
    saved, steps = path.read_bytes(), []
    monkeypatch.setattr(
        stack.SingleModel, "step", lambda *given, real=stack.SingleModel.step: (steps.append(1), real(*given))[1]
    )
    broken = damages(saved, flips=8, cuts=3)
    for content in [*broken, b"", b"not torch", b"PK\x03\x04 half"]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        steps.clear()
        assert logits(train_fold(trial, root / "cut", root / "work", root=root, force=True)) == whole
        assert len(steps) == 6
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(saved)
    steps.clear()
    assert logits(train_fold(trial, root / "cut", root / "work", root=root, force=True)) == whole
    assert len(steps) < 6


# The state of unfinished work


def test_state_of_other_inputs_or_a_damaged_one_is_none(tmp_path: Path) -> None:
    assert load_state(tmp_path, "a") is None
    save_state(tmp_path, "a", {"trained": {"w": torch.ones(2)}, "pass": {"steps": 3}})
    state = load_state(tmp_path, "a")
    assert state is not None
    assert (state["pass"], state["trained"]["w"].tolist()) == ({"steps": 3}, [1.0, 1.0])
    assert load_state(tmp_path, "b") is None
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[: len(content) // 2])
    assert load_state(tmp_path, "a") is None


def test_no_flip_and_no_cut_of_a_state_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_state(tmp_path, "a", {"trained": {"w": torch.ones(2)}, "history": [{"epoch": 1}], "threads": 2})
    for damaged in damages((tmp_path / FILE).read_bytes(), flips=300, cuts=100):
        (tmp_path / FILE).write_bytes(damaged)
        assert load_state(tmp_path, "a") is None
        assert not (tmp_path / FILE).exists()
    assert len(caplog.messages) == 400
