"""The clip table: one row per piece of a recording, written by `segment` and read by everything after it.

Columns: clip_id (`<utterance_id>#<index, three digits or more>`), utterance_id, path (relative to the corpus root),
label, speaker, group, start_s and duration_s (seconds, exact multiples of one sample of the file), pad_to_s (seconds
to which the clip is filled with zeros at its end; null: not at all), sampling_rate (Hz, of the file). Rows are sorted
by utterance_id, then by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.io import content_key
from daamctl.artifacts.utterances import frame_key, read_frame, write_frame
from daamctl.errors import ArtifactError

SCHEMA: dict[str, Any] = {
    "clip_id": pl.String,
    "utterance_id": pl.String,
    "path": pl.String,
    "label": pl.String,
    "speaker": pl.String,
    "group": pl.String,
    "start_s": pl.Float64,
    "duration_s": pl.Float64,
    "pad_to_s": pl.Float64,
    "sampling_rate": pl.Int32,
}


@dataclass(frozen=True)
class ClipTable:
    """The clips of one corpus.

    Args:
        corpus: key under which the corpus root is registered (`daamctl.corpora.sources.audio_root`).
        classes: class names in label order (index = class id).
        rows: table with the columns of `SCHEMA`.
        settings: the settings it was made with, under `download` and `segment`.
    """

    corpus: str
    classes: tuple[str, ...]
    rows: pl.DataFrame
    settings: dict[str, Any]


def write_clips(path: Path, table: ClipTable) -> None:
    """Write the table atomically, rows in the order given.

    Raises:
        ArtifactError: a column of `SCHEMA` is missing.
    """
    missing = [name for name in SCHEMA if name not in table.rows.columns]
    if missing:
        raise ArtifactError(f"clip table of '{table.corpus}' lacks the columns {', '.join(missing)}")
    head = {"corpus": table.corpus, "classes": list(table.classes), "settings": table.settings}
    write_frame(path, table.rows.select(list(SCHEMA)).cast(pl.Schema(SCHEMA)), head)


def read_clips(path: Path, *, fix: str | None = None) -> ClipTable:
    """Read the table.

    Args:
        path: the file.
        fix: the command that makes it, named in the error.

    Raises:
        ArtifactError: the file is missing, damaged, or no clip table.
    """
    rows, head = read_frame(path, fix=fix)
    if not set(SCHEMA) <= set(rows.columns):
        raise ArtifactError(f"{path} is not a clip table", fix=fix)
    return ClipTable(head["corpus"], tuple(head["classes"]), rows, head["settings"])


def clips_key(table: ClipTable) -> str:
    """Content key of the rows and classes: what embeddings of these clips depend on."""
    return content_key({"rows": frame_key(table.rows.select(list(SCHEMA))), "classes": list(table.classes)})
