"""This process, or one per device: the same results, errors in the same words, and no work lost to a dead worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.artifacts.embeddings import read_embeddings, read_head
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.compute import local_engine
from daamctl.compute.engine import Units
from daamctl.compute.local_engine import LocalEngine, _start, worker_devices
from daamctl.errors import ConfigError, UnknownNameError, WorkerError
from daamctl.stages import extract, train
from tests.compute.mortals import MortalExtractor
from tests.compute.workers import Masks, Squares, notes
from tests.fixtures.embeddings import config as train_config
from tests.fixtures.embeddings import write_embeddings
from tests.stages.test_extract import setting, text_layout


def squares(engine: LocalEngine, folder: Path, tasks: Sequence[int]) -> tuple[list[int], set[int], int]:
    """Squares in order, the processes that made them, and the units counted."""
    open_worker = partial(Squares, folder)
    assert engine.describe(open_worker, "cpu") == {"square": True}
    events = list(engine.map(open_worker, tasks, device="cpu"))
    found = [event for event in events if not isinstance(event, Units)]
    units = [event.number for event in events if isinstance(event, Units)]
    return sorted(square for square, _ in found), {pid for _, pid in found}, sum(units)


def test_this_process_is_enough_for_one_worker(tmp_path: Path) -> None:
    assert squares(LocalEngine(), tmp_path, range(5)) == ([0, 1, 4, 9, 16], {os.getpid()}, 10)
    assert notes(tmp_path, "opened on cpu by") == [str(os.getpid())]  # once, for its description and work
    assert squares(LocalEngine(workers=3), tmp_path, [4]) == ([16], {os.getpid()}, 4)


def test_several_processes_share_the_tasks(tmp_path: Path) -> None:
    tasks = range(20, 220)
    found, pids, units = squares(LocalEngine(workers=2), tmp_path, tasks)
    assert found == [task * task for task in tasks]
    assert (len(pids), units) == (2, sum(tasks))
    assert os.getpid() not in pids


def test_a_terminal_interrupts_this_process_alone(tmp_path: Path) -> None:
    """A worker that imports modules must not print what Ctrl+C makes of them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    events = LocalEngine(workers=2).map(partial(Masks, tmp_path), [1, 2, 3], device="cpu")
    found = [event for event in events if not isinstance(event, Units)]
    assert {number for number, _ in found} == {2}
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_an_error_comes_back_as_it_was_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        squares(LocalEngine(workers=2), tmp_path, [1, 2, 13, 4])
    assert str(caught.value) == "unknown number '13'\n  known: 12, 14"
    assert "in work\n    raise UnknownNameError" in caught.value.__notes__[0]
    for pid in map(int, notes(tmp_path, "opened on cpu by")):
        if pid != os.getpid():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_dead_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match=r"^worker process \d+ on cpu has died \(exit code -9\)\n  run the same command"
    ):
        squares(LocalEngine(workers=2), tmp_path, [1, 666, 3])


def test_a_process_that_dies_while_it_starts_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads what it is sent; the command line would take that error for a terminal that was closed."""

    def start(device: str, threads: int) -> tuple[Any, Any]:
        pipe, process = _start(device, threads)
        process.kill()
        process.join()
        return pipe, process

    monkeypatch.setattr(local_engine, "_start", start)
    with pytest.raises(WorkerError, match=r"^worker process \d+ on cpu has died \(exit code -9\)"):
        squares(LocalEngine(workers=2), tmp_path, [1, 2, 3])


def test_one_worker_is_this_process() -> None:
    assert [LocalEngine(workers=number).in_process for number in (None, 1, 2)] == [True, True, False]


def test_a_worker_opened_for_its_description_serves_its_own_tasks_alone(tmp_path: Path) -> None:
    engine = LocalEngine()
    engine.describe(partial(Squares, tmp_path), "cpu")
    list(engine.map(partial(Squares, tmp_path), [2], device="cpu"))
    assert len(notes(tmp_path, "opened on cpu by")) == 2


@pytest.mark.slow  # extraction in two processes, below, goes the same way
def test_folds_are_trained_in_several_processes(project: Path) -> None:
    config = train_config(seeds=(1,), epochs=1, stack="never")
    alone, layout = Layout(project, "alone", "alone", "alone"), Layout(project, "test", "test", "test")
    for one in (alone, layout):
        write_embeddings(one.embeddings, config)
    train.run(alone, config, method="weighted-sum", track=False)
    with LocalEngine(workers=2) as engine:
        train.run(layout, config, method="weighted-sum", track=False, engine=engine)
    ours, theirs = (read_folds(one.method("weighted-sum")) for one in (layout, alone))
    assert [fold.result["metrics"] for fold in ours] == [fold.result["metrics"] for fold in theirs]
    assert [fold.result["run"]["key"] for fold in ours] == [fold.result["run"]["key"] for fold in theirs]


@pytest.mark.parametrize(
    ("device", "gpus", "workers", "taken", "expected"),
    [
        ("auto", 4, None, 1, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("cuda", 2, None, 1, ["cuda:0", "cuda:1"]),
        ("cuda", 2, 3, 1, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 2, None, 2, ["cuda"]),  # a model that needs both
        ("cuda:1", 2, None, 1, ["cuda:1"]),
        ("auto", 1, None, 1, ["auto"]),
        ("auto", 0, None, 1, ["auto"]),
        ("cpu", 4, None, 1, ["cpu"]),
        ("cpu", 0, 2, 1, ["cpu", "cpu"]),
    ],
)
def test_visible_gpus_are_used_unless_the_device_is_said(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, workers: int | None, taken: int, expected: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert worker_devices(device, workers, taken) == expected


def test_gpus_per_worker_belong_to_clusters() -> None:
    with pytest.raises(ConfigError, match="--gpus-per-worker"):
        LocalEngine(gpus_per_worker=0.5)


@pytest.mark.slow
def test_extraction_in_two_processes_resumes_after_one_has_died(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = setting("llama-micro")
    alone, layout = text_layout(project, config, name="alone"), text_layout(project, config)
    extract.run(alone, config)
    monkeypatch.setattr(extract, "_find_finished", lambda *_: None)  # else the set above is linked
    monkeypatch.setattr(extract, "Extractor", MortalExtractor)
    with pytest.raises(WorkerError, match="has died"):
        extract.run(layout, config, engine=LocalEngine(workers=2))
    assert not layout.embeddings.exists()
    extract.run(layout, config, engine=LocalEngine(workers=2))
    assert same_sets(layout, alone)
    made = notes(project, "made")
    assert sorted(set(made)) == ["0", "1", "2"]
    assert made.count("1") == 1


def same_sets(one: Layout, other: Layout) -> bool:
    """Whether two sets have the same head, clips and, bit by bit, values."""
    (clips, values, _), (its_clips, its_values, _) = read_embeddings(one.embeddings), read_embeddings(other.embeddings)
    np.testing.assert_array_equal(values, its_values)
    return clips.equals(its_clips) and read_head(one.embeddings) == read_head(other.embeddings)
