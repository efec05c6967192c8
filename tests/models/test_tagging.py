"""Rows of words and entities that a tagger gives."""

from __future__ import annotations

import polars as pl
import pytest

from daamctl.models.sentences import SCHEMA, lines_as_sentences
from daamctl.models.tagging import scores_of, tagged_rows, words_of

CLASSES = ["O", "B-PER", "I-PER"]


def tagged(sentences: pl.DataFrame, tags: list[str | None]) -> pl.DataFrame:
    words = words_of(sentences)
    probabilities = {
        f"p_{name}": pl.Series([None if tag is None else 0.9 - row / 10 if tag == name else 0.05
                                for row, tag in enumerate(tags)], dtype=pl.Float64)
        for name in CLASSES
    }  # fmt: skip
    columns = {"class": pl.Series(tags, dtype=pl.String), **probabilities}
    errors = ["gives no token" if tag is None else None for tag in tags]
    return tagged_rows(sentences, words, columns, [None] * len(tags), errors)


def test_the_words_of_a_sentence_are_followed_by_its_entities() -> None:
    rows = tagged(lines_as_sentences(["Ada King ran", "to Bo"]), ["B-PER", "I-PER", "O", None, "I-PER"])
    assert rows.select("item", "unit", "position", "words", "text", "tag").rows() == [
        ("1", "word", 0, 1, "Ada", "B-PER"),
        ("1", "word", 1, 1, "King", "I-PER"),
        ("1", "word", 2, 1, "ran", "O"),
        ("1", "entity", 0, 2, "Ada King", "PER"),
        ("2", "word", 0, 1, "to", None),
        ("2", "word", 1, 1, "Bo", "I-PER"),
        ("2", "entity", 1, 1, "Bo", "PER"),
    ]
    assert rows["probability"].to_list() == pytest.approx([0.9, 0.8, 0.7, 0.8, None, 0.5, 0.5])
    assert rows["error"].to_list()[4] == "gives no token"


def test_known_tags_are_scored_and_words_without_a_tag_are_outside() -> None:
    words = [["Ada", "ran"], ["Bo"], ["Rio"]]
    tags = [["B-PER", "O"], ["B-PER"], ["B-LOC"]]
    sentences = pl.DataFrame({"item": ["same"] * 3, "words": words, "tags": tags}, schema=SCHEMA)
    scores = scores_of(tagged(sentences, ["B-PER", "O", None, "O"]), CLASSES)
    assert scores is not None
    assert (scores.micro.gold, scores.micro.correct, scores.micro.predicted) == (3, 1, 1)
    assert scores_of(tagged(sentences.with_columns(tags=None), ["O"] * 4), CLASSES) is None
