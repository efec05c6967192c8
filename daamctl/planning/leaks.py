"""Leaks between folds: shared speakers, utterances and sentences, and copies, as `preflight` finds them."""

from __future__ import annotations

import logging

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.embeddings import METADATA_FILE, StoredVectors
from daamctl.artifacts.inputs import clips_of
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.splits import fold_groups
from daamctl.artifacts.utterances import SENTENCE, Modality
from daamctl.config import Config
from daamctl.corpora.sources import root_of
from daamctl.errors import ArtifactError, CorpusError
from daamctl.evaluation.data_checks import CorpusFacts, check_duplicates, check_shared, content_ids, numbered, text_ids
from daamctl.extraction.items import ImageTables
from daamctl.fit.features import Features, open_features

logger = logging.getLogger(__name__)


def leaks(layout: Layout, config: Config) -> list[str]:
    """What makes results on the folds of a pipeline too high, one sentence each; without clips none is found.

    Copies of recordings are found by the vectors of the last layer alone, so that only these are read.
    """
    has_vectors, last_layer = (layout.embeddings / METADATA_FILE).exists(), None
    if not has_vectors and not layout.clips.exists():
        return []
    try:
        if has_vectors:
            features = open_features(layout, config)
            assert isinstance(features.x, StoredVectors)
            last_layer = features.x.subset(features.layers[-1:])
            clips, task, modality = features.clips, features.head.task, features.head.modality
        else:
            table = clips_of(layout, config)
            clips, task, modality = table.rows, table.task, table.modality
        found_in_clips = content = _content(layout, clips, modality)
        if content is None and last_layer is not None:
            content = content_ids(last_layer, task.wholes(clips["clip_id"]))
    except ArtifactError as error:  # e.g. the settings have changed since
        return [f"whether folds share speakers or copies is not checked: {error.message}"]
    task = task.with_sources(clips["utterance_id"], clips["speaker"])
    columns = ("speaker", "utterance_id", *([SENTENCE] if SENTENCE in clips.columns else []))
    found = [check_shared(clips, name, task) for name in columns]
    if content is not None:
        found.append(check_duplicates(clips, content, task, stored=found_in_clips is None))
    texts = [one.text for one in found if one.severity == "warning"]
    unknown = ["whether folds share copies is not checked: there are no embeddings"] if content is None else []
    return texts + unknown


def corpus_facts(layout: Layout, features: Features) -> CorpusFacts:
    """Facts about the corpus that the checks need."""
    head, facts = features.head, features.head.encoder
    added = facts.get("special_tokens") or {"first": 0, "last": 0, "pooled": False}
    left_out = 0 if added["pooled"] else added["first"] + added["last"]
    return CorpusFacts(
        head.task,
        lengths=head.modality == "text",
        tested=fold_groups(features.clips["group"]),
        content=_content(layout, features.clips, head.modality),
        sentences=SENTENCE in features.clips.columns,
        max_tokens=facts["max_tokens"] - left_out if "max_tokens" in facts else None,
    )


def _content(layout: Layout, clips: pl.DataFrame, modality: Modality) -> NDArray[np.int64] | None:
    """Numbers (N,) that are equal if texts or image files are; None if these are not available.

    Always None for speech, whose clips are parts of files, for words, which recur in other sentences, and for given
    embeddings; embeddings are compared instead.
    """
    if modality in ("speech", "tokens", "embeddings"):
        return None
    try:
        table = read_clips(layout.clips)
        rows = clips.select("clip_id").join(table.rows, on="clip_id", how="left", maintain_order="left")
        if modality == "text":
            return None if rows["text"].null_count() else text_ids(rows["text"])
        if rows["path"].null_count():
            return None
        root, tables = root_of(layout, table), ImageTables()
        pairs = rows.select("path", "index").iter_rows()
        return numbered(
            (root / path).read_bytes() if index is None else tables.encoded(root / path, index) for path, index in pairs
        )
    except (ArtifactError, CorpusError, OSError) as error:
        logger.warning("copies can only be found by their embeddings: %s", error)
        return None
