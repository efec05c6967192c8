"""Train one fold of one fine-tuning method, from a fresh encoder to a finished fold folder.

Every fold opens its own encoder, so that nothing trained in one fold can reach another (D50).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from daamctl.adapters import FINETUNES, FineTuned, build_finetune
from daamctl.adapters.released import departures, is_published, own_input
from daamctl.artifacts.clips import ClipTable, clips_key
from daamctl.artifacts.io import content_key, locked, replace_dir
from daamctl.artifacts.results import Fold, FoldResult, SearchPart, fold_dir, read_fold
from daamctl.artifacts.splits import Split, joined, split_of
from daamctl.config import Config
from daamctl.config.keys import finetuning_data_settings, key_settings, shared_with_finetuning
from daamctl.devices import release_memory, resolve_device, resolve_precision
from daamctl.engines.base import Engine
from daamctl.errors import ArtifactError, DivergedError
from daamctl.layout import Layout
from daamctl.methods.weights import write_weights
from daamctl.methods.weights_metadata import ADAPTER, Origin, WeightsMetadata
from daamctl.progress import Progress, progress
from daamctl.provenance import code_hash
from daamctl.tracking import Tracker
from daamctl.training.finetune import Collating, Finetuned, ItemSet, notes_on, tune
from daamctl.training.fold_files import identity, meta_of, metrics_of, write_finished
from daamctl.training.loop import Epoch, seed_everything
from daamctl.training.run import collect, summary_line
from daamctl.training.search import Grid, Rounds, most_epochs, refits

log = logging.getLogger(__name__)

KEY_FORMAT = 2  # raise it when a change of the loop makes finished folds wrong
FREE_FACTS = frozenset({"name", "source", "revision", "transformers", "num_layers", "precision", "storage"})
"""Facts of an encoder that cannot change what it computes, given the other facts."""


class FinetunableEncoder(Collating, Protocol):
    """Interface of an encoder that can be fine-tuned.

    Attributes:
        model: the Hugging Face base model.
        layers: numbers of its layers.
        embed_dim: D.
    """

    model: Any
    layers: tuple[int, ...]
    embed_dim: int


@dataclass(frozen=True)
class Opened:
    """A fresh encoder, and the corpus as items that it can read.

    Args:
        encoder: frozen, in eval mode, on its device.
        facts: recorded facts of the encoder.
        items: one item for each row of the clip table.
    """

    encoder: FinetunableEncoder
    facts: Mapping[str, Any]
    items: ItemSet


@dataclass
class Source:
    """Clips of a corpus, and a way to open a fresh encoder for each fold.

    Args:
        clips: the clips, without unreadable ones.
        open: opens an encoder and its items.
    """

    clips: ClipTable
    open: Callable[[], Opened]
    _next: Opened | None = field(default=None, init=False)
    _facts: Mapping[str, Any] | None = field(default=None, init=False)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Recorded facts of the encoder. Opens it if necessary; `take` then returns that encoder first."""
        if self._facts is None:
            self._next = self.open()
            self._facts = self._next.facts
        return self._facts

    def learn(self, engine: Engine, device: str) -> None:
        """Let a worker open the encoder and report its facts; this machine may lack the memory for it."""
        if self._facts is None:
            ((_, self._facts),) = engine.each(_facts_of, self.without_encoder(), [0], device=device, per_gpu=1)

    def without_encoder(self) -> Source:
        """Copy of this source to send to another process; releases an encoder that is already open."""
        self._next = None
        return Source(self.clips, self.open)

    def take(self) -> Opened:
        """Return a fresh encoder, without keeping a reference to it."""
        taken, self._next = self._next, None
        return taken or self.open()

    def data_key(self, config: Config) -> str:
        """Content key of the training data: the items, and all that affects how the encoder reads them."""
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
    """Which fold to train, and with which settings.

    Args:
        name: pipeline or ad-hoc run name.
        method: a name from the table of fine-tuning methods.
        fold: 1-based.
        seed: initial adapters and order of batches.
        config: settings with this method's overrides applied (`Config.for_adapter`); `finetune` applies, and the part
            of `train` that it shares.
    """

    name: str
    method: str
    fold: int
    seed: int
    config: Config

    def key(self, source: Source) -> str:
        """Content key of everything that affects the result; the machine does not."""
        module = FINETUNES.module_of(self.method)
        return content_key(
            {
                "format": KEY_FORMAT,
                "data": source.data_key(self.config),
                "method": self.method,
                "code": [
                    *(code_hash(name, "daamctl.adapters") for name in (module, "daamctl.adapters.heads")),
                    code_hash("daamctl.attention", "daamctl"),
                ],
                "finetune": key_settings(self.config, "finetune"),
                "train": shared_with_finetuning(self.config),
                "fold": self.fold,
                "seed": self.seed,
            }
        )


def kept_fold(folder: Path, spec: FinetuneSpec, source: Source) -> Fold | None:
    """The finished fold on disk if its inputs are identical, else None."""
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
    """Train the folds that are not finished; return all, in the order of `specs`. Arguments as in `train_all`."""
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
    """Train one fold in a worker; return the fold's folder."""
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
    """Train one fold and move its complete folder into place.

    Args:
        spec: what to train.
        source: clips and encoder.
        folder: will hold `fold<k>-seed<s>/`.
        work: folder for unfinished work, on the same file system.
        root: project folder, for the commit.
        on_epoch: called after each epoch of the final training.
        bar: progress bar that counts items.

    Raises:
        TrainingError: the split, the numbers or the memory do not allow training, or the adapters have no effect.
        MethodError: this encoder does not support the method.
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
        if kept is not None and identity(kept.folder) != before:  # another process has finished it meanwhile
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
    del model, opened, tuned  # free a large encoder before opening the next one
    release_memory()
    return read_fold(target)


def grid_of(spec: FinetuneSpec) -> Grid | None:
    """The learning rates to try; None without a search. Published variants keep the given rate."""
    searched = spec.config.finetune.search != "none" and spec.config.train.selection == "dev-group"
    return Grid(spec.config.finetune) if searched and not is_published(spec.method) else None


def _search(
    grid: Grid, train: Callable[..., tuple[Opened, FineTuned, Finetuned]], fold: Mapping[str, Any]
) -> tuple[dict[str, Any], SearchPart, float]:
    """Successive halving over learning rates; each candidate starts from a fresh encoder.

    Args:
        grid: the candidates.
        train: trains one candidate.
        fold: options of the fold: settings, work folder, key and item counter.

    Returns:
        The options for training the chosen candidate to the end, the record of the search, and the seconds spent on the
        other candidates.
    """
    config: Config = fold["config"]
    rounds = Rounds(grid)
    histories: list[list[Epoch]] = [[] for _ in grid.candidates]
    seconds = [0.0 for _ in grid.candidates]
    counted: dict[int, int] = {}

    def count_new(number: int) -> Callable[[int], None]:
        """Return a callback that counts a candidate's items; items replayed from a resume file count only once."""
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
    """Options for repeating the chosen fine-tuning with the held-out group included."""
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
    """Fine-tune a fresh encoder with these settings; the options are those of `tune`."""
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
            "evaluation_precision": opened.facts.get("weights_dtype", "float32"),  # no autocast: as the weights
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
    """Write all files of a finished fold, `result.json` last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    metadata = WeightsMetadata(
        kind=ADAPTER,
        method=spec.method,
        settings={},
        num_layers=1,
        embed_dim=opened.encoder.embed_dim,
        num_classes=len(source.clips.classes),
        head_parameters=sum(v.numel() for name, v in model.trained().items() if name.startswith("head.")),
        **vars(_origin(spec, source.clips, opened)),
    )
    write_weights(folder / "weights.safetensors", model.trainable_state(), metadata)
    clips = source.clips.rows[split.test]
    write_finished(folder, clips, opened.items.targets[split.test], tuned, spec.config, result)


def _origin(spec: FinetuneSpec, clips: ClipTable, opened: Opened) -> Origin:
    """What was read, and how; a way that reads as it itself demands says so."""
    sections = {
        "segment": key_settings(spec.config, "segment"),
        "extract": finetuning_data_settings(spec.config, clips.modality),
    }
    longest = spec.config.finetune.max_tokens
    for path, value in own_input(spec.method, clips.modality).items():
        section, name = path.split(".")
        if section in sections:
            sections[section][name] = value
        else:
            longest = value
    facts = {name: value for name, value in opened.facts.items() if name != "storage"}
    facts["precision"] = facts.get("weights_dtype", "float32")  # of inference: no autocast
    if "max_tokens" in facts:
        facts["max_tokens"] = min(facts["max_tokens"], longest)
    last = (max(opened.encoder.layers),)
    return Origin.of(facts, classes=clips.classes, layers=last, modality=clips.modality, settings=sections)
