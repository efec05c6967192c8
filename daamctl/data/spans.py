"""Entities in tagged words: spans, counts per sentence, F1, and kinds of errors (docs/sources.md#entity-f1).

Tags are BIO (IOB2): `O`, `B-<type>` for the first word of an entity, `I-<type>` for further ones; readers of corpora
convert other schemes. A model may predict an `I-` without a `B-`. Two rules say what it means:

- `lenient`: it begins an entity. This is what conlleval (Tjong Kim Sang) and seqeval's default do.
- `strict`: it is no entity; every entity begins with `B-`. This is seqeval's `mode="strict", scheme=IOB2`.

conlleval and seqeval's default agree on BIO tags. They differ on IOBES, which this module does not take: seqeval ends
an entity after `E-` and `S-`, but conlleval does not know `S-` and joins `E-X` to a `B-X` after it. seqeval ignores its
argument `scheme` without `mode="strict"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

Rule = Literal["lenient", "strict"]
"""How tags become entities, see the module."""
OUTSIDE = "O"
"""Tag of a word outside of entities."""

NO_TAG = -1
"""Predicted class id of a word without a prediction, e.g. one beyond the length that the encoder takes: counts as O."""

Ids = NDArray[np.int64]
Counts = NDArray[np.int64]
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


class Span(NamedTuple):
    """An entity in a sentence; `end` is the index after its last word."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class TypeScores:
    """Scores of one entity type, or of all together (micro average).

    Args:
        gold: number of true entities.
        predicted: number of predicted entities.
        correct: number of predicted entities that have the boundaries and the type of a true one.
        precision: correct / predicted; 0 if nothing is predicted.
        recall: correct / gold; 0 if there is no true entity.
        f1: 2 correct / (gold + predicted); 0 if both are 0.
    """

    gold: int
    predicted: int
    correct: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class SpanErrors:
    """What became of the true entities, and how many predicted entities have nothing to do with any.

    Every true entity is in exactly one of the first five counts.

    Args:
        exact: predicted with the same boundaries and type.
        wrong_type: predicted with the same boundaries, but another type.
        wrong_boundaries: overlaps a predicted entity of the same type, with other boundaries.
        wrong_both: overlaps predicted entities, with other boundaries and other types.
        missed: overlaps no predicted entity.
        spurious: predicted entities that overlap no true one.
    """

    exact: int
    wrong_type: int
    wrong_boundaries: int
    wrong_both: int
    missed: int
    spurious: int


@dataclass(frozen=True)
class EntityScores:
    """Entity scores of one set of predicted tags.

    Args:
        rule: how tags were read.
        micro: over all types together.
        per_type: entity type -> its scores.
    """

    rule: Rule
    micro: TypeScores
    per_type: dict[str, TypeScores]
    errors: SpanErrors


@dataclass(frozen=True)
class EntityCounts:
    """Entities per sentence and type, for S sentences and C types.

    Args:
        sentences: names of the sentences, shape (S,).
        gold: number of true entities, shape (S, C).
        predicted: number of predicted entities, shape (S, C).
        correct: number of entities in both, shape (S, C).
    """

    types: tuple[str, ...]
    sentences: NDArray[Any]
    gold: Counts
    predicted: Counts
    correct: Counts

    def grouped(self, units: ArrayLike) -> EntityCounts:
        """Counts per unit of several sentences, e.g. per document, in place of counts per sentence.

        Args:
            units: unit of each sentence, shape (S,).

        Raises:
            ValueError: the number of units is not that of the sentences.
        """
        names, codes = np.unique(np.asarray(units), return_inverse=True)
        if len(codes) != len(self.sentences):
            raise ValueError(f"{len(codes)} units for {len(self.sentences)} sentences; need one each")
        tables = []
        for table in (self.gold, self.predicted, self.correct):
            sums = np.zeros((len(names), len(self.types)), dtype=np.int64)
            np.add.at(sums, codes, table)
            tables.append(sums)
        return EntityCounts(self.types, names, *tables)


@dataclass(frozen=True)
class _Spans:
    """Entities of N words as numbers: index of the first word, index after the last, type; in order."""

    starts: Ids
    ends: Ids
    types: Ids


def types_of(classes: Sequence[str]) -> tuple[str, ...]:
    """Entity types of BIO tags, in the order in which they first occur.

    Raises:
        ValueError: a tag is not BIO.
    """
    return tuple(dict.fromkeys(kind for prefix, kind in map(_parts, classes) if prefix != OUTSIDE))


def entities(tags: Sequence[str], rule: Rule = "lenient") -> list[Span]:
    """Entities of one sentence.

    Args:
        tags: BIO tag of each word.
        rule: see the module.

    Raises:
        ValueError: a tag is not BIO.
    """
    classes = tuple(dict.fromkeys(tags))
    ids = np.array([classes.index(tag) for tag in tags], dtype=np.int64)
    found, types = _spans(np.zeros(len(tags), dtype=np.int64), ids, classes, rule), types_of(classes)
    rows = zip(found.types.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True)
    return [Span(types[kind], start, end) for kind, start, end in rows]


def count_entities(
    sentences: ArrayLike, gold: ArrayLike, predicted: ArrayLike, classes: Sequence[str], rule: Rule = "lenient"
) -> EntityCounts:
    """Count the true, predicted and correct entities of every sentence.

    Args:
        sentences: sentence of each word, shape (N,). The words of a sentence follow each other in their order.
        gold: true class id of each word, shape (N,).
        predicted: predicted class id of each word, shape (N,); `NO_TAG` counts as O.
        classes: BIO tags; the index is the class id.
        rule: see the module.

    Raises:
        ValueError: the lengths differ, a class id is out of range, a tag is not BIO, or the words of a sentence do not
            follow each other.
    """
    names, codes, true, guess = _checked(sentences, gold, predicted, classes)
    types = types_of(classes)
    spans = [_spans(codes, ids, classes, rule) for ids in (true, guess)]

    def table(found: _Spans) -> Counts:
        # one bincount for the table: cell (sentence, type)
        cells = codes[found.starts] * len(types) + found.types
        return np.bincount(cells, minlength=len(names) * len(types)).reshape(len(names), len(types))

    return EntityCounts(types, names, *map(table, (*spans, _common(*spans))))


def span_errors(
    sentences: ArrayLike, gold: ArrayLike, predicted: ArrayLike, classes: Sequence[str], rule: Rule = "lenient"
) -> SpanErrors:
    """Sort the true entities by what was predicted for them; arguments and errors as in `count_entities`."""
    _, codes, true, guess = _checked(sentences, gold, predicted, classes)
    first, second = (_spans(codes, ids, classes, rule) for ids in (true, guess))
    low, high = _overlaps(first, second)
    number = high - low
    # one row per pair of overlapping entities
    owner = np.repeat(np.arange(len(low)), number)
    other = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number) + np.repeat(low, number)
    type_agrees = first.types[owner] == second.types[other]
    bounds_agree = (first.starts[owner] == second.starts[other]) & (first.ends[owner] == second.ends[other])
    same_type, same_bounds = (
        np.bincount(owner, weights=agree, minlength=len(low)) > 0 for agree in (type_agrees, bounds_agree)
    )
    # minus the number of true entities that each predicted one overlaps
    backward = np.subtract(*_overlaps(second, first))
    return SpanErrors(
        exact=int((same_bounds & same_type).sum()),
        wrong_type=int((same_bounds & ~same_type).sum()),
        wrong_boundaries=int((~same_bounds & same_type).sum()),
        wrong_both=int(((number > 0) & ~same_bounds & ~same_type).sum()),
        missed=int((number == 0).sum()),
        spurious=int((backward == 0).sum()),
    )


def entity_scores(
    sentences: ArrayLike, gold: ArrayLike, predicted: ArrayLike, classes: Sequence[str], rule: Rule = "lenient"
) -> EntityScores:
    """Micro-averaged scores, scores per type, and kinds of errors; arguments and errors as in `count_entities`."""
    counts = count_entities(sentences, gold, predicted, classes, rule)
    sums = [table.sum(axis=0).tolist() for table in (counts.gold, counts.predicted, counts.correct)]
    return EntityScores(
        rule=rule,
        micro=_scores(*map(sum, sums)),
        per_type={name: _scores(*numbers) for name, *numbers in zip(counts.types, *sums, strict=True)},
        errors=span_errors(sentences, gold, predicted, classes, rule),
    )


def micro_f1(counts: EntityCounts) -> float:
    """2 correct / (gold + predicted), over all sentences and types; 0 if there is no entity, as in seqeval."""
    return _scores(*(int(table.sum()) for table in (counts.gold, counts.predicted, counts.correct))).f1


def is_tag(text: str) -> bool:
    """Whether a text is a BIO tag."""
    return text == OUTSIDE or (text[:2] in ("B-", "I-") and len(text) > 2)


def _parts(tag: str) -> tuple[str, str]:
    """Prefix and type of a BIO tag."""
    if not is_tag(tag):
        raise ValueError(f"'{tag}' is not a BIO tag: O, or B- or I- and a type")
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def _checked(
    sentences: ArrayLike, gold: ArrayLike, predicted: ArrayLike, classes: Sequence[str]
) -> tuple[NDArray[Any], Ids, Ids, Ids]:
    """Names of the sentences in order, and for every word the number of its sentence, its tag and the predicted one."""
    names = np.asarray(sentences)
    true, guess = (np.asarray(ids, dtype=np.int64) for ids in (gold, predicted))
    if not len(names) == len(true) == len(guess):
        raise ValueError(
            f"{len(names)} sentences, {len(true)} true, {len(guess)} predicted tags; need one each per word"
        )
    for what, ids, least in (("true", true, 0), ("predicted", guess, NO_TAG)):
        if len(ids) and (ids.min() < least or ids.max() >= len(classes)):
            raise ValueError(f"{what} class ids span {ids.min()} .. {ids.max()}; allowed {least} .. {len(classes) - 1}")
    begins = np.ones(len(names), dtype=bool)
    begins[1:] = names[1:] != names[:-1]
    firsts = names[begins]
    if len(np.unique(firsts)) < len(firsts):
        raise ValueError("the words of a sentence do not follow each other")
    return firsts, np.cumsum(begins) - 1, true, guess


def _spans(sentences: Ids, ids: Ids, classes: Sequence[str], rule: Rule) -> _Spans:
    """Entities of all words, from sentence numbers and class ids."""
    types = types_of(classes)
    # the last entry is that of NO_TAG, -1
    prefixes = np.array([_parts(tag)[0] for tag in classes] + [OUTSIDE])[ids]
    kinds = np.array([types.index(kind) if kind else -1 for _, kind in map(_parts, classes)] + [-1])[ids]
    begins = prefixes == "B"
    inside = prefixes == "I"
    continues = np.zeros(len(ids), dtype=bool)
    # after O the kind is -1, so an I- tag there begins an entity
    continues[1:] = inside[1:] & (kinds[1:] == kinds[:-1]) & (sentences[1:] == sentences[:-1])
    starts = np.flatnonzero(begins | (inside & ~continues))
    # an entity ends before the next word that continues none
    stops = np.append(np.flatnonzero(~continues), len(ids))
    ends = stops[np.searchsorted(stops, starts, side="right")]
    if rule == "strict":  # an entity that begins with I- counts for nothing, and changes no other
        starts, ends = starts[begins[starts]], ends[begins[starts]]
    return _Spans(starts, ends, kinds[starts])


def _common(first: _Spans, second: _Spans) -> _Spans:
    """Entities that are in both."""
    _, at, other = np.intersect1d(first.starts, second.starts, assume_unique=True, return_indices=True)
    equal = (first.ends[at] == second.ends[other]) & (first.types[at] == second.types[other])
    return _Spans(first.starts[at[equal]], first.ends[at[equal]], first.types[at[equal]])


def _overlaps(first: _Spans, second: _Spans) -> tuple[Ids, Ids]:
    """For each entity of `first`, the range of those of `second` that share a word with it."""
    # entities of one kind of tags never overlap, so both their starts and their ends ascend
    low = np.searchsorted(second.ends, first.starts, side="right")
    return low, np.searchsorted(second.starts, first.ends, side="left")


def _scores(gold: int, predicted: int, correct: int) -> TypeScores:
    def share(part: int, whole: int) -> float:
        return part / whole if whole else 0.0

    both = gold + predicted
    f1 = share(2 * correct, both)
    return TypeScores(gold, predicted, correct, share(correct, predicted), share(correct, gold), f1)
