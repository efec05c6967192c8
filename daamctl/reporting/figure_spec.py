"""What a figure shows, independent of how it is drawn.

A `Figure` has views, a view has panels side by side, and a panel has two axes and marks. The page shows one view at a
time and lets the reader choose; a picture shows them all. Values are in the unit shown: percent, not fractions.

Colours are named. Each renderer has its own values for them: the Okabe-Ito set, which readers with a colour vision
deficiency can tell apart. Lines also differ in dash or marker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Numbers = Sequence[float] | Array
Colour = Literal["blue", "orange", "green", "pink", "sky", "gold", "grey", "text"]
Dash = Literal["solid", "dash", "dashdot", "dot"]
Marker = Literal[
    "circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "triangle-left", "triangle-right",
    "star", "hexagon", "hourglass", "line-ns",
]  # fmt: skip

COLOURS: tuple[Colour, ...] = get_args(Colour)[:6]
DASHES: tuple[Dash, ...] = get_args(Dash)
MARKERS: tuple[Marker, ...] = get_args(Marker)[:12]
"""A dozen lines can each have their own marker, and neighbours their own colour and dash."""
MANY_CLASSES = 20
"""Above this number of classes, colours follow the square root of a share, to make rare confusions visible."""


@dataclass(frozen=True)
class Axis:
    """An axis.

    Args:
        unit: "%" or "points"; shown in brackets after the label.
        names: names of the positions 0, 1, 2, …; empty for an axis of numbers.
        reverse: first name at the top.
        limits: ends; None: chosen by the renderer.
    """

    label: str = ""
    unit: str = ""
    names: Sequence[str] = ()
    reverse: bool = False
    limits: tuple[float, float] | None = None
    whole: bool = False
    signed: bool = False
    digits: int = 1

    @property
    def title(self) -> str:
        """Label with the unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True)
class Line:
    """Points, joined in their order.

    Args:
        x: positions, as many as y; NaN interrupts the line.
        name: what it is; empty: nothing to tell about it.
        dash: None: points only.
        marker: None: line only.
        width: of the line, in points; `size`: of the markers.
        band: lowest and highest y at every x, drawn as a shaded area, `band_name` in the legend.
        legend: name in the legend, if several lines share it; None: `name`; empty: not in the legend.
        texts: one per point, written to its right.
        notes: one per point, shown when the reader points at it.
    """

    kind: ClassVar[str] = "line"
    x: Numbers
    y: Numbers
    name: str = ""
    colour: Colour = "blue"
    dash: Dash | None = "solid"
    marker: Marker | None = None
    filled: bool = False
    width: float = 1.2
    size: float = 5.0
    band: tuple[Numbers, Numbers] | None = None
    band_name: str = ""
    legend: str | None = None
    texts: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Rule:
    """A straight line across the panel.

    Args:
        name: in the legend; empty: not in the legend.
        vertical: at a place on the x axis; otherwise on the y axis.
    """

    kind: ClassVar[str] = "rule"
    at: float
    name: str = ""
    vertical: bool = False
    colour: Colour = "grey"
    dash: Dash = "dot"


@dataclass(frozen=True)
class HeatMap:
    """A map of many columns, e.g. layers by features.

    Args:
        values: shape (R, C), in [0, 1]; first row at the bottom. Columns count from 1.
        minus: a map that is subtracted, shape (R, C); colours then diverge from 0.
    """

    kind: ClassVar[str] = "map"
    values: Array
    label: str
    minus: Array | None = None


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix of counts (C, C), row = actual class; the colour is the share of the actual class."""

    kind: ClassVar[str] = "confusion"
    label: ClassVar[str] = "Share of the actual class (%)"
    counts: NDArray[np.integer[Any]]

    @property
    def shares(self) -> Array:
        """Percent of every row, shape (C, C); 0 in a row without items."""
        totals = self.counts.sum(axis=1, keepdims=True)
        shares: Array = np.divide(100.0 * self.counts, totals, out=np.zeros(self.counts.shape), where=totals > 0)
        return shares

    @property
    def many(self) -> bool:
        """Whether there are more than `MANY_CLASSES`."""
        return len(self.counts) > MANY_CLASSES


Mark = Line | Rule | HeatMap | Confusion


@dataclass(frozen=True)
class Panel:
    """Marks over two axes; `size`: width and height of the area between the axes, in inches."""

    title: str
    x: Axis
    y: Axis
    marks: Sequence[Mark]
    size: tuple[float, float] = (4.8, 2.7)


Views = Mapping[tuple[str, ...], Sequence[Panel]]
"""Panels that are shown together, side by side, by the options that the reader chooses to see them."""


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        key: unique in a document; name of its pictures.
        alt: what it shows, for readers who do not see it.
        choices: what the reader chooses a view by, e.g. `Method`; one name per option of a view.
        printed: what the pictures show; None: all views.
        small: size of a panel where views share a picture in a grid, in inches; None: one view per row, in full size.
    """

    key: str
    alt: str
    views: Views
    choices: tuple[str, ...] = ()
    printed: Views | None = None
    per_picture: int = 16
    small: tuple[float, float] | None = None
    columns: int = 4


@dataclass(frozen=True)
class Picture:
    """A drawn figure as PNG, and as PDF for print if there is one; its file name is unique in a document."""

    block: ClassVar[str] = "picture"
    name: str
    alt: str
    data: bytes = field(repr=False)
    vector: bytes | None = field(default=None, repr=False)


def rows(names: Sequence[str]) -> Axis:
    """An axis with one row per name, the first at the top."""
    return Axis(names=names, reverse=True)
