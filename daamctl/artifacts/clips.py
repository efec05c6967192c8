"""Clip table: one row per piece of a recording, written by `segment` and read by all later stages.

A text, an image or a word of a sentence is one clip: clip_id, followed by the columns of its utterance. Given
embeddings keep their columns and the order of their file. Columns of speech: clip_id
(`<utterance_id>#<index, three digits or more>`), utterance_id, path (relative to the corpus root), label, speaker,
group, start_s and duration_s (seconds, exact multiples of one sample of the file), pad_to_s (seconds to which the clip
is zero-padded at its end; null: no padding), sampling_rate (Hz, of the file). Rows are sorted by utterance_id, then by
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts import utterances
from daamctl.artifacts.io import content_key
from daamctl.artifacts.utterances import CorpusTable, frame_key, read_table, write_table

SCHEMAS: dict[str, dict[str, Any]] = {
    "speech": {
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
    },
    "text": {"clip_id": pl.String, **utterances.SCHEMAS["text"]},
    "image": {"clip_id": pl.String, **utterances.SCHEMAS["image"]},
    "tokens": {"clip_id": pl.String, **utterances.SCHEMAS["tokens"]},
    "embeddings": utterances.SCHEMAS["embeddings"],
}


class ClipTable(CorpusTable):
    """The clips of one corpus; `settings` holds those of `download` and `segment`, by section."""


def write_clips(path: Path, table: ClipTable) -> None:
    """Write the table atomically, rows in the given order; columns outside the schema are dropped.

    Raises:
        ArtifactError: a column of the schema is missing.
    """
    columns = [name for name in SCHEMAS[table.modality] if name in table.rows.columns]
    write_table(path, replace(table, rows=table.rows.select(columns)), SCHEMAS, "clip table")


def read_clips(path: Path, *, fix: str | None = None) -> ClipTable:
    """Read the table.

    Args:
        path: the file.
        fix: command that creates it, for the error message.

    Raises:
        ArtifactError: the file is missing, damaged, or not a clip table.
    """
    return ClipTable(*read_table(path, SCHEMAS, "clip table", fix=fix))


def clips_key(table: ClipTable) -> str:
    """Content key of all that a fold depends on: the rows, the files they name, and the classes."""
    return content_key({**_content(table, ()), "classes": list(table.classes)})


def inputs_key(table: ClipTable) -> str:
    """Content key of what an encoder reads: the rows without labels, speakers and groups, and the files they name."""
    return content_key(_content(table, ("utterance_id", "label", "speaker", "group")))


def _content(table: ClipTable, without: Sequence[str]) -> dict[str, str]:
    names = [name for name in SCHEMAS[table.modality] if name not in without]
    return {"rows": frame_key(table.rows.select(names)), **({"content": table.content} if table.content else {})}
