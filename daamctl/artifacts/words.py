"""Tagged words of sentences: their ids, and how to tell them from other items."""

from __future__ import annotations

from typing import Any

import polars as pl
from numpy.typing import NDArray

OUTSIDE = "O"
"""Tag of a word outside of entities."""
_POSITION = r"-\d{4,}$"


def word_id(sentence: str, position: int) -> str:
    """Id of a word: `<sentence>-<position, four digits or more>`."""
    return f"{sentence}-{position:04d}"


def sentence_of(word_ids: pl.Series) -> NDArray[Any]:
    """Sentence of each word, shape (N,), from ids that `word_id` made."""
    return word_ids.str.replace(_POSITION, "").to_numpy()


def are_words(clips: pl.DataFrame) -> bool:
    """Whether the rows are tagged words of sentences (`daamctl.corpora.base.PREPARED_TOKENS`)."""
    return OUTSIDE in set(clips["label"]) and bool(clips["utterance_id"].str.contains(_POSITION).all())
