"""Entities against seqeval, conlleval's rules and hand counts; intervals and tests against enumeration."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from daamctl.artifacts.entities import SpanErrors
from daamctl.evaluation.entities import (
    NO_TAG,
    EntityCounts,
    Span,
    compare_f1,
    count_entities,
    entities,
    entity_scores,
    f1_intervals,
    f1_not_worse,
    micro_f1,
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


def counted(rng: np.random.Generator, gold: np.ndarray, hit: float) -> EntityCounts:
    """Counts of a method that finds a share of the entities and makes up as many."""
    correct = rng.binomial(gold, hit)
    extra = rng.binomial(gold, 1 - hit)
    names = np.arange(len(gold))
    return EntityCounts(("X",), names, gold[:, None], (correct + extra)[:, None], correct[:, None])


def f1(counts: EntityCounts, times: np.ndarray | None = None) -> float:
    weights = np.ones(len(counts.gold)) if times is None else times
    gold, predicted, correct = (float(weights @ part[:, 0]) for part in (counts.gold, counts.predicted, counts.correct))
    return 2 * correct / (gold + predicted) if gold + predicted else 0.0


def test_interval_is_that_of_resampled_sentences() -> None:
    rng = np.random.default_rng(0)
    gold = rng.poisson(1.0, 60)
    trials = [counted(rng, gold, 0.6) for _ in range(3)]
    single, pooled = f1_intervals([trials[:1], trials], resamples=4_000)
    assert single.value == pytest.approx(micro_f1(trials[0]))
    assert pooled.value == pytest.approx(np.mean([f1(trial) for trial in trials]))
    figures = []
    for _ in range(2_000):  # an independent bootstrap
        times = rng.multinomial(60, np.full(60, 1 / 60))
        figures.append(np.mean([f1(trial, times) for trial in trials]))
    assert [pooled.low, pooled.high] == pytest.approx(np.percentile(figures, [2.5, 97.5]), abs=0.015)
    assert (pooled.n_clusters, pooled.resamples, pooled.method) == (60, 4_000, "bootstrap")
    assert f1_intervals([trials], resamples=200, seed=5) == f1_intervals([trials], resamples=200, seed=5)


def test_not_worse_by_a_margin_agrees_with_the_interval() -> None:
    rng = np.random.default_rng(4)
    gold = rng.poisson(1.0, 60)
    good, poor = ([counted(rng, gold, hit) for _ in range(2)] for hit in (0.9, 0.6))
    gap = compare_f1(poor, good, level=0.9, resamples=999).interval
    found, p, floor = f1_not_worse(poor, good, 0.01, resamples=999)
    assert (found, floor) == (gap, 0.001)
    assert p > 0.95
    assert gap.low is not None
    for beyond, shown in ((0.01, True), (-0.01, False)):  # the lower end is the margin that is just shown
        assert (f1_not_worse(poor, good, beyond - gap.low, resamples=999)[1] < 0.05) == shown
    assert f1_not_worse(good, good, 0.01, resamples=999)[1] == floor


def test_tags_outside_entities_are_accurate_and_worthless() -> None:
    sentences, gold = np.repeat(np.arange(20), 10), np.tile([1, 2] + 8 * [0], 20)
    right = count_entities(sentences, gold, gold, ("O", "B-x", "I-x"))
    outside = count_entities(sentences, gold, 0 * gold, ("O", "B-x", "I-x"))  # accuracy 80 %
    gap, p, _ = f1_not_worse([outside], [right], 0.25, resamples=999)
    assert (micro_f1(outside), gap.value, p) == (0.0, -1.0, 1.0)


def test_randomisation_of_few_sentences_tries_all_swaps() -> None:
    rng = np.random.default_rng(1)
    gold = rng.poisson(2.0, 9)
    first = [counted(rng, gold, 0.7) for _ in range(2)]
    second = [counted(rng, gold, 0.4) for _ in range(2)]
    observed = np.mean([f1(one) for one in first]) - np.mean([f1(two) for two in second])
    found = compare_f1(first, second, resamples=100)
    as_large = []
    for swaps in product((0, 1), repeat=9):
        keep = 1 - np.array(swaps)
        values = []
        for one, two in zip(first, second, strict=True):
            parts = [
                keep @ one.predicted + swaps @ two.predicted,
                keep @ one.correct + swaps @ two.correct,
                keep @ two.predicted + swaps @ one.predicted,
                keep @ two.correct + swaps @ one.correct,
            ]
            a, b, c, d = (float(part[0]) for part in parts)
            values.append(2 * b / (gold.sum() + a) - 2 * d / (gold.sum() + c))
        as_large.append(abs(np.mean(values)) >= abs(observed) - 1e-12)
    assert found.difference == pytest.approx(observed)
    assert found.primary is not None
    assert found.primary.p == pytest.approx(np.mean(as_large))
    assert (found.primary.unit, found.primary.exact, found.primary.n) == ("sentence", True, 9)
    assert found.interval is not None
    assert found.interval.low <= found.difference <= found.interval.high


def test_randomisation_of_many_sentences_is_calibrated() -> None:
    """Equally good methods: p is about uniform. Better ones: p is small, and the sign is right."""
    rng = np.random.default_rng(2)
    gold = rng.poisson(1.5, 80)
    null = []
    for _ in range(200):
        pair = compare_f1([counted(rng, gold, 0.6)], [counted(rng, gold, 0.6)], resamples=2, flips=500).primary
        assert pair is not None
        assert not pair.exact
        null.append(pair.p)
    assert 0.01 <= np.mean([p is not None and p <= 0.05 for p in null]) <= 0.10
    better = compare_f1([counted(rng, gold, 0.9)], [counted(rng, gold, 0.4)], resamples=500)
    assert better.primary is not None
    assert better.primary.p == pytest.approx(better.primary.floor, abs=2e-4)
    assert better.difference > 0.3
    assert better.interval is not None
    assert better.interval.low > 0


def test_equal_methods_have_no_difference() -> None:
    rng = np.random.default_rng(3)
    one = counted(rng, rng.poisson(1.5, 40), 0.5)
    found = compare_f1([one], [one], resamples=100)
    assert found.primary is not None
    assert found.interval is not None
    assert (found.difference, found.primary.p, found.interval.low, found.interval.high) == (0, 1, 0, 0)


def test_trials_must_be_comparable() -> None:
    rng = np.random.default_rng(4)
    one, other = (counted(rng, rng.poisson(1.5, 40), 0.5) for _ in range(2))
    with pytest.raises(ValueError, match="true entities of two trials differ"):
        f1_intervals([[one], [other]])
    shifted = EntityCounts(one.types, one.sentences + 1, one.gold, one.predicted, one.correct)
    with pytest.raises(ValueError, match="sentences of two trials differ"):
        compare_f1([one], [shifted])
    with pytest.raises(ValueError, match="2 and 1 trials"):
        compare_f1([one, one], [one])
    with pytest.raises(ValueError, match="no trial"):
        f1_intervals([[]])


def test_documents_as_units() -> None:
    rng = np.random.default_rng(6)
    one, two = (counted(rng, np.full(40, 2), hit) for hit in (0.7, 0.5))
    documents = np.arange(40) // 4
    grouped = one.grouped(documents)
    assert grouped.gold[:, 0].tolist() == [8] * 10
    assert grouped.correct.sum() == one.correct.sum()
    assert micro_f1(grouped) == micro_f1(one)
    found = compare_f1([grouped], [two.grouped(documents)], resamples=100, unit="document")
    assert found.primary is not None
    assert (found.primary.n, found.primary.unit) == (10, "document")
    with pytest.raises(ValueError, match="10 units for 40 sentences"):
        one.grouped(np.arange(10))


def test_folds_join() -> None:
    rng = np.random.default_rng(5)
    one = counted(rng, rng.poisson(1.5, 40), 0.5)
    other = EntityCounts(one.types, one.sentences + 40, one.gold, one.predicted, one.correct)
    both = EntityCounts.joined([one, other])
    assert len(both.sentences) == 80
    assert micro_f1(both) == pytest.approx(micro_f1(one))
    with pytest.raises(ValueError, match="in two parts"):
        EntityCounts.joined([one, one])
