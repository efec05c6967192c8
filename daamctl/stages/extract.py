"""Embed every clip, text or image of a pipeline: one vector per encoder layer, in Parquet shards.

The workers of an engine make the shards: this process, one process per GPU, or a cluster. Unfinished shards are in
`data/.work/`, under the content key of the set, and the finished clips of a shard in parts beside them. After an
interruption, or after the death of a worker, about half a minute is computed again, and the finished folder appears
whole. If another pipeline has already embedded the same inputs, its shards are linked, whatever its labels, classes and
folds are. Given embeddings are stored in the same form, without an encoder.
"""

from __future__ import annotations

import logging
import math
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.embeddings import (
    DECISIVE,
    LABELS_FILE,
    METADATA_FILE,
    EmbeddingsMetadata,
    embeddings_in,
    finished_sets,
    labels_of,
    read_head,
    shard_is_whole,
    shard_path,
    shards_in,
    with_keys,
    write_head,
)
from daamctl.artifacts.inputs import clips_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.utterances import TEXTS
from daamctl.compute.cpu_formats import cpu_formats
from daamctl.compute.devices import resolve_device, resolve_precision
from daamctl.compute.engine import Engine, Units, await_files
from daamctl.compute.engines import make_engine
from daamctl.compute.local_engine import LocalEngine
from daamctl.compute.progress import progress
from daamctl.compute.threads import use_free_cores
from daamctl.config import Config
from daamctl.config.keys import embedding_settings
from daamctl.corpora.sources import root_of
from daamctl.encoders.encoder_cache import EncoderFacts, LazyEncoder
from daamctl.encoders.speech import SpeechEncoder, trial_clip
from daamctl.errors import ArtifactError, AudioError, CorpusError, EncoderError, first_few, two_sizes
from daamctl.extraction.given import store
from daamctl.extraction.items import ImageTables
from daamctl.extraction.parts import parts_folder
from daamctl.extraction.shards import ShardResult, ShardTask, make_shards
from daamctl.extraction.stopwatch import Stopwatch, timing_file
from daamctl.store.files import link_or_copy, put, write_json
from daamctl.store.records import check_file
from daamctl.store.tables import read_frame

log = logging.getLogger(__name__)

NAMED_AT_MOST = 10


@dataclass(frozen=True)
class Shard:
    """A shard to make. It can be pickled, so any worker can take it.

    Args:
        number: from 0, in the order of the clip table.
    """

    head: EmbeddingsMetadata
    folder: Path
    number: int

    @property
    def path(self) -> Path:
        """File of the shard."""
        return shard_path(self.folder, self.number)

    def num_clips(self, config: Config) -> int:
        """Number of clips that it should contain."""
        size = config.extract.shard_clips
        return min(size, self.head.num_clips - self.number * size)

    def is_whole(self, config: Config) -> bool:
        """Whether the file exists and contains all clips."""
        return shard_is_whole(self.path, self.num_clips(config))


Make = Callable[[Sequence[Shard]], Iterator[ShardResult | Units]]
"""Makes shards on an engine, and says meanwhile how many clips are finished."""


class Extractor:
    """A worker: the clip table, and an encoder that is opened on first use.

    Args:
        device: the setting `extract.device`, or the device of this worker.
        seen: whether the clip table existed where the command was started.

    Raises:
        ArtifactError: there is no clip table, or it was made with other settings.
        EncoderError: the encoder cannot be opened, or reads another modality.
    """

    def __init__(self, layout: Layout, config: Config, device: str, *, seen: bool = False) -> None:
        if seen and not layout.clips.is_file():
            raise ArtifactError(
                f"worker on {socket.gethostname()} does not see {layout.clips}",
                fix="put the project on a file system that every machine of the cluster mounts at the same path",
            )
        clips = clips_of(layout, config)
        device = resolve_device(device)
        self.lazy = LazyEncoder(
            layout.work / "encoders",
            config.extract,
            modality=clips.modality,
            max_duration_s=config.segment.max_duration_s,
            device=device,
            precision=resolve_precision(config.extract.precision, device, work="encoder"),
        )
        self.config, self.rows, self.tables = config, clips.rows, ImageTables()
        self.description = _metadata_of(clips, config, self.lazy.known)
        # The clip table itself contains the texts, so their root does not matter.
        self.root = layout.root if clips.modality in TEXTS else root_of(layout, clips)

    @property
    def num_devices(self) -> int:
        """Number of devices that hold the weights."""
        if self.description.modality == "speech":  # never spread over devices, so not opened for this
            return 1
        return len({value.device for value in self.lazy.encoder.model.parameters()}) or 1

    def work(self, tasks: Sequence[Shard]) -> Iterator[ShardResult | Units]:
        """Make shards. Whole ones are kept: a task of a dead worker is repeated even if its file was finished.

        Raises:
            EncoderError: this worker would make other embeddings than the metadata says; see also `make_shards`.
        """
        size = self.config.extract.shard_clips
        todo = []
        for shard in tasks:
            if self.description.vectors_key != shard.head.vectors_key:  # other packages or devices in a cluster
                ours, theirs = self.description.encoder, shard.head.encoder
                differing = [
                    f"{name}: {ours.get(name)}, not {theirs.get(name)}"
                    for name in DECISIVE[shard.head.modality]
                    if ours.get(name) != theirs.get(name)
                ]
                reason = "; ".join(differing) or "other clips or settings"
                raise EncoderError(
                    f"worker on {socket.gethostname()} would make other embeddings ({reason})",
                    fix="give all workers the same weights, packages and kind of device, or set extract.precision",
                )
            if shard.is_whole(self.config):
                yield Units(shard.num_clips(self.config))
                yield ShardResult(shard.path, shard.num_clips(self.config))
            else:
                rows = self.rows[shard.number * size : (shard.number + 1) * size]
                sentences = None
                if self.description.modality == "tokens":  # all words of the sentences that the rows are of
                    sentences = self.rows.filter(pl.col("sentence").is_in(rows["sentence"].unique().implode()))
                todo.append(ShardTask(shard.path, rows, sentences))
        if todo:
            encoder = self.lazy.encoder
            if isinstance(encoder, SpeechEncoder):  # what it cannot take is refused before hours of work
                longest = self.rows.select(pl.max_horizontal("duration_s", "pad_to_s").max()).item()
                encoder.collate_cpu([trial_clip(round(longest * encoder.sampling_rate))])
                window = encoder.padded(0) / encoder.sampling_rate if encoder.has_window else 0.0
                if self.config.extract.window_s is None and 3 * longest <= window:
                    log.info(
                        f"{encoder.what} reads {window:g} s of every clip, the longest has {longest:.1f} s. "
                        f"--set extract.window_s={math.ceil(longest)} is several times as fast; it changes the vectors "
                        "(docs/encoders.md#whispers-30-seconds)"
                    )
            yield from make_shards(
                todo,
                encoder,
                head=tasks[0].head,
                root=self.root,
                config=self.config,
                tables=self.tables,
            )


def run(layout: Layout, config: Config, *, force: bool = False, engine: Engine | None = None) -> Path:
    """Embed the clips of a pipeline.

    Args:
        force: compute everything again, finished shards included.
        engine: where to compute; None: on this machine.

    Returns:
        Folder of the embeddings.

    Raises:
        ArtifactError: there are no clips, they were made with other settings, or the disk is too full.
        EncoderError: the encoder cannot be opened, reads another modality, or fails on a clip.
        AudioError: more clips are unreadable than tolerated.
        CorpusError: more texts or images are unreadable than tolerated.
        WorkerError: workers died and could not be replaced.
    """
    if not config.has_encoder:
        return _store_given(layout, config, force=force)
    engine = engine or make_engine("local")
    open_worker = partial(Extractor, layout, config, seen=layout.clips.is_file())
    head: EmbeddingsMetadata = engine.describe(open_worker, config.extract.device)
    make = partial(engine.map, open_worker, device=config.extract.device)
    gpus: list[str] = []
    if isinstance(engine, LocalEngine):
        device = resolve_device(config.extract.device)
        every = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        gpus = every if device == "cuda" else [device]
    return _embed(layout, head, clips_of(layout, config), config, make, force=force, gpus=gpus)


def _store_given(layout: Layout, config: Config, *, force: bool) -> Path:
    """Store embeddings that are given in a file."""
    fix = layout.command("download")
    clips = clips_of(layout, config)
    layers, embed_dim = tuple(clips.facts["layers"]), int(clips.facts["embed_dim"])
    facts = {name: value for name, value in clips.facts.items() if name not in ("layers", "embed_dim")}
    head = _metadata_of(clips, config, EncoderFacts({**facts, "num_layers": max(layers)}, layers, embed_dim))

    def make(tasks: Sequence[Shard]) -> Iterator[ShardResult | Units]:
        if not tasks:
            return
        yield from store(
            {shard.number for shard in tasks},
            path=root_of(layout, clips) / clips.rows["path"][0],
            rows=clips.rows,
            head=head,
            folder=tasks[0].folder,
            size=config.extract.shard_clips,
            fix=fix,
        )

    return _embed(layout, head, clips, config, make, force=force)


def _embed(
    layout: Layout,
    head: EmbeddingsMetadata,
    clips: ClipTable,
    config: Config,
    make: Make,
    *,
    force: bool,
    gpus: Sequence[str] = (),
) -> Path:
    """Use a finished set if there is one, else make it; `gpus`: those of this machine that may work."""
    # never mix sizes of shards
    work = layout.work / "extract" / f"{head.vectors_key}-{config.extract.shard_clips}"
    artifact = embeddings_in(layout.embeddings, work=work, what=f"the embeddings of {layout.run_name}")
    with artifact.lock():
        if force:
            for left in (work, parts_folder(work)):
                shutil.rmtree(left, ignore_errors=True)
        elif (finished := _find_finished(layout, head, clips, config)) is not None:
            folder, found, own = finished
            if folder != layout.embeddings:
                log.info("the same embeddings exist in %s; linking them", folder)
                with artifact.make() as new:
                    for name in found.files.keys() - {LABELS_FILE}:
                        link_or_copy(folder / name, new / name)
                    write_head(new, own, clips.rows)
                return layout.embeddings
            log.info("embeddings in %s are up to date", folder)
            with suppress(ArtifactError):  # the shards have been checked
                check_file(folder / LABELS_FILE, found.files.get(LABELS_FILE))
                if own == found and read_frame(folder / LABELS_FILE)[0].equals(labels_of(own, clips.rows)):
                    return folder
            write_head(folder, own, clips.rows)
            return folder
        stopwatch = Stopwatch(*gpus)
        unreadable = _make_missing(work, head, make, stopwatch, config, layout)
        whole = replace(head, num_clips=head.num_clips - len(unreadable), unreadable=unreadable)
        write_head(work, whole, clips.rows)
        put(work, layout.embeddings)
        shutil.rmtree(parts_folder(work), ignore_errors=True)
        timing = stopwatch.timing(resolve_device(config.extract.device))
        speeds = {"bfloat16_speed": cpu_formats().speeds} if resolve_device(config.extract.device) == "cpu" else {}
        write_json(timing_file(layout.embeddings), {"encoder": head.encoder["name"], **timing, **speeds})
    made = (whole.num_clips, _unit(whole), len(whole.layers), whole.embed_dim, layout.embeddings)
    log.info("%d %s x %d layers x %d in %s", *made)
    return layout.embeddings


def _metadata_of(clips: ClipTable, config: Config, known: EncoderFacts) -> EmbeddingsMetadata:
    head = EmbeddingsMetadata(
        key="",
        corpus=clips.corpus,
        classes=clips.classes,
        layers=known.layers,
        embed_dim=known.embed_dim,
        encoder=known.facts,
        settings=embedding_settings(config, clips.modality),
        num_clips=len(clips.rows),
        modality=clips.modality,
    )
    return with_keys(head, clips)


def _find_finished(
    layout: Layout, head: EmbeddingsMetadata, clips: ClipTable, config: Config
) -> tuple[Path, EmbeddingsMetadata, EmbeddingsMetadata] | None:
    """A finished set of these vectors with few enough unreadable clips: this pipeline's own, else another one's.

    Its folder, its metadata, and what these are for this pipeline: labels, settings that leave the clips as they are,
    and names are its own.
    """
    tolerated = config.extract.max_unreadable_fraction * head.num_clips
    for folder in dict.fromkeys([layout.embeddings, *finished_sets(layout.data)]):
        try:
            found, ours = read_head(folder), head
            theirs, here = found.encoder.get("precision"), head.encoder.get("precision")
            # `auto` chooses what is faster on a machine; on another one, that is no reason to embed everything again.
            if theirs != here and head.settings.get("extract", {}).get("precision") == "auto":
                ours = with_keys(replace(head, encoder={**head.encoder, "precision": theirs}), clips)
            if found.vectors_key != ours.vectors_key or len(found.unreadable) > tolerated:
                continue
            shards = {name: wanted for name, wanted in found.files.items() if name != LABELS_FILE}
            embeddings_in(folder).check(replace(found, files=shards))  # the labels can be written again
        except ArtifactError as error:
            if (folder / METADATA_FILE).exists():
                log.warning("these embeddings are not used: %s", error.message)
            continue
        if ours is not head:
            log.info("%s was embedded in %s; 'auto' means %s here, but these embeddings are used", folder, theirs, here)
        own = replace(ours, num_clips=found.num_clips, unreadable=found.unreadable, files=found.files)
        return folder, found, own
    return None


def _make_missing(
    work: Path, head: EmbeddingsMetadata, make: Make, stopwatch: Stopwatch, config: Config, layout: Layout
) -> dict[str, str]:
    """Make the missing shards; return clip_id -> reason for the unreadable clips."""
    settings = config.extract
    work.mkdir(parents=True, exist_ok=True)
    number = math.ceil(head.num_clips / settings.shard_clips)
    shards = [Shard(head, work, i) for i in range(number)]
    todo = [shard for shard in shards if not shard.is_whole(config)]
    for path in set(shards_in(work)) - {shard.path for shard in shards}:
        path.unlink()
    missing = sum(shard.num_clips(config) for shard in todo)
    _check_disk(work, missing, head, config, layout)
    if missing < head.num_clips:
        log.info("%d of %d %s are finished and kept", head.num_clips - missing, head.num_clips, _unit(head))
    use_free_cores(parts_folder(work) / "threads")
    unreadable: dict[str, str] = {}
    marks: dict[str, list[str]] = {}
    doing = "extracting" if config.has_encoder else "storing"
    with progress(head.num_clips, f"{doing} {layout.run_name}", _unit(head), done=head.num_clips - missing) as bar:
        for event in make(todo):
            if isinstance(event, Units):
                stopwatch.count(event.number)
                bar.advance(event.number)
                continue
            stopwatch.kept += event.kept
            unreadable.update(event.unreadable)
            for name, marked in event.marks.items():
                marks.setdefault(name, []).extend(marked)
            _check_tolerance(unreadable, head, settings.max_unreadable_fraction, layout)
    await_files(shard.path for shard in todo)
    for path in work.glob(".embeddings-*.parquet"):
        path.unlink()  # left unfinished by a worker that died
    for name, found in marks.items():
        if found:
            log.warning(
                "%d of %d %s are %s: %s", len(found), missing, _unit(head), name, first_few(found, NAMED_AT_MOST)
            )
    return unreadable


def _check_tolerance(unreadable: dict[str, str], head: EmbeddingsMetadata, tolerated: float, layout: Layout) -> None:
    total = head.num_clips
    if len(unreadable) > tolerated * total:
        share = min(1.0, math.ceil(1000 * len(unreadable) / total) / 1000)
        reasons = [f"{clip}: {reason}" for clip, reason in unreadable.items()]
        named = first_few(reasons, NAMED_AT_MOST, separator="; ")
        kind = AudioError if head.modality == "speech" else CorpusError
        raise kind(
            f"{len(unreadable)} of {total} {_unit(head)} cannot be read (tolerated: {tolerated:.1%}): {named}",
            fix="repair the files, or accept it: "
            + layout.command_with("extract", f"extract.max_unreadable_fraction={share:g}"),
        )


def _check_disk(work: Path, num_clips: int, head: EmbeddingsMetadata, config: Config, layout: Layout) -> None:
    """Log how much disk space is needed; refuse if there is less."""
    storage = head.encoder["storage"]
    need = num_clips * len(head.layers) * head.embed_dim * np.dtype(storage).itemsize
    free = shutil.disk_usage(work).free
    log.info("%d %s to store: about %s on disk, %s free", num_clips, _unit(head), *two_sizes(need, free))
    if need > free:
        if storage == "float16" or not config.has_encoder:
            fix = f"free space, then: {layout.command('extract')}"
        else:
            fix = f"free space, or take half of it: {layout.command_with('extract', 'extract.storage=float16')}"
        asked, there = two_sizes(need, free)
        raise ArtifactError(f"the embeddings need {asked}, {there} are free at {work}", fix=fix)


def _unit(head: EmbeddingsMetadata) -> str:
    """Plural of the term for a clip of this modality."""
    return f"{head.task.clip}s"
