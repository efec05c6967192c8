"""Tagged words of sentences: their ids, and how to tell them from other items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
from numpy.typing import NDArray

from daamctl.artifacts.terms import Terms, terms_of

DOCUMENT = "document"
"""Source of words where documents are known."""
OUTSIDE = "O"
"""Tag of a word outside of entities."""
_POSITION = r"-\d{4,}$"


def word_id(sentence: str, position: int) -> str:
    """Id of a word: `<sentence>-<position, four digits or more>`."""
    return f"{sentence}-{position:04d}"


def sentence_of(word_ids: pl.Series) -> NDArray[Any]:
    """Sentence of each word, shape (N,), from ids that `word_id` made."""
    return word_ids.str.replace(_POSITION, "").to_numpy()


def in_documents(word_ids: pl.Series, sources: pl.Series) -> bool:
    """Whether the sources (`speaker`) of words are documents, which hold several sentences."""
    return sources.null_count() == 0 and bool((sources.to_numpy() != sentence_of(word_ids)).any())


def terms_for(modality: str, ids: pl.Series, sources: pl.Series) -> Terms:
    """The terms of a modality; the source of words is a document where that is known, else a sentence.

    Args:
        ids: of the items, shape (N,).
        sources: their `speaker`, shape (N,).
    """
    words = terms_of(modality)
    return replace(words, source=DOCUMENT) if modality == "tokens" and in_documents(ids, sources) else words


def are_words(clips: pl.DataFrame) -> bool:
    """Whether the rows are tagged words of sentences (`daamctl.corpora.base.PREPARED_TOKENS`)."""
    return OUTSIDE in set(clips["label"]) and bool(clips["utterance_id"].str.contains(_POSITION).all())
