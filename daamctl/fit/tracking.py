"""Tracking in MLflow. A slow or failing store neither stops training nor loses results.

MLflow is a copy: everything that a run logs is also in its fold folder. A background thread sends events from a queue.
If the store fails, the thread stops sending with one warning. `daamctl track`, or the next training of the same
pipeline, sends what is missing. The store alone knows what it has: a fold is found there by its content key. A project
may be copied and moved: in its own store, the artifact folder is corrected.

Each pipeline is an experiment. The tag `kind` says what a run is: `method` or `ablation`, with the mean over the runs
of kind `fold` that are nested below it; or `report`. The tag `state` is `superseded` once a fold was trained again,
else `current`. In a store that projects share, the tag `project` tells whose run it is. Closed-form probes are sent by
stage `report` or `daamctl track`. Stage `report` also adds a method's pictures and figures to its run.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import uuid4

from daamctl.artifacts.results import Fold
from daamctl.artifacts.terms import encoder_label
from daamctl.compute.environment import no_telemetry
from daamctl.compute.progress import Progress
from daamctl.data.task import TASKS
from daamctl.errors import ArtifactError
from daamctl.store.differences import flat
from daamctl.store.files import locked, sha256_file, write_bytes, write_text

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger(__name__)

Point = tuple[str, float | None, int]
"""Metric, value and step; without a value, nothing is logged."""
Pairs = Iterable[tuple[str, Any]]
WRITE_TIMEOUT_S = 60.0
"""Longest wait for another process that writes to the project's own store."""
PER_CALL = 100  # tags and params that MLflow accepts
MAX_LINKS = 25  # in a tag, which MLflow limits to 5000 characters
MEANS = tuple(dict.fromkeys(task.primary for task in TASKS.values()))
"""Results of folds whose mean their parent shows."""
DATABASE = "mlflow.db"
MADE_AGAIN = f"move it away, then send all runs again: mv {DATABASE} {DATABASE}.damaged; daamctl track"
STATE, CURRENT, SUPERSEDED = "state", "current", "superseded"
PARENT = "mlflow.parentRunId"
SHOWN = f"tags.{STATE} = '{CURRENT}'"
"""Filter of the runs that are not superseded."""
VIEW, VIEW_TAG = "daamctl", "mlflow.sharedViewState.daamctl"
"""Name of our view of the table of runs, and the tag of an experiment in which MLflow's UI looks for it."""
COLUMNS = ("kind", "method", "fold", "encoder")
"""Tags that the view shows beside the result."""
STORED_PATHS = "experiments.artifact_location runs.artifact_uri model_versions.source model_versions.storage_location"
"""Columns of MLflow's own database with absolute paths of artifacts."""


def store_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite store inside the project."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _local_uri(root)


def _local_uri(root: Path) -> str:
    return f"sqlite:///{root / DATABASE}"


def _file_of(root: Path) -> Path | None:
    """File of the store, if it is in SQLite."""
    uri = store_uri(root)
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def run_links(root: Path, address: str) -> dict[str, str]:
    """Links to the runs of this project in the MLflow UI, without those that are superseded.

    Args:
        address: where the UI answers, e.g. `http://127.0.0.1:5000`.

    Returns:
        Pipeline or ad-hoc run -> link to the table of its runs, best first. By default, MLflow 3 would open pages for
        language models.

    Raises:
        ArtifactError: nothing was sent to the store, or it cannot be read.
    """
    check_database(root, whole=True)
    folders = (root / "data" / stage for stage in ("train", "report"))
    names = {path.name for folder in folders for path in folder.glob("*") if path.is_dir()}
    store, file, links = _Store(root), _file_of(root), {}
    with _telling(f"MLflow at {shown_store(root)} cannot be read", repair_of_store(root)):
        # opening a store in a file would make it
        for name in sorted(names) if file is None or file.is_file() else ():
            found = store.client.get_experiment_by_name(name)
            if found is None or found.lifecycle_stage != "active":
                continue
            # columns cannot stand in a link, and MLflow ignores a view if it has a filter or an order too
            order = {"orderByKey": "metrics.`accuracy`", "orderByAsc": "false"}
            table = {"viewStateShareKey": VIEW} if VIEW_TAG in found.tags else {"searchFilter": SHOWN, **order}
            query = urlencode({"workflowType": "machine_learning", **table})
            links[name] = f"{address.rstrip('/')}/#/experiments/{found.experiment_id}/runs?{query}"
    if not links:
        raise ArtifactError(
            f"MLflow at {shown_store(root)} has no runs of this project",
            fix="run a pipeline (daamctl run demo), or send finished runs: daamctl track",
        )
    return links


def _view(metric: str) -> str:
    """The table that `run_links` opens, as MLflow's UI stores it."""
    columns = [f"metrics.`{metric}`", *(f"tags.`{name}`" for name in COLUMNS)]
    table = {"searchFilter": SHOWN, "orderByKey": columns[0], "orderByAsc": False}
    return json.dumps({**table, "selectedColumns": columns, "columnOrder": columns})


def not_sent(root: Path, folds: Sequence[Fold]) -> list[Fold]:
    """The folds that the store does not have. Writes nothing."""
    left = [fold for fold in folds if not is_sent(root, fold)]
    if not left or _file_of(root) is not None:
        return left
    store = _Store(root)
    return [fold for fold in left if not store.has(*_known_by(fold))]


@contextmanager
def _telling(what: str, fix: str) -> Iterator[None]:
    """Put into one line whatever a tracking store may fail with."""
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        raise ArtifactError(f"{what}: {_first_line(error)}", fix=fix) from error


class Tracker:
    """Logs runs to MLflow from a background thread. A run starts, logs epochs, and finishes with a fold on disk.

    MLflow's own asynchronous logging neither makes runs nor sends files, and waits without a limit at the end of the
    process; here a slow or dead server holds nothing up.

    Args:
        root: the project; None: nothing is logged.
        close_timeout_s: longest wait in `close`, in seconds.
        again: command that sends what is missing; warnings name it.

    Attributes:
        stored, num_sent: folders of the folds that the store has by now, and how many of them this tracker sent.
    """

    def __init__(
        self, root: Path | None = None, *, close_timeout_s: float = 60.0, again: str = "daamctl track"
    ) -> None:
        self.root, self.again, self.close_timeout_s = root, again, close_timeout_s
        self.stored: set[Path] = set()
        self.num_sent = 0
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        if root is not None:
            self._store = _Store(root)
            self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
            self._thread.start()

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Start one run of a pipeline or ad-hoc run `name`, whose folds are in `folder`."""
        self._put(lambda: self._store.start(name, folder, fold, seed))

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        """Log one epoch of the run in progress."""
        self._put(lambda: self._store.epoch(entry))

    def finish(self, fold: Fold) -> None:
        """Log parameters, results and files of a finished fold and end its run, unless the store has them."""

        def send() -> None:
            self.num_sent += self._store.finish(fold)
            self.stored.add(fold.folder)

        self._put(send)

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log a report as the run `report` of the pipeline `name`, and replace an earlier one if it differs."""
        self._put(lambda: self._store.report(name, folder, metrics, tags))

    def close(self) -> None:
        """Wait until everything is sent, but not longer than `close_timeout_s`."""
        if self.root is None:
            return
        self._queue.put(None)
        self._thread.join(self.close_timeout_s)
        if self._thread.is_alive():
            words = "MLflow at %s is slow. Send the remaining runs later with: %s"
            log.warning(words, shown_store(self.root), self.again)

    def _put(self, event: Callable[[], object]) -> None:
        if self.root is not None:
            self._queue.put(event)

    def _work(self) -> None:
        failed = False
        while (event := self._queue.get()) is not None:
            try:
                if not failed:
                    event()
            except Exception as error:  # a tracking store may fail in any way; training must go on
                failed = True
                log.warning(
                    "MLflow at %s does not accept our runs (%s). Results are safe in data/; %s",
                    shown_store(self._store.root),
                    _first_line(error),
                    getattr(error, "fix", None) or f"send them later with: {self.again}",
                )


class _Store:
    """The calls to MLflow. Only one thread may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._run_id = ""
        """Run of the fold in training, once it has an epoch."""
        self._tags: dict[str, str] = {}
        """Tags of the fold in training; no other run that is not superseded has the same."""
        self._parent_tags: dict[str, str] = {}
        """Those of the run of its method."""

    @cached_property
    def client(self) -> MlflowClient:
        """The client, created on first use because importing mlflow takes seconds."""
        no_telemetry()
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        from mlflow import MlflowClient

        logging.getLogger("alembic").setLevel(logging.WARNING)
        logging.getLogger("mlflow.store.db").setLevel(logging.CRITICAL)  # says in SQL what we say in one line
        uri, path = store_uri(self.root), self.root / DATABASE
        check_database(self.root)
        # Two processes that create the tables of one SQLite file at the same time make each other fail.
        with self._alone("the tracking store") if uri.startswith("sqlite:") else nullcontext():
            if uri == _local_uri(self.root) and not (path.exists() and path.stat().st_size):
                _make_database(path)
            client = MlflowClient(uri)
            client.search_experiments(max_results=1)
        return client

    @cached_property
    def own(self) -> dict[str, str]:
        """Tags that tell our runs from those of other projects in a store that they share."""
        if store_uri(self.root) == _local_uri(self.root):
            return {}
        with self._alone("the name of the project"):
            path = self.root / ".daamctl" / "project"
            if not path.is_file():
                write_text(path, uuid4().hex)
            return {"project": path.read_text()}

    def runs(self, name: str, tags: Mapping[str, str]) -> list[Run]:
        """Runs of a pipeline with these tags that are not superseded."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            return []
        wanted = " and ".join(
            f"tags.`{key}` = " + (f'"{value}"' if "'" in value else f"'{value}'")
            for key, value in {STATE: CURRENT, **tags}.items()
        )
        return list(self.client.search_runs([experiment.experiment_id], wanted))

    def has(self, name: str, tags: Mapping[str, str]) -> bool:
        """Whether a finished run has these tags, from whatever project it came."""
        return _has_row(self.root, name, tags) or any(run.info.status == "FINISHED" for run in self.runs(name, tags))

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Remember which run comes next. It is made with its first epoch: another process may finish the fold first."""
        tags = {"pipeline": name, "method": folder.name, **self.own}
        kind = "ablation" if folder.parent.parent.name == "ablate" else "method"
        self._run_id, self._parent_tags = "", {**tags, "kind": kind}
        self._tags = {**tags, "kind": "fold", "fold": str(fold), "seed": str(seed)}

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        self._run_id = self._run_id or self._begin()
        self._send(self._run_id, _points(entry))

    def _begin(self) -> str:
        """Make the run that was started, below that of its method."""
        name, method = self._tags["pipeline"], self._tags["method"]
        with self._alone(f"the MLflow run of {method}", f"{name}-{method}-run"):
            known = self.runs(name, self._parent_tags)
            parent = known[0].info.run_id if known else self._make(name, method, self._parent_tags)
        title = f"{method}-fold{self._tags['fold']}-seed{self._tags['seed']}"
        return self._make(name, title, {**self._tags, PARENT: parent})

    def _make(self, name: str, title: str, tags: Mapping[str, str]) -> str:
        run = self.client.create_run(self.experiment(name), run_name=title, tags={STATE: CURRENT, **tags})
        return str(run.info.run_id)

    def finish(self, fold: Fold) -> bool:
        """Log a finished fold and end its run; False if the store has it."""
        (name, tags), run = _known_by(fold), fold.result["run"]
        live, self._run_id = self._run_id, ""
        if not live and is_sent(self.root, fold):
            return False
        # another process that waited for the fold may log it at this moment
        with self._alone(f"the MLflow runs of {tags['method']}", f"{name}-{tags['method']}"):
            if self.has(name, tags):
                if live:
                    self.client.delete_run(live)
                return False
            self.start(name, fold.folder.parent, run["fold"], run["seed"])
            run_id = live or self._begin()
            self._log(run_id, fold, [] if live else fold.history().to_dicts())
            for old in self.runs(name, self._tags):
                if old.info.run_id != run_id:
                    if old.info.status == "RUNNING":  # its process was killed
                        self.client.set_terminated(old.info.run_id, "KILLED")
                    self.client.set_tag(old.info.run_id, STATE, SUPERSEDED)
            self._summarise(name, run_id)
            self.client.set_terminated(run_id, "FINISHED")  # last, so that what was interrupted is done again
        return True

    def _log(self, run_id: str, fold: Fold, history: Sequence[Mapping[str, float | int | None]]) -> None:
        """Log parameters, facts, records, results and files of a fold, and the curves of all candidates of a search."""
        run, meta, search = fold.result["run"], fold.result["meta"], fold.result.get("search")
        params = flat(run["config"]) | {"num_layers": len(run["layers"])}
        params |= {name: run[name] for name in ("num_parameters", "embed_dim")}
        tags = {name: meta[name] or "none" for name in ("git_commit", "embeddings_key", "device", "precision")}
        tags |= {name: run[name] or "none" for name in ("test_group", "dev_group", "key")}
        tags["encoder"] = encoder_label(meta["encoder"], run["config"].get("extract", {}))
        if run.get("reconstructed"):
            tags["reconstructed"] = run["reconstructed"]
        points = [point for entry in history for point in _points(entry)]
        if search is not None:
            chosen = {
                key: int(value) if isinstance(value, float) and value.is_integer() else value  # a layer is 5, not 5.0
                for key, value in search["candidates"][search["chosen"]]["settings"].items()
            }
            params |= {f"chosen.{key}": value for key, value in chosen.items()}
            tags["search.chosen"] = json.dumps(chosen)
            tags["search.edges"] = ", ".join(search["edges"]) or "none"
            tags["search.candidates"] = str(len(search["candidates"]))
            points += [
                (f"search/{name} {_in_metric_name(one['settings'])}", value, epoch)
                for one in search["candidates"]
                for name, values in (("dev_accuracy", one["dev_accuracy"]), ("dev_loss", one["dev_loss"]))
                for epoch, value in enumerate(values, start=1)
            ]
        results = dict(fold.result["metrics"]) | {"train_s": meta["train_s"]}
        for name in ("train_accuracy", "dev_accuracy"):  # a record has metrics of these names
            results[f"selected_{name}"] = results.pop(name, None)
        self._send(run_id, [*points, *_points(results)], params.items(), tags.items())
        self.client.log_artifacts(run_id, str(fold.folder))

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log a report; the run of the report before goes once the new one is whole."""
        key = sha256_file(folder / "report.html")
        if self.has(name, {"key": key, "kind": "report"}):
            return
        own = {"pipeline": name, "kind": "report", **self.own}
        run_id = self._make(name, "report", {**own, "key": key, **tags})
        self._send(run_id, _points(metrics))
        self.client.log_artifact(run_id, str(folder / "report.html"))
        self.client.log_artifacts(run_id, str(folder / "tables"), "tables")
        for old in self.runs(name, own):
            if old.info.run_id != run_id:
                self.client.delete_run(old.info.run_id)
        # pictures that the report shows of a method, `<method>-<what>.png`, and its figures go to its run
        figures = (folder.parents[1] / "metrics" / name).glob("*.json")
        files = [(path.stem, "metrics", path) for path in figures]
        pictures = (folder / "pictures").glob("*-*.png")
        files += [(path.stem.rpartition("-")[0], "pictures", path) for path in pictures]
        for parent in self.runs(name, {"kind": "method", **self.own}):
            for method, place, path in files:
                if method == parent.info.run_name:
                    self.client.log_artifact(parent.info.run_id, str(path), place)
        self.client.set_terminated(run_id, "FINISHED")

    def _send(self, run_id: str, points: Iterable[Point], params: Pairs = (), tags: Pairs = ()) -> None:
        """Log to a run, in as many calls as MLflow asks for."""
        from mlflow.entities import Metric, Param, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric(name, float(value), now, step) for name, value, step in points if value is not None]
        settings = [Param(name, str(value)) for name, value in params]
        facts = [RunTag(name, value) for name, value in tags]
        for start in range(0, max(len(metrics), len(settings), len(facts)), PER_CALL):
            part = slice(start, start + PER_CALL)
            self.client.log_batch(run_id, metrics[part], settings[part], facts[part])

    def experiment(self, name: str) -> str:
        """Number of the experiment of a pipeline; made if it is not there."""
        from mlflow.exceptions import MlflowException

        correct_artifacts(self.root)
        if (found := self.client.get_experiment_by_name(name)) is None:
            # the view that the UI opens, and what it shows
            tags = {"mlflow.experimentKind": "custom_model_development", VIEW_TAG: _view(MEANS[0])}
            try:
                return str(self.client.create_experiment(name, _artifacts(self.root), tags))
            except MlflowException:  # another process created it first
                if (found := self.client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def _summarise(self, pipeline: str, run_id: str) -> None:
        """Log means over the folds of a method and links to them to their parent, and the view to the experiment."""
        experiment, tags = self.experiment(pipeline), self.client.get_run(run_id).data.tags
        children = self.runs(pipeline, {PARENT: tags[PARENT]})
        runs = [run for run in children if run.info.status == "FINISHED" or run.info.run_id == run_id]
        found = {name: [run.data.metrics[name] for run in runs if name in run.data.metrics] for name in MEANS}
        means = {name: fmean(values) for name, values in found.items() if values}
        points = _points({**means, "folds": len(runs)} if means else {})
        folds = sorted((run.info.run_name, run.info.run_id) for run in runs)[:MAX_LINKS]
        links = ", ".join(f"[{name}](#/experiments/{experiment}/runs/{fold}/artifacts)" for name, fold in folds)
        note = ("mlflow.note.content", f"Weights and predictions of each fold: {links}")
        self._send(tags[PARENT], points, tags=[("encoder", tags["encoder"]), note])
        metric = next((name for name in reversed(MEANS) if name in means), MEANS[0])
        self.client.set_experiment_tag(experiment, VIEW_TAG, _view(metric))
        self.client.set_terminated(tags[PARENT], "FINISHED")

    def _alone(self, what: str, name: str = "mlflow") -> AbstractContextManager[None]:
        """Hold a lock of the project."""
        return locked(self.root / ".daamctl" / "tracking" / f"{name}.lock", what=what)


def make_tracker(root: Path, *, enabled: bool = True, again: str = "daamctl track") -> Tracker:
    """A tracker for MLflow, or one that logs nothing if tracking is disabled.

    Args:
        again: command that sends what is missing; warnings name it.
    """
    return Tracker(root if enabled else None, again=again)


EXPORTED = "exported-models"
"""Experiment of the runs that hold exported models."""


def register_model(root: Path, folder: Path, name: str) -> str:
    """Send an exported model to MLflow and register it as a new version of a registered model.

    Args:
        folder: the exported model, with its file `MLmodel`.
        name: name in the model registry; made if it is not there.

    Returns:
        The new version.

    Raises:
        ArtifactError: the store cannot be reached or refuses the model.
    """
    store = _Store(root)
    fix = "correct the name, or the tracking server (MLFLOW_TRACKING_URI); then export again with --force"
    with _telling(f"MLflow does not register '{name}'", fix):
        from mlflow.exceptions import MlflowException

        run = store.client.create_run(store.experiment(EXPORTED), run_name=name)
        store.client.log_artifacts(run.info.run_id, str(folder), "model")
        store.client.set_terminated(run.info.run_id)
        with suppress(MlflowException):  # there is one, or the next call tells the reason
            store.client.create_registered_model(name)
        source = f"{run.info.artifact_uri}/model"
        return str(store.client.create_model_version(name, source, run_id=run.info.run_id).version)


def is_sent(root: Path, fold: Fold) -> bool:
    """Whether a store in a file has this result; False for any other store, which only `_Store` can ask."""
    return _has_row(root, *_known_by(fold))


def _known_by(fold: Fold) -> tuple[str, dict[str, str]]:
    """Experiment and tags by which the run of a fold is found in any store."""
    run = fold.result["run"]
    return run["pipeline"], {"key": run["key"], "method": fold.folder.parent.name, "kind": "fold"}


def _has_row(root: Path, name: str, tags: Mapping[str, str]) -> bool:
    """`_Store.has` for a store in a file, without importing mlflow, which takes seconds."""
    path = _file_of(root)
    if path is None or not path.is_file():
        return False
    tags = {**tags, STATE: CURRENT}
    tagged = " AND EXISTS (SELECT 1 FROM tags WHERE run_uuid = runs.run_uuid AND key = ? AND value = ?)"
    query = (
        "SELECT 1 FROM runs JOIN experiments USING (experiment_id) WHERE experiments.name = ? "
        f"AND status = 'FINISHED' AND runs.lifecycle_stage = 'active'{tagged * len(tags)}"
    )
    try:
        return bool(_rows(path, query, name, *(part for pair in tags.items() for part in pair)))
    except sqlite3.DatabaseError:  # damaged, locked or without tables, which MLflow will say
        return False


def _rows(path: Path, query: str, *values: str) -> list[Any]:
    """What is asked of a file of SQLite; nothing is written, unless a process was killed while it wrote."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
        return database.execute(query, values).fetchall()


def _is_unfinished(path: Path) -> bool:
    """Whether MLflow was interrupted while it made or upgraded a store, which it cannot go on with."""
    from mlflow.store.db.utils import _get_latest_schema_revision

    latest = _get_latest_schema_revision()  # type: ignore[no-untyped-call]
    try:
        return _rows(path, "SELECT version_num FROM alembic_version") != [(latest,)]
    except sqlite3.DatabaseError as error:
        return "no such table" in str(error)


def _make_database(path: Path) -> None:
    """Make the project's own store, at once: MLflow takes seconds, and cannot go on if it was interrupted."""
    from mlflow.store.db.utils import _initialize_tables
    from sqlalchemy import create_engine

    memory: Any = create_engine("sqlite://")
    _initialize_tables(memory)  # type: ignore[no-untyped-call]
    path = path.resolve()  # a link may lead to another disk
    Path(f"{path}-journal").unlink(missing_ok=True)  # of a store that was removed; SQLite would apply it to the new one
    write_bytes(path.parent, {path.name: memory.raw_connection().driver_connection.serialize()})


def send_missing(tracker: Tracker, folds: Iterable[Fold], counter: Progress | None = None) -> None:
    """Send the folds that the current store does not have yet.

    Args:
        counter: counts the folds that the store has.

    Raises:
        ArtifactError: one of them is damaged; none is sent.
    """
    if (root := tracker.root) is None:
        return
    folds = list(folds)
    for fold in folds:
        if fold.folder not in tracker.stored and not is_sent(root, fold):
            fold.check()
    for fold in folds:
        tracker.finish(fold)
        if counter is not None:
            tracker._put(counter.advance)


def check_database(root: Path, *, whole: bool = False) -> None:
    """Refuse a local store that MLflow would try to open again and again, for two minutes.

    Args:
        whole: read the whole file, not its beginning alone.

    Raises:
        ArtifactError: the path has characters that change their meaning in an address, or the file is damaged.
    """
    if store_uri(root) != _local_uri(root):
        return
    path = root / DATABASE
    if found := re.search(r"%[0-9a-fA-F]{2}|[?]", str(path)):
        raise ArtifactError(
            f"MLflow cannot keep its store at {path}, because of the '{found[0]}' in the path",
            fix="move the project, or set MLFLOW_TRACKING_URI",
        )
    if not path.exists():
        return
    try:
        beginning = "SELECT 'ok' FROM (SELECT count(*) FROM sqlite_master)"
        answer = _rows(path, "PRAGMA quick_check(1)" if whole else beginning)[0][0]
    except sqlite3.DatabaseError as error:
        answer = "ok" if "locked" in str(error) else str(error)  # somebody writes to it
    if answer != "ok":
        raise ArtifactError(
            f"{path} is damaged ({' '.join(answer.split())})",
            fix=MADE_AGAIN,
        )


def _artifacts(root: Path) -> str | None:
    """Artifact folder of the local store; None if a server chooses it."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (root / "mlartifacts").as_uri()


def artifacts_elsewhere(root: Path) -> list[str]:
    """Artifact folders in the project's own store that are those of other projects: it was copied or moved."""
    own, path = _artifacts(root), root / DATABASE
    if own is None or not path.exists():
        return []
    query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE 'file://%/mlartifacts'"
    try:
        return [found for (found,) in _rows(path, query) if found != own]
    except sqlite3.DatabaseError:  # damaged, or without tables, which MLflow will say
        return []


def correct_artifacts(root: Path) -> None:
    """Make the store of a copied or moved project name its own artifact folder, not the one that it came from.

    Raises:
        ArtifactError: the store is locked, or the file system refuses the write.
    """
    try:
        for old in artifacts_elsewhere(root):
            with closing(sqlite3.connect(root / DATABASE, timeout=WRITE_TIMEOUT_S)) as database, database:
                for table, column in (path.split(".") for path in STORED_PATHS.split()):
                    moved = f"UPDATE {table} SET {column} = ?1 || substr({column}, length(?2) + 1) "
                    moved += f"WHERE instr({column} || '/', ?2 || '/') = 1"
                    database.execute(moved, (_artifacts(root), old))
    except sqlite3.OperationalError as error:
        raise ArtifactError(f"{root / DATABASE} cannot be changed: {error}", fix=repair_of_store(root)) from error


def repair_of_store(root: Path) -> str:
    """What helps if the store takes nothing."""
    if store_uri(root) == _local_uri(root) and _is_unfinished(root / DATABASE):
        return MADE_AGAIN
    if _file_of(root) is not None:
        return "end what else writes to it, free space, or fix permissions, then: daamctl track"
    return "start the tracking server or fix MLFLOW_TRACKING_URI, then: daamctl track"


def shown_store(root: Path) -> str:
    """Address of the store without credentials, for messages and files."""
    return without_credentials(store_uri(root))


def _first_line(error: Exception) -> str:
    """First line of what an error says, without credentials; SQLAlchemy begins with when it was raised."""
    lines = [line for line in without_credentials(str(error)).splitlines() if not line.startswith("(raised as")]
    return lines[0][:200] if lines else type(error).__name__


def without_credentials(text: str) -> str:
    """A text without the `user:password@` of its addresses."""
    return re.sub(r"://[^/\s]*@", "://", text)


def _in_metric_name(settings: Mapping[str, float | str]) -> str:
    """Settings as text for a metric name. MLflow allows neither = nor + there."""
    words = (f"{key} {value if isinstance(value, str) else f'{value:g}'}" for key, value in settings.items())
    return " ".join(words).replace("e+", "e")


def _points(values: Mapping[str, float | None]) -> list[Point]:
    """Metrics, at the epoch or step that is among them, else at 0."""
    step = int(values.get("epoch") or values.get("step") or 0)
    return [(name, value, step) for name, value in values.items() if name not in ("epoch", "step")]
