"""Number, lengths and groups of the items of a pipeline, from its tables or from the published counts of the corpus."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.utterances import TEXTS, CorpusTable, Modality
from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.data.spans import word_id

SENTENCE = 15
"""Words of a sentence, about, where the sentences are not known yet: 14.5 in CoNLL-2003, 17.9 in WNUT-17."""


@dataclass(frozen=True)
class CorpusStats:
    """Statistics of the items of a pipeline.

    Args:
        modality: their modality; None: not known yet (manifests).
        classes: C; None: not known yet.
        rows: N rows with `group`, `label` and `utterance_id`; from the published counts if there is no table. None: not
            known yet.
        lengths: (N,) seconds, characters, or 1 per image; None: not known yet.
        at_least: a row may become several clips.
        about: number and lengths are based on published durations, not on recordings.
    """

    modality: Modality | None
    classes: int | None
    rows: pl.DataFrame | None
    lengths: NDArray[np.float64] | None
    at_least: bool
    about: bool = False


def corpus_stats_of(config: Config, utterances: CorpusTable | None, clips: CorpusTable | None) -> CorpusStats:
    """Statistics from the clip table, else the utterance table, else the published counts of the corpus."""
    table = clips or utterances
    if table is None:
        return _known(config)
    rows, lengths = table.rows.select("group", "label", "utterance_id"), np.ones(len(table.rows))
    if table.modality in TEXTS:
        lengths = table.rows["text"].str.len_chars().to_numpy().astype(float)
    elif table.modality == "speech":
        lengths = table.rows["duration_s"].to_numpy()
        if clips is None:
            rows, lengths = _cut(rows, lengths, config.segment.max_duration_s)
    return CorpusStats(table.modality, len(table.classes), rows, lengths, False)


def _cut(
    rows: pl.DataFrame, lengths: NDArray[np.float64], longest_s: float
) -> tuple[pl.DataFrame, NDArray[np.float64]]:
    """Rows and seconds of the clips that `segment` will cut, without regard to `segment.tail`."""
    pieces = np.maximum(1, np.ceil(lengths / longest_s - 1e-9)).astype(int)
    rest = lengths - (pieces - 1) * longest_s
    cut = np.full(int(pieces.sum()), longest_s)
    cut[np.cumsum(pieces) - 1] = rest
    return rows[np.repeat(np.arange(len(rows)), pieces)], cut


def _known(config: Config) -> CorpusStats:
    """Statistics of a corpus that has not been read: its published counts, groups and classes."""
    corpus: Corpus = CORPORA.load(config.download.corpus)
    names = [corpus.aliases.get(name, name) for name in config.download.classes or corpus.classes]
    known = corpus.fingerprint
    if known is None:
        return CorpusStats(corpus.modality, len(names) or None, None, None, True)
    number = sum(known.per_class.get(name, 0) for name in names)
    groups = known.per_group if config.download.folds == "corpus" else {}
    groups = groups or {f"group{index + 1}": 1 for index in range(config.download.num_groups)}
    ends = np.round(np.cumsum(list(groups.values())) / sum(groups.values()) * number).astype(int)
    group = np.repeat(list(groups), np.diff(ends, prepend=0))
    ids = [str(index) for index in range(number)]
    if corpus.modality == "tokens":
        ids = [word_id(f"sentence-{index // SENTENCE}", index % SENTENCE) for index in range(number)]
    labels = [names[index % len(names)] for index in range(number)]
    rows = pl.DataFrame({"group": group, "label": labels, "utterance_id": ids})
    if corpus.durations is not None:
        rows, lengths = _cut(rows, corpus.durations.lengths(number), config.segment.max_duration_s)
        return CorpusStats(corpus.modality, len(names), rows, lengths, at_least=False, about=True)
    ones = np.ones(number) if corpus.modality == "image" else None
    return CorpusStats(corpus.modality, len(names), rows, ones, at_least=corpus.modality == "speech")
