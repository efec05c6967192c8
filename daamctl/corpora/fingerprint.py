"""Compare the rows read from a corpus with the counts of a complete copy.

Readers of speech corpora fail silently: they miss one spelling of a label, or skip one kind of dialogue. Counts per
class, speaker and group reveal this before anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from daamctl.corpora.base import Corpus, Fingerprint

TOTAL = "total"


@dataclass(frozen=True)
class HintedFingerprint(Fingerprint):
    """A fingerprint with the causes of common wrong counts.

    Args:
        hints: (class, speaker, group or `TOTAL`, which is over the default classes; count found) -> the likely cause.
    """

    hints: Mapping[tuple[str, int], str] = field(default_factory=dict)


def validate(corpus: Corpus, rows: pl.DataFrame) -> list[str]:
    """The differences between all rows that a corpus's `prepare` returned and its fingerprint, one phrase each."""
    expected = corpus.fingerprint
    if expected is None:
        return []
    hints = expected.hints if isinstance(expected, HintedFingerprint) else {}
    chosen = rows.filter(pl.col("label").is_in(list(corpus.classes)))
    differences = _compare(_counts(rows, "label"), expected.per_class, hints)
    total, known = chosen.height, sum(expected.per_class.get(name, 0) for name in corpus.classes)
    if total != known:
        differences.append(_difference(TOTAL, total, known, hints))
    for column, counts in (("speaker", expected.per_speaker), ("group", expected.per_group)):
        if counts:
            found = _counts(chosen, column)
            differences += [f"{column} {line}" for line in _compare(found, counts, hints)]
            unknown = sorted(set(found) - set(counts))
            differences += [f"{column} {name}: {found[name]} found, none expected" for name in unknown]
    if expected.balanced and not differences:
        differences += _unbalanced(chosen, expected.per_group, corpus.classes)
    return differences


def _unbalanced(rows: pl.DataFrame, per_group: Mapping[str, int], classes: tuple[str, ...]) -> list[str]:
    """Differences within the groups, for copies whose totals all match."""
    found = {(group, label): count for group, label, count in rows.group_by("group", "label").len().iter_rows()}
    differences = []
    for group, total in per_group.items():
        expected = total // len(classes)
        for label in classes:
            number = found.get((group, label), 0)
            if number != expected:
                differences.append(f"{label} in group {group}: {number} found, {expected} expected")
    return differences


def _counts(rows: pl.DataFrame, column: str) -> dict[str, int]:
    return dict(rows.filter(pl.col(column).is_not_null()).group_by(column).len().iter_rows())


def _compare(found: Mapping[str, int], expected: Mapping[str, int], hints: Mapping[tuple[str, int], str]) -> list[str]:
    return [
        _difference(name, found.get(name, 0), count, hints)
        for name, count in expected.items()
        if found.get(name, 0) != count
    ]


def _difference(name: str, found: int, expected: int, hints: Mapping[tuple[str, int], str]) -> str:
    hint = hints.get((name, found))
    return f"{name}: {found} found, {expected} expected" + (f": {hint}" if hint else "")
