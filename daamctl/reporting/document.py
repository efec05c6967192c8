"""What a report consists of, whether HTML or Markdown, and how its numbers are written (percent, one decimal)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DASH = "–"
"""Stands for a figure that does not exist."""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its header.

    Args:
        caption: what the table shows, with unit.
        columns: headings.
        rows: cells as text, one per heading.
        text_columns: indices of columns that hold words, set left; the first always does.
        note: stands below.
    """

    caption: str
    columns: list[str]
    rows: list[list[str]]
    text_columns: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG.

    Args:
        name: file name.
        alt: what it shows, for those who do not see it.
        data: the bytes.
        wide: takes the full width instead of a cell of a grid.
    """

    name: str
    alt: str
    data: bytes
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Args:
        key: anchor, unique in the report.
        title: heading.
        paragraphs: plain text.
        facts: (label, value) pairs shown large.
        warnings: plain text that must not be overlooked.
        tables: tables, in order.
        pictures: pictures, after the tables.
        code: verbatim texts by heading, folded away.
    """

    key: str
    title: str
    paragraphs: list[str] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        title: heading and window title.
        sections: in order.
    """

    title: str
    sections: list[Section]

    @property
    def pictures(self) -> list[Picture]:
        """Every picture."""
        return [picture for section in self.sections for picture in section.pictures]


def percent(fraction: float | None) -> str:
    """0.6464 -> "64.6"; the unit stands in the caption."""
    return DASH if fraction is None else f"{100 * fraction:.1f}"


def points(difference: float | None) -> str:
    """A signed difference of fractions, in percentage points: 0.031 -> "+3.1"."""
    return DASH if difference is None else f"{100 * difference:+.1f}".replace("-", "−")


def mean_std(spread: Mapping[str, Any] | None, *, signed: bool = False) -> str:
    """A `spread` as "64.6 ± 2.6"; without a deviation (n = 1) the mean alone."""
    if spread is None:
        return DASH
    mean = points(spread["mean"]) if signed else percent(spread["mean"])
    deviation = spread.get("sample_std")
    return mean if deviation is None else f"{mean} ± {percent(deviation)}"


def count(number: int) -> str:
    """12345 -> "12,345"."""
    return f"{number:,}"


def duration(seconds: float) -> str:
    """Seconds as "45 s", "12 min" or "3.4 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def listed(items: list[str]) -> str:
    """Words joined as "a, b and c"."""
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else "".join(items)
