"""Embed every clip, text or image of a pipeline: one vector per encoder layer, in Parquet shards.

Unfinished shards lie under the content key of the set in `data/.work/`, so an interrupted run redoes at most one shard,
and the finished folder appears whole. A set that another pipeline already made from identical inputs is linked, not
computed again.
"""

from __future__ import annotations

import logging
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import torch

from daamctl.artifacts.clips import ClipTable, clips_key, read_clips
from daamctl.artifacts.embeddings import (
    HEAD_FILE,
    EmbeddingsHead,
    check_settings,
    read_head,
    shard_is_whole,
    shard_path,
    value_settings,
    write_head,
    write_shard,
)
from daamctl.artifacts.io import content_key, link_or_copy, locked, replace_dir
from daamctl.config import Config
from daamctl.corpora.sources import files_root
from daamctl.devices import resolve_device, resolve_precision
from daamctl.encoders.extraction import Embedded, embed_clips
from daamctl.encoders.items import open_items
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.errors import ArtifactError, AudioError, CorpusError
from daamctl.layout import Layout
from daamctl.progress import progress
from daamctl.training.fold import build_method

log = logging.getLogger(__name__)

FORMAT = 1  # raise it when pooled values change for the same settings
NAMED_AT_MOST = 10
DECISIVE = {
    "speech": ("weights_sha256", "normalize", "precision", "final_norm", "pooling", "sampling_rate"),
    "text": ("weights_sha256", "precision", "final_norm", "tokenizer_sha256", "max_tokens", "special_tokens"),
    "image": ("weights_sha256", "precision", "final_norm", "processor", "class_tokens"),
}
"""Facts of an encoder that determine the vectors."""


def run(layout: Layout, config: Config, *, force: bool = False) -> Path:
    """Embed the clips of a pipeline.

    Args:
        layout: where artifacts lie.
        config: all settings.
        force: compute again even what is finished.

    Returns:
        Folder of the embeddings.

    Raises:
        ArtifactError: no clips, clips made with other settings, or not enough disk space.
        EncoderError: the encoder cannot be opened, reads something else, or fails on a clip.
        AudioError: more clips of recordings are unreadable than tolerated.
        CorpusError: more texts or images are unreadable than tolerated.
        MethodError: a method of the pipeline does not fit the encoder's layers.
    """
    command = layout.command("segment")
    clips = read_clips(layout.clips, fix=f"make them: {command}")
    made = {stage: clips.settings[stage] for stage in ("download", "segment")}
    check_settings(made, config, clips.modality, what="clips", fix=f"make them again: {command}")
    device = resolve_device(config.extract.device)
    precision = resolve_precision(config.extract.precision, device, cpu_auto=True)
    opened = open_encoder(
        config.extract,
        modality=clips.modality,
        max_duration_s=config.segment.max_duration_s,
        device=device,
        precision=precision,
    )
    head = _head(clips, config, opened)
    if layout.pipeline is not None:  # the methods that will follow should fit, before hours of work
        with torch.device("meta"):
            for method in config.methods:
                build_method(method, config, sum(layer > 0 for layer in head.layers), head.embed_dim, len(head.classes))
    if not force:
        finished = _finished(layout, head, config)
        if finished is not None:
            return _share(finished, layout.embeddings, head)
    work = layout.work / "extract" / f"{head.key}-{config.extract.shard_clips}"  # shards of one size only
    with locked(work.with_suffix(".lock"), what=f"the embeddings of {layout.run_name}"):
        finished = None if force else _finished(layout, head, config)
        if finished is not None:  # another process has made them meanwhile
            return _share(finished, layout.embeddings, head)
        if force:
            shutil.rmtree(work, ignore_errors=True)
        unreadable = _make_shards(work, clips, head, opened, config, layout)
        whole = replace(head, num_clips=head.num_clips - len(unreadable), unreadable=unreadable)
        write_head(work, whole)
        replace_dir(work, layout.embeddings)
    log.info("%d clips x %d layers x %d in %s", whole.num_clips, len(whole.layers), whole.embed_dim, layout.embeddings)
    return layout.embeddings


def _head(clips: ClipTable, config: Config, opened: OpenedEncoder) -> EmbeddingsHead:
    facts, settings = opened.facts, value_settings(config, clips.modality)
    decisive = {name: facts[name] for name in DECISIVE[clips.modality]}
    if facts.get("pooling") == "all-frames":
        decisive["pad_to_s"] = config.segment.max_duration_s
    key = content_key(
        {"format": FORMAT, "clips": clips_key(clips), "encoder": decisive, "settings": settings["extract"]}
    )
    return EmbeddingsHead(
        key=key,
        corpus=clips.corpus,
        classes=clips.classes,
        layers=opened.encoder.layers,
        embed_dim=opened.encoder.embed_dim,
        encoder=facts,
        settings=settings,
        num_clips=len(clips.rows),
        modality=clips.modality,
    )


def _finished(layout: Layout, head: EmbeddingsHead, config: Config) -> Path | None:
    """A finished set with this key and no more clips left out than tolerated: our own first, then any pipeline's."""
    tolerated = config.extract.max_unreadable_fraction * head.num_clips
    others = sorted(path.parent for path in (layout.data / "extract").glob(f"*/{HEAD_FILE}"))
    for folder in [layout.embeddings, *others]:
        try:
            found = read_head(folder)
            if found.key == head.key and len(found.unreadable) <= tolerated:
                return folder
        except ArtifactError:
            continue
    return None


def _share(finished: Path, target: Path, head: EmbeddingsHead) -> Path:
    """Use a finished set: leave our own as it is, link another pipeline's files."""
    found = read_head(finished)
    # Settings that leave the clips as they are, and names, are this pipeline's own.
    own = replace(head, num_clips=found.num_clips, unreadable=found.unreadable)
    if finished == target:
        log.info("embeddings in %s are up to date", target)
        if own != found:
            write_head(target, own)
        return target
    log.info("the same embeddings exist in %s; linking them", finished)
    staging = target.with_name(f".{target.name}-linking")
    shutil.rmtree(staging, ignore_errors=True)
    for path in finished.glob("embeddings-*.parquet"):
        link_or_copy(path, staging / path.name)
    write_head(staging, own)
    replace_dir(staging, target)
    return target


def _make_shards(
    work: Path, clips: ClipTable, head: EmbeddingsHead, opened: OpenedEncoder, config: Config, layout: Layout
) -> dict[str, str]:
    """Make the shards that are missing; returns clip_id -> reason of the clips left out."""
    settings, size = config.extract, config.extract.shard_clips
    # texts stand in the table itself, wherever they were read from
    root = layout.root if clips.modality == "text" else files_root(layout.root, clips.corpus)
    work.mkdir(parents=True, exist_ok=True)
    parts = [
        (shard_path(work, i), clips.rows[start : start + size])
        for i, start in enumerate(range(0, head.num_clips, size))
    ]
    todo = [(path, rows) for path, rows in parts if not shard_is_whole(path, len(rows))]
    for path in set(work.glob("embeddings-*.parquet")) - {path for path, _ in parts}:
        path.unlink()
    missing = sum(len(rows) for _, rows in todo)
    _check_disk(work, missing, head, settings.storage)
    if missing < head.num_clips:
        log.info("%d of %d clips are finished and kept", head.num_clips - missing, head.num_clips)
    shard_head: dict[str, object] = {
        "key": head.key,
        "encoder": head.encoder,
        "settings": head.settings,
        "classes": list(head.classes),
    }
    unreadable: dict[str, str] = {}
    marks: dict[str, list[str]] = {}
    with progress(head.num_clips, f"extracting {layout.run_name}", "clips", done=head.num_clips - missing) as bar:
        for path, rows in todo:
            items = open_items(rows, clips.modality, root, opened.encoder, config)
            ids = rows["clip_id"].to_list()
            done = embed_clips(opened.encoder, items, ids, storage=settings.storage, on_clips=bar.advance)
            unreadable.update({ids[row]: reason for row, reason in done.unreadable.items()})
            for name, marked in done.marks.items():
                marks.setdefault(name, []).extend(ids[row] for row in marked)
            _check_tolerance(unreadable, head, settings.max_unreadable_fraction, layout)
            _write(path, rows, done, head, shard_head)
    for name, found in marks.items():
        if found:
            log.warning("%d clip(s) are %s: %s", len(found), name, _some(found))
    return unreadable


def _write(path: Path, rows: pl.DataFrame, done: Embedded, head: EmbeddingsHead, shard_head: dict[str, object]) -> None:
    keep = np.array([row not in done.unreadable for row in range(len(rows))])
    left_out = {**shard_head, "unreadable": len(done.unreadable)}
    write_shard(path, rows.filter(pl.Series(keep)), done.n_frames[keep], done.vectors[keep], head.layers, left_out)


def _check_tolerance(unreadable: dict[str, str], head: EmbeddingsHead, tolerated: float, layout: Layout) -> None:
    total = head.num_clips
    if len(unreadable) > tolerated * total:
        share = min(1.0, math.ceil(1000 * len(unreadable) / total) / 1000)
        named = "; ".join(f"{clip}: {reason}" for clip, reason in list(unreadable.items())[:NAMED_AT_MOST])
        kind = AudioError if head.modality == "speech" else CorpusError
        raise kind(
            f"{len(unreadable)} of {total} clips cannot be read (tolerated: {tolerated:.1%}): {named}",
            fix="repair the files, or accept it: "
            + layout.command("extract", f"--set extract.max_unreadable_fraction={share:g}"),
        )


def _check_disk(work: Path, num_clips: int, head: EmbeddingsHead, storage: str) -> None:
    """Say how much disk is needed, and refuse to start without it."""
    need = num_clips * len(head.layers) * head.embed_dim * np.dtype(storage).itemsize
    free = shutil.disk_usage(work).free
    log.info("%d clips to embed: about %.1f MB on disk, %.0f MB free", num_clips, need / 1e6, free / 1e6)
    if need > free:
        raise ArtifactError(
            f"the embeddings need {need / 1e6:.0f} MB, {free / 1e6:.0f} MB are free at {work}",
            fix="free space, or use --set extract.storage=float16",
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_AT_MOST} more" if len(names) > NAMED_AT_MOST else ""
    return ", ".join(names[:NAMED_AT_MOST]) + more
