"""What a corpus is: a way to obtain it, a way to read it, and the facts to validate what was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from daamctl.artifacts.utterances import Modality

PREPARED: dict[str, Any] = {
    "utterance_id": pl.String,
    "path": pl.String,
    "label": pl.String,
    "speaker": pl.String,
    "group": pl.String,
    "start_s": pl.Float64,
    "duration_s": pl.Float64,
}
"""Columns that a speech corpus's `prepare` gives; a null duration: the whole file; a null group: groups are still to be
formed."""
PREPARED_TEXT: dict[str, Any] = {
    "utterance_id": pl.String,
    "text": pl.String,
    "label": pl.String,
    "speaker": pl.String,
    "group": pl.String,
}
"""The same of a text corpus. Where nobody is known to have written a text, `speaker` is the utterance_id."""
PREPARED_IMAGE: dict[str, Any] = {
    "utterance_id": pl.String,
    "path": pl.String,
    "index": pl.Int64,
    "label": pl.String,
    "speaker": pl.String,
    "group": pl.String,
}
"""The same of an image corpus; `index` is the row within a Parquet file of images, null where the file is one image."""


@dataclass(frozen=True)
class Fingerprint:
    """Counts that a complete copy of the corpus must show.

    Args:
        per_class: utterances per class, for every class the corpus has (also those not selected).
        per_speaker: utterances per speaker over the default classes; empty if not known.
        per_group: utterances per group over the default classes; empty if not known.
    """

    per_class: Mapping[str, int]
    per_speaker: Mapping[str, int] = field(default_factory=dict)
    per_group: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Corpus:
    """One corpus: the object each corpus file defines as `CORPUS`.

    Args:
        name: its name in the table of corpora.
        title: one line for `daamctl ls`.
        licence: terms of use, with where to ask for it.
        classes: default classes, in label order; empty: all classes found, sorted (manifests).
        obtain: generates or downloads it into a folder and returns the root; None: it must be given with --from.
        prepare: reads it from its root.
        fingerprint: expected counts; None: nothing is known (manifests).
        aliases: other spellings of class names that a user may pass -> canonical name.
        modality: what it holds; None: told by the table itself (manifests).
        how_to_get: one sentence: how to obtain it and the command to register it.
    """

    name: str
    title: str
    licence: str
    classes: tuple[str, ...]
    prepare: Callable[[Path], pl.DataFrame]
    fingerprint: Fingerprint | None
    how_to_get: str
    obtain: Callable[[Path], Path] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    modality: Modality | None = "speech"
