"""The content of a report, independent of its format: sections, blocks and tables.

The cells of a table are numbers until a writer (HTML, Markdown, CSV, LaTeX) formats them, so no writer parses text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeVar

from daamctl.artifacts.layer_sets import MeanOverRuns, Truncation
from daamctl.artifacts.predictions import NUMBERS, VALUED
from daamctl.artifacts.protocols import Protocols
from daamctl.artifacts.scores import Compared, Figure
from daamctl.errors import first_few
from daamctl.reporting.figure_spec import Figure as Drawing
from daamctl.reporting.figure_spec import Picture

DASH = "–"
"""Shown for a value that does not exist."""
UP, DOWN = "↑", "↓"
INTERVAL = " [95 % interval]"
UNCORRECTED = " [95 % interval, not corrected]"
"""End of a heading whose numbers have an interval."""

Kind = Literal[
    "percent",
    "share",
    "points",
    "size",
    "nats",
    "plain",
    "signed",
    "score",
    "score-signed",
    "fine",
    "fine-signed",
    "p",
    "count",
    "seconds",
    "joules",
    "mib",
]
FORMATS: dict[str, tuple[float, str, str]] = {
    "percent": (100.0, ".1f", "%"),
    "share": (100.0, ".2f", "%"),
    "points": (100.0, "+.1f", "points"),
    "size": (100.0, ".1f", "points"),
    "nats": (1.0, ".3f", "nats"),
    "plain": (1.0, ".3f", ""),
    "signed": (1.0, "+.3f", ""),
    "score": (1.0, ".3f", ""),
    "score-signed": (1.0, "+.3f", ""),
    "fine": (1.0, ".5f", ""),
    "fine-signed": (1.0, "+.5f", ""),
    "p": (1.0, ".3f", ""),
    "count": (1.0, ",.0f", ""),
    "seconds": (1.0, ",.1f", "s"),
    "joules": (1.0, ",.1f", "J"),
    "mib": (2.0**-20, ",.0f", "MiB"),
}
"""Kind -> factor from the stored value to the shown one, its format, and its unit. Fractions become percent."""
CODE = re.compile(r"`([^`|]+)`")
"""Code in a text. A `|` would end the cell of a Markdown table, in code too."""
SMALLEST_P = 0.001
SMALL_SCORE = 0.01
"""Scores on any scale, smaller than this, are shown with three digits, however many zeros precede them."""
ZERO = 1e-12
"""Smaller values are rounding errors."""


@dataclass(frozen=True)
class Number:
    """A value as stored (shares as fractions, memory in bytes) with its sample standard deviation or its interval.

    `kind`, a key of `FORMATS`, is how it is shown; the value None is unknown.
    """

    value: float | None
    kind: Kind = "percent"
    std: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """As shown, e.g. "64.6 ± 2.6" or "+3.1 [−0.2, +6.3]"."""
        if self.value is None:
            return DASH
        text = self._write(self.value)
        if self.std is not None:
            # a deviation has no sign, also beside a difference
            text += f" ± {self._write(self.std).removeprefix('+')}"
        if self.low is not None and self.high is not None:
            text += f" [{self._write(self.low)}, {self._write(self.high)}]"
        return text

    @property
    def parts(self) -> dict[str, float | None]:
        """Value, sample std, low and high in the unit shown, to nine digits. Absent ones are left out."""
        factor = FORMATS[self.kind][0]
        named = {"sample std": self.std, "low": self.low, "high": self.high}
        shown = {name: value for name, value in named.items() if value is not None}
        return {
            name: None if value is None else float(f"{factor * value:.9g}")
            for name, value in {"": self.value, **shown}.items()
        }

    def _write(self, value: float) -> str:
        factor, style, _ = FORMATS[self.kind]
        if self.kind == "p" and value < SMALLEST_P:
            return f"<{SMALLEST_P}"
        # a difference of equal sums is often 1e-17, and would be shown as +0.0
        if abs(value) < ZERO:
            value, style = 0.0, style.removeprefix("+")
        elif self.kind.startswith("score") and abs(value) < SMALL_SCORE:
            style = style.replace("f", "g")
        text = f"{factor * value:{style}}"
        if "+" not in style and float(text.replace(",", "")) == 0:
            # Only a difference keeps the sign of a rounded zero, which says on which side of zero the value is.
            text = text.removeprefix("-")
        return text.replace("-", "−")


@dataclass(frozen=True)
class Linked:
    """A cell with a note on how the value was computed, or why there is none, in a few words, and its sources.

    Args:
        links: text, and the path it leads to, relative to the folder of the report.
    """

    cell: str | Number
    note: str
    links: Sequence[tuple[str, str]] = ()

    def __str__(self) -> str:
        """As shown without links, e.g. "64.6 ± 2.6 (per clip, n = 5)"."""
        return f"{self.cell} ({self.note})"


Cell = str | Number | Linked


def number_of(cell: Cell) -> Number | None:
    """The number in a cell; None for text."""
    inner = cell.cell if isinstance(cell, Linked) else cell
    return inner if isinstance(inner, Number) else None


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its header.

    Args:
        key: unique in the report; file name and label.
        text_columns: indices of columns with text, aligned left. The first always is.
        foot: rows that stay at the end when the reader sorts the table.
    """

    block: ClassVar[str] = "table"
    key: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text_columns: frozenset[int] = frozenset()
    note: str = ""
    foot: Sequence[Sequence[Cell]] = ()

    @property
    def all_rows(self) -> list[Sequence[Cell]]:
        """Rows, then the foot."""
        return [*self.rows, *self.foot]


@dataclass(frozen=True)
class Plot:
    """A figure: interactive in the page, pictures in Markdown, on paper and where no script runs."""

    block: ClassVar[str] = "plot"
    figure: Drawing
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; `caution` highlights it."""

    block: ClassVar[str] = "text"
    text: str
    caution: bool = False


@dataclass(frozen=True)
class Facts:
    """(label, value) pairs, shown in large type."""

    block: ClassVar[str] = "facts"
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Bullets:
    """A list of plain texts."""

    block: ClassVar[str] = "bullets"
    lines: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Verbatim text."""

    block: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True)
class Files:
    """Pictures that are saved with the report but not shown in it; one line of text names them."""

    block: ClassVar[str] = "files"
    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Folded:
    """Blocks that the reader expands."""

    block: ClassVar[str] = "folded"
    title: str
    blocks: Sequence[Block]


Block = Table | Picture | Plot | Text | Facts | Bullets | Code | Files | Folded


@dataclass(frozen=True)
class Section:
    """A part of the report; its key is an anchor, unique in the report. The reader expands it if it is folded."""

    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)
    folded: bool = False


@dataclass(frozen=True)
class Document:
    """A report.

    Args:
        name: of the run; part of table labels.
        subtitle: line below the heading; may be empty.
        tables_beside: whether the tables are files beside the page (`write_report`).
    """

    title: str
    name: str
    sections: list[Section]
    subtitle: str = ""
    tables_beside: bool = True

    @property
    def blocks(self) -> Iterator[Block]:
        """Every block, including folded ones."""
        for section in self.sections:
            yield from _unfolded(section.blocks)

    @property
    def tables(self) -> list[Table]:
        """Every table."""
        return [block for block in self.blocks if isinstance(block, Table)]

    @property
    def plots(self) -> list[Plot]:
        """Every figure."""
        return [block for block in self.blocks if isinstance(block, Plot)]

    @property
    def pictures(self) -> list[Picture]:
        """Every picture, including those of `plots` and `Files`."""
        found: list[Picture] = []
        for block in self.blocks:
            if isinstance(block, Picture):
                found.append(block)
            elif isinstance(block, Plot | Files):
                found += block.pictures
        return found


Found = TypeVar("Found", Protocols, Truncation)


def if_current(
    make: Callable[[Found], Section], found: Found | None, *, key: str, command: str, changed: Sequence[str] = ()
) -> Section | None:
    """The section of a result, or how to update it if it is outdated; None if there is no result.

    Args:
        key: content key of the embeddings that the report is about.
        command: command that makes the result again.
        changed: settings in which it differs from the folds that the report is about.
    """
    if found is None:
        return None
    same = found.embeddings_key == key
    if same and not changed:
        return make(found)
    how = f"with other settings: {first_few(changed)}" if same else "on other embeddings"
    return replace(make(found), blocks=[Text(f"It was found {how}. Run again: {command}", caution=True)])


def _unfolded(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Folded):
            yield from _unfolded(block.blocks)


def spread(found: Figure | MeanOverRuns | None, kind: Kind = "percent") -> Number:
    """A mean as a number with its deviation."""
    return Number(None, kind) if found is None else Number(found.mean, kind, std=found.std)


def pooled(found: Figure) -> Number:
    """A figure over all test items, with its interval if it has one."""
    return Number(found.pooled, low=found.low, high=found.high)


def gap(found: Compared | None) -> Cell:
    """A difference in points with its interval."""
    return DASH if found is None else Number(found.difference, "points", low=found.low, high=found.high)


def percent(fraction: float | None) -> str:
    """0.6464 -> "64.6"."""
    return str(Number(fraction))


def points(difference: float | None) -> str:
    """A signed difference of fractions, in percentage points: 0.031 -> "+3.1"."""
    return str(Number(difference, "points"))


def kinds_of(metric: str) -> tuple[Kind, Kind]:
    """How a figure is shown, and a difference of it: shares in percent and points, others as they are."""
    if metric in VALUED:
        return "score", "score-signed"
    return ("plain", "signed") if metric in NUMBERS else ("percent", "points")


def p_value(p: float | None) -> str:
    """P in a sentence: "p = 0.012", "p < 0.001"."""
    text = str(Number(p, "p"))
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def count(number: float) -> str:
    """12345 -> "12,345"."""
    return str(Number(number, "count"))


def plural(number: int, word: str) -> str:
    """2, "fold" -> "2 folds"."""
    return f"{count(number)} {word}" + ("" if number == 1 else "s")


def layers_text(numbers: Sequence[int]) -> str:
    """Layer numbers; a run of more than three as "1–24"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 3 else ", ".join(map(str, run)) for run in runs)
