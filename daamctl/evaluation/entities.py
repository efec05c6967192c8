"""Entity F1 of predicted tags: spans, counts per sentence, intervals and paired tests (docs/sources.md#entity-f1).

Tags are BIO (IOB2): `O`, `B-<type>` for the first word of an entity, `I-<type>` for further ones; readers of corpora
convert other schemes. A model may predict an `I-` without a `B-`. Two rules say what it means:

- `lenient`: it begins an entity. This is what conlleval (Tjong Kim Sang) and seqeval's default do.
- `strict`: it is no entity; every entity begins with `B-`. This is seqeval's `mode="strict", scheme=IOB2`.

conlleval and seqeval's default agree on BIO tags. They differ on IOBES, which this module does not take: seqeval ends
an entity after `E-` and `S-`, but conlleval does not know `S-` and joins `E-X` to a `B-X` after it. seqeval ignores its
argument `scheme` without `mode="strict"`.

The independent unit is the sentence: intervals redraw sentences (`engine`), and the paired test swaps the predictions
of two methods within sentences. Sentences of one document share names; with documents known, `EntityCounts.grouped`
makes them the units. Both take the trained models as given: they say nothing about models trained on other samples.
Trials (seeds, samples of training sentences) are averaged first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daamctl.artifacts.entities import EntityScores, Rule, SpanErrors, TypeScores
from daamctl.artifacts.statistics import Interval, MetricComparison
from daamctl.artifacts.words import OUTSIDE
from daamctl.evaluation.engine import FLIPS, intervals, randomisation, redrawn
from daamctl.sign_flip import Floats

NO_TAG = -1
"""Predicted class id of a word without a prediction, e.g. one beyond the length that the encoder takes: counts as O."""

Ids = NDArray[np.int64]
Counts = NDArray[np.int64]


class Span(NamedTuple):
    """An entity in a sentence; `end` is the index after its last word."""

    type: str
    start: int
    end: int


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

    @classmethod
    def joined(cls, parts: Sequence[EntityCounts]) -> EntityCounts:
        """Counts of several folds as one.

        Raises:
            ValueError: the types differ, or a sentence is in two parts.
        """
        if len({part.types for part in parts}) != 1:
            raise ValueError(f"{len(parts)} parts with different types; need one or more with the same")
        names = np.concatenate([part.sentences for part in parts])
        if len(np.unique(names)) < len(names):
            raise ValueError("a sentence is in two parts")
        tables = [np.concatenate([getattr(part, name) for part in parts]) for name in ("gold", "predicted", "correct")]
        return cls(parts[0].types, names, *tables)

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


def f1_intervals(
    methods: Sequence[Sequence[EntityCounts]], *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> list[Interval]:
    """Percentile intervals of the micro-F1 of several methods; sentences are resampled with replacement.

    The figure of a method is the mean of the F1 of its trials (seeds, samples of training sentences), which share the
    test sentences. A draw takes a sentence with the counts of all trials and all methods.

    Args:
        methods: counts of each trial of each method, all over the same sentences in the same order.
        resamples: number of draws.

    Raises:
        ValueError: sentences or true entities differ, a method has no trial, or there are fewer than two sentences.
    """
    gold, tables = _trials(methods)
    ends = np.cumsum([len(table) for table in tables])[:-1]

    def statistic(sums: Floats) -> Floats:
        return np.concatenate([_mean_f1(np.vstack([sums[:1], part])) for part in np.split(sums[1:], ends)])

    sums = np.vstack([gold, *tables])
    return intervals(sums, statistic, level=level, limits=(0.0, 1.0), resamples=resamples, seed=seed)


def compare_f1(
    first: Sequence[EntityCounts],
    second: Sequence[EntityCounts],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    flips: int = FLIPS,
    seed: int = 0,
    unit: str = "sentence",
) -> MetricComparison:
    """Difference of the micro-F1 of two methods, with its interval and a paired test; first minus second.

    The figure of a method is the mean of the F1 of its trials. The interval is that of a bootstrap over sentences; a
    draw takes a sentence with the counts of both methods. The test is approximate randomisation (Noreen 1989): it swaps
    the methods in each sentence with probability 1/2, in all trials at once, and counts how often the difference is as
    large as the observed one. With at most 20 sentences in which the methods differ, it tries all swaps, as
    `paired_sign_flip` does. With more, the observed difference counts among the random ones, so p is never 0.

    Args:
        first: counts of each trial of one method.
        second: counts of the same trials of the other, over the same sentences in the same order.
        resamples: number of draws of the bootstrap.
        flips: number of random swaps.
        unit: name of the unit in the result.

    Returns:
        The comparison; `p_holm` is empty until `statistics.with_holm` fills it in for the family.

    Raises:
        ValueError: sentences, true entities or numbers of trials differ, or there are fewer than two sentences.
    """
    gold, (one, two) = _trials([first, second])
    if one.shape != two.shape:
        raise ValueError(f"{len(first)} and {len(second)} trials; need the same number")
    (interval,) = intervals(np.vstack([gold, one, two]), _f1_gap, level=level, resamples=resamples, seed=seed)
    sides = [np.vstack([gold, side]) for side in (one, two)]
    values = [float(_mean_f1(side.sum(1, keepdims=True))[0, 0]) for side in sides]
    return MetricComparison(
        first_value=values[0],
        second_value=values[1],
        difference=values[0] - values[1],
        primary=randomisation(sides[0], sides[1], _mean_f1, unit=unit, flips=flips, seed=seed),
        secondary=None,
        minimal_detectable=None,
        interval=interval,
    )


def f1_not_worse(
    first: Sequence[EntityCounts],
    second: Sequence[EntityCounts],
    margin: float,
    *,
    alpha: float = 0.05,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[Interval, float, float]:
    """Test that the micro-F1 of one method is less than a margin below that of another.

    p is the share of bootstrap draws over sentences in which the first is worse by the margin or more
    (docs/sources.md#shortest-encoder).

    Args:
        first: counts of each trial of one method.
        second: those of the other, over the same sentences in the same order.
        margin: fraction.
        alpha: one-sided level; the interval has the level 1 - 2 alpha.
        resamples: number of draws.

    Returns:
        interval of the difference, p, and the smallest p possible.

    Raises:
        ValueError: sentences or true entities differ, or there are fewer than two sentences.
    """
    gold, (one, two) = _trials([first, second])
    sums = np.vstack([gold, one, two])
    (interval,) = intervals(sums, _f1_gap, level=1 - 2 * alpha, resamples=resamples, seed=seed)
    floor = 1 / (resamples + 1)
    p = floor + float((redrawn(sums, _f1_gap, resamples, seed) <= -margin).sum()) * floor
    return interval, p, floor


def _parts(tag: str) -> tuple[str, str]:
    """Prefix and type of a BIO tag."""
    prefix, dash, kind = tag.partition("-")
    if tag == OUTSIDE:
        return OUTSIDE, ""
    if prefix not in ("B", "I") or not dash or not kind:
        raise ValueError(f"'{tag}' is not a BIO tag: O, or B- or I- and a type")
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
    continues[1:] = inside[1:] & (kinds[1:] == kinds[:-1]) & (sentences[1:] == sentences[:-1])
    starts = np.flatnonzero(begins | (inside & ~continues))
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
    low = np.searchsorted(second.ends, first.starts, side="right")
    return low, np.searchsorted(second.starts, first.ends, side="left")


def _scores(gold: int, predicted: int, correct: int) -> TypeScores:
    def share(part: int, whole: int) -> float:
        return part / whole if whole else 0.0

    both = gold + predicted
    f1 = share(2 * correct, both)
    return TypeScores(gold, predicted, correct, share(correct, predicted), share(correct, gold), f1)


def _trials(methods: Sequence[Sequence[EntityCounts]]) -> tuple[Floats, list[Floats]]:
    """Numbers of every sentence over all types.

    Returns:
        Number of true entities, (1, S); for each method, of predicted entities of its T trials, then of correct ones,
        (2 T, S).
    """
    flat = [counts for trials in methods for counts in trials]
    if not all(methods) or not flat:
        raise ValueError("a method has no trial")
    reference = flat[0]
    for counts in flat[1:]:
        if not np.array_equal(counts.sentences, reference.sentences):
            raise ValueError("the sentences of two trials differ")
        if counts.types != reference.types or not np.array_equal(counts.gold, reference.gold):
            raise ValueError("the true entities of two trials differ")
    if len(reference.sentences) < 2:
        raise ValueError(f"{len(reference.sentences)} sentences; an interval needs at least 2")
    tables = []
    for trials in methods:
        parts = [counts.predicted for counts in trials] + [counts.correct for counts in trials]
        tables.append(np.stack([part.sum(axis=1) for part in parts]).astype(np.float64))
    return reference.gold.sum(axis=1)[None].astype(np.float64), tables


def _mean_f1(sums: Floats) -> Floats:
    """Mean over T trials of the F1, (1, R), from R sums of true, predicted and correct entities, (1 + 2 T, R)."""
    predicted, correct = np.split(sums[1:], 2)
    both = sums[:1] + predicted
    found = np.divide(2 * correct, both, out=np.zeros_like(both), where=both > 0)
    return np.asarray(found.mean(axis=0, keepdims=True))


def _f1_gap(sums: Floats) -> Floats:
    """Difference of the mean F1 of two methods, (1, R), from sums of true entities and of both methods."""
    one, two = np.split(sums[1:], 2)
    return _mean_f1(np.vstack([sums[:1], one])) - _mean_f1(np.vstack([sums[:1], two]))
