"""Run trials of any kind: keep finished folds, train the others here or on an engine, write and track their results."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
import yaml

from daamctl.artifacts.embeddings import label_columns
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import FOLD_DIR, RESULT, Fold, fold_dir, read_fold
from daamctl.artifacts.terms import percent
from daamctl.compute.cpu_formats import cpu_formats
from daamctl.compute.engine import Engine, Units, await_files
from daamctl.compute.local_engine import worker_devices
from daamctl.compute.progress import progress
from daamctl.compute.threads import use_free_cores
from daamctl.errors import TrainingError
from daamctl.fit.loop import Event, Finished, Progress, Recorded, Trainable, Trained, fit
from daamctl.fit.tracking import Tracker, send_missing
from daamctl.fit.trial import FoldSpec, Trial, in_groups
from daamctl.methods import CLOSED_FORM
from daamctl.store.files import SaveTimer, content_key, kept_path, open_kept, remove_others, write_text
from daamctl.store.provenance import device_name, git_commit, versions
from daamctl.store.records import SKIPPED_FILE
from daamctl.store.tables import write_frame
from daamctl.store.version import __version__

log = logging.getLogger(__name__)

FILE = "state.pt"
"""The state of an unfinished training."""
CHECKPOINT_EVERY_S = 5.0
SAVING_FRACTION = 0.05
"""Share of the time to spend on saving: the state of a fully fine-tuned encoder takes gigabytes."""


def train_all(
    trials: Sequence[Trial],
    folder: Path,
    layout: Layout,
    tracker: Tracker,
    *,
    force: bool = False,
    alone: bool = False,
    engine: Engine | None = None,
) -> list[Fold]:
    """Train the trials of a method whose folds are not finished; return all folds, in the order of `trials`.

    Args:
        trials: of one method on the same data; the data are read only if there is something to train.
        alone: whether to remove other folds from the folder, so that they are not evaluated.
        engine: where to train; None: in this process, one group after another.

    Raises:
        TrainingError: the splits, numbers or memory do not allow training, or a worker used other inputs.
        MethodError: the method does not fit the data.
        WorkerError: a worker died too often.
    """
    (folder / SKIPPED_FILE).unlink(missing_ok=True)
    if alone:
        own = [fold_dir(folder, trial.spec.fold, trial.spec.seed).name for trial in trials]
        no_folds = [path.name for path in folder.glob("*") if not FOLD_DIR.match(path.name)]  # e.g. the user's copies
        remove_others(folder, [*own, *no_folds], folders=True)
    done = dict.fromkeys(trials) if force else kept_folds(folder, trials)
    missing = [trial for trial, fold in done.items() if fold is None]
    if len(missing) < len(trials):
        log.info("%s: %d of %d folds are finished and kept", folder.name, len(trials) - len(missing), len(trials))
    made: dict[tuple[int, int], Fold] = {}
    if missing:
        use_free_cores()
    if missing and (engine is None or engine.in_process):
        gpus = len(worker_devices(missing[0].device_setting, None))
        if min(gpus, len(missing)) > 1:
            words = "one of %d GPUs is used; --workers %d divides the folds among them"
            log.info(words, gpus, min(gpus, len(missing)))
        made = _train_in_process(done, folder, layout, tracker, force=force)
    elif missing and engine is not None:
        made = _train_on_engine(missing, folder, layout, tracker, engine, force=force)
    return [fold or made[trial.spec.fold, trial.spec.seed] for trial, fold in done.items()]


def kept_fold(folder: Path, trial: Trial) -> Fold | None:
    """The finished fold of a trial on disk, if its inputs are identical and all of its files are intact; else None."""
    artifact = trial.artifact(folder)
    return artifact.fold(artifact.keep())


def kept_folds(folder: Path, trials: Sequence[Trial]) -> dict[Trial, Fold | None]:
    """What there is to do, and what is done: every trial, with its finished fold if that is kept."""
    return {trial: kept_fold(folder, trial) for trial in trials}


def _train_in_process(
    done: Mapping[Trial, Fold | None], folder: Path, layout: Layout, tracker: Tracker, *, force: bool
) -> dict[tuple[int, int], Fold]:
    """Train the trials that have no fold in this process, one group after another."""
    first = next(iter(done))
    data = first.data.to_gpu(first.config).to_memory(first.config)
    done = {trial.with_data(data): fold for trial, fold in done.items()}
    work = layout.work / first.stage / layout.run_name
    folds: dict[tuple[int, int], Fold] = {}
    units = sum(trial.units for trial, fold in done.items() if fold is None)
    with progress(units, f"{first.title} {folder.name}", "steps") as bar:
        for group in in_groups(list(done)):
            missing = [trial for trial in group if done[trial] is None]
            if not missing:
                continue
            live = tracker if len(group) == 1 else None  # a larger group is tracked once it is finished
            if live:
                live.start(group[0].spec.name, folder, group[0].spec.fold, group[0].spec.seed)
            for event in train_group(group, folder, work, root=layout.root, missing=missing, force=force):
                if isinstance(event, Progress):
                    bar.advance(event.units)
                elif isinstance(event, Recorded):
                    if live and event.member.final:
                        live.epoch(event.entry)
                elif isinstance(event, Fold):
                    if live:
                        live.finish(event)
                    else:
                        send_missing(tracker, [event])
                    log.info("%s", summary_line(event))
                    folds[event.fold, event.seed] = event
    return folds


def train_group(
    group: Sequence[Trial],
    folder: Path,
    work: Path,
    *,
    root: Path,
    missing: Sequence[Trial] | None = None,
    force: bool = False,
) -> Iterator[Progress | Recorded | Fold]:
    """Train trials of one method and move each complete fold folder into place.

    Args:
        group: one trial, or one group from `in_groups`.
        folder: folder of the method, which will hold `fold<k>-seed<s>/`.
        work: folder for unfinished work, on the same file system.
        missing: trials of the group that are not finished; None: all. The others are trained again only if an
            interrupted call has trained the whole group, so that its state continues as it was.
        force: train finished folds again, but not those that another process finishes meanwhile.

    Yields:
        Progress and records of `fit`, and every fold that is finished now.

    Raises:
        TrainingError: the split, the numbers or the memory do not allow training.
        MethodError: the method does not fit the data.
    """
    missing = list(group if missing is None else missing)
    artifacts = {trial: trial.artifact(folder, work) for trial in group}
    names = {trial: artifact.what for trial, artifact in artifacts.items()}
    with ExitStack() as locks:
        for trial in sorted(group, key=names.__getitem__):  # all processes lock in one order, to avoid deadlock
            known = force or trial not in missing
            fold = artifacts[trial].fold(locks.enter_context(artifacts[trial].lock(force=known)))
            if fold is not None and trial in missing:  # another process has trained it meanwhile
                missing.remove(trial)
                yield fold
        if not missing:
            return
        if group[0].device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(group[0].device)
        state = None
        for trials in (list(group), missing):
            # a group has a folder of its own, because whoever trains one of its folds alone empties that of the fold
            more = f"-and-{len(trials) - 1}-more" if len(trials) > 1 else ""
            place, key = work / f"{names[trials[0]]}{more}", content_key([trial.key for trial in trials])
            if (state := load_state(place, key)) is not None:
                break
        for event in fit_and_save(trials, place, key, state):
            if not isinstance(event, Finished):
                yield event
            elif event.trial in missing:
                artifact = artifacts[event.trial]
                with artifact.make() as new:
                    artifact.seal(new, write_fold(new, event.trial, event.trained, root, together=len(trials)))
                yield read_fold(artifact.folder)
        for name in names.values() if len(group) > 1 else ():
            for left in work.glob(f"{name}-and-*-more"):
                shutil.rmtree(left, ignore_errors=True)


def fit_and_save(trials: Sequence[Trainable], work: Path, key: str, state: dict[str, Any] | None) -> Iterator[Event]:
    """Fit trials (see `fit`), and save their state in a folder now and then, with the key with which it was loaded."""
    timer = SaveTimer(every_s=CHECKPOINT_EVERY_S, fraction=SAVING_FRACTION)
    for event in fit(trials, state):
        if isinstance(event, Progress):
            timer.save_if_due(lambda state=event.state: save_state(work, key, state()))  # type: ignore[misc]
        yield event


def save_state(work: Path, key: str, state: dict[str, Any]) -> None:
    """Write the state of an unfinished training atomically under its content key."""
    with kept_path(work / FILE, key) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # how torch words a full disk
            raise OSError(f"torch could not finish the file: {error}") from error


def load_state(work: Path, key: str) -> dict[str, Any] | None:
    """Read the state back, without unpickling code; None if it is missing, damaged, or has another key."""
    with open_kept(work / FILE, key) as file:
        return None if file is None else torch.load(file, map_location="cpu", weights_only=True)


def train_fold(trial: Trial, folder: Path, work: Path, *, root: Path, force: bool = False) -> Fold:
    """Train one trial; for the arguments see `train_group`."""
    events = train_group([trial], folder, work, root=root, force=force)
    (fold,) = [event for event in events if isinstance(event, Fold)]
    return fold


def write_fold(folder: Path, trial: Trial, trained: Trained, root: Path, *, together: int = 1) -> dict[str, Any]:
    """Write all files of a fold but its result, and return that; `together` folds are its stack."""
    spec, split, device, history = trial.spec, trial.split, trial.device, trained.history
    own, selected, clips = trial.result_parts(trained), trained.last, trial.clips.rows[trial.split.test]
    tested = [float(entry["test_accuracy"] or 0.0) for entry in history]
    run: Any = {
        "key": trial.key,
        "pipeline": spec.name,
        "method": spec.method,
        "fold": spec.fold,
        "num_folds": split.num_folds,
        "modality": trial.clips.modality,
        "seed": spec.seed,
        "test_group": split.test_group,
        "dev_group": split.dev_group,
        "classes": list(trial.clips.classes),
        **own["run"],
    }
    metrics: dict[str, float | int | None] = {}
    if "test_f1" in selected:
        f1 = [float(entry["test_f1"] or 0.0) for entry in history]
        name = trial.clips.task.primary
        metrics = {name: selected["test_f1"], f"{name}_best_on_test": max(f1), f"{name}_last": f1[-1]}
        metrics[f"dev_{name}"] = selected.get("dev_f1")
    metrics |= {
        "accuracy": selected["test_accuracy"],
        "accuracy_best_on_test": max(tested),
        "accuracy_last": tested[-1],
        "train_accuracy": selected["train_accuracy"],
        "dev_accuracy": selected["dev_accuracy"],
        "selected_epoch": trained.selected_epoch,
        "epochs": None if trained.selected_epoch is None else len(history),
        "collapsed": int(trained.collapsed),
        "replaced_refits": trained.replaced,
        **own.get("metrics", {}),
    }
    cuda = device.startswith("cuda")
    meta = {
        "daamctl": __version__,
        "versions": versions(),
        "git_commit": git_commit(root),
        "date": datetime.now(UTC).date().isoformat(),
        "device": device_name(device),
        "precision": trial.precision,
        "train_s": round(trained.train_s, 6),  # which also tells one training from another
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "num_train_clips": len(split.train),
        "num_dev_clips": len(split.dev),
        "num_test_clips": len(split.test),
        **own["meta"],
    }
    if device == "cpu" and (speeds := cpu_formats().speeds):
        meta["bfloat16_speed"] = speeds
    if trained.joules is not None:
        meta["joules"] = round(trained.joules, 3)
    if together > 1:
        meta["together"] = together
    trial.write_weights(folder, trained)
    head, index = {**trial.owner, "classes": run["classes"]}, {name: i for i, name in enumerate(trial.clips.classes)}
    predictions = clips.select(label_columns(trial.clips.modality)).with_columns(
        pl.Series("target", [index[label] for label in clips["label"]], dtype=pl.Int64),
        pl.Series("logits", trained.logits.numpy().tolist(), dtype=pl.List(pl.Float32)),
    )
    if (batches := run["eval_batches"]) is not None:  # predictions depend on their batch
        predictions = predictions.with_columns(pl.int_range(pl.len()).floordiv(int(batches["size"])).alias("batch"))
    write_frame(folder / "predictions.parquet", predictions, head)
    columns = {name: pl.Int64 if name in ("step", "epoch") else pl.Float64 for name in history[0]}
    write_frame(folder / "history.parquet", pl.DataFrame(history, schema=columns), head)
    write_text(folder / "config.yaml", _as_yaml(trial.config.model_dump_json()))
    searched = {} if trained.search is None else {"search": trained.search}
    return {"run": run, "metrics": metrics, "meta": meta, **searched}


@lru_cache(maxsize=4)
def _as_yaml(settings: str) -> str:
    """Settings in YAML, from JSON. All folds of a method have the same, and writing them takes 5 ms."""
    return yaml.safe_dump(json.loads(settings), sort_keys=False)


def _train_on_engine(
    trials: Sequence[Trial], folder: Path, layout: Layout, tracker: Tracker, engine: Engine, *, force: bool
) -> dict[tuple[int, int], Fold]:
    """Train every trial as a task of an engine; read, log and count the folds as workers finish them."""
    first = trials[0]
    data = first.data.to_memory(first.config)
    waiting = {(trial.spec.fold, trial.spec.seed): trial.with_data(data) for trial in trials}
    open_worker = partial(
        FoldWorker,
        type(first),
        data,
        folder,
        work_dir=layout.work / first.stage / layout.run_name,
        root=layout.root,
        per_gpu=min(first.trials_per_gpu, len(trials)),
        force=force,
    )
    specs = [trial.spec for trial in trials]
    events = engine.map(open_worker, specs, device=first.device_setting, per_gpu=first.trials_per_gpu)
    folds: dict[tuple[int, int], Fold] = {}
    with progress(len(trials), f"{first.title} {folder.name}", "folds") as bar:
        for event in events:
            if isinstance(event, Units):  # folds are counted as wholes
                continue
            (number, seed), path = event
            await_files([path / RESULT])
            fold = kept_fold(folder, waiting[number, seed])
            if fold is None:
                raise TrainingError(
                    f"{folder.name} fold {number} seed {seed}: a worker trained it on other inputs",
                    fix="install the same packages on every machine of the cluster, then run it again",
                )
            send_missing(tracker, [fold])
            log.info("%s", summary_line(fold))
            folds[number, seed] = fold
            bar.advance()
    return folds


class FoldWorker:
    """A worker of an engine that trains trials; its tasks are their specs.

    Args:
        device: of this worker; a GPU becomes the default one, which `cuda` and `auto` then mean.
        work_dir: folder for unfinished work.
        per_gpu: number of workers that share a GPU.
    """

    description = None
    num_devices = 1

    def __init__(
        self,
        kind: type[Trial],
        data: Any,
        folder: Path,
        device: str,
        *,
        work_dir: Path,
        root: Path,
        per_gpu: int,
        force: bool,
    ) -> None:
        self.kind, self.data, self.folder = kind, data, folder
        self.work_dir, self.root, self.per_gpu, self.force = work_dir, root, per_gpu, force
        self.placed = False
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)

    def work(self, tasks: Sequence[FoldSpec]) -> Iterator[tuple[tuple[int, int], Path]]:
        """Train the trials; yield fold number and seed, and the folder, of each finished fold."""
        for spec in tasks:
            if not self.placed:
                self.data = self.data.to_gpu(spec.config, self.per_gpu)
                self.placed = True
            fold = train_fold(self.kind(spec, self.data), self.folder, self.work_dir, root=self.root, force=self.force)
            yield (spec.fold, spec.seed), fold.folder


def summary_line(fold: Fold) -> str:
    """Summary line of a fold: the primary figure (accuracy per clip), and signs that it may have learned nothing."""
    run, metrics, search = fold.result["run"], fold.result["metrics"], fold.result.get("search")
    if run["method"] in CLOSED_FORM and search is not None:
        penalty = search["candidates"][search["chosen"]]["settings"]["penalty"]
        chosen = f"with penalty {penalty:g}"
    elif metrics["selected_epoch"] is not None:
        chosen = f"at epoch {metrics['selected_epoch']}"
    else:
        chosen = f"after {fold.history()['step'][-1]} steps"
    # The folder of an ablation also names the layers; the label adds remarks to the name of the method.
    name = fold.folder.parent.name + fold.label.removeprefix(run["method"])
    text = f"{name} fold {run['fold']}/{run['num_folds']} ({run['test_group']}) seed {run['seed']}: "
    primary = fold.task.primary
    text += f"{fold.task.metric} {percent(metrics[primary])} {chosen}"
    if metrics[f"dev_{primary}"] is not None:
        text += f" (dev {percent(metrics[f'dev_{primary}'])})"
    text += f", {fold.result['meta']['train_s']:.1f} s"
    predicted = fold.predictions()["logits"].list.arg_max().unique()
    signs = []
    if len(predicted) == 1 and fold.result["meta"]["num_test_clips"] > 1:
        signs.append(f"every test {fold.task.clip} is taken for '{run['classes'][predicted[0]]}'")
    first = metrics.get("selected_epoch") == 1 and (metrics.get("epochs") or 0) > 1
    if first and run["config"]["train"]["selection"] != "last" and metrics.get("dev_accuracy") != 1.0:
        signs.append(f"epoch 1 of {metrics['epochs']} is selected")
    return f"{text}; {' and '.join(signs)}: it may have learned nothing" if signs else text
