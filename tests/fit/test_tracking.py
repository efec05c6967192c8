"""Tracking: what MLflow gets, and that no tracking store, however broken, stops or loses a training run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from daamctl.artifacts.results import Fold, read_fold
from daamctl.compute import progress
from daamctl.compute.environment import NO_TELEMETRY
from daamctl.config import Config
from daamctl.errors import ArtifactError
from daamctl.fit import tracking
from daamctl.fit.tracking import Tracker, is_sent, make_tracker, run_links, send_missing, store_uri
from daamctl.stages import track
from daamctl.store.records import write_record
from tests.fixtures.folds import make_layout, random_predictions, write_fold

# Deprecation notes of mlflow and its libraries are not ours to fix; anything else stays an error.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def make_fold(root: Path, pipeline: str, fold: int = 1, method: str = "mha") -> Fold:
    """A finished fold under `data/train/<pipeline>/<method>`."""
    import numpy as np

    rng = np.random.default_rng(fold)
    folder = write_fold(
        make_layout(root, pipeline),
        Config(),
        method,
        fold,
        1,
        random_predictions(rng, fold, 1.0, 12),
        epochs=3,
        changes={"run.pipeline": pipeline},
    )
    return read_fold(folder)


def send(root: Path, *folds: Fold) -> None:
    tracker = Tracker(root, close_timeout_s=600.0)  # a busy machine is no failure
    send_missing(tracker, folds)
    tracker.close()


def runs_of(root: Path, pipeline: str, **tags: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(store_uri(root))
    experiment = client.get_experiment_by_name(pipeline)
    wanted = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id], wanted))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One project for all tests of the local store, which takes seconds to make; each test has its own pipeline."""
    return tmp_path_factory.mktemp("project")


@pytest.fixture(autouse=True)
def _own_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(root)  # where MLflow keeps artifacts of a store in a file that is not ours


def test_run_has_settings_epochs_results_and_files(root: Path) -> None:
    from mlflow import MlflowClient

    fold = make_fold(root, "whole")
    assert not is_sent(root, fold)
    send(root, fold)
    assert is_sent(root, fold)
    (run,) = runs_of(root, "whole", kind="fold")
    assert run.info.run_name == "mha-fold1-seed1"
    assert run.info.status == "FINISHED"
    assert {key: run.data.tags[key] for key in ("pipeline", "method", "fold", "seed", "test_group", "dev_group")} == {
        "pipeline": "whole",
        "method": "mha",
        "fold": "1",
        "seed": "1",
        "test_group": "Ses01",
        "dev_group": "Ses02",
    }
    assert run.data.tags["key"] == fold.result["run"]["key"]
    assert run.data.tags["git_commit"] == "65d9b1d"
    assert run.data.params["train.lr"] == "0.0001"
    assert run.data.params["extract.encoder"] == "wavlm-micro"
    assert run.data.params["method.name"] == "mha"
    assert run.data.params["num_parameters"] == "1234"
    assert run.data.params["num_layers"] == "24"
    own = ("dev_accuracy", "train_accuracy", "selected_epoch", "epochs")  # of records, or without a value
    results = {key: value for key, value in fold.result["metrics"].items() if key not in own}
    assert {key: run.data.metrics[key] for key in results} == pytest.approx(results)
    client = MlflowClient(store_uri(root))
    history = fold.history()
    for column in ("train_loss", "test_accuracy", "dev_accuracy", "lr"):
        logged = client.get_metric_history(run.info.run_id, column)
        epochs = {entry.step: entry.value for entry in logged if entry.step > 0}
        assert epochs == pytest.approx(dict(zip(history["step"], history[column], strict=True)))
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert files == {path.name for path in fold.folder.iterdir()} >= {"result.json", "predictions.parquet"}
    downloaded = client.download_artifacts(run.info.run_id, "result.json")
    assert read_fold(fold.folder).result == fold.result
    assert Path(downloaded).read_bytes() == (fold.folder / "result.json").read_bytes()


def make_searched_fold(root: Path, pipeline: str, search: dict[str, Any]) -> Fold:
    """A finished fold whose settings were chosen in a search."""
    fold = make_fold(root, pipeline)
    path = fold.folder / "result.json"
    result = json.loads(path.read_text())
    result["search"] = search
    result["metrics"] |= {"finished": True, "chosen_layer": None}
    write_record(path, result)
    return read_fold(fold.folder)


def candidate(settings: dict[str, float | str], accuracy: list[float], loss: list[float]) -> dict[str, Any]:
    return {"settings": settings, "dev_accuracy": accuracy, "dev_loss": loss}


def test_run_shows_what_was_searched_and_chosen(root: Path) -> None:
    from mlflow import MlflowClient

    curves = {"lr 0.001 weight_decay 10": [0.5, 0.75], "lr 3e-05 weight_decay 0.01": [0.25, 0.5, 0.6]}
    candidates = [
        candidate({"lr": 0.001, "weight_decay": 10.0}, [0.5, 0.75], [1.0, 0.8]),
        candidate({"lr": 0.00003, "weight_decay": 0.01}, [0.25, 0.5, 0.6], [1.2, 1.1, 1.0]),
    ]
    search = {"steps": 2, "candidates": candidates, "chosen": 1, "edges": ["lr"]}
    send(root, make_searched_fold(root, "searched", search))
    (run,) = runs_of(root, "searched", kind="fold")
    assert json.loads(run.data.tags["search.chosen"]) == {"lr": 0.00003, "weight_decay": 0.01}
    assert (run.data.tags["search.edges"], run.data.tags["search.candidates"]) == ("lr", "2")
    assert (run.data.params["chosen.lr"], run.data.params["chosen.weight_decay"]) == ("3e-05", "0.01")
    assert run.data.metrics["finished"] == 1.0
    assert "chosen_layer" not in run.data.metrics
    client = MlflowClient(store_uri(root))
    for words, expected in curves.items():
        logged = client.get_metric_history(run.info.run_id, f"search/dev_accuracy {words}")
        assert [(entry.step, entry.value) for entry in logged] == list(enumerate(expected, start=1))
    losses = client.get_metric_history(run.info.run_id, "search/dev_loss lr 3e-05 weight_decay 0.01")
    assert [entry.value for entry in losses] == [1.2, 1.1, 1.0]


def test_run_of_a_closed_form_probe_shows_its_penalties(root: Path) -> None:
    candidates = [candidate({"penalty": 10.0**power, "layer": 3.0}, [power / 10], [1.0]) for power in (2, 7)]
    send(root, make_searched_fold(root, "probed", {"steps": 0, "candidates": candidates, "chosen": 0, "edges": []}))
    (run,) = runs_of(root, "probed", kind="fold")
    assert run.info.status == "FINISHED"
    assert (run.data.tags["search.edges"], run.data.params["chosen.penalty"]) == ("none", "100")
    assert run.data.metrics["search/dev_accuracy penalty 1e07 layer 3"] == 0.7


def test_long_search_is_sent_in_several_calls(root: Path) -> None:
    candidates = [candidate({"lr": rate}, [0.5] * 300, [1.0] * 300) for rate in (0.001, 0.003)]
    send(root, make_searched_fold(root, "long", {"steps": 300, "candidates": candidates, "chosen": 0, "edges": []}))
    (run,) = runs_of(root, "long", kind="fold")
    assert run.info.status == "FINISHED"
    assert run.data.metrics["search/dev_accuracy lr 0.003"] == 0.5


def test_run_shows_the_dev_accuracy_of_the_selected_epoch(root: Path) -> None:
    fold = make_fold(root, "selected")
    send(root, fold)
    (run,) = runs_of(root, "selected", kind="fold")
    assert run.data.metrics["selected_dev_accuracy"] == pytest.approx(fold.result["metrics"]["dev_accuracy"])


def test_fold_is_sent_once_and_again_when_it_changes(root: Path) -> None:
    fold = make_fold(root, "once")
    send(root, fold)
    send(root, fold)
    assert len(runs_of(root, "once", kind="fold")) == 1
    path = fold.folder / "result.json"
    result = json.loads(path.read_text())
    result["run"]["key"] = "another"
    write_record(path, result)
    changed = read_fold(fold.folder)
    assert not is_sent(root, changed)
    send(root, changed)
    assert sorted(run.data.tags["key"] for run in runs_of(root, "once", kind="fold")) == sorted(
        [fold.result["run"]["key"], "another"]
    )


def view_of(root: Path, name: str, link: str) -> dict[str, Any]:
    """What the page behind a link to the UI shows of the runs."""
    from mlflow import MlflowClient

    query = {key: value for key, (value,) in parse_qs(link.partition("?")[2]).items()}
    assert query.pop("workflowType") == "machine_learning"  # not the pages for language models
    experiment = MlflowClient(store_uri(root)).get_experiment_by_name(name)
    assert link.startswith(f"http://127.0.0.1:5000/#/experiments/{experiment.experiment_id}/runs?")
    if "viewStateShareKey" not in query:
        return query
    assert len(query) == 1  # MLflow ignores the view beside another filter or order
    view: dict[str, Any] = json.loads(experiment.tags[f"mlflow.sharedViewState.{query['viewStateShareKey']}"])
    return view


def test_a_link_shows_runs_and_hides_the_superseded(root: Path) -> None:
    from mlflow import MlflowClient

    folds = [make_fold(root, "linked", number) for number in (1, 2)]
    send(root, *folds)
    path = folds[0].folder / "result.json"
    result = json.loads(path.read_text())
    result["run"]["key"] = "another"
    result["metrics"] |= {"accuracy": 0.75, "entity_f1": 0.5}
    write_record(path, result)
    send(root, read_fold(folds[0].folder))
    view = view_of(root, "linked", run_links(root, "http://127.0.0.1:5000")["linked"])
    client = MlflowClient(store_uri(root))
    experiment = client.get_experiment_by_name("linked")
    shown = client.search_runs([experiment.experiment_id], view["searchFilter"])
    assert sorted(run.info.run_name for run in shown) == ["mha", "mha-fold1-seed1", "mha-fold2-seed1"]
    assert len(runs_of(root, "linked", kind="fold")) == 3
    (hidden,) = runs_of(root, "linked", state="superseded")
    assert hidden.data.tags["key"] == folds[0].result["run"]["key"]
    (parent,) = runs_of(root, "linked", kind="method")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs_of(root, "linked", kind="fold")} == {parent.info.run_id}
    second = folds[1].result["metrics"]["accuracy"]
    assert parent.data.metrics == pytest.approx({"accuracy": (0.75 + second) / 2, "entity_f1": 0.5, "folds": 2})
    assert parent.info.status == "FINISHED"
    for run in runs_of(root, "linked", kind="fold", state="current"):
        assert f"](#/experiments/{experiment.experiment_id}/runs/{run.info.run_id}/artifacts)" in parent.data.tags[NOTE]


NOTE = "mlflow.note.content"
"""Tag whose text MLflow's page of a run shows."""


def test_a_link_opens_a_table_that_is_sorted_by_accuracy(root: Path) -> None:
    from mlflow import MlflowClient

    send(root, make_fold(root, "sorted", 1, "mha"), make_fold(root, "sorted", 2, "none"))
    view = view_of(root, "sorted", run_links(root, "http://127.0.0.1:5000")["sorted"])
    columns = ["metrics.`accuracy`", "tags.`kind`", "tags.`method`", "tags.`fold`", "tags.`encoder`"]
    assert (view["selectedColumns"], view["columnOrder"]) == (columns, columns)
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`accuracy`", False)
    runs = runs_of(root, "sorted")
    assert {"accuracy"} <= set.intersection(*(set(run.data.metrics) for run in runs))
    assert {"kind", "method", "encoder"} <= set.intersection(*(set(run.data.tags) for run in runs))
    client = MlflowClient(store_uri(root))
    experiment = client.get_experiment_by_name("sorted")
    client.delete_experiment_tag(experiment.experiment_id, "mlflow.sharedViewState.daamctl")  # as before the view
    view = view_of(root, "sorted", run_links(root, "http://127.0.0.1:5000")["sorted"])
    assert view == {"searchFilter": "tags.state = 'current'", "orderByKey": "metrics.`accuracy`", "orderByAsc": "false"}


def counts(root: Path) -> dict[str, int]:
    """Number of rows of every table in the local store."""
    with closing(sqlite3.connect(root / "mlflow.db")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


def test_a_project_that_was_copied_and_moved_sends_nothing_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from mlflow import MlflowClient

    caplog.set_level("INFO", logger="daamctl")
    first, copy, moved = (tmp_path / name for name in ("first", "copy", "moved"))
    send(first, *(make_fold(first, "demo", number) for number in (1, 2)))
    send_report(first, "<p>whole</p>", 0.5)
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    shutil.copytree(first, copy)
    # copied with everything: `ui` says that the files are looked for elsewhere, and changes nothing
    elsewhere = f"MLflow looks for files of runs in {(first / 'mlartifacts').as_uri()}, where the project was before"
    assert track.unsent(copy) == f"{elsewhere}. To correct it: daamctl track"
    assert counts(copy) == counts(first)
    track.run(copy)
    send_report(copy, "<p>whole</p>", 0.5)
    assert caplog.messages == [f"all 2 finished folds are in sqlite:///{copy}/mlflow.db already"]
    assert counts(copy) == counts(first)
    assert track.unsent(copy) is None
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()} == before
    # moved
    first.rename(moved)
    send(moved, make_fold(moved, "demo", 3))
    assert [run.data.tags["fold"] for run in runs_of(moved, "demo", kind="fold")] == ["3", "2", "1"]
    assert not first.exists()
    # copied without what only we know
    shutil.rmtree(copy / ".daamctl")
    new = make_fold(copy, "demo", 3)
    assert track.unsent(copy) == "1 of 3 finished folds are not in MLflow. To correct it: daamctl track"
    send_report(copy, "<p>whole</p>", 0.5)
    send(copy, new)
    track.run(copy)
    for root in (copy, moved):
        (parent,) = runs_of(root, "demo", kind="method")
        folds = runs_of(root, "demo", kind="fold")
        assert {run.data.tags["mlflow.parentRunId"] for run in folds} == {parent.info.run_id}
        assert parent.data.metrics["folds"] == len(folds) == 3
        assert len(runs_of(root, "paper", kind="report")) == 1
        client = MlflowClient(store_uri(root))
        for run in folds:
            assert run.info.artifact_uri.startswith((root / "mlartifacts").as_uri())
            assert "result.json" in {item.path for item in client.list_artifacts(run.info.run_id)}


def test_the_locked_store_of_a_copied_project_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    send(first, make_fold(first, "demo"))
    shutil.copytree(first, copy)
    monkeypatch.setattr(tracking, "WRITE_TIMEOUT_S", 0.1)
    with closing(sqlite3.connect(copy / "mlflow.db")) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(ArtifactError) as caught:
            track.run(copy)
    assert str(caught.value) == (
        f"{copy / 'mlflow.db'} cannot be changed: database is locked\n"
        "  end what else writes to it, free space, or fix permissions, then: daamctl track"
    )


def test_two_copies_of_a_project_share_the_runs_of_a_store(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fold(root, "shared")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/mlflow.db")
    track.run(root, "shared")
    clone = tmp_path / "clone"
    shutil.copytree(root / "data/train/shared", clone / "data/train/shared")
    assert track.unsent(clone) is None
    track.run(clone)
    assert len(runs_of(clone, "shared")) == 2  # the fold and its method


def test_a_parent_that_was_deleted_is_made_again(root: Path) -> None:
    from mlflow import MlflowClient

    send(root, make_fold(root, "orphans", 1))
    (first,) = runs_of(root, "orphans", kind="method")
    MlflowClient(store_uri(root)).delete_run(first.info.run_id)
    send(root, make_fold(root, "orphans", 2))
    (second,) = runs_of(root, "orphans", kind="method")
    assert second.info.run_id != first.info.run_id


def test_links_need_runs(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has no runs of this project\n  run a pipeline"):
        run_links(tmp_path, "http://127.0.0.1:5000")
    assert not list(tmp_path.iterdir())


def test_links_make_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_fold(tmp_path, "demo")
    for name in ("mlflow.db", "other.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/{name}")
        with pytest.raises(ArtifactError, match="has no runs of this project\n  run a pipeline"):
            run_links(tmp_path, "http://127.0.0.1:5000")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("content", [b"not a database " * 100, b"SQLite format 3\0" + bytes(2000)])
def test_a_damaged_store_is_one_message_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    (tmp_path / "data/train/demo").mkdir(parents=True)
    repair = r"move it away, .*: mv mlflow.db .*daamctl track$"
    with pytest.raises(ArtifactError, match=rf"mlflow.db is damaged \(.*\)\n  {repair}"):
        run_links(tmp_path, "http://127.0.0.1:5000")
    send(tmp_path, make_fold(tmp_path, "demo"))
    (message,) = caplog.messages
    assert re.search(rf"mlflow.db is damaged \(.*\)\). Results are safe in data/; {repair}", message)
    with pytest.raises(ArtifactError, match=rf"mlflow.db is damaged \(.*\)\n  {repair}"):
        track.run(tmp_path)


def test_a_store_with_a_damaged_page(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (name TEXT)")
        database.executemany("INSERT INTO runs VALUES (?)", [("x" * 1000,)] * 50)
        database.commit()
    with path.open("r+b") as stream:
        stream.seek(3 * 4096)
        stream.write(b"\xff" * 4096)
    (tmp_path / "data/train/demo").mkdir(parents=True)
    with pytest.raises(ArtifactError, match=r"mlflow.db is damaged"):
        run_links(tmp_path, "http://127.0.0.1:5000")


INTERRUPTED = """
import os, sys
from pathlib import Path
import sqlalchemy
from daamctl.fit.tracking import _Store

@sqlalchemy.event.listens_for(sqlalchemy.engine.Engine, "before_cursor_execute")
def end(connection, cursor, statement, *_):
    if statement.strip().startswith("CREATE TABLE logged_models"):
        os._exit(9)

_Store(Path(sys.argv[1])).client
"""


def test_a_store_whose_making_was_interrupted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fold = make_fold(tmp_path, "demo")
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path)], check=False)
    assert ended.returncode == 9
    assert not (tmp_path / "mlflow.db").exists()
    track.run(tmp_path)
    assert is_sent(tmp_path, fold)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("statement", ["DELETE FROM alembic_version", "DROP TABLE alembic_version"])
def test_a_store_that_mlflow_left_unfinished(tmp_path: Path, statement: str) -> None:
    make_fold(tmp_path, "demo")
    tracking._make_database(tmp_path / "mlflow.db")
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises(ArtifactError, match="1 of 1 folds could not be sent to sqlite:") as caught:
        track.run(tmp_path)
    assert caught.value.fix == tracking.MADE_AGAIN


WRITER = """
import os, sqlite3, sys
database = sqlite3.connect(sys.argv[1])
database.execute("PRAGMA cache_size = 1")
database.execute("UPDATE experiments SET lifecycle_stage = 'deleted'")
database.execute("UPDATE experiments SET artifact_location = hex(zeroblob(200000))")
os._exit(9)
"""


def test_a_store_whose_writer_was_killed(tmp_path: Path) -> None:
    folds = [make_fold(tmp_path, "demo", number) for number in (1, 2)]
    send(tmp_path, folds[0])
    subprocess.run([sys.executable, "-c", WRITER, str(tmp_path / "mlflow.db")], check=False)
    (tmp_path / "new").mkdir()
    shutil.copy(tmp_path / "mlflow.db-journal", tmp_path / "new/mlflow.db-journal")
    track.run(tmp_path)
    assert all(is_sent(tmp_path, fold) for fold in folds)
    (place,) = {run.info.artifact_uri.partition("mlartifacts")[0] for run in runs_of(tmp_path, "demo", kind="fold")}
    assert place == f"{tmp_path.as_uri()}/"
    # of a store that was moved away without it
    assert tracking._Store(tmp_path / "new").client
    assert counts(tmp_path / "new")["experiments"] == 1  # MLflow's own


def test_an_empty_file_is_filled_and_a_link_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("empty", "link"):
        (tmp_path / name).mkdir()
    (tmp_path / "empty/mlflow.db").touch()
    (tmp_path / "link/mlflow.db").symlink_to("../elsewhere.db")
    for name in ("empty", "link"):
        assert tracking._Store(tmp_path / name).client
        assert counts(tmp_path / name)["experiments"] == 1  # MLflow's own
    assert (tmp_path / "link/mlflow.db").readlink() == Path("../elsewhere.db")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("name", ["50%20off", "who?"])
def test_a_path_that_mlflow_would_misread(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    root = tmp_path / name
    send(root, make_fold(root, "demo"))
    (message,) = caplog.messages
    assert f"MLflow cannot keep its store at {root}/mlflow.db, because of the '" in message
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_a_path_with_an_apostrophe(tmp_path: Path) -> None:
    fold = make_fold(tmp_path / "it's", "demo")
    send(tmp_path / "it's", fold)
    assert is_sent(tmp_path / "it's", fold)


def test_a_pipeline_with_an_apostrophe_is_sent_once(root: Path) -> None:
    fold = make_fold(root, "it's")
    for _ in range(2):
        send(root, fold)
    assert is_sent(root, fold)
    assert len(runs_of(root, "it's", kind="fold")) == 1


WATCHER = """
import socket, sys, time
from pathlib import Path
asked = []
def refuse(*words, **options):
    asked.append(words)
    raise OSError("no network in this test")
socket.getaddrinfo = refuse
socket.socket.connect = lambda self, address: refuse(address)
from daamctl.artifacts.results import read_fold
from daamctl.fit.tracking import Tracker, is_sent
fold = read_fold(Path(sys.argv[2]))
tracker = Tracker(Path(sys.argv[1]), close_timeout_s=600.0)
tracker.finish(fold)
tracker.close()
import mlflow
with mlflow.start_run():  # a call that MLflow's telemetry counts
    mlflow.log_metric("x", 1.0)
from mlflow.telemetry import get_telemetry_client
client = get_telemetry_client()
if client is not None:
    client.flush(terminate=True)
print(is_sent(Path(sys.argv[1]), fold), client, asked)
"""


def test_nothing_is_reported_to_the_makers_of_mlflow(tmp_path: Path) -> None:
    fold = make_fold(tmp_path, "private")
    hints = ("PYTEST_CURRENT_TEST", "CI", *NO_TELEMETRY)  # with these MLflow would be silent without our doing
    silent = {name: value for name, value in os.environ.items() if name not in hints}
    words = [sys.executable, "-c", WATCHER, str(tmp_path), str(fold.folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path, env=silent)
    assert done.stdout == "True None []\n"


def test_live_run_shows_its_epochs_and_an_interrupted_one_is_marked_killed(root: Path) -> None:
    tracker = Tracker(root)
    tracker.start("live", root / "data/train/live/mha", 1, 1)
    tracker.epoch({"epoch": 1, "train_loss": 0.5, "dev_accuracy": None})
    tracker.close()  # the process dies here: no finish
    (run,) = runs_of(root, "live", kind="fold")
    assert run.info.status == "RUNNING"
    assert run.data.metrics == {"train_loss": 0.5}
    send(root, make_fold(root, "live"))
    status = {run.info.status: run.info.run_id for run in runs_of(root, "live", kind="fold")}
    assert set(status) == {"KILLED", "FINISHED"}
    assert status["KILLED"] == run.info.run_id


def test_runs_of_ablations_go_by_their_folder(root: Path) -> None:
    fold = make_fold(root, "ablated")
    folder = root / "data/ablate/ablated/highest-1-mha/fold1-seed1"
    folder.parent.mkdir(parents=True)
    fold.folder.rename(folder)
    send(root, read_fold(folder))
    (run,) = runs_of(root, "ablated", kind="fold")
    (parent,) = runs_of(root, "ablated", kind="ablation")
    assert parent.info.run_name == "highest-1-mha"
    assert run.info.run_name == "highest-1-mha-fold1-seed1"
    assert is_sent(root, read_fold(folder))
    assert not is_sent(root, make_fold(root, "ablated"))  # the plain fold of the same numbers is another run


def test_track_sends_what_is_missing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="daamctl")
    folds = [make_fold(root, "later", number) for number in (1, 2)]
    send(root, folds[0])
    assert track.run(root, "later") == root / "data"
    assert caplog.messages == [f"1 of 2 finished folds were missing in sqlite:///{root}/mlflow.db and have been sent"]
    assert len(runs_of(root, "later", kind="fold")) == 2
    assert all(is_sent(root, fold) for fold in folds)


def test_track_tells_how_far_it_is(root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    caplog.set_level("INFO", logger="daamctl")
    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.0)
    for number in (1, 2):
        make_fold(root, "counted", number)
    track.run(root, "counted")
    lines = [line for line in caplog.messages if line.startswith("sending to MLflow: ")]
    assert [line.split(",")[0].split(": ")[1] for line in lines] == ["1 of 2 folds", "2 of 2 folds"]


def test_a_file_of_another_fold_is_not_sent(tmp_path: Path) -> None:
    first, second = (make_fold(tmp_path, "mixed", number) for number in (1, 2))
    shutil.copy(second.folder / "predictions.parquet", first.folder)
    with pytest.raises(ArtifactError, match=r"fold1-seed1/predictions\.parquet is damaged or from elsewhere"):
        track.run(tmp_path, "mixed")
    with pytest.raises(ArtifactError, match="damaged or from elsewhere"):
        send(tmp_path, first)
    assert not is_sent(tmp_path, first)
    assert not (tmp_path / "mlflow.db").exists()


def test_track_sends_what_the_store_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mlflow import MlflowClient

    caplog.set_level("INFO", logger="daamctl")
    folds = [make_fold(tmp_path, "lost", number) for number in (1, 2)]
    send(tmp_path, *folds)
    fold = next(run for run in runs_of(tmp_path, "lost") if run.info.run_name == "mha-fold1-seed1")
    MlflowClient(store_uri(tmp_path)).delete_run(fold.info.run_id)
    track.run(tmp_path)
    assert len(runs_of(tmp_path, "lost", kind="fold")) == 2
    [message] = caplog.messages
    assert message == f"1 of 2 finished folds were missing in sqlite:///{tmp_path}/mlflow.db and have been sent"
    assert all(is_sent(tmp_path, fold) for fold in folds)
    (tmp_path / "mlflow.db").unlink()
    assert not any(is_sent(tmp_path, fold) for fold in folds)


def test_two_processes_that_train_one_fold_log_one_run(root: Path) -> None:
    fold = make_fold(root, "twice")
    first, second = Tracker(root), Tracker(root)
    first.start("twice", fold.folder.parent, 1, 1)
    first.epoch({"epoch": 1, "train_loss": 0.5, "dev_accuracy": None})
    while not runs_of(root, "twice", kind="fold"):
        time.sleep(0.01)
    second.start("twice", fold.folder.parent, 1, 1)  # waits for the fold, and finds it finished
    second.finish(fold)
    second.close()
    first.finish(fold)
    first.close()
    third = Tracker(root)
    third.start("twice", fold.folder.parent, 1, 1)
    third.finish(fold)
    third.close()
    (run,) = runs_of(root, "twice", kind="fold")
    assert run.info.status == "FINISHED"


SENDER = """
import sys
from pathlib import Path
import mlflow
from daamctl.artifacts.results import read_fold
from daamctl.fit.tracking import Tracker, is_sent
print("ready", flush=True)
sys.stdin.readline()
root, fold = Path(sys.argv[1]), read_fold(Path(sys.argv[2]))
tracker = Tracker(root, close_timeout_s=600.0)
tracker.finish(fold)
tracker.close()
print(is_sent(root, fold), flush=True)
"""


@pytest.mark.slow
def test_four_processes_at_once_on_a_fresh_store(tmp_path: Path) -> None:
    folds = [make_fold(tmp_path, "crowd", number) for number in (1, 2, 3, 4)]
    crowd = [
        subprocess.Popen(
            [sys.executable, "-c", SENDER, str(tmp_path), str(fold.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for fold in folds
    ]
    assert not (tmp_path / "mlflow.db").exists()
    for process in crowd:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in crowd:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=600) for process in crowd]
    assert [out for out, _ in ends] == ["True\n"] * 4, ends
    assert all("MLflow at" not in err for _, err in ends)
    assert sorted(run.data.tags["fold"] for run in runs_of(tmp_path, "crowd", kind="fold")) == ["1", "2", "3", "4"]
    assert {run.info.status for run in runs_of(tmp_path, "crowd", kind="fold")} == {"FINISHED"}


@pytest.fixture
def dead_server(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address on this machine where nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://someone:secret@127.0.0.1:{port}")
    return f"http://127.0.0.1:{port}"


def test_dead_server_never_raises_and_warns_once(
    root: Path, dead_server: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds = [make_fold(root, "dead", number) for number in (1, 2)]
    tracker = make_tracker(root)
    for fold in folds:
        tracker.start("dead", fold.folder.parent, fold.fold, 1)
        tracker.epoch({"epoch": 1, "train_loss": 0.5})
        tracker.finish(fold)
    send_missing(tracker, folds)
    tracker.close()
    warnings = [record.getMessage() for record in caplog.records if record.name == "daamctl.fit.tracking"]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"MLflow at {dead_server} does not accept our runs (")
    assert warnings[0].endswith("). Results are safe in data/; send them later with: daamctl track")
    assert not any(is_sent(root, fold) for fold in folds)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    track.run(root, "dead")
    assert all(is_sent(root, fold) for fold in folds)
    assert len(runs_of(root, "dead", kind="fold")) == 2


def test_track_says_when_the_store_is_still_dead(root: Path, dead_server: str) -> None:
    make_fold(root, "still")
    with pytest.raises(ArtifactError) as caught:
        track.run(root, "still")
    text = str(caught.value)
    assert text.startswith("1 of 1 folds could not be sent to http://")
    assert text.endswith("\n  start the tracking server or fix MLFLOW_TRACKING_URI, then: daamctl track")


def test_track_counts_what_a_local_store_does_not_have(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send(root, [make_fold(root, "partly", number) for number in (1, 2)][1])

    def refuse(*_: object) -> bool:
        raise OSError("database is locked")

    monkeypatch.setattr(tracking._Store, "finish", refuse)
    with pytest.raises(ArtifactError) as caught:
        track.run(root, "partly")
    assert str(caught.value) == (
        f"1 of 2 folds could not be sent to sqlite:///{root}/mlflow.db\n"
        "  end what else writes to it, free space, or fix permissions, then: daamctl track"
    )


def test_password_is_shown_nowhere(root: Path, dead_server: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="daamctl")
    make_fold(root, "secretive")
    with pytest.raises(ArtifactError) as caught:
        track.run(root, "secretive")
    assert "secret@" not in str(caught.value)
    assert "secret@" not in caplog.text


def test_password_is_not_in_the_warning(root: Path, dead_server: str, caplog: pytest.LogCaptureFixture) -> None:
    send(root, make_fold(root, "quiet"))
    assert dead_server.removeprefix("http://") in caplog.text
    assert "secret@" not in caplog.text


@pytest.fixture
def slow_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server that takes connections and never answers; closing it ends them."""
    held: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept)
    thread.start()
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{listener.getsockname()[1]}")
    yield listener
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in held:
        connection.close()
    thread.join()


def test_slow_server_does_not_hold_the_training(
    root: Path, slow_server: socket.socket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    fold = make_fold(root, "slow")
    tracker = Tracker(root, close_timeout_s=0.2)
    tracker.finish(fold)
    tracker.close()
    assert tracker._thread.is_alive()  # close came back while the store still had not answered
    port = slow_server.getsockname()[1]
    assert caplog.messages == [
        f"MLflow at http://127.0.0.1:{port} is slow. Send the remaining runs later with: daamctl track"
    ]
    assert not is_sent(root, fold)
    tracker._thread.join(60)
    assert not tracker._thread.is_alive()


def test_no_tracker_logs_nothing(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path, enabled=False)
    fold = make_fold(tmp_path, "none")
    tracker.start("none", tmp_path, 1, 1)
    tracker.epoch({"epoch": 1})
    tracker.finish(fold)
    send_missing(tracker, [fold])
    tracker.report("none", make_report(tmp_path, "x"), {}, {})
    tracker.close()
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def test_store_is_the_one_named_or_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert store_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert store_uri(tmp_path) == "http://host:5000"


def make_report(root: Path, text: str) -> Path:
    folder = root / "data" / "report" / "paper"
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(text)
    (folder / "report.md").write_text("not sent")
    (folder / "tables" / "results.csv").write_text("a,b\n")
    return folder


def send_report(root: Path, text: str, accuracy: float) -> None:
    tracker = make_tracker(root, again="daamctl report paper")
    tracker.report("paper", make_report(root, text), {"best_accuracy": accuracy}, {"best_method": "mha"})
    tracker.close()


def test_report_is_one_run_that_a_new_one_replaces(root: Path) -> None:
    from mlflow import MlflowClient

    send_report(root, "<p>first</p>", 0.5)
    (run,) = runs_of(root, "paper")
    assert (run.info.run_name, run.info.status) == ("report", "FINISHED")
    assert run.data.metrics == {"best_accuracy": 0.5}
    assert {key: run.data.tags[key] for key in ("pipeline", "kind", "best_method")} == {
        "pipeline": "paper",
        "kind": "report",
        "best_method": "mha",
    }
    client = MlflowClient(store_uri(root))
    assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"report.html", "tables"}
    assert [item.path for item in client.list_artifacts(run.info.run_id, "tables")] == ["tables/results.csv"]
    send_report(root, "<p>first</p>", 0.5)
    assert [again.info.run_id for again in runs_of(root, "paper")] == [run.info.run_id]
    send_report(root, "<p>second</p>", 0.75)
    (new,) = runs_of(root, "paper")
    assert new.info.run_id != run.info.run_id
    assert new.data.metrics == {"best_accuracy": 0.75}
    assert Path(client.download_artifacts(new.info.run_id, "report.html")).read_text() == "<p>second</p>"


def test_a_report_adds_its_pictures_and_figures_to_the_runs_of_methods(root: Path) -> None:
    from mlflow import MlflowClient

    send(root, *(make_fold(root, "paper", 1, method) for method in ("mha", "mha-mlp")))
    folder = make_report(root, "illustrated")
    (folder / "pictures").mkdir()
    for name in ("mha-confusion", "mha-mlp-learning", "mha-mlp-confusion", "ranks", "others-confusion"):
        (folder / f"pictures/{name}.png").write_bytes(b"")
    (root / "data/metrics/paper").mkdir(parents=True)
    (root / "data/metrics/paper/mha-mlp.json").write_text("{}")
    send_report(root, "illustrated", 0.5)
    client = MlflowClient(store_uri(root))
    found = {}
    for run in runs_of(root, "paper", kind="method"):
        places = ("pictures", "metrics")
        items = [item.path for place in places for item in client.list_artifacts(run.info.run_id, place)]
        found[run.info.run_name] = items
    assert found == {
        "mha": ["pictures/mha-confusion.png"],
        "mha-mlp": ["pictures/mha-mlp-confusion.png", "pictures/mha-mlp-learning.png", "metrics/mha-mlp.json"],
    }
    shutil.rmtree(folder / "pictures")
    for run in runs_of(root, "paper"):
        client.delete_run(run.info.run_id)


def test_report_interrupted_on_its_way_leaves_one_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send_report(root, "<p>whole</p>", 0.5)
    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient.log_artifacts", lambda *words: 1 / 0)
        send_report(root, "<p>broken</p>", 0.6)
    assert len(runs_of(root, "paper")) == 2  # the old one stays until a new one is whole
    send_report(root, "<p>broken</p>", 0.6)
    (run,) = runs_of(root, "paper")
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"best_accuracy": 0.6})


def test_dead_server_never_stops_a_report(root: Path, dead_server: str, caplog: pytest.LogCaptureFixture) -> None:
    send_report(root, "<p>dead</p>", 0.5)
    (message,) = caplog.messages
    assert message.startswith(f"MLflow at {dead_server} does not accept our runs (")
    assert message.endswith("). Results are safe in data/; send them later with: daamctl report paper")


def test_fold_just_finished_is_not_sent_again(root: Path) -> None:
    fold = make_fold(root, "fresh")
    tracker = make_tracker(root)
    tracker.start("fresh", fold.folder.parent, fold.fold, fold.seed)
    tracker.finish(fold)
    send_missing(tracker, [fold])  # asked before the background thread has come to the first two
    tracker.close()
    assert len(runs_of(root, "fresh", kind="fold")) == 1


def test_projects_that_share_a_store_leave_each_others_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/server.db")
    projects = [tmp_path / name for name in ("first", "second")]
    keys = []
    for root in projects:
        fold = make_fold(root, "demo")
        path = fold.folder / "result.json"
        result = json.loads(path.read_text())
        result["run"]["key"] = f"key of {root.name}"
        write_record(path, result)
        send(root, read_fold(fold.folder))
        keys.append(result["run"]["key"])
    runs = runs_of(tmp_path, "demo", kind="fold", state="current")
    assert sorted(run.data.tags["key"] for run in runs) == keys
    assert len({run.data.tags["project"] for run in runs}) == 2
    assert len({run.data.tags["mlflow.parentRunId"] for run in runs}) == 2
    make_fold(projects[0], "demo", 2)
    track.run(projects[0])
    (parent,) = (run for run in runs_of(tmp_path, "demo", kind="method") if run.data.metrics["folds"] == 2)
    assert parent.data.tags["project"] == (projects[0] / ".daamctl/project").read_text()


def test_a_server_gets_everything_and_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fold = make_fold(tmp_path, "served")
    (tmp_path / "params.yaml").write_text("{}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    store = ("--backend-store-uri", f"sqlite:///{tmp_path}/m.db", "--artifacts-destination", str(tmp_path / "art"))
    words = ["server", *store, "--port", address.rpartition(":")[2], "--workers", "1"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    log = (tmp_path / "log").open("w")
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *words], env=environment, stdout=log, stderr=log, start_new_session=True
    )
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health").close()
                break
            except OSError:
                time.sleep(0.1)
        environment["MLFLOW_TRACKING_URI"] = address
        done = subprocess.run(
            [Path(sys.executable).with_name("daamctl"), "track"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "data\n"
        assert f"1 of 1 finished folds were missing in {address} and have been sent" in done.stderr
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert track.unsent(tmp_path) is None
        with caplog.at_level("INFO"):
            track.run(tmp_path)
        assert f"are in {address} already" in caplog.text
        (run,) = runs_of(tmp_path, "served", kind="fold")
        assert (run.info.status, run.data.tags["key"]) == ("FINISHED", fold.result["run"]["key"])
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def test_who_may_write_in_a_project_may_write_to_its_store(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        send(tmp_path, make_fold(tmp_path, "shared"))
    finally:
        os.umask(before)
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o664


def test_the_reason_is_told_not_where_it_was_raised() -> None:
    from daamctl.fit.tracking import _first_line

    error = RuntimeError(
        "(raised as a result of Query-invoked autoflush)\n(sqlite3.OperationalError) readonly database"
    )
    assert _first_line(error) == "(sqlite3.OperationalError) readonly database"
