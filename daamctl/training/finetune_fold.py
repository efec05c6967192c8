"""One fold of one way of fine-tuning: from a fresh encoder to a finished fold folder, or straight to the one kept.

Every fold gets an encoder of its own, opened anew: what one fold has trained must never reach another (D50).
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save

from daamctl.adapters import FINETUNES, FineTuned, build_finetune
from daamctl.adapters.released import departures, is_published
from daamctl.artifacts.clips import ClipTable, clips_key
from daamctl.artifacts.io import atomic_path, content_key, locked, replace_dir
from daamctl.artifacts.results import Fold, FoldResult, SearchPart, fold_dir, read_fold
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings, shared_with_finetuning
from daamctl.devices import release_memory, resolve_device, resolve_precision
from daamctl.engines.base import Engine
from daamctl.errors import ArtifactError, DivergedError
from daamctl.layout import Layout
from daamctl.progress import Progress, progress
from daamctl.provenance import code_hash
from daamctl.tracking import Tracker
from daamctl.training.finetune import Collating, Finetuned, ItemSet, notes_on, tune
from daamctl.training.fold_files import identity, meta_of, metrics_of, write_finished
from daamctl.training.loop import Epoch, seed_everything
from daamctl.training.run import collect, summary_line
from daamctl.training.search import Grid, Rounds, most_epochs, refits
from daamctl.training.splits import Split, joined, split_of

log = logging.getLogger(__name__)

KEY_FORMAT = 2  # raise it when the loop changes in a way that makes finished folds wrong
FREE_FACTS = frozenset({"name", "source", "revision", "transformers", "num_layers", "precision", "storage"})
"""Facts of an encoder that cannot change what it computes here, beside those that do."""


class FinetunableEncoder(Collating, Protocol):
    """An encoder as fine-tuning needs it.

    Attributes:
        model: the Hugging Face base model.
        layers: its layer numbers.
        embed_dim: D.
    """

    model: Any
    layers: tuple[int, ...]
    embed_dim: int


@dataclass(frozen=True)
class Opened:
    """A fresh encoder and the items as it reads them.

    Args:
        encoder: frozen, in eval mode, on its device.
        facts: what is recorded of it.
        items: of every row of the clip table in use.
    """

    encoder: FinetunableEncoder
    facts: Mapping[str, Any]
    items: ItemSet


@dataclass
class Source:
    """Where folds get a fresh encoder from.

    Args:
        clips: the clips, unreadable ones left out.
        open: opens an encoder and its items.
    """

    clips: ClipTable
    open: Callable[[], Opened]
    _next: Opened | None = field(default=None, init=False)
    _facts: Mapping[str, Any] | None = field(default=None, init=False)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What is recorded of the encoder; the one opened to learn it is the first that `take` gives."""
        if self._facts is None:
            self._next = self.open()
            self._facts = self._next.facts
        return self._facts

    def learn(self, engine: Engine, device: str) -> None:
        """Have a worker open the encoder to tell its facts: this machine may have no room for it, and no use."""
        if self._facts is None:
            ((_, self._facts),) = engine.each(_facts_of, self.without_encoder(), [0], device=device, per_gpu=1)

    def without_encoder(self) -> Source:
        """The same for another process; an encoder that lies opened here is let go."""
        self._next = None
        return Source(self.clips, self.open)

    def take(self) -> Opened:
        """A fresh encoder; it is not kept here."""
        taken, self._next = self._next, None
        return taken or self.open()

    def data_key(self, config: Config) -> str:
        """Content key of what is trained on: the items, and what decides how the encoder sees them."""
        facts = {name: value for name, value in self.facts.items() if name not in FREE_FACTS}
        if "max_tokens" in facts:
            facts["max_tokens"] = min(facts["max_tokens"], config.finetune.max_tokens)
        if facts.get("pooling") == "all-frames":
            facts["pad_to_s"] = config.segment.max_duration_s
        settings = finetuning_data_settings(config, self.clips.modality)
        return content_key({"clips": clips_key(self.clips), "encoder": facts, "settings": settings})


def _facts_of(source: Source, _: int) -> dict[str, Any]:
    return dict(source.facts)


@dataclass(frozen=True)
class FinetuneSpec:
    """Which fold to train, and how.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of ways of fine-tuning.
        fold: 1-based.
        seed: initial adapters and order of batches.
        config: all settings, as this way has them (`Config.for_adapter`); `finetune` counts, and what it shares with
            `train`.
    """

    name: str
    method: str
    fold: int
    seed: int
    config: Config

    def key(self, source: Source) -> str:
        """Content key of everything that determines the result, except the machine it runs on."""
        module = FINETUNES.module_of(self.method)
        return content_key(
            {
                "format": KEY_FORMAT,
                "data": source.data_key(self.config),
                "method": self.method,
                "code": [code_hash(name, "daamctl.adapters") for name in (module, "daamctl.adapters.heads")],
                "finetune": key_settings(self.config, "finetune"),
                "train": shared_with_finetuning(self.config),
                "fold": self.fold,
                "seed": self.seed,
            }
        )


def kept_fold(folder: Path, spec: FinetuneSpec, source: Source) -> Fold | None:
    """The finished fold on disk, if it was made from identical inputs."""
    try:
        fold = read_fold(fold_dir(folder, spec.fold, spec.seed))
    except ArtifactError:
        return None
    return fold if fold.result["run"]["key"] == spec.key(source) else None


def finetune_all(
    specs: list[FinetuneSpec],
    source: Source,
    folder: Path,
    layout: Layout,
    tracker: Tracker,
    *,
    force: bool,
    engine: Engine | None = None,
) -> list[Fold]:
    """Train the folds that are not kept; returns all of them, in the order of `specs`. See `train_all`."""
    device = specs[0].config.finetune.device if specs else "auto"
    if engine is not None and specs:
        source.learn(engine, device)
    kept = {id(spec): None if force else kept_fold(folder, spec, source) for spec in specs}
    todo = [spec for spec in specs if kept[id(spec)] is None]
    if len(todo) < len(specs):
        log.info("%s: %d of %d folds are finished and kept", folder.name, len(specs) - len(todo), len(specs))
    work = layout.work / "finetune" / layout.run_name
    if engine is not None:
        call = partial(_tune_one, folder=folder, work=work, root=layout.root)
        results = engine.each(call, source.without_encoder(), todo, device=device, per_gpu=1)
        made = collect(results, lambda spec: kept_fold(folder, spec, source), folder, len(todo), tracker)
        return [kept[id(spec)] or made[spec.fold, spec.seed] for spec in specs]
    splits = {spec.fold: split_of(source.clips.rows, spec.fold, spec.config.train) for spec in todo}
    total = 0
    for spec in todo:
        split = splits[spec.fold]
        items = len(split.train) + len(split.dev) + len(split.test)
        total += items * most_epochs(grid_of(spec), spec.config.finetune.epochs, refit=refits(spec.config.train))
    folds: list[Fold] = []
    with progress(total, f"fine-tuning {folder.name}", "items") as bar:
        for spec in specs:
            fold = kept[id(spec)]
            if fold is None:
                tracker.start(spec.name, folder.name, spec.fold, spec.seed)
                fold = finetune_fold(spec, source, folder, work, root=layout.root, on_epoch=tracker.epoch, bar=bar)
                tracker.finish(fold)
                log.info("%s", summary_line(fold))
            folds.append(fold)
    return folds


def _tune_one(source: Source, spec: FinetuneSpec, *, folder: Path, work: Path, root: Path) -> Path:
    """One fold on a worker; returns its folder."""
    return finetune_fold(spec, source, folder, work, root=root).folder


def finetune_fold(
    spec: FinetuneSpec,
    source: Source,
    folder: Path,
    work: Path,
    *,
    root: Path,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    bar: Progress | None = None,
) -> Fold:
    """Train one fold and put its folder in place, whole.

    Args:
        spec: what to train.
        source: clips and encoder.
        folder: will hold `fold<k>-seed<s>/`.
        work: folder for unfinished work, on the same file system.
        root: project folder, for the commit.
        on_epoch: called after each epoch.
        bar: counts items.

    Raises:
        TrainingError: the split, the numbers or the memory do not allow it, or the adapters have no effect.
        MethodError: this encoder cannot be fine-tuned in this way.
    """
    key = spec.key(source)
    device = resolve_device(spec.config.finetune.device)
    precision = resolve_precision(spec.config.finetune.precision, device, cpu_auto=False)
    split = split_of(source.clips.rows, spec.fold, spec.config.train)
    own = work / f"{folder.name}-fold{spec.fold}-seed{spec.seed}"
    target = fold_dir(folder, spec.fold, spec.seed)
    before = identity(target)
    with locked(own.with_suffix(".lock"), what=f"{spec.method} fold {spec.fold}"):
        kept = kept_fold(folder, spec, source)
        if kept is not None and identity(kept.folder) != before:  # another process has trained it meanwhile
            return kept
        own.mkdir(parents=True, exist_ok=True)
        if device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats(device)
        on_items = bar.advance if bar is not None else lambda count: None
        train = partial(_train, spec, source, device=device, precision=precision)
        options: dict[str, Any] = {"config": spec.config, "work": own, "key": key, "on_items": on_items}
        search, before_s, again = None, 0.0, None
        if (grid := grid_of(spec)) is not None:
            options, search, before_s = _search(grid, partial(train, split), options)
        if refits(spec.config.train):
            again = train(split, **options, until=spec.config.finetune.epochs)[2]
            before_s += again.train_s
            options = _refit(options, again)
        parts = split if again is None else joined(split)
        opened, model, tuned = train(parts, **options, again=again, on_epoch=on_epoch)
        tuned.search = search
        tuned.train_s += before_s
        result = _result(spec, source, opened, split, tuned, model, key, device, precision, root)
        _write(own / "finished", spec, source, opened, split, tuned, model, result)
        replace_dir(own / "finished", target)
        shutil.rmtree(own, ignore_errors=True)
    del model, opened, tuned  # a large encoder should be gone before the next one is opened
    release_memory()
    return read_fold(target)


def grid_of(spec: FinetuneSpec) -> Grid | None:
    """The learning rates to try; None where none is searched: published forms keep the rate that is given."""
    searched = spec.config.finetune.search != "none" and spec.config.train.selection == "dev-group"
    return Grid(spec.config.finetune) if searched and not is_published(spec.method) else None


def _search(
    grid: Grid, train: Callable[..., tuple[Opened, FineTuned, Finetuned]], fold: Mapping[str, Any]
) -> tuple[dict[str, Any], SearchPart, float]:
    """Train every candidate for its first epochs, each from a fresh encoder, until one is left.

    Args:
        grid: the candidates.
        train: trains one.
        fold: options of the fold: settings, work folder, key, what counts its items.

    Returns:
        The options with which the chosen one is to be trained to its end, what was tried, and the seconds that the
        others took.
    """
    config: Config = fold["config"]
    rounds = Rounds(grid)
    histories: list[list[Epoch]] = [[] for _ in grid.candidates]
    seconds = [0.0 for _ in grid.candidates]
    counted: dict[int, int] = {}

    def count_new(number: int) -> Callable[[int], None]:
        """Counts the items of a candidate, those of a resume file only the first time."""
        told = 0

        def count_items(count: int) -> None:
            nonlocal told
            told += count
            if (new := told - counted.get(number, 0)) > 0:
                fold["on_items"](new)
                counted[number] = told

        return count_items

    def options(number: int) -> dict[str, Any]:
        settings = grid.candidates[number]
        changed = config.model_copy(update={"finetune": config.finetune.model_copy(update=settings)})
        work = fold["work"] / f"candidate-{number}"
        work.mkdir(exist_ok=True)
        return {
            "config": changed,
            "work": work,
            "key": content_key({"fold": fold["key"], "candidate": settings}),
            "on_items": count_new(number),
        }

    while not rounds.over:
        for number in rounds.alive:
            try:
                tuned = train(**options(number), until=rounds.until or config.finetune.epochs)[2]
            except DivergedError:
                continue
            histories[number], seconds[number] = tuned.history, tuned.train_s
        rounds.next(histories)
        more = len(grid.candidates) - len(histories)
        histories += [[] for _ in range(more)]
        seconds += [0.0] * more
    chosen = rounds.alive[0]
    return options(chosen), rounds.part, sum(seconds) - seconds[chosen]


def _refit(options: Mapping[str, Any], chosen: Finetuned) -> dict[str, Any]:
    """The options with which the chosen fine-tuning is repeated once the held-out group takes part."""
    config: Config = options["config"]
    work = options["work"] / "refit"
    work.mkdir(exist_ok=True)
    return {
        **options,
        "config": config.model_copy(update={"train": config.train.model_copy(update={"selection": "last"})}),
        "work": work,
        "key": content_key({"fold": options["key"], "refit": chosen.selected_epoch}),
    }


def _train(
    spec: FinetuneSpec, source: Source, split: Split, config: Config, *, device: str, **options: Any
) -> tuple[Opened, FineTuned, Finetuned]:
    """Fine-tune a fresh encoder with these settings; see `tune` for the options."""
    seed_everything(spec.seed, device)
    opened = source.take()
    model = build_finetune(spec.method, opened.encoder, num_classes=len(source.clips.classes), seed=spec.seed)
    sections = {name: config.section(name) for name in ("extract", "finetune")}
    model.notes += departures(spec.method, source.clips.modality, sections)
    tuned = tune(model, opened.encoder, opened.items, split, config, seed=spec.seed, device=device, **options)
    return opened, model, tuned


def _result(
    spec: FinetuneSpec,
    source: Source,
    opened: Opened,
    split: Split,
    tuned: Finetuned,
    model: FineTuned,
    key: str,
    device: str,
    precision: str,
    root: Path,
) -> FoldResult:
    assert tuned.effect is not None
    config = {stage: spec.config.section(stage) for stage in ("download", "segment", "extract", "finetune")}
    result: FoldResult = {
        "run": {
            "key": key,
            "pipeline": spec.name,
            "method": spec.method,
            "fold": spec.fold,
            "num_folds": split.num_folds,
            "modality": source.clips.modality,
            "seed": spec.seed,
            "test_group": split.test_group,
            "dev_group": split.dev_group,
            "classes": list(source.clips.classes),
            "layers": [max(opened.encoder.layers)],
            "embed_dim": opened.encoder.embed_dim,
            "num_parameters": sum(value.numel() for value in model.trained().values()),
            "reconstructed": "",
            "eval_batches": None,
            "config": {**config, "train": shared_with_finetuning(spec.config), "method": {}},
            "finetune": True,
            "effect": asdict(tuned.effect),
            "adapted": list(model.adapted),
            "notes": notes_on(model, tuned.effect),
            "micro_batch": tuned.micro_batch,
        },
        "metrics": metrics_of(tuned, spec.config.finetune.epochs, spec.config.train.selection),
        "meta": {
            **meta_of(
                split,
                tuned,
                embeddings_key=source.data_key(spec.config),
                encoder=dict(opened.facts),
                device=device,
                precision=precision,
                root=root,
            ),
            "evaluation_precision": opened.facts.get("weights_dtype", "float32"),  # no autocast: as it is held
        },
    }
    if tuned.search is not None:
        result["search"] = tuned.search
    return result


def _write(
    folder: Path,
    spec: FinetuneSpec,
    source: Source,
    opened: Opened,
    split: Split,
    tuned: Finetuned,
    model: FineTuned,
    result: FoldResult,
) -> None:
    """Write every file of a finished fold, `result.json` last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    facts, classes = opened.facts, source.clips.classes
    head = {
        "finetune": spec.method,
        "encoder": {name: facts.get(name) for name in ("name", "source", "revision", "weights_sha256")},
        "num_classes": len(classes),
        "classes": list(classes),
        "head_parameters": sum(v.numel() for name, v in model.trained().items() if name.startswith("head.")),
    }
    # one entry: safetensors writes several in random order, and equal weights should give equal bytes
    data = save(model.trainable_state(), metadata={"daamctl": json.dumps(head, sort_keys=True)})
    with atomic_path(folder / "weights.safetensors") as temporary:
        temporary.write_bytes(data)
    clips = source.clips.rows[split.test]
    write_finished(folder, clips, opened.items.targets[split.test], tuned, spec.config, result)
