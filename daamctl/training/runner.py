"""Run trials of any kind: keep finished folds, train the others here or on an engine, write and track their results."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch

from daamctl.artifacts.io import content_key, locked, replace_dir
from daamctl.artifacts.results import RESULT, Fold, fold_dir, read_fold
from daamctl.artifacts.terms import METRIC_NAMES, Metric, percent, terms_of
from daamctl.energy import total
from daamctl.engines.base import Engine, await_files
from daamctl.engines.local import worker_devices
from daamctl.errors import ArtifactError, TrainingError
from daamctl.layout import Layout
from daamctl.methods import CLOSED_FORM
from daamctl.progress import progress
from daamctl.stage_table import SKIPPED_FILE
from daamctl.threads import use_free_cores
from daamctl.tracking import Tracker, send_missing
from daamctl.training.batched import train_jointly
from daamctl.training.fold_files import remove_strays, result_mtime_ns, write_fold
from daamctl.training.loop import Epoch, Training
from daamctl.training.search import Search
from daamctl.training.trial import FoldSpec, Trial, TrialData

log = logging.getLogger(__name__)

OnEpoch = Callable[[Trial, Epoch], None]


def train_all(
    trials: Sequence[Trial],
    folder: Path,
    layout: Layout,
    tracker: Tracker,
    *,
    force: bool = False,
    remove_others: bool = False,
    engine: Engine | None = None,
) -> list[Fold]:
    """Train the trials whose folds are not finished; return all folds, in the order of `trials`.

    Args:
        trials: trials of one method on the same data; the data are read only if there is something to train.
        folder: will hold the folds.
        layout: provides the folder for unfinished work.
        tracker: logs the folds.
        force: train finished folds again.
        remove_others: remove other folds from the folder.
        engine: where to train; None: in this process, one group after another.

    Raises:
        TrainingError: the splits, numbers or memory do not allow training, or a worker used other inputs.
        MethodError: the method does not fit the data.
        WorkerError: a worker died too often.
    """
    (folder / SKIPPED_FILE).unlink(missing_ok=True)
    if remove_others:
        remove_strays(folder, [(trial.spec.fold, trial.spec.seed) for trial in trials])
    finished = [None if force else kept_fold(folder, trial) for trial in trials]
    missing = [trial for trial, fold in zip(trials, finished, strict=True) if fold is None]
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
        made = _train_in_process(missing, folder, layout, tracker)
    elif missing and engine is not None:
        made = _train_on_engine(missing, folder, layout, tracker, engine)
    return [fold or made[trial.spec.fold, trial.spec.seed] for trial, fold in zip(trials, finished, strict=True)]


def kept_fold(folder: Path, trial: Trial) -> Fold | None:
    """The finished fold of a trial on disk, if its inputs are identical and all of its files are intact; else None."""
    path = fold_dir(folder, trial.spec.fold, trial.spec.seed)
    if not (path / RESULT).exists():
        return None
    try:
        fold = read_fold(path)
        if fold.result["run"]["key"] not in trial.accepted_keys:
            return None
        fold.check()
    except ArtifactError as error:
        log.warning("%s %s is not kept: %s", folder.name, path.name, error.message)
        return None
    return fold


def _train_in_process(
    trials: Sequence[Trial], folder: Path, layout: Layout, tracker: Tracker
) -> dict[tuple[int, int], Fold]:
    """Train in this process, one group of trials after another."""
    first = trials[0]
    data = first.data.prepare_in_process(first.config)
    trials = [trial.with_data(data) for trial in trials]
    work = layout.work / first.stage / layout.run_name
    folds: dict[tuple[int, int], Fold] = {}

    def track_epoch(trial: Trial, entry: Epoch) -> None:
        tracker.epoch(entry)

    with progress(sum(trial.units for trial in trials), f"{first.title} {folder.name}", first.unit) as bar:
        ended = 0
        for group in in_groups(trials):
            if len(group) == 1:  # tracked epoch by epoch; the folds of a larger group once they are finished
                spec = group[0].spec
                tracker.start(spec.name, folder, spec.fold, spec.seed)
                made = train_group(group, folder, work, root=layout.root, on_epoch=track_epoch, advance=bar.advance)
                tracker.finish(made[0])
            else:
                made = train_group(group, folder, work, root=layout.root, advance=bar.advance)
                send_missing(tracker, made)
            ended += sum(trial.units for trial in group)
            bar.advance(ended - bar.done)  # training may have ended early
            for fold in made:
                log.info("%s", summary_line(fold))
                folds[fold.fold, fold.seed] = fold
    return folds


def in_groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group consecutive trials that can be batched; the others form groups of one.

    Raises:
        MethodError: a method does not fit the data.
        ConfigError: the requested device or precision is not available.
    """
    groups: list[list[Trial]] = []
    most = 1
    for trial in trials:
        spec, last = trial.spec, groups[-1][-1].spec if groups else None
        alike = last is not None and (last.method, last.config) == (spec.method, spec.config)
        if not alike:
            most = trial.most_members  # takes a while: it builds the model
        if alike and len(groups[-1]) < most:
            groups[-1].append(trial)
        else:
            groups.append([trial])
    return groups


def train_group(
    trials: Sequence[Trial],
    folder: Path,
    work: Path,
    *,
    root: Path,
    on_epoch: OnEpoch = lambda trial, entry: None,
    advance: Callable[[int], None] = lambda units: None,
) -> list[Fold]:
    """Train trials of one method and move each complete fold folder into place.

    Args:
        trials: one trial, or one group from `in_groups`.
        folder: folder of the method, which will hold `fold<k>-seed<s>/`.
        work: folder for unfinished work, on the same file system.
        root: project folder, for the commit.
        on_epoch: called after each epoch of the training whose weights a fold keeps: in a search, of the chosen
            candidate or its refit.
        advance: called with the number of finished units of work (`Trial.unit`), candidates included.

    Returns:
        The folds, in the order of `trials`.

    Raises:
        TrainingError: the split, the numbers or the memory do not allow training.
        MethodError: the method does not fit the data.
    """
    names = {trial: f"{folder.name}-fold{trial.spec.fold}-seed{trial.spec.seed}" for trial in trials}
    targets = {trial: fold_dir(folder, trial.spec.fold, trial.spec.seed) for trial in trials}
    before = {trial: result_mtime_ns(targets[trial]) for trial in trials}
    folds: dict[Trial, Fold] = {}
    with ExitStack() as locks:
        for trial in sorted(trials, key=names.__getitem__):  # all processes lock in one order, to avoid deadlock
            what = f"{trial.spec.method} fold {trial.spec.fold}"
            locks.enter_context(locked(work / f"{names[trial]}.lock", what=what))
        for trial in trials:  # another process may have trained it while this one waited for the lock
            fold = finished_meanwhile(folder, trial, before[trial])
            if fold is not None:
                folds[trial] = fold
        missing = {trial: work / names[trial] for trial in trials if trial not in folds}
        if missing and trials[0].device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(trials[0].device)
        for trial, training in _search_and_train(missing, on_epoch, advance):
            training.complete()
            finished = missing[trial] / "finished"
            write_fold(finished, trial, training, root, together=len(missing))
            training.release()
            replace_dir(finished, targets[trial])
            shutil.rmtree(missing[trial], ignore_errors=True)
            folds[trial] = read_fold(targets[trial])
    return [folds[trial] for trial in trials]


def train_fold(
    trial: Trial,
    folder: Path,
    work: Path,
    *,
    root: Path,
    on_epoch: Callable[[Epoch], None] = lambda entry: None,
    advance: Callable[[int], None] = lambda units: None,
) -> Fold:
    """Train one trial; for the arguments see `train_group`."""
    return train_group([trial], folder, work, root=root, on_epoch=lambda _, entry: on_epoch(entry), advance=advance)[0]


def finished_meanwhile(folder: Path, trial: Trial, before: int | None) -> Fold | None:
    """The finished fold, if another process has made it since `before` (see `result_mtime_ns`); else None."""
    if result_mtime_ns(fold_dir(folder, trial.spec.fold, trial.spec.seed)) == before:
        return None
    return kept_fold(folder, trial)


def _search_and_train(
    works: Mapping[Trial, Path], on_epoch: OnEpoch, advance: Callable[[int], None]
) -> list[tuple[Trial, Training]]:
    """Search the settings of trials, and train them to the end: with the held-out group included if they are refitted.

    Args:
        works: the trials, each with its folder for unfinished work.
        on_epoch: see `train_group`.
        advance: see `train_group`.

    Returns:
        each trial with its ended training.
    """
    if not works:
        return []
    trials = list(works)
    members = trials[0].most_members
    chosen = _search(works, members, advance)
    if trials[0].refits:
        train_jointly(chosen, None, members=members, pause=True)
        for index, trial in enumerate(trials):  # one at a time, to free each first training before the next refit
            chosen[index] = _start_refit(trial, chosen[index], advance)
    for trial, training in zip(trials, chosen, strict=True):
        training.follow(partial(on_epoch, trial))
    train_jointly(chosen, None, members=members)
    return list(zip(trials, chosen, strict=True))


def _search(works: Mapping[Trial, Path], members: int, advance: Callable[[int], None]) -> list[Training]:
    """Train the candidates of each trial until one is left; without a search, start the only training."""
    searches = [Search(trial.starter(advance), trial.grid, work, trial.key) for trial, work in works.items()]
    while True:
        by_goal: dict[int | None, list[Training]] = {}  # searches may be in different rounds
        for search in searches:
            for training, until in search.pending():
                by_goal.setdefault(until, []).append(training)
        if not by_goal:
            return [search.choose() for search in searches]
        for until, waiting in by_goal.items():
            train_jointly(waiting, until, members=members, pause=True)


def _start_refit(trial: Trial, first: Training, advance: Callable[[int], None]) -> Training:
    """Start the training that repeats `first` with the held-out group included."""
    key = content_key({"fold": first.key, "refit": first.done.selected_epoch})
    refit = trial.refit(first, first.work / "refit", key, advance)
    refit.before_s = first.before_s + first.done.train_s
    refit.before_joules = total(first.before_joules, first.done.joules)
    return refit


def _train_on_engine(
    trials: Sequence[Trial], folder: Path, layout: Layout, tracker: Tracker, engine: Engine
) -> dict[tuple[int, int], Fold]:
    """Train every trial as a task of an engine; read, log and count the folds as workers finish them."""
    first = trials[0]
    data = first.data.prepare_for_workers(first.config)
    waiting = {(trial.spec.fold, trial.spec.seed): trial.with_data(data) for trial in trials}
    open_worker = partial(
        FoldWorker,
        type(first),
        data,
        folder,
        work_dir=layout.work / first.stage / layout.run_name,
        root=layout.root,
        per_gpu=min(first.trials_per_gpu, len(trials)),
    )
    specs = [trial.spec for trial in trials]
    results = engine.map(open_worker, specs, device=first.device_setting, per_gpu=first.trials_per_gpu)
    folds: dict[tuple[int, int], Fold] = {}
    with progress(len(trials), f"{first.title} {folder.name}", "folds") as bar:
        for (number, seed), path in results:
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
        kind: kind of the trials.
        data: their data.
        folder: will hold the folds.
        device: device of this worker; a GPU becomes the default one, which `cuda` and `auto` then mean.
        work_dir: folder for unfinished work.
        root: project folder, for the commit.
        per_gpu: number of workers that share a GPU.
    """

    description = None
    num_devices = 1

    def __init__(
        self, kind: type[Trial], data: TrialData, folder: Path, device: str, *, work_dir: Path, root: Path, per_gpu: int
    ) -> None:
        self.kind, self.data, self.folder = kind, data, folder
        self.work_dir, self.root, self.per_gpu = work_dir, root, per_gpu
        self.placed = False
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)

    def work(self, tasks: Sequence[FoldSpec], advance: Callable[[int], None]) -> Iterator[tuple[tuple[int, int], Path]]:
        """Train the trials; yield fold number and seed, and the folder, of each finished fold."""
        for spec in tasks:
            if not self.placed:
                self.data = self.data.prepare_in_worker(spec.config, self.per_gpu)
                self.placed = True
            fold = train_fold(self.kind(spec, self.data), self.folder, self.work_dir, root=self.root)
            yield (spec.fold, spec.seed), fold.folder


def summary_line(fold: Fold) -> str:
    """Summary line of a finished fold: accuracy by clip at the selected epoch.

    A tagger's has entity F1 instead. It ends with signs that the fold may have learned nothing, if there are any.
    """
    run, metrics, search = fold.result["run"], fold.result["metrics"], fold.result.get("search")
    metric: Metric = "entity_f1" if "entity_f1" in metrics else "accuracy"
    if run["method"] in CLOSED_FORM and search is not None:
        penalty = search["candidates"][search["chosen"]]["settings"]["penalty"]
        chosen = f"with penalty {penalty:g}"
    else:
        chosen = f"at epoch {metrics['selected_epoch']}"
    # The folder of an ablation also names the layers; the label adds remarks to the name of the method.
    name = fold.folder.parent.name + fold.label.removeprefix(run["method"])
    text = f"{name} fold {run['fold']}/{run['num_folds']} ({run['test_group']}) seed {run['seed']}: "
    text += f"{METRIC_NAMES[metric]} {percent(metrics[metric])} {chosen}"
    if metrics[f"dev_{metric}"] is not None:
        text += f" (dev {percent(metrics[f'dev_{metric}'])})"
    text += f", {fold.result['meta']['train_s']:.1f} s"
    signs = _signs(fold)
    if signs:
        text += f"; {' and '.join(signs)}: it may have learned nothing"
    return text


def _signs(fold: Fold) -> list[str]:
    """Reasons to doubt that a fold learned anything."""
    run, metrics = fold.result["run"], fold.result["metrics"]
    predicted = fold.predictions()["logits"].list.arg_max().unique()
    signs = []
    if len(predicted) == 1 and fold.result["meta"]["num_test_clips"] > 1:
        clip = terms_of(fold.modality).clip
        signs.append(f"every test {clip} is taken for '{run['classes'][predicted[0]]}'")
    first = metrics.get("selected_epoch") == 1 and (metrics.get("epochs") or 0) > 1
    if first and run["config"]["train"]["selection"] != "last" and metrics.get("dev_accuracy") != 1.0:
        signs.append(f"epoch 1 of {metrics['epochs']} is selected")
    return signs
