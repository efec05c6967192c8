"""Tracking in MLflow. A slow or failing store neither stops training nor loses results.

MLflow is a copy: everything that a run logs is also in its fold folder. A background thread sends events from a queue.
If the store fails, the thread stops sending with one warning. `daamctl track`, or the next training of the same
pipeline, sends what is missing. A small file per fold in `.daamctl/tracking/` records what was sent; where it is lost,
the run is found by the fold's content key. A project may be copied and moved: the notes name no folder, and in its own
store the artifact folder is corrected.

Each pipeline is an experiment. The tag `kind` says what a run is: `method` or `ablation`, with the mean over the runs
of kind `fold` that are nested below it; or `report`. The tag `state` is `superseded` once a fold was trained again,
else `current`. Closed-form probes are sent by stage `report` or `daamctl track`. Stage `report` also adds a method's
pictures and figures to its run.
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
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from daamctl.artifacts.results import Fold, SearchPart, intact_folds
from daamctl.artifacts.terms import encoder_label
from daamctl.data.task import TASKS
from daamctl.environment import no_telemetry
from daamctl.errors import ArtifactError
from daamctl.store.files import locked, read_json, sha256_file, write_json

if TYPE_CHECKING:
    from filelock import FileLock
    from mlflow import MlflowClient
    from mlflow.entities import Run

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 60.0
MAX_PARAM_CHARS = 500
MAX_METRICS = 1000  # per call of MLflow
MAX_LINKS = 25  # in a tag, which MLflow limits to 5000 characters
MEANS = tuple(dict.fromkeys(task.primary for task in TASKS.values()))
"""Results of folds whose mean their parent shows."""
DATABASE = "mlflow.db"
TRACKING = Path(".daamctl") / "tracking"
"""Folder of the notes on what was sent, below the project folder."""
STATE, CURRENT, SUPERSEDED = "state", "current", "superseded"
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
    folders = (root / TRACKING, *(root / "data" / stage for stage in ("train", "report")))
    names = sorted({path.name for folder in folders for path in folder.glob("*") if path.is_dir()})
    links = {}
    for name, (number, has_view) in (_experiments(root, names) if names and _store_exists(root) else {}).items():
        # columns cannot stand in a link, and MLflow ignores a view if it has a filter or an order too
        table = {"viewStateShareKey": VIEW} if has_view else {"searchFilter": SHOWN, **_order("accuracy")}
        query = urlencode({"workflowType": "machine_learning", **table})
        links[name] = f"{address.rstrip('/')}/#/experiments/{number}/runs?{query}"
    if not links:
        raise ArtifactError(
            f"MLflow at {shown_store(root)} has no runs of this project",
            fix="run a pipeline (daamctl run demo), or send finished runs: daamctl track",
        )
    return links


def _order(metric: str) -> dict[str, str]:
    return {"orderByKey": f"metrics.`{metric}`", "orderByAsc": "false"}


def _view(metric: str) -> str:
    """The table that `run_links` opens, as MLflow's UI stores it."""
    columns = [f"metrics.`{metric}`", *(f"tags.`{name}`" for name in COLUMNS)]
    table = {"searchFilter": SHOWN, **_order(metric), "orderByAsc": False}
    return json.dumps({**table, "selectedColumns": columns, "columnOrder": columns})


def not_sent(root: Path, folds: Sequence[Fold]) -> list[Fold]:
    """The folds that the store does not have. Writes nothing."""
    left = [fold for fold in folds if not is_sent(root, fold)]
    if not left or not _store_exists(root):
        return left
    sender = _Sender(root, writes=False)
    return [fold for fold in left if sender.find(fold) is None]


def _experiments(root: Path, names: Sequence[str]) -> dict[str, tuple[str, bool]]:
    """Name -> id of the experiments that the store has, and whether they have our view.

    Raises:
        ArtifactError: the store cannot be read.
    """
    _check_database(root, whole=True)
    try:
        client = _Sender(root, writes=False).client
        found = [client.get_experiment_by_name(name) for name in names]
    except ArtifactError:
        raise
    except Exception as error:  # a tracking store may fail in any way
        raise ArtifactError(
            f"MLflow at {shown_store(root)} cannot be read: {_first_line(error)}",
            fix="start the tracking server or fix MLFLOW_TRACKING_URI, then run it again",
        ) from error
    there = [one for one in found if one is not None and one.lifecycle_stage == "active"]
    return {one.name: (one.experiment_id, VIEW_TAG in one.tags) for one in there}


class Tracker:
    """Logs runs to MLflow from a background thread. A run starts, logs epochs, and finishes with a fold on disk.

    MLflow's own asynchronous logging sends metrics alone, and waits without a limit at the end of the process; here a
    slow or dead server holds neither the making of a run nor its files nor the end.

    Args:
        root: the project; None: nothing is logged.
        close_timeout_s: longest wait in `close`, in seconds.
        again: command that sends what is missing; warnings name it.
    """

    def __init__(
        self, root: Path | None = None, *, close_timeout_s: float = CLOSE_TIMEOUT_S, again: str = "daamctl track"
    ) -> None:
        self.root, self.again, self.close_timeout_s = root, again, close_timeout_s
        self._failed = False
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        if root is not None:
            self._sender = _Sender(root)
            self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
            self._thread.start()

    def start(self, name: str, folder: Path, fold: int, seed: int) -> None:
        """Start one run of a pipeline or ad-hoc run `name`, whose folds are in `folder`."""
        self._put(_Sender.start, name, folder, fold, seed)

    def epoch(self, entry: Mapping[str, float | int | None]) -> None:
        """Log one epoch of the run in progress."""
        self._put(_Sender.epoch, dict(entry))

    def finish(self, fold: Fold) -> None:
        """Log parameters, results and files of the finished fold and end the run."""
        self._put(_Sender.finish, fold)

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log a report as the run `report` of the pipeline `name`, and replace an earlier one if it differs."""
        self._put(_Sender.report, name, folder, metrics, tags)

    def send(self, fold: Fold, *, look: bool = False) -> None:
        """Log a fold that finished earlier, unless it was sent already.

        Args:
            look: look in the store whether the run is still there, instead of trusting our own record.
        """
        self._put(partial(_Sender.send, look=look), fold)

    @property
    def num_finished(self) -> int:
        """Number of folds that were logged completely."""
        return 0 if self.root is None else self._sender.num_finished

    def close(self) -> None:
        """Wait until everything is sent, but not longer than `close_timeout_s`."""
        if self.root is None:
            return
        self._queue.put(None)
        self._thread.join(self.close_timeout_s)
        if self._thread.is_alive():
            words = "MLflow at %s is slow. Send the remaining runs later with: %s"
            log.warning(words, shown_store(self.root), self.again)

    def _put(self, event: Callable[..., object], *words: Any) -> None:
        if self.root is not None:
            self._queue.put(partial(event, self._sender, *words))

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
                    shown_store(self._sender.root),
                    _first_line(error),
                    self.again,
                )
        self._sender.release()


class _Sender:
    """The calls to MLflow. Only one thread may use it. With `writes=False`, the store is only read."""

    def __init__(self, root: Path, *, writes: bool = True) -> None:
        self.root, self.writes = root, writes
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
                if self.writes:
                    _correct_artifacts(self.root)
        return self._client

    def send(self, fold: Fold, *, look: bool = False) -> None:
        run = fold.result["run"]
        self.start(run["pipeline"], fold.folder.parent, run["fold"], run["seed"])
        if not self.is_stored(fold, look=look) and self._begin(fold):
            for entry in fold.history().to_dicts():
                self.epoch(entry)
            self.finish(fold)

    def is_stored(self, fold: Fold, *, look: bool) -> bool:
        """Whether the store has a fold: by our record and, if it is open or `look`, by its own; else by the key."""
        note = _note_of(self.root, fold)
        if is_sent(self.root, fold) and self._has(_read_note(self.root, note)["run_id"], look=look):
            return True
        found = self.find(fold)
        if found is not None:  # the project was copied without our notes, or another copy of it has sent the fold
            self._note(note, found.info.run_id, key=fold.result["run"]["key"])
        return found is not None

    def find(self, fold: Fold) -> Run | None:
        """The run of a fold, by its content key."""
        run = fold.result["run"]
        return self._find(run["pipeline"], kind="fold", method=fold.folder.parent.name, key=run["key"])

    def _find(self, name: str, **tags: str) -> Run | None:
        """A finished run with these tags that is not superseded."""
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            return None
        chosen = "".join(f" and tags.{key} = '{value}'" for key, value in tags.items())
        chosen = f"{SHOWN} and attributes.status = 'FINISHED'{chosen}"
        return next(iter(self.client.search_runs([experiment.experiment_id], chosen, max_results=1)), None)

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
        run_name = f"{folder.name}-fold{fold}-seed{seed}"
        note = _note_path(self.root, name, run_name)
        if not self._take(note.with_suffix(".lock")):
            return False
        if finished is not None and self.is_stored(finished, look=True):
            self.release()
            return False
        before = _read_note(self.root, note)
        if before and before["key"] is None:  # its process was killed, or it would stay `running`
            self._if_there(before["run_id"], lambda run_id: self.client.set_terminated(run_id, "KILLED"))
        self._replaces = [*before.get("replaces", []), *([before["run_id"]] if before else [])]
        self._parent_id = self._parent(name, folder)
        tags = {"pipeline": name, "method": folder.name, "fold": str(fold), "seed": str(seed)}
        tags |= {"kind": "fold", STATE: CURRENT, "mlflow.parentRunId": self._parent_id}
        run = self.client.create_run(self._experiment(name), run_name=run_name, tags=tags)
        self._run_id = run.info.run_id
        self._note(note, self._run_id, key=None, replaces=self._replaces)
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
        figures = {name: value for name, value in entry.items() if name not in ("epoch", "step")}
        self._metrics(self._run_id, figures, step=int(entry["epoch"] or entry["step"] or 0))

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
        for name in ("train_accuracy", "dev_accuracy"):  # a record has metrics of these names
            results[f"selected_{name}"] = results.pop(name, None)
        self._metrics(self._run_id, {**results, "train_s": meta["train_s"]}, step=0)
        self.client.log_artifacts(self._run_id, str(fold.folder))
        self.client.set_terminated(self._run_id, "FINISHED")
        for old in self._replaces:
            self._if_there(old, lambda run_id: self.client.set_tag(run_id, STATE, SUPERSEDED))
        self._summarise(run["pipeline"], facts["encoder"])
        self._note(_note_of(self.root, fold), self._run_id, key=run["key"])
        self._run_id = ""
        self.num_finished += 1
        self.release()

    def report(self, name: str, folder: Path, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        note = _note_path(self.root, name, "report")
        before = _read_note(self.root, note)
        key = sha256_file(folder / "report.html")
        if before.get("key") == key and self._has(before["run_id"], look=False):
            return
        if (found := self._find(name, kind="report", key=key)) is not None:
            self._note(note, found.info.run_id, key=key)
            return
        replaced = [*before.get("replaces", []), *([before["run_id"]] if before else [])]
        tags = {"pipeline": name, "kind": "report", STATE: CURRENT, "key": key, **tags}
        run = self.client.create_run(self._experiment(name), run_name="report", tags=tags)
        self._run_id = run.info.run_id
        self._note(note, self._run_id, key=None, replaces=replaced)
        self._metrics(self._run_id, metrics, step=0)
        self.client.log_artifact(self._run_id, str(folder / "report.html"))
        self.client.log_artifacts(self._run_id, str(folder / "tables"), "tables")
        self.client.set_terminated(self._run_id, "FINISHED")
        for old in replaced:
            self._if_there(old, self.client.delete_run)
        self._add_files(name, folder)
        self._note(note, self._run_id, key=key)

    def _note(self, path: Path, run_id: str, **more: Any) -> None:
        write_json(path, {"run_id": run_id, "store": _store_name(self.root), **more})

    def _add_files(self, name: str, folder: Path) -> None:
        """Add the pictures that a report shows of a method, `<method>-<what>.png`, and its figures to its run."""
        figures = folder.parents[1] / "metrics" / name
        for path in sorted([*figures.glob("*.json"), *(folder / "pictures").glob("*-*.png")]):
            method = path.stem if path.parent == figures else path.stem.rpartition("-")[0]
            if note := _read_note(self.root, _note_path(self.root, name, method)):
                place = "metrics" if path.parent == figures else "pictures"
                self._if_there(note["run_id"], partial(self.client.log_artifact, local_path=path, artifact_path=place))

    def _metrics(self, run_id: str, values: Mapping[str, float | int | None], *, step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(key, float(value), now, step) for key, value in values.items() if value is not None]
        self.client.log_batch(run_id, metrics=metrics)

    def _curves(self, search: SearchPart) -> None:
        """Log the curve of every candidate on the held-out group, each as its own metric."""
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
        if VIEW_TAG not in found.tags:
            self.client.set_experiment_tag(found.experiment_id, VIEW_TAG, _view(MEANS[0]))
        return str(found.experiment_id)

    def _parent(self, name: str, folder: Path) -> str:
        """The run under which the folds of a method are nested; made if it is not in the store."""
        note = _note_path(self.root, name, folder.name)
        with locked(note.with_suffix(".lock"), what=f"the MLflow run of {folder.name}"):
            known = _read_note(self.root, note)
            if known and self._is_there(known["run_id"]):
                return str(known["run_id"])
            for fold in intact_folds(folder):  # their notes may be lost while the store has their runs
                found = self.find(fold)
                if found is not None and self._is_there(parent := found.data.tags["mlflow.parentRunId"]):
                    self._note(note, parent)
                    return str(parent)
            kind = "ablation" if folder.parent.parent.name == "ablate" else "method"
            tags = {"pipeline": name, "method": folder.name, "kind": kind, STATE: CURRENT}
            run = self.client.create_run(self._experiment(name), run_name=folder.name, tags=tags)
            self._note(note, run.info.run_id)
            return str(run.info.run_id)

    def _summarise(self, pipeline: str, encoder: str) -> None:
        """Log means over the folds of a method and links to them to their parent, and the view to the experiment."""
        from mlflow.entities import RunTag

        experiment = self._experiment(pipeline)
        chosen = f"tags.`mlflow.parentRunId` = '{self._parent_id}' and {SHOWN}"
        runs = self.client.search_runs([experiment], f"{chosen} and attributes.status = 'FINISHED'")
        found = {name: [run.data.metrics[name] for run in runs if name in run.data.metrics] for name in MEANS}
        means = {name: fmean(values) for name, values in found.items() if values}
        if means:
            self._metrics(self._parent_id, {**means, "folds": len(runs)}, step=0)
        folds = sorted((run.info.run_name, run.info.run_id) for run in runs)[:MAX_LINKS]
        links = ", ".join(f"[{name}](#/experiments/{experiment}/runs/{run_id}/artifacts)" for name, run_id in folds)
        tags = {"encoder": encoder, "mlflow.note.content": f"Weights and predictions of each fold: {links}"}
        self.client.log_batch(self._parent_id, tags=[RunTag(key, value) for key, value in tags.items()])
        metric = next((name for name in reversed(MEANS) if name in means), MEANS[0])
        self.client.set_experiment_tag(experiment, VIEW_TAG, _view(metric))
        self.client.set_terminated(self._parent_id, "FINISHED")

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
    note = _read_note(root, _note_of(root, fold))
    return bool(note.get("key") == fold.result["run"]["key"]) and _store_exists(root)


def send_missing(tracker: Tracker, folds: Iterable[Fold]) -> None:
    """Send the folds that the current store does not have yet. Raises ArtifactError if one of them is damaged."""
    if tracker.root is not None:
        for fold in folds:
            if not is_sent(tracker.root, fold):
                fold.check()
            tracker.send(fold)


def _store_exists(root: Path) -> bool:
    """False if the store was in a file and the file is gone."""
    uri = store_uri(root)
    return not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).is_file()


def _note_of(root: Path, fold: Fold) -> Path:
    return _note_path(root, fold.result["run"]["pipeline"], f"{fold.folder.parent.name}-{fold.folder.name}")


def _read_note(root: Path, path: Path) -> dict[str, Any]:
    """What was sent of a run to the current store; empty if nothing, or if the note is damaged."""
    try:
        found = read_json(path)
    except ArtifactError:
        return {}
    return found if isinstance(found, dict) and "run_id" in found and found.get("store") == _store_name(root) else {}


def _note_path(root: Path, name: str, run: str) -> Path:
    return root / TRACKING / name / f"{run}.json"


def _check_database(root: Path, *, whole: bool = False) -> None:
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


def artifacts_elsewhere(root: Path) -> list[str]:
    """Artifact folders in the project's own store that are those of other projects: it was copied or moved."""
    own, path = _artifacts(root), root / DATABASE
    if own is None or not path.exists():
        return []
    query = "SELECT DISTINCT artifact_location FROM experiments WHERE artifact_location LIKE 'file://%/mlartifacts'"
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
        return [found for (found,) in database.execute(query) if found != own]


def _correct_artifacts(root: Path) -> None:
    """Make the store of a copied or moved project name its own artifact folder, not the one that it came from."""
    for old in artifacts_elsewhere(root):
        with closing(sqlite3.connect(root / DATABASE, timeout=60.0)) as database, database:
            for table, column in (path.split(".") for path in STORED_PATHS.split()):
                moved = (
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column} || '/', 1, ?) = ?"
                )
                database.execute(moved, (_artifacts(root), len(old) + 1, len(old) + 1, f"{old}/"))


def _store_name(root: Path) -> str:
    """The store in our notes: like `shown_store`, but the project's own without its folder, which may move."""
    return DATABASE if store_uri(root) == _local_uri(root) else shown_store(root)


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
