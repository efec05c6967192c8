"""Fingerprints: every difference is named, with its likely cause where that is known."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from daamctl.corpora import iemocap
from daamctl.corpora.base import Corpus, Fingerprint
from daamctl.corpora.fingerprint import validate


def corpus(fingerprint: Fingerprint | None) -> Corpus:
    return Corpus("toy", "", "", ("a", "b"), lambda root: pl.DataFrame(), fingerprint, "")


def rows(*triples: tuple[str, str, str]) -> pl.DataFrame:
    return pl.DataFrame(triples, schema=["label", "speaker", "group"], orient="row")


ROWS = rows(("a", "s1", "g1"), ("b", "s2", "g2"), ("b", "s2", "g2"), ("c", "s1", "g1"))
EXPECTED = Fingerprint({"a": 1, "b": 2, "c": 1}, {"s1": 1, "s2": 2}, {"g1": 1, "g2": 2})


def test_complete() -> None:
    assert validate(corpus(EXPECTED), ROWS) == []
    assert validate(corpus(None), ROWS) == []


def test_classes_outside_the_default_count_only_per_class() -> None:
    assert validate(corpus(EXPECTED), ROWS.filter(pl.col("label") != "c")) == ["c: 0 found, 1 expected"]


def test_every_difference_is_named() -> None:
    found = rows(("a", "s1", "g1"), ("b", "s3", "g2"), ("c", "s1", "g1"))
    assert validate(corpus(EXPECTED), found) == [
        "b: 1 found, 2 expected",
        "total: 2 found, 3 expected",
        "speaker s2: 0 found, 2 expected",
        "speaker s3: 1 found, none expected",
        "group g2: 1 found, 2 expected",
    ]


def test_unknown_speakers_are_not_compared() -> None:
    assert validate(corpus(replace(EXPECTED, per_speaker={}, per_group={})), ROWS) == []


def test_classes_within_the_groups_when_all_totals_agree() -> None:
    balanced = Fingerprint({"a": 2, "b": 2}, per_group={"g1": 2, "g2": 2}, balanced=True)
    good = rows(("a", "s", "g1"), ("b", "s", "g1"), ("a", "s", "g2"), ("b", "s", "g2"))
    assert validate(corpus(balanced), good) == []
    swapped = rows(("a", "s", "g1"), ("a", "s", "g1"), ("b", "s", "g2"), ("b", "s", "g2"))
    assert validate(corpus(replace(balanced, balanced=False)), swapped) == []
    assert validate(corpus(balanced), swapped) == [
        "a in group g1: 2 found, 1 expected",
        "b in group g1: 0 found, 1 expected",
        "a in group g2: 0 found, 1 expected",
        "b in group g2: 2 found, 1 expected",
    ]
    assert validate(corpus(balanced), swapped[:3]) == [
        "b: 1 found, 2 expected",
        "total: 3 found, 4 expected",
        "group g2: 1 found, 2 expected",
    ]


def iemocap_rows(happiness: int) -> pl.DataFrame:
    counts = {**iemocap.CORPUS.fingerprint.per_class, "happiness": happiness}  # type: ignore[union-attr]
    labels = [label for label, count in counts.items() for _ in range(count)]
    return pl.DataFrame({"label": labels}).with_columns(speaker=pl.lit("Ses01F"), group=pl.lit("Session1"))


def test_iemocap_hints() -> None:
    assert "happiness: 595 found, 1636 expected: label 'exc' is missing?" in validate(iemocap.CORPUS, iemocap_rows(595))
    assert "happiness: 1041 found, 1636 expected: label 'hap' is missing?" in validate(
        iemocap.CORPUS, iemocap_rows(1041)
    )
    scripted = iemocap_rows(1636).head(2588)
    assert "total: 2588 found, 5531 expected: only scripted dialogues were found" in validate(iemocap.CORPUS, scripted)


def test_the_known_counts_agree_with_each_other() -> None:
    from daamctl.corpora import CORPORA

    for name in CORPORA:
        known: Corpus = CORPORA.load(name)
        if known.fingerprint is None:
            continue
        total = sum(known.fingerprint.per_class[label] for label in known.classes)
        assert sum(known.fingerprint.per_speaker.values()) in (total, 0), name  # 0: nobody is known
        assert sum(known.fingerprint.per_group.values()) == total, name
        if known.fingerprint.balanced:
            assert all(count % len(known.classes) == 0 for count in known.fingerprint.per_group.values()), name
        assert set(known.classes) <= set(known.fingerprint.per_class), name
        labels = set(known.fingerprint.per_class) | set(iemocap.LABELS.values())
        assert set(known.aliases.values()) <= labels, name
