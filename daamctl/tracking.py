"""Tracking in MLflow. A slow or failing store neither stops training nor loses results.

MLflow is a copy: everything that a run logs is also in its fold folder. A background thread sends events from a queue.
If the store fails, the thread stops sending with one warning. `daamctl track`, or the next training of the same
pipeline, sends what is missing. A small file per fold in `.daamctl/tracking/` records what was sent.

Each pipeline is an experiment. The tag `kind` says what a run is: `method` or `ablation`, with the mean over the runs
of kind `fold` that are nested below it; or `report`. The tag `state` is `superseded` once a fold was trained again,
else `current`. Closed-form probes are sent by stage `report`, `daamctl track` or `daamctl ui`.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode

from daamctl.artifacts.io import locked, read_json, sha256_file, write_json
from daamctl.artifacts.results import Fold, SearchPart
from daamctl.artifacts.terms import encoder_label
from daamctl.environment import no_telemetry
from daamctl.errors import ArtifactError

if TYPE_CHECKING:
    from filelock import FileLock
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 60.0
MAX_PARAM_CHARS = 500
MAX_METRICS = 1000  # per call of MLflow
MEANS = ("accuracy", "entity_f1")
"""Results of folds whose mean their parent shows."""
DATABASE = "mlflow.db"
TRACKING = Path(".daamctl") / "tracking"
"""Folder of the notes on what was sent, below the project folder."""
STATE, CURRENT, SUPERSEDED = "state", "current", "superseded"


class Tracker(Protocol):
    """A place to log runs. A run starts, logs epochs, and finishes with a fold on disk."""

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Start one run.

        Args:
            name: pipeline or ad-hoc run.
            folder: that of the method's folds.
            fold: number of the fold.
            seed: its seed.
        """

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        """Log one epoch of the run in progress."""

    def finish(self, fold: Fold) -> None:
        """Log parameters, results and files of the finished fold and end the run."""

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log a report as the run `report` of its pipeline, and replace an earlier one."""

    def close(self) -> None:
        """Wait, for a limited time, until everything is sent."""


class NoTracker:
    """Logs nothing."""

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Do nothing."""

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        """Do nothing."""

    def finish(self, fold: Fold) -> None:
        """Do nothing."""

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def store_uri(root: Path) -> str:
    """MLFLOW_TRACKING_URI, or the SQLite store inside the project."""
    return os.environ.get("MLFLOW_TRACKING_URI") or _local_uri(root)


def _local_uri(root: Path) -> str:
    return f"sqlite:///{root / DATABASE}"


def run_links(root: Path, address: str) -> dict[str, str]:
    """Links to the runs of this project in the MLflow UI, without those that are superseded.

    Args:
        root: project folder.
        address: where the UI answers, e.g. `http://127.0.0.1:5000`.

    Returns:
        Pipeline or ad-hoc run -> link to its experiment. MLflow 3 would open pages for language models by default.

    Raises:
        ArtifactError: nothing was sent to the store, or it cannot be read.
    """
    names = sorted(path.name for path in (root / TRACKING).glob("*") if path.is_dir())
    query = urlencode({"workflowType": "machine_learning", "searchFilter": f"tags.{STATE} = '{CURRENT}'"})
    links = {
        name: f"{address.rstrip('/')}/#/experiments/{number}/runs?{query}"
        for name, number in (_experiments(root, names) if names else {}).items()
    }
    if not links:
        raise ArtifactError(
            f"MLflow at {shown_store(root)} has no runs of this project",
            fix="run a pipeline (daamctl run demo), or send finished runs: daamctl track",
        )
    return links


def _experiments(root: Path, names: Sequence[str]) -> dict[str, str]:
    """Name -> id of the experiments that the store has.

    Raises:
        ArtifactError: the store cannot be read.
    """
    _check_database(root, whole=True)
    try:
        client = _Sender(root).client
        found = [client.get_experiment_by_name(name) for name in names]
    except ArtifactError:
        raise
    except Exception as error:  # a tracking store may fail in any way
        raise ArtifactError(
            f"MLflow at {shown_store(root)} cannot be read: {_first_line(error)}",
            fix="start the tracking server or fix MLFLOW_TRACKING_URI, then run it again",
        ) from error
    return {one.name: one.experiment_id for one in found if one is not None and one.lifecycle_stage == "active"}


class MLflowTracker:
    """Logs to MLflow from a background thread.

    Args:
        root: project folder.
        close_timeout_s: longest wait in `close`, in seconds.
        again: command that sends what is missing; warnings name it.
    """

    def __init__(self, root: Path, *, close_timeout_s: float = CLOSE_TIMEOUT_S, again: str = "daamctl track") -> None:
        self.root = root
        self.again = again
        self.close_timeout_s = close_timeout_s
        self._sender = _Sender(root)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Start one run."""
        self._queue.put(lambda: self._sender.start(name, folder, fold, seed))

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        """Log one epoch of the run in progress."""
        copy = dict(entry)
        self._queue.put(lambda: self._sender.epoch(copy))

    def finish(self, fold: Fold) -> None:
        """Log parameters, results and files of the finished fold and end the run."""
        self._queue.put(lambda: self._sender.finish(fold))

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log a report as the run `report` of its pipeline, and replace an earlier one.

        A report that was logged already is not logged again.

        Args:
            name: pipeline or ad-hoc run.
            folder: folder with report.html and tables/.
            metrics: main results.
            tags: what the results are of.
        """
        self._queue.put(lambda: self._sender.report(name, folder, metrics, tags))

    def send(self, fold: Fold, *, look: bool = False) -> None:
        """Log a fold that finished earlier, unless it was sent already.

        Args:
            fold: the fold.
            look: look in the store whether the run is still there, instead of trusting our own record.
        """
        self._queue.put(lambda: self._sender.send(fold, look=look))

    @property
    def num_finished(self) -> int:
        """Number of folds that were logged completely."""
        return self._sender.num_finished

    def close(self) -> None:
        """Wait until everything is sent, but not longer than `close_timeout_s`."""
        self._queue.put(None)
        self._thread.join(self.close_timeout_s)
        if self._thread.is_alive():
            log.warning(
                "MLflow at %s is slow. Send the remaining runs later with: %s", shown_store(self.root), self.again
            )

    def _work(self) -> None:
        while (event := self._queue.get()) is not None:
            if self._failed:
                continue
            try:
                event()
            except Exception as error:  # a tracking store may fail in any way; training must go on
                self._failed = True
                self._sender.release()
                log.warning(
                    "MLflow at %s does not accept our runs (%s). Results are safe in data/; send them later with: %s",
                    shown_store(self.root),
                    _first_line(error),
                    self.again,
                )
        self._sender.release()


class _Sender:
    """The calls to MLflow. Only one thread may use it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._client: MlflowClient | None = None
        self._run_id = self._parent_id = ""
        self._replaces: list[str] = []
        self.num_finished = 0
        self._started: tuple[str, Path, int, int] | None = None
        self._claim: FileLock | None = None

    @property
    def client(self) -> MlflowClient:
        """The client, created on first use because importing mlflow takes seconds."""
        if self._client is None:
            no_telemetry()
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
            from mlflow import MlflowClient

            logging.getLogger("alembic").setLevel(logging.WARNING)
            uri = store_uri(self.root)
            _check_database(self.root)
            # Two processes that create the tables of one SQLite file at the same time make each other fail.
            alone = locked(self.root / ".daamctl" / "mlflow.lock", what="the tracking store")
            with alone if uri.startswith("sqlite:") else nullcontext():
                self._client = MlflowClient(uri)
                self._client.search_experiments(max_results=1)
        return self._client

    def send(self, fold: Fold, *, look: bool = False) -> None:
        run = fold.result["run"]
        self.start(run["pipeline"], fold.folder.parent, run["fold"], run["seed"])
        if not self.is_stored(fold, look=look) and self._begin(fold):
            for entry in fold.history().to_dicts():
                self.epoch(entry)
            self.finish(fold)

    def is_stored(self, fold: Fold, *, look: bool) -> bool:
        """Whether the store has a fold: by our record and, if the store is open or `look`, by its own."""
        run = fold.result["run"]
        note = _note(self.root, run["pipeline"], _address(fold), run["fold"], run["seed"])
        return is_sent(self.root, fold) and self._has(_read_note(note)["run_id"], look=look)

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Remember which run comes next. It is made with its first epoch: another process may finish the fold first."""
        self._run_id, self._started = "", (name, folder, fold, seed)

    def _begin(self, finished: Fold | None = None) -> bool:
        """Make the run that was started, unless another process logs the same fold at this moment, or just has.

        Args:
            finished: the fold, if it is finished.
        """
        if self._started is None:
            return False
        (name, folder, fold, seed), self._started = self._started, None
        method, store = folder.name, shown_store(self.root)
        note = _note(self.root, name, method, fold, seed)
        if not self._take(note.with_suffix(".lock")):
            return False
        if finished is not None and self.is_stored(finished, look=True):
            self.release()
            return False
        before = _read_note(note)
        if before.get("store") != store:
            before = {}
        self._end_interrupted(before)
        self._replaces = [*before.get("replaces", []), *([before["run_id"]] if before else [])]
        self._parent_id = self._parent(name, folder)
        tags = {"pipeline": name, "method": method, "fold": str(fold), "seed": str(seed)}
        tags |= {"kind": "fold", STATE: CURRENT, "mlflow.parentRunId": self._parent_id}
        run = self.client.create_run(self._experiment(name), run_name=f"{method}-fold{fold}-seed{seed}", tags=tags)
        self._run_id = run.info.run_id
        write_json(note, {"run_id": self._run_id, "store": store, "key": None, "replaces": self._replaces})
        return True

    def _take(self, path: Path) -> bool:
        """Claim a fold for this process until `release`; False if another process logs it."""
        from filelock import FileLock, Timeout

        self.release()
        path.parent.mkdir(parents=True, exist_ok=True)
        claim = FileLock(path)
        try:
            claim.acquire(timeout=0)
        except Timeout:
            return False
        self._claim = claim
        return True

    def release(self) -> None:
        """Let other processes log the fold."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        if not self._run_id and not self._begin():
            return
        self._metrics(self._run_id, {k: v for k, v in entry.items() if k != "epoch"}, step=int(entry["epoch"] or 0))

    def finish(self, fold: Fold) -> None:
        from mlflow.entities import Param, RunTag

        if not self._run_id:  # not trained by this process, or not logged while it was trained
            self.send(fold)
            return
        run, meta = fold.result["run"], fold.result["meta"]
        params = [Param(key, str(value)[:MAX_PARAM_CHARS]) for key, value in _flat(run["config"])]
        sizes = {
            "num_parameters": run["num_parameters"],
            "num_layers": len(run["layers"]),
            "embed_dim": run["embed_dim"],
        }
        params += [Param(key, str(value)) for key, value in sizes.items()]
        facts = {
            "git_commit": meta["git_commit"] or "none",
            "embeddings_key": meta["embeddings_key"],
            "device": meta["device"],
            "precision": meta["precision"],
            "encoder": encoder_label(meta["encoder"], run["config"].get("extract", {})),
            "test_group": run["test_group"],
            "dev_group": run["dev_group"] or "none",
            "key": run["key"],
        }
        if run.get("reconstructed"):
            facts["reconstructed"] = run["reconstructed"]
        search = fold.result.get("search")
        if search is not None:
            chosen = search["candidates"][search["chosen"]]["settings"]
            params += [Param(f"chosen.{key}", str(value)) for key, value in chosen.items()]
            facts["search.chosen"] = json.dumps(chosen)
            facts["search.edges"] = ", ".join(search["edges"]) or "none"
            facts["search.candidates"] = str(len(search["candidates"]))
            self._curves(search)
        for start in range(0, len(params), 100):  # MLflow accepts at most 100 params per call
            self.client.log_batch(self._run_id, params=params[start : start + 100])
        self.client.log_batch(self._run_id, tags=[RunTag(key, value) for key, value in facts.items()])
        results = dict(fold.result["metrics"])
        results["selected_dev_accuracy"] = results.pop("dev_accuracy")  # an epoch has a metric of that name
        self._metrics(self._run_id, {**results, "train_s": meta["train_s"]}, step=0)
        self.client.log_artifacts(self._run_id, str(fold.folder))
        self.client.set_terminated(self._run_id, "FINISHED")
        for old in self._replaces:
            self._if_there(old, lambda run_id: self.client.set_tag(run_id, STATE, SUPERSEDED))
        self._summarise(run["pipeline"])
        note = _note(self.root, run["pipeline"], _address(fold), run["fold"], run["seed"])
        write_json(note, {"run_id": self._run_id, "store": shown_store(self.root), "key": run["key"]})
        self._run_id = ""
        self.num_finished += 1
        self.release()

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        note, store = _note_path(self.root, name, "report"), shown_store(self.root)
        before = _read_note(note)
        key = sha256_file(folder / "report.html")
        if before.get("store") != store:
            before = {}
        if before.get("key") == key and self._has(before["run_id"], look=False):
            return
        replaced = [*before.get("replaces", []), *([before["run_id"]] if before else [])]
        run = self.client.create_run(
            self._experiment(name), run_name="report", tags={"pipeline": name, "kind": "report", STATE: CURRENT, **tags}
        )
        self._run_id = run.info.run_id
        entry = {"run_id": self._run_id, "store": store, "key": None, "replaces": replaced}
        write_json(note, entry)
        self._metrics(self._run_id, metrics, step=0)
        self.client.log_artifact(self._run_id, str(folder / "report.html"))
        self.client.log_artifacts(self._run_id, str(folder / "tables"), "tables")
        self.client.set_terminated(self._run_id, "FINISHED")
        for old in replaced:
            self._if_there(old, self.client.delete_run)
        write_json(note, {**entry, "key": key, "replaces": []})

    def _metrics(self, run_id: str, values: Mapping[str, float | int | None], *, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(key, float(value), now, step) for key, value in values.items() if value is not None]
        self.client.log_batch(run_id, metrics=metrics)

    def _curves(self, search: SearchPart) -> None:
        """Log the curve of every candidate on the held-out group, each as its own metric.

        Args:
            search: the candidates of the fold.
        """
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(f"search/{name} {words}", value, now, epoch)
            for one in search["candidates"]
            for words in [_in_metric_name(one["settings"])]
            for name, values in (("dev_accuracy", one["dev_accuracy"]), ("dev_loss", one["dev_loss"]))
            for epoch, value in enumerate(values, start=1)
        ]
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_batch(self._run_id, metrics=metrics[start : start + MAX_METRICS])

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                tags = {"mlflow.experimentKind": "custom_model_development"}  # the view that the UI opens
                return str(self.client.create_experiment(name, _artifacts(self.root), tags))
            except MlflowException:  # another process created it first
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _parent(self, name: str, folder: Path) -> str:
        """The run under which the folds of a method are nested; made if it is not in the store."""
        note, store = _note_path(self.root, name, folder.name), shown_store(self.root)
        with locked(note.with_suffix(".lock"), what=f"the MLflow run of {folder.name}"):
            known = _read_note(note)
            if known.get("store") == store and self._is_there(known["run_id"]):
                return str(known["run_id"])
            kind = "ablation" if folder.parent.parent.name == "ablate" else "method"
            tags = {"pipeline": name, "method": folder.name, "kind": kind, STATE: CURRENT}
            run = self.client.create_run(self._experiment(name), run_name=folder.name, tags=tags)
            write_json(note, {"run_id": run.info.run_id, "store": store})
            return str(run.info.run_id)

    def _summarise(self, pipeline: str) -> None:
        """Log the means over the finished folds of a method to their parent."""
        chosen = f"tags.`mlflow.parentRunId` = '{self._parent_id}' and tags.{STATE} = '{CURRENT}'"
        runs = self.client.search_runs([self._experiment(pipeline)], f"{chosen} and attributes.status = 'FINISHED'")
        found = {name: [run.data.metrics[name] for run in runs if name in run.data.metrics] for name in MEANS}
        means = {name: fmean(values) for name, values in found.items() if values}
        if means:
            self._metrics(self._parent_id, {**means, "folds": len(runs)}, step=0)
        self.client.set_terminated(self._parent_id, "FINISHED")

    def _end_interrupted(self, note: dict[str, Any]) -> None:
        """Mark the run that was in progress when its process was killed; otherwise it would stay `running`."""
        if note and note["key"] is None:
            self._if_there(note["run_id"], lambda run_id: self.client.set_terminated(run_id, "KILLED"))

    def _is_there(self, run_id: str) -> bool:
        """Whether the store has a run that nobody deleted."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self.client.get_run(run_id).info.lifecycle_stage == "active")
        except MlflowException:
            return False

    def _has(self, run_id: str, *, look: bool) -> bool:
        """Like `_is_there`, but a store that is not open, which would take seconds, is believed unless `look`."""
        if look or self._client is not None:
            return self._is_there(run_id)
        return _store_exists(self.root)

    def _if_there(self, run_id: str, action: Callable[[str], object]) -> None:
        """Do something with a run, unless somebody deleted it from the store."""
        from mlflow.exceptions import MlflowException

        try:
            action(run_id)
        except MlflowException:
            log.debug("run %s is gone from the store", run_id)


def make_tracker(root: Path, *, enabled: bool = True, again: str = "daamctl track") -> Tracker:
    """A tracker for MLflow, or one that logs nothing if tracking is disabled.

    Args:
        root: project folder.
        enabled: log to MLflow.
        again: command that sends what is missing; warnings name it.
    """
    return MLflowTracker(root, again=again) if enabled else NoTracker()


EXPORTED = "exported-models"
"""Experiment of the runs that hold exported models."""


def register_model(root: Path, folder: Path, name: str) -> str:
    """Send an exported model to MLflow and register it as a new version of a registered model.

    Args:
        root: project folder.
        folder: the exported model, with its file `MLmodel`.
        name: name in the model registry; made if it is not there.

    Returns:
        The new version.

    Raises:
        ArtifactError: the store cannot be reached or refuses the model.
    """
    sender = _Sender(root)
    try:
        from mlflow.exceptions import MlflowException

        client = sender.client
        run = client.create_run(sender._experiment(EXPORTED), run_name=name)
        client.log_artifacts(run.info.run_id, str(folder), "model")
        client.set_terminated(run.info.run_id)
        try:
            client.get_registered_model(name)
        except MlflowException:
            client.create_registered_model(name)
        source = f"{run.info.artifact_uri}/model"
        return str(client.create_model_version(name, source, run_id=run.info.run_id).version)
    except ArtifactError:
        raise
    except Exception as error:  # of MLflow, its database and its network
        raise ArtifactError(
            f"MLflow does not register '{name}': {without_credentials(_first_line(error))}",
            fix="correct the name, or the tracking server (MLFLOW_TRACKING_URI); then export again with --force",
        ) from error


def is_sent(root: Path, fold: Fold) -> bool:
    """Whether the current store has this result, by our own record of what was sent."""
    run = fold.result["run"]
    note = _read_note(_note(root, run["pipeline"], _address(fold), run["fold"], run["seed"]))
    return bool(note.get("key") == run["key"] and note.get("store") == shown_store(root)) and _store_exists(root)


def send_missing(tracker: Tracker, folds: Iterable[Fold]) -> None:
    """Send the folds that the current store does not have yet."""
    if isinstance(tracker, MLflowTracker):
        for fold in folds:
            tracker.send(fold)


def _store_exists(root: Path) -> bool:
    """False if the store was in a file and the file is gone."""
    uri = store_uri(root)
    return not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).is_file()


def _address(fold: Fold) -> str:
    """Method folder name: the method, with the layers in an ablation."""
    return fold.folder.parent.name


def _note(root: Path, name: str, method: str, fold: int, seed: int) -> Path:
    return _note_path(root, name, f"{method}-fold{fold}-seed{seed}")


def _read_note(path: Path) -> dict[str, Any]:
    """What was sent of a run; empty if nothing, or if the note is damaged."""
    try:
        found = read_json(path)
    except ArtifactError:
        return {}
    return found if isinstance(found, dict) and "run_id" in found else {}


def _note_path(root: Path, name: str, run: str) -> Path:
    return root / TRACKING / name / f"{run}.json"


def _check_database(root: Path, *, whole: bool = False) -> None:
    """Refuse a local store that MLflow would try to open again and again, for two minutes.

    Args:
        root: project folder.
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
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            answer = database.execute("PRAGMA quick_check(1)").fetchone()[0] if whole else "ok"
    except sqlite3.OperationalError as error:
        if "locked" in str(error):  # somebody writes to it
            return
        answer = str(error)
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        raise ArtifactError(
            f"{path} is damaged ({' '.join(answer.split())})",
            fix=f"move it away, then send all runs again: mv {DATABASE} {DATABASE}.damaged; daamctl track",
        )


def _artifacts(root: Path) -> str | None:
    """Artifact folder of the local store; None if a server chooses it."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (root / "mlartifacts").as_uri()


def shown_store(root: Path) -> str:
    """Address of the store without credentials, for messages and files."""
    return without_credentials(store_uri(root))


def _first_line(error: Exception) -> str:
    """First line of what an error says, without credentials."""
    return without_credentials(str(error)).splitlines()[0][:200] if str(error) else type(error).__name__


def without_credentials(text: str) -> str:
    """A text without the `user:password@` of its addresses."""
    return re.sub(r"://[^/\s]*@", "://", text)


def _in_metric_name(settings: Mapping[str, float | str]) -> str:
    """Settings as text for a metric name. MLflow allows neither = nor + there."""
    words = (f"{key} {value if isinstance(value, str) else f'{value:g}'}" for key, value in settings.items())
    return " ".join(words).replace("e+", "e")


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    items: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            items += _flat(value, f"{prefix}{key}.")
        else:
            items.append((f"{prefix}{key}", value))
    return items
