"""The stage `segment`: cut every utterance into consecutive clips. A text, an image or a word is one clip as it is.

Given embeddings are clips already. `daamctl.extraction.cutting` computes the cuts.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from pathlib import Path

import polars as pl

from daamctl.artifacts.clips import AUDIO_DIR, ClipTable, write_clips
from daamctl.artifacts.inputs import utterances_of
from daamctl.artifacts.layout import Layout
from daamctl.config import Config
from daamctl.corpora.base import class_counts
from daamctl.corpora.sources import root_of
from daamctl.errors import AudioError, ConfigError
from daamctl.extraction.cutting import cut
from daamctl.store.files import atomic_path

log = logging.getLogger(__name__)


def run(layout: Layout, config: Config) -> Path:
    """Write the clip table of a pipeline or corpus.

    Returns:
        The file written.

    Raises:
        ArtifactError: the utterance table is missing or was made with other settings.
        ConfigError: `segment.write_audio` is set, but the corpus has no audio.
        AudioError: a recording to be exported cannot be read.
    """
    utterances = utterances_of(layout, config)
    modality = utterances.modality
    if modality == "speech":
        rows = cut(utterances.rows, config.segment)
    elif modality == "embeddings":
        rows = utterances.rows.sort("index")
    else:
        if config.segment.write_audio:
            what = f"corpus '{utterances.corpus}' consists of {utterances.task.clip}s"
            raise ConfigError(
                f"segment.write_audio exports audio, but {what}", fix="use --set segment.write_audio=false"
            )
        log.debug("the settings of segment apply to recordings; each %s is one clip", modality)
        order = ("sentence", "position") if modality == "tokens" else ("utterance_id",)
        rows = utterances.rows.sort(*order).with_columns(clip_id=pl.col("utterance_id") + "#000")
    settings = {"download": utterances.settings, "segment": config.section("segment")}
    given = (utterances.content, utterances.facts)
    clips = ClipTable(utterances.corpus, utterances.classes, rows, settings, modality, *given)
    audio = layout.clips.parent / AUDIO_DIR
    if config.segment.write_audio and modality == "speech":
        root, columns = root_of(layout, clips), ("clip_id", "path", "start_s", "duration_s", "pad_to_s")
        with atomic_path(audio) as new:  # moved into place when it is complete
            new.mkdir()
            for clip_id, path, *times in rows.select(columns).iter_rows():
                _write_flac(new / audio_name(clip_id), root / path, *times)
        log.info("clips exported to %s", audio)
    elif audio.is_dir():  # it may be of other clips
        shutil.rmtree(audio)
        log.info("removed the exported clips in %s, because segment.write_audio is off", audio)
    write_clips(layout.clips, clips)
    number, per_class = utterances.rows.height, class_counts(rows, clips.classes)
    if modality == "speech":
        hours = float(rows["duration_s"].sum()) / 3600.0
        log.info("%d clips from %d utterances, %.2f h: %s", rows.height, number, hours, per_class)
    else:
        log.info("%d %ss, not cut: %s", number, clips.task.clip, per_class)
    return layout.clips


def audio_name(clip_id: str) -> str:
    """File name of an exported clip: its id without unsafe characters; different ids give different names."""
    safe = re.sub(r"[^\w.#@-]", "_", clip_id)[:150]
    if safe != clip_id:
        safe += "-" + hashlib.sha256(clip_id.encode()).hexdigest()[:8]
    return f"{safe}.flac"


def _write_flac(target: Path, source: Path, start_s: float, duration_s: float, pad_to_s: float | None) -> None:
    import numpy as np
    import soundfile as sf

    from daamctl.data.audio import read_piece

    samples, rate = read_piece(source, start_s=start_s, duration_s=duration_s)
    if not np.isfinite(samples).all():
        raise AudioError(f"{source} has samples that are NaN or infinite")
    if pad_to_s is not None:
        samples = np.pad(samples, ((0, round(pad_to_s * rate) - len(samples)), (0, 0)))
    try:
        sf.write(target, np.clip(samples, -1.0, 1.0), rate, format="FLAC", subtype="PCM_16")
    except sf.LibsndfileError as error:
        raise AudioError(f"cannot write {source} as FLAC: {error}") from error
