"""Entities against seqeval, conlleval's rules and hand counts."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from daamctl.data.spans import (
    NO_TAG,
    Span,
    SpanErrors,
    count_entities,
    entities,
    entity_scores,
    span_errors,
)

CLASSES = ("O", "B-LOC", "I-LOC", "B-creative-work", "I-creative-work")
O, BL, IL, BW, IW = CLASSES  # noqa: E741


def words(sentences: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Sentence and class id of every word."""
    names = np.repeat([f"s{index}" for index in range(len(sentences))], [len(tags) for tags in sentences])
    return names, np.array([CLASSES.index(tag) for tags in sentences for tag in tags])


def drawn(rng: np.random.Generator, number: int = 200) -> list[list[str]]:
    """Sentences of random tags, many of them broken."""
    return [[CLASSES[tag] for tag in rng.integers(5, size=rng.integers(1, 9))] for _ in range(number)]


def changed(rng: np.random.Generator, sentences: list[list[str]]) -> list[list[str]]:
    """The same sentences with other tags for four of ten words."""
    return [[CLASSES[rng.integers(5)] if rng.random() < 0.4 else tag for tag in tags] for tags in sentences]


def planted() -> tuple[list[list[str]], list[list[str]]]:
    return [true for true, _ in PLANTED], [guess for _, guess in PLANTED]


def conlleval(gold: list[list[str]], guess: list[list[str]]) -> dict[str, tuple[int, int, int]]:
    """conlleval restated: it walks over pairs of tags and counts phrases that begin and end together."""

    def split(tag: str) -> tuple[str, str]:
        return (tag, "") if tag == "O" else (tag[0], tag[2:])

    def ended(before: tuple[str, str], now: tuple[str, str]) -> bool:
        pairs = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")}
        return (before[0], now[0]) in pairs or (before[0] != "O" and before[1] != now[1])

    def started(before: tuple[str, str], now: tuple[str, str]) -> bool:
        pairs = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")}
        return (before[0], now[0]) in pairs or (now[0] != "O" and before[1] != now[1])

    found: dict[str, list[int]] = {}
    inside, last = False, (("O", ""), ("O", ""))
    for true, predicted in zip(gold, guess, strict=True):
        for pair in [*zip(true, predicted, strict=True), ("O", "O")]:  # a line without a word ends a sentence
            now = (split(pair[0]), split(pair[1]))
            ends = [ended(before, here) for before, here in zip(last, now, strict=True)]
            starts = [started(before, here) for before, here in zip(last, now, strict=True)]
            if inside:
                if all(ends) and last[0][1] == last[1][1]:
                    inside = False
                    found[last[0][1]][2] += 1
                elif ends[0] != ends[1] or now[0][1] != now[1][1]:
                    inside = False
            if all(starts) and now[0][1] == now[1][1]:
                inside = True
            for which, begun in enumerate(starts):
                if begun:
                    found.setdefault(now[which][1], [0, 0, 0])[which] += 1
            last = now
    return {name: tuple(counts) for name, counts in found.items()}


PLANTED = [
    # true, predicted
    ([O, BL, IL, O], [O, BL, IL, O]),
    ([O, BL, IL, O], [O, IL, IL, O]),  # no B-: right if lenient, nothing if strict
    ([BL, BL, IL], [BL, IL, IL]),  # two entities side by side, predicted as one
    ([BL, IL, BW, IW], [BL, IW, IW, IW]),  # the type changes inside
    ([BW, IW], [IW, BW]),
    ([O, O], [IL, O]),
    ([IL, IL, BL], [IL, IL, IL]),  # true tags may be broken, too
    ([BL], [BL]),
    ([O], [O]),
]


@pytest.mark.parametrize("rule", ["lenient", "strict"])
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_counts_equal_seqeval(rule: str, seed: int | None) -> None:
    gold, guess = planted()
    if seed is not None:
        rng = np.random.default_rng(seed)
        gold = drawn(rng)
        guess = changed(rng, gold)
    names, true = words(gold)
    scores = entity_scores(names, true, words(guess)[1], CLASSES, rule)
    options: dict[str, Any] = {"mode": "strict", "scheme": IOB2} if rule == "strict" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that are never predicted
        theirs = classification_report(gold, guess, output_dict=True, **options)
    for name, ours in {**scores.per_type, "micro avg": scores.micro}.items():
        expected = [theirs[name][key] for key in ("precision", "recall", "f1-score", "support")]
        assert [ours.precision, ours.recall, ours.f1, ours.gold] == pytest.approx(expected), name
    assert 0.2 < scores.micro.f1 < 0.8


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_lenient_counts_equal_conlleval(seed: int | None) -> None:
    gold, guess = planted()
    if seed is not None:
        rng = np.random.default_rng(seed)
        gold = drawn(rng)
        guess = changed(rng, gold)
    counts = count_entities(*words(gold), words(guess)[1], CLASSES)
    columns = np.stack([counts.gold, counts.predicted, counts.correct]).sum(axis=1).T.tolist()
    assert dict(zip(counts.types, map(tuple, columns), strict=True)) == conlleval(gold, guess)


def test_spans() -> None:
    assert entities([IL, IL, BL, O, BW, IW, IL]) == [
        Span("LOC", 0, 2),
        Span("LOC", 2, 3),
        Span("creative-work", 4, 6),
        Span("LOC", 6, 7),
    ]
    assert entities([IL, IL, BL, O, BW, IW, IL], "strict") == [Span("LOC", 2, 3), Span("creative-work", 4, 6)]
    assert entities([]) == []
    assert entities([O, O]) == []


def test_no_entity_crosses_a_sentence() -> None:
    names, tags = words([[O, BL], [IL, O]])
    assert count_entities(names, tags, tags, CLASSES).gold.tolist() == [[1, 0], [1, 0]]
    assert count_entities(names, tags, tags, CLASSES, "strict").gold.tolist() == [[1, 0], [0, 0]]


def test_words_without_a_prediction_are_outside() -> None:
    names, gold = words([[BL, IL], [O, BW], [O]])
    guess = gold.copy()
    guess[1:4] = NO_TAG
    counts = count_entities(names, gold, guess, CLASSES)
    assert counts.types == ("LOC", "creative-work")
    assert counts.sentences.tolist() == ["s0", "s1", "s2"]
    assert counts.gold.tolist() == [[1, 0], [0, 1], [0, 0]]
    assert counts.predicted.tolist() == [[1, 0], [0, 0], [0, 0]]  # the first word alone, so not correct
    assert counts.correct.sum() == 0


def test_span_errors() -> None:
    pairs = {
        "exact": ([BL, IL, O], [BL, IL, O]),
        "wrong_type": ([BL, IL, O], [BW, IW, O]),
        "wrong_boundaries": ([BL, IL, O], [BW, BL, IL]),  # two predicted ones overlap it, one has the type
        "wrong_both": ([BL, IL, O], [BW, O, O]),
        "missed": ([BL, IL, O], [O, O, BL]),  # the predicted one is spurious
    }
    names, gold = words([true for true, _ in pairs.values()])
    guess = words([predicted for _, predicted in pairs.values()])[1]
    assert span_errors(names, gold, guess, CLASSES) == SpanErrors(1, 1, 1, 1, 1, 1)
    for index, kind in enumerate(pairs):
        chosen = names == f"s{index}"
        assert getattr(span_errors(names[chosen], gold[chosen], guess[chosen], CLASSES), kind) == 1, kind


@pytest.mark.parametrize("seed", range(3))
def test_every_true_entity_has_one_fate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names, true = words(drawn(rng))
    guess = rng.permutation(true)
    for rule in ("lenient", "strict"):
        scores = entity_scores(names, true, guess, CLASSES, rule)  # type: ignore[arg-type]
        errors = scores.errors
        fates = errors.exact + errors.wrong_type + errors.wrong_boundaries + errors.wrong_both + errors.missed
        assert fates == scores.micro.gold
        assert errors.exact == scores.micro.correct
        mirrored = span_errors(names, guess, true, CLASSES, rule)  # type: ignore[arg-type]
        assert (errors.spurious, errors.missed) == (mirrored.missed, mirrored.spurious)


def test_f1_without_entities_is_zero() -> None:
    names, tags = words([[O], [O]])
    scores = entity_scores(names, tags, tags, CLASSES)
    assert (scores.micro.f1, scores.micro.precision, scores.per_type["LOC"].f1) == (0, 0, 0)


@pytest.mark.parametrize(
    ("names", "gold", "guess", "message"),
    [
        (["a", "b", "a"], [0, 0, 0], [0, 0, 0], "do not follow each other"),
        (["a", "a"], [0, 5], [0, 0], "true class ids span 0 .. 5; allowed 0 .. 4"),
        (["a", "a"], [0, -1], [0, 0], "true class ids span -1 .. 0; allowed 0 .. 4"),
        (["a", "a"], [0, 0], [-2, 0], "predicted class ids span -2 .. 0; allowed -1 .. 4"),
        (["a"], [0, 0], [0, 0], "1 sentences, 2 true, 2 predicted"),
    ],
)
def test_wrong_words(names: list[str], gold: list[int], guess: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_entities(names, gold, guess, CLASSES)


@pytest.mark.parametrize("tag", ["X-LOC", "B", "B-", "LOC", "S-LOC", ""])
def test_other_tags_are_refused(tag: str) -> None:
    with pytest.raises(ValueError, match=f"'{tag}' is not a BIO tag"):
        entities([O, tag])


def test_counts_per_document() -> None:
    names, true = words([[BL], [O], [BW, IW], [BL]])
    counts = count_entities(names, true, np.zeros_like(true), CLASSES)
    grouped = counts.grouped(["a", "a", "b", "b"])
    assert grouped.sentences.tolist() == ["a", "b"]
    assert grouped.gold.tolist() == [[1, 0], [1, 1]]
    with pytest.raises(ValueError, match="2 units for 4 sentences"):
        counts.grouped(["a", "b"])
