"""Fine-tune the encoder of a pipeline with one method: every fold and seed, or one; finished folds are kept.

It reads the clip table and opens a fresh encoder for every fold, so it needs no embeddings. Splits, selection, loss and
seeds are those of `train`, and so are the files: `data/train/<run>/<name>/fold<k>-seed<s>/`.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import torch

from daamctl.adapters import FINETUNES
from daamctl.adapters.prompt import longest_text
from daamctl.adapters.released import is_published, own_input
from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.inputs import clips_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.results import intact_folds
from daamctl.artifacts.utterances import TEXTS
from daamctl.compute.devices import resolve_device, resolve_precision
from daamctl.compute.engine import Engine
from daamctl.compute.progress import progress
from daamctl.config import EMBEDDINGS, Config
from daamctl.corpora.sources import root_of
from daamctl.encoders.load import open_encoder
from daamctl.errors import AudioError, ConfigError, CorpusError
from daamctl.extraction.batching import plan_batches
from daamctl.extraction.items import open_items
from daamctl.fit.adapter import AdapterTrial, EncoderAndItems, EncoderSource, ItemSet
from daamctl.fit.runner import train_all
from daamctl.fit.tracking import make_tracker, send_missing
from daamctl.fit.trial import trials_of

log = logging.getLogger(__name__)

READ_THREADS = 2
NAMED_AT_MOST = 10


def run(
    layout: Layout,
    config: Config,
    *,
    method: str,
    fold: int | None = None,
    seed: int | None = None,
    force: bool = False,
    track: bool = True,
    engine: Engine | None = None,
) -> Path:
    """Fine-tune.

    Args:
        method: a name from the table of fine-tuning methods.
        fold: 1-based fold; None: all.
        seed: one seed instead of those of the settings.
        force: train again even what is finished.
        engine: where to train; None: in this process, one fold after the other.

    Returns:
        The folder of its folds.

    Raises:
        UnknownNameError: no such fine-tuning method.
        ConfigError: the embeddings are given, so there is no encoder.
        ArtifactError: no clips, or clips made with other settings.
        EncoderError: the encoder cannot be opened, or reads something else.
        AudioError: more clips are unreadable than tolerated.
        CorpusError: more texts or images are unreadable than tolerated.
        MethodError: the encoder does not support this method.
        TrainingError: no such fold, or the data, numbers or memory do not allow training.
        WorkerError: a worker of the engine died too often.
    """
    FINETUNES.module_of(method)
    if not config.has_encoder:
        raise ConfigError(f"download.corpus is '{EMBEDDINGS}', so there is no encoder to fine-tune")
    config = config.for_adapter(method)
    clips = clips_of(layout, config)
    source = EncoderSource(clips, partial(_open, layout, config, clips, method))
    if config.extract.max_unreadable_fraction > 0 or clips.modality == "tokens":
        source = _readable(source, layout, config, method)
    seeds = None if seed is None else (seed,)
    trials = trials_of(AdapterTrial, layout, method, source, config, fold=fold, seeds=seeds)
    if engine is not None and not engine.in_process:
        source.ask_worker(engine, config.finetune.device)
    folder = layout.method(method)
    whole = fold is None and seed is None
    with closing(make_tracker(layout.root, enabled=track)) as tracker:
        train_all(trials, folder, layout, tracker, force=force, alone=whole, engine=engine)
        send_missing(tracker, intact_folds(folder))
    return folder


def _open(layout: Layout, config: Config, clips: ClipTable, method: str) -> EncoderAndItems:
    """Open a fresh encoder and its items, with the settings given or those that the method requires."""
    device = resolve_device(config.finetune.device)
    own = own_input(method, clips.modality)
    longest = own.get("finetune.max_tokens", config.finetune.max_tokens)
    update = {path.removeprefix("extract."): value for path, value in own.items() if path.startswith("extract.")}
    extract = config.extract.model_copy(update={**update, "max_tokens": longest})
    if extract.weights_dtype == "auto":  # half precision is for frozen encoders; this one is evaluated as it is
        extract = extract.model_copy(update={"weights_dtype": "float32"})
    opened = open_encoder(
        extract,
        modality=clips.modality,
        max_duration_s=config.segment.max_duration_s,
        device=device,
        precision=resolve_precision(config.finetune.precision, device, work="other"),
        keep_pooler=is_published(method) and clips.modality == "image",
    )
    encoder = opened.encoder
    # texts are in the table itself
    root = layout.root if clips.modality in TEXTS else root_of(layout, clips)
    if method == "prompt-tuning":  # the texts are cut before its vectors are there
        longest = min(longest, longest_text(encoder.model))
    items = open_items(clips.rows, clips.modality, root, encoder, config, max_tokens=longest)
    with suppress(AudioError, CorpusError):  # of a file that cannot be read, which is told where it is needed
        encoder.collate_cpu([items.read(int(items.sizes.argmax()))])  # refuses a clip that is too long, before training
    index = {name: number for number, name in enumerate(clips.classes)}
    targets = torch.tensor([index[label] for label in clips.rows["label"]])
    plan = partial(plan_batches, budget=items.budget, equal_length=encoder.equal_length_batches)
    return EncoderAndItems(encoder, opened.facts, ItemSet(targets, items.sizes, items.read, plan, items.members))


def _readable(source: EncoderSource, layout: Layout, config: Config, method: str) -> EncoderSource:
    """Leave out clips that cannot be read, with the tolerance of extraction."""
    clips = source.table
    items = source.open().items
    unreadable: dict[int, str] = {}
    if items.members is not None:
        given = {row for members in items.members for row in members}
        unreadable = {row: "gives no token" for row in range(len(clips.rows)) if row not in given}

    def look(item: int) -> None:
        try:
            items.read(item)
        except (AudioError, CorpusError) as error:
            unreadable[item] = error.message

    with (
        progress(len(items.sizes), f"reading {layout.run_name}", "items") as bar,
        ThreadPoolExecutor(READ_THREADS) as pool,
    ):
        for _ in pool.map(look, range(len(items.sizes))):
            bar.advance()
    if not unreadable:
        return source
    named = "; ".join(f"{clips.rows['clip_id'][row]}: {unreadable[row]}" for row in sorted(unreadable)[:NAMED_AT_MOST])
    words = f"{len(unreadable)} of {len(clips.rows)} {clips.task.clip}s cannot be read"
    if len(unreadable) > config.extract.max_unreadable_fraction * len(clips.rows):
        share = min(1.0, math.ceil(1000 * len(unreadable) / len(clips.rows)) / 1000)
        again = layout.command_with("finetune", f"extract.max_unreadable_fraction={share:g}")
        kind = AudioError if clips.modality == "speech" else CorpusError
        tolerated = f" (tolerated: {config.extract.max_unreadable_fraction:.1%}): {named}"
        raise kind(words + tolerated, fix=f"repair the files, or continue without them: {again}")
    log.warning("%s and are left out: %s", words, named)
    kept = pl.Series([row not in unreadable for row in range(len(clips.rows))])
    clips = replace(clips, rows=clips.rows.filter(kept))
    return EncoderSource(clips, partial(_open, layout, config, clips, method))
