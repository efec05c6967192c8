"""Utterance table: one row per recording of a corpus, written by `download` and read by `segment`.

Columns of speech: utterance_id, path (relative to the corpus root), label, speaker, group (the fold unit), start_s,
duration_s (seconds), sampling_rate (Hz), n_channels. A text's row holds the text itself; an image's row its file, and
its row in the file if that is a Parquet table of images. A row of `tokens` is a word (text), with its sentence and its
position there. Given embeddings have one row per clip, with clip_id, and the row in their file. Further columns follow,
among them `sentence` where it is known. The table does not record where the corpus is on this machine (see
`daamctl.corpora.sources`), so it is the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from daamctl.data.task import Task, task_of
from daamctl.errors import ArtifactError, listing
from daamctl.store.files import content_key
from daamctl.store.records import SEAL, seal_of
from daamctl.store.tables import read_frame, write_frame

Modality = Literal["speech", "text", "image", "tokens", "embeddings"]
"""Kind of items in a corpus. Items of `tokens` are the words of sentences. Given embeddings have no encoder."""


def encoder_input(modality: Modality) -> Modality:
    """What an encoder must read to embed items of a modality: for the words of sentences, text."""
    return "text" if modality == "tokens" else modality


TEXTS: tuple[Modality, ...] = ("text", "tokens")
"""Modalities whose rows hold all that is read, and name no files."""

SENTENCE = "sentence"
"""Optional column of items, and of the labels of embeddings: what is said. No content key has it."""
_ROW = {"label": pl.String, "speaker": pl.String, "group": pl.String}
SCHEMAS: dict[str, dict[str, Any]] = {
    "speech": {
        "utterance_id": pl.String,
        "path": pl.String,
        **_ROW,
        "start_s": pl.Float64,
        "duration_s": pl.Float64,
        "sampling_rate": pl.Int32,
        "n_channels": pl.Int32,
    },
    "text": {"utterance_id": pl.String, "text": pl.String, **_ROW},
    "image": {"utterance_id": pl.String, "path": pl.String, "index": pl.Int64, **_ROW},
    "tokens": {"utterance_id": pl.String, "sentence": pl.String, "position": pl.Int64, "text": pl.String, **_ROW},
    "embeddings": {"utterance_id": pl.String, "clip_id": pl.String, "path": pl.String, "index": pl.Int64, **_ROW},
}


@dataclass(frozen=True)
class CorpusTable:
    """Rows of one corpus, with their metadata.

    Args:
        corpus: key under which the corpus root is registered (`daamctl.corpora.sources.root_of`).
        classes: class names in label order (index = class id).
        rows: the columns of the table's schema first, further columns after them.
        content: hash of the files that the rows name; empty for texts, whose rows contain them.
        facts: of the file of given embeddings, see `daamctl.corpora.vector_file`; else empty.
    """

    corpus: str
    classes: tuple[str, ...]
    rows: pl.DataFrame
    settings: dict[str, Any]
    modality: Modality = "speech"
    content: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """What is asked of the corpus."""
        return task_of(self.modality, self.classes)


class UtteranceTable(CorpusTable):
    """The utterances of one corpus; `settings` holds those of `download`."""


def write_utterances(path: Path, table: UtteranceTable) -> None:
    """Write the table atomically, sorted by utterance_id.

    Raises:
        ArtifactError: a column of the schema is missing.
    """
    write_table(path, replace(table, rows=table.rows.sort("utterance_id")), SCHEMAS, "utterance table")


def read_utterances(path: Path) -> UtteranceTable:
    """Read the table.

    Raises:
        ArtifactError: the file is missing, damaged, or not an utterance table.
    """
    return UtteranceTable(*read_table(path, SCHEMAS, "utterance table"))


def write_table(path: Path, table: CorpusTable, schemas: Mapping[str, Mapping[str, Any]], what: str) -> None:
    """Write a table atomically: first the columns of its modality's schema, then further ones.

    Raises:
        ArtifactError: a column of the schema is missing.
    """
    schema = schemas[table.modality]
    missing = [name for name in schema if name not in table.rows.columns]
    if missing:
        raise ArtifactError(f"{what} of '{table.corpus}' lacks the {listing('column', missing, 20)}")
    further = [name for name in table.rows.columns if name not in schema]
    rows = table.rows.select([*schema, *further]).cast(pl.Schema(schema))
    head = {"corpus": table.corpus, "classes": list(table.classes), "settings": table.settings}
    head = {**head, "modality": table.modality, "content": table.content}
    head |= {"facts": table.facts} if table.facts else {}
    write_frame(path, rows, {**head, SEAL: _table_hash(rows, head)})


def read_table(
    path: Path, schemas: Mapping[str, Mapping[str, Any]], what: str
) -> tuple[str, tuple[str, ...], pl.DataFrame, dict[str, Any], Modality, str, dict[str, Any]]:
    """Read a table written by `write_table`: the fields of `CorpusTable`.

    Raises:
        ArtifactError: the file is missing, damaged, or lacks columns of the schema.
    """
    rows, head = read_frame(path)
    modality: Modality = head.get("modality", "speech")
    schema = schemas.get(modality)
    if not {"corpus", "classes", "settings"} <= head.keys() or schema is None or not set(schema) <= set(rows.columns):
        raise ArtifactError(f"{path} is not {'an' if what[0] in 'aeiou' else 'a'} {what}", path=path)
    if head.pop(SEAL, None) != _table_hash(rows, head):
        raise ArtifactError(f"{path} was changed after it was written: its content does not match its hash", path=path)
    content, facts = head.get("content", ""), head.get("facts", {})
    return head["corpus"], tuple(head["classes"]), rows, head["settings"], modality, content, facts


def _table_hash(rows: pl.DataFrame, head: dict[str, Any]) -> str:
    """Hash of a table with its metadata."""
    columns = json.dumps(rows.to_dict(as_series=False), default=str)  # further columns may hold dates
    return seal_of({**head, "rows": hashlib.sha256(columns.encode()).hexdigest()})


def frame_key(rows: pl.DataFrame) -> str:
    """Content key of a frame: the same rows in the same order give the same key."""
    return content_key(rows.to_dict(as_series=False))
