"""Rows of words and entities from the outputs of a tagger.

Columns: item (the sentence), unit (`word` or `entity`), position (of the first word, from 0), words (how many), text,
label (BIO, if known), tag (of an entity its type), probability (of the tag; of an entity the lowest among its words),
then for words those of `daamctl.models.predict` from `p_<tag>` on, warning and error. The words of a sentence are
followed by its entities, which are read as `lenient` in `daamctl.data.spans`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from daamctl.data.spans import OUTSIDE, EntityScores, entities, entity_scores, word_id


def words_of(sentences: pl.DataFrame) -> pl.DataFrame:
    """Words of sentences as rows of a clip table, with the number of the sentence (`owner`).

    Args:
        sentences: rows with the columns of `daamctl.models.sentences`.
    """
    found = [
        (number, position, text, None if row["tags"] is None else row["tags"][position])
        for number, row in enumerate(sentences.iter_rows(named=True))
        for position, text in enumerate(row["words"])
    ]
    schema = {"owner": pl.Int64, "position": pl.Int64, "text": pl.String, "label": pl.String}
    words = pl.DataFrame(found, schema=schema, orient="row")
    names = [f"{number:09d}" for number in words["owner"]]
    ids = [word_id(name, position) for name, position in zip(names, words["position"], strict=True)]
    return words.with_columns(clip_id=pl.Series(ids, dtype=pl.String), sentence=pl.Series(names, dtype=pl.String))


def tagged_rows(
    sentences: pl.DataFrame,
    words: pl.DataFrame,
    columns: Mapping[str, pl.Series],
    warnings: Sequence[str | None],
    errors: Sequence[str | None],
) -> pl.DataFrame:
    """Rows of words and entities.

    Args:
        columns: `class`, `p_<tag>` and others, one value per word.
        errors: why a word has no tag.
    """
    others = {name: column for name, column in columns.items() if name != "class"}
    probabilities = {name: column for name, column in others.items() if name.startswith("p_")}
    rows = pl.DataFrame(
        {
            "item": sentences["item"].gather(words["owner"]),
            "unit": ["word"] * len(words),
            "position": words["position"].cast(pl.Int32),
            "words": pl.Series([1] * len(words), dtype=pl.Int32),
            "text": words["text"],
            "label": words["label"],
            "tag": columns["class"],
            "probability": pl.DataFrame(probabilities).max_horizontal(),
            **others,
            "warning": pl.Series(warnings, dtype=pl.String),
            "error": pl.Series(errors, dtype=pl.String),
        }
    )
    parts = []
    for part in rows.with_columns(owner=words["owner"]).partition_by("owner", maintain_order=True, include_key=False):
        parts += [part, _entities(part)]
    return pl.concat(parts) if parts else rows


def _entities(words: pl.DataFrame) -> pl.DataFrame:
    """Rows of the entities of a sentence."""
    found: list[dict[str, Any]] = []
    for span in entities([tag or OUTSIDE for tag in words["tag"]]):
        part = words[span.start : span.end]
        found.append(
            {
                "item": part["item"][0],
                "unit": "entity",
                "position": span.start,
                "words": len(part),
                "text": " ".join(part["text"]),
                "tag": span.type,
                "probability": part["probability"].min(),
            }
        )
    return pl.DataFrame(found, schema=dict[str, Any](words.schema))


def scores_of(rows: pl.DataFrame, classes: Sequence[str]) -> EntityScores | None:
    """Entity scores of the sentences whose tags are known; None if there are none.

    A word without a tag counts as outside, and a true entity of a type that the model does not know is missed.

    Args:
        rows: output of `tagged_rows`.
    """
    words = rows.filter((pl.col("unit") == "word") & pl.col("label").is_not_null())
    if words.is_empty():
        return None
    names = list(dict.fromkeys([OUTSIDE, *classes, *words["label"]]))
    index = {name: number for number, name in enumerate(names)}
    # a name may stand for several sentences, e.g. if a file was given twice
    sentences = np.cumsum(words["position"].to_numpy() == 0)
    gold, predicted = ([index[tag or OUTSIDE] for tag in words[name]] for name in ("label", "tag"))
    return entity_scores(sentences, gold, predicted, names)
