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

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts import utterances
from daamctl.artifacts.utterances import SENTENCE, CorpusTable, frame_key, read_table, write_table
from daamctl.store.files import content_key

AUDIO_DIR = "audio"
"""Folder of exported clips beside their table."""

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
    """Write the table atomically, rows in the given order; columns outside the schema are dropped, except sentences.

    Raises:
        ArtifactError: a column of the schema is missing.
    """
    kept = dict.fromkeys([*SCHEMAS[table.modality], SENTENCE])
    columns = [name for name in kept if name in table.rows.columns]
    write_table(path, replace(table, rows=table.rows.select(columns)), SCHEMAS, "clip table")


def read_clips(path: Path) -> ClipTable:
    """Read the table.

    Raises:
        ArtifactError: the file is missing, damaged, or not a clip table.
    """
    return ClipTable(*read_table(path, SCHEMAS, "clip table"))


def clips_key(table: ClipTable) -> str:
    """Content key of all that a fold depends on: the rows, the files they name, and the classes."""
    return content_key({**_content(table, ()), "classes": list(table.classes)})


def inputs_key(table: ClipTable) -> str:
    """Content key of what an encoder reads: the rows without labels, speakers and groups, and the files they name."""
    return content_key(_content(table, ("utterance_id", "label", "speaker", "group")))


def weights_of(owner: NDArray[np.integer[Any]], rows: pl.DataFrame) -> NDArray[np.float64]:
    """Weight of each clip in the mean of its utterance: its duration, relative to the utterance's longest clip.

    Args:
        owner: (N,) number of the utterance of each clip.
        rows: N rows, with `duration_s` if the clips have a duration. Without one, all weights are 1.

    Returns:
        (N,) weights above 0 and at most 1.
    """
    if "duration_s" not in rows.columns or rows["duration_s"].has_nulls():
        return np.ones(len(rows))
    durations = rows["duration_s"].to_numpy().astype(np.float64)
    longest = np.zeros(int(owner.max(initial=-1)) + 1)
    np.maximum.at(longest, owner, durations)
    weights: NDArray[np.float64] = durations / longest[owner]
    return weights


def means_of_clips(
    values: NDArray[np.floating[Any]], owner: NDArray[np.integer[Any]], weights: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """Weighted mean over the clips of each utterance: values (N, …) -> (size, …); 0 for one without clips.

    Every mean over clips is computed here, with the weights of `weights_of`: a rest piece of 5 ms says less than 5 s.
    """
    sums, shape = np.zeros((size, *values.shape[1:])), (-1, *[1] * (values.ndim - 1))
    np.add.at(sums, owner, values * weights.reshape(shape))
    totals = np.bincount(owner, weights, size)
    return sums / np.where(totals > 0, totals, 1.0).reshape(shape)


def _content(table: ClipTable, without: Sequence[str]) -> dict[str, str]:
    names = [name for name in SCHEMAS[table.modality] if name not in without]
    return {"rows": frame_key(table.rows.select(names)), **({"content": table.content} if table.content else {})}
