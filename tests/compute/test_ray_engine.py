"""One cluster for all tests here: the same artifacts as without it, and a dead worker costs only what it was at."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from daamctl.artifacts.embeddings import read_embeddings, read_head
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import read_folds
from daamctl.compute import ray_engine as engines_ray
from daamctl.compute.engine import Units
from daamctl.compute.engines import make_engine
from daamctl.compute.ray_engine import RayEngine, WorkerResources, share_of
from daamctl.errors import ArtifactError, ConfigError, CorpusError, EncoderError, UnknownNameError, WorkerError
from daamctl.fit import runner
from daamctl.stages import download, extract, finetune, segment, train
from tests.compute.mortals import MortalExtractor, MortalFoldWorker
from tests.compute.workers import Squares, notes
from tests.fixtures.embeddings import config as train_config
from tests.fixtures.embeddings import write_embeddings
from tests.fixtures.recordings import write_pipeline
from tests.stages.test_extract import TEXTS, setting, text_layout
from tests.stages.test_finetune import MORE
from tests.stages.test_finetune import settings as tune_settings

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray about itself


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two processors under Ray, in a folder of its own; its name is short, for paths of sockets have 107 bytes at most.

    The token keeps others on the network out, and leaves no file at home.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray

        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        small = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
        ray.init(address="local", _temp_dir=folder, logging_level="ERROR", log_to_driver=False, **small)
        yield ray
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow  # as tests/compute/test_local_engine.py has it with two processes
def test_a_shard_whose_worker_dies_is_made_again_and_no_other(
    cluster: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = setting("llama-micro", shard_clips=2)
    alone, layout = text_layout(project, config, name="alone"), text_layout(project, config)
    extract.run(alone, config)
    monkeypatch.setattr(extract, "_find_finished", lambda *_: None)  # else the set above is linked
    monkeypatch.setattr(extract, "Extractor", MortalExtractor)
    with RayEngine(workers=2) as engine:
        extract.run(layout, config, engine=engine)
    assert notes(project, "begun") == ["0", "1", "1", "2", "3"]
    assert notes(project, "made") == ["0", "1", "2", "3"]
    clips, values, _ = read_embeddings(layout.embeddings)
    its_clips, its_values, _ = read_embeddings(alone.embeddings)
    assert clips.equals(its_clips)
    assert values.tobytes() == its_values.tobytes()
    assert read_head(layout.embeddings) == read_head(alone.embeddings)
    assert cluster.is_initialized()  # it was not this engine that started Ray


@pytest.mark.slow
def test_a_fold_whose_worker_dies_goes_on_and_no_other_is_trained_again(
    cluster: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, alone = train_config(seeds=(1,), stack="never"), Layout(project, "alone", "alone", "alone")
    layout = Layout(project, "test", "test", "test")
    for one in (alone, layout):
        write_embeddings(one.embeddings, config)
    train.run(alone, config, method="weighted-sum", track=False)
    monkeypatch.setattr(runner, "FoldWorker", MortalFoldWorker)
    with RayEngine() as engine:
        train.run(layout, config, method="weighted-sum", track=False, engine=engine)
        expected = [f"{fold} epoch {epoch}" for fold in range(1, 6) for epoch in (1, 2, 3)]
        assert sorted(set(notes(project, "fold"))) == expected
        assert len(notes(project, "fold")) <= len(expected) + 1  # the epoch after which it died
        (one, other) = (read_folds(each.method("weighted-sum")) for each in (alone, layout))
        assert [fold.result["metrics"] for fold in one] == [fold.result["metrics"] for fold in other]
        assert [fold.predictions().equals(its.predictions()) for fold, its in zip(one, other, strict=True)] == [
            True
        ] * 5
        train.run(layout, config, method="weighted-sum", track=False, engine=engine)
    assert len(notes(project, "fold")) <= len(expected) + 1  # all of them are kept


@pytest.mark.slow
def test_an_encoder_that_no_worker_can_open_is_named_as_ever(cluster: Any, project: Path) -> None:
    layout = text_layout(project, setting("llama-micro"))
    with RayEngine() as engine, pytest.raises(EncoderError, match=r"^unknown encoder 'llama-mikro'\n  did you mean"):
        extract.run(layout, setting("llama-mikro"), engine=engine)


class SeenGpus(Squares):
    """Says what it sees of its machine's GPUs."""

    def work(self, tasks: Sequence[int]) -> Iterator[Any]:
        """The tasks, and the variable."""
        return ((task, os.environ.get("CUDA_VISIBLE_DEVICES")) for task in tasks)


@pytest.mark.slow
def test_workers_without_a_gpu_see_none(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with RayEngine(gpus_per_worker=0) as engine:
        assert list(engine.map(partial(SeenGpus, tmp_path), [7], device="auto", per_gpu=1)) == [Units(0), (7, "")]
        assert engine.describe(partial(Squares, tmp_path), "auto") == {"square": True}
        assert all(note.startswith("cpu by") for note in notes(tmp_path, "opened on"))


@pytest.mark.slow
def test_clips_that_workers_cannot_read_stop_the_run_as_ever(cluster: Any, project: Path) -> None:
    config = setting("llama-micro", shard_clips=2)
    layout = text_layout(project, config, [*TEXTS[:6], ""])
    with RayEngine() as engine, pytest.raises(CorpusError) as caught:
        extract.run(layout, config, engine=engine)
    assert str(caught.value).startswith("1 of 7 texts cannot be read (tolerated: 0.0%): i6#000: text 'i6#000'")
    assert caught.value.fix is not None
    assert "--set extract.max_unreadable_fraction=0.143" in caught.value.fix


@pytest.mark.slow
def test_fine_tuned_folds_are_those_of_one_process(cluster: Any, project: Path) -> None:
    write_pipeline(project, more=MORE)
    layout, config = tune_settings(project)
    download.run(layout, config)
    segment.run(layout, config)
    folder = finetune.run(layout, config, method="linear-probe", track=False)
    here = {fold.fold: fold.result for fold in read_folds(folder)}
    with RayEngine() as engine:
        with pytest.MonkeyPatch.context() as patch:  # the encoder is opened by workers alone
            patch.setattr(finetune, "open_encoder", None)
            finetune.run(layout, config, method="linear-probe", track=False, force=True, engine=engine)
        there = {fold.fold: fold.result for fold in read_folds(folder)}
        assert {number: result["metrics"] for number, result in there.items()} == {
            number: result["metrics"] for number, result in here.items()
        }
        assert {number: result["run"] for number, result in there.items()} == {
            number: result["run"] for number, result in here.items()
        }
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("result.json")}
        finetune.run(layout, config, method="linear-probe", track=False, engine=engine)
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
def test_errors_come_back_and_work_that_kills_every_worker_ends(cluster: Any, tmp_path: Path) -> None:
    with RayEngine() as engine:
        with pytest.raises(UnknownNameError) as caught:
            list(engine.map(partial(Squares, tmp_path), [13], device="cpu"))
        assert str(caught.value) == "unknown number '13'\n  known: 12, 14"
        with pytest.raises(WorkerError, match=r"^4 workers died at the same work, number 2\n"):
            list(engine.map(partial(Squares, tmp_path), [1, 666], device="cpu"))
    assert len(notes(tmp_path, "opened on cpu by")) >= 5


MIXED = ({"CPU": 16.0, "GPU": 8.0}, {"CPU": 128.0, "GPU": 1.0})
NODES = ({"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}, {"CPU": 16.0})


@pytest.mark.parametrize(
    ("nodes", "device", "options", "expected"),
    [
        (NODES, "auto", {}, WorkerResources(3, 4, 1.0)),
        (NODES, "cuda", {"tasks": 2}, WorkerResources(2, 4, 1.0)),
        (NODES, "auto", {"gpus_per_worker": 2.0}, WorkerResources(1, 8, 2.0)),
        (NODES, "auto", {"gpus_per_worker": 0.5}, WorkerResources(6, 2, 0.5)),
        (NODES, "cpu", {}, WorkerResources(3, 8, 0.0)),
        (NODES, "cpu", {"workers": 7}, WorkerResources(7, 4, 0.0)),
        (NODES, "auto", {"gpus_per_worker": 0.0}, WorkerResources(3, 8, 0.0)),
        (NODES[2:], "auto", {}, WorkerResources(1, 16, 0.0)),
        (NODES[2:], "auto", {"workers": 99}, WorkerResources(99, 1, 0.0)),
        (NODES, "auto", {"tasks": 5, "per_gpu": 4}, WorkerResources(5, 2, 0.5)),
        (NODES, "auto", {"tasks": 2, "per_gpu": 4}, WorkerResources(2, 4, 1.0)),
        (NODES, "auto", {"tasks": 60, "per_gpu": 4}, WorkerResources(60, 1, 0.25)),
        (NODES, "auto", {"tasks": 5, "per_gpu": 1}, WorkerResources(5, 4, 1.0)),  # three at once
        (MIXED, "auto", {}, WorkerResources(9, 2, 1.0)),  # nine of 16 processors would leave seven GPUs idle
        (MIXED, "auto", {"workers": 3}, WorkerResources(3, 8, 1.0)),
        (MIXED, "cpu", {"workers": 9}, WorkerResources(9, 16, 0.0)),
        (NODES[2:], "auto", {"tasks": 5, "per_gpu": 4}, WorkerResources(5, 3, 0.0)),
    ],
)
def test_a_cluster_is_divided(
    nodes: tuple[Mapping[str, float], ...], device: str, options: Mapping[str, Any], expected: WorkerResources
) -> None:
    usual = {"workers": None, "gpus_per_worker": None, "tasks": 1000}
    assert share_of(nodes, device, **{**usual, **options}) == expected


@pytest.mark.parametrize(
    ("nodes", "device", "gpus", "message"),
    [
        (NODES, "cuda:1", None, "device 'cuda:1' is one GPU of one machine; Ray chooses\n  use --device auto or cuda"),
        (NODES[2:], "cuda", None, r"1 GPU\(s\) per worker: machines of this Ray cluster have 0 at most"),
        (NODES, "cuda", 0.0, "--gpus-per-worker 0 leaves no GPU for device 'cuda'\n  use --device cpu, or leave"),
        (NODES, "cuda:1", 0.0, "--gpus-per-worker 0 leaves no GPU for device 'cuda:1'"),
        (NODES, "auto", 3.0, r"3 GPU\(s\) per worker: machines of this Ray cluster have 2 at most"),
    ],
)
def test_what_a_cluster_does_not_have_is_refused(
    nodes: tuple[Mapping[str, float], ...], device: str, gpus: float | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        share_of(nodes, device, workers=None, gpus_per_worker=gpus, tasks=9)


def test_ray_that_is_not_installed_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines_ray, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        make_engine("ray")
    assert str(caught.value) == "engine 'ray' is not installed\n  pip install 'daamctl[ray]'"


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        RayEngine() as engine,
        pytest.raises(WorkerError, match=f"^no Ray cluster at RAY_ADDRESS={address}\n  start it"),
    ):
        list(engine.map(partial(Squares, Path.cwd()), [2], device="cpu"))


def test_workers_that_see_or_would_make_something_else_are_named(project: Path) -> None:
    config = setting("llama-micro")
    layout = text_layout(project, config)
    worker = extract.Extractor(layout, config, "cpu", seen=True)
    other = extract.Extractor(layout, setting("llama-micro", seed=1), "cpu")
    with pytest.raises(EncoderError, match=r"would make other embeddings \(weights_sha256: \w+, not \w+\)"):
        list(other.work([extract.Shard(worker.description, project, 0)]))
    layout.clips.unlink()
    with pytest.raises(ArtifactError, match=r"^worker on \S+ does not see .*clips.parquet\n  put the project on"):
        extract.Extractor(layout, config, "cpu", seen=True)
