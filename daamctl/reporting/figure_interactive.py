"""Figures as data for a browser; `figure_interactive.js` draws them with plotly.js.

A map is sent as one byte per cell in base64: 0 to 255 means 0 to 1. A map of 24 layers by 1024 features takes 44 kB.
Larger maps are averaged over neighbouring columns. Equal maps are sent once.
"""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any

import numpy as np

from daamctl.reporting.figure_spec import Array, Confusion, Figure, HeatMap, Line, Mark, Numbers, Panel

MAX_CELLS = 32_768
"""Most cells of a map."""
MAX_CONFUSION_INCHES = 6.3
SCRIPT = Path(__file__).with_name("figure_interactive.js")
"""Draws every `figure[data-figure]` of the page in which it runs."""


def to_data(figure: Figure) -> dict[str, Any]:
    """The figure as `figure_interactive.js` reads it: JSON-able, with null for values that are not finite."""
    maps: dict[str, int] = {}
    views = [
        {"chosen": list(chosen), "panels": [_panel(panel, maps) for panel in panels]}
        for chosen, panels in figure.views.items()
    ]
    return {"choices": list(figure.choices), "views": views, "maps": list(maps)}


def _panel(panel: Panel, maps: dict[str, int]) -> dict[str, Any]:
    width, height = panel.size
    if any(isinstance(mark, Confusion) for mark in panel.marks):
        height = min(height, MAX_CONFUSION_INCHES)
    return {
        "title": panel.title,
        "x": {**vars(panel.x), "title": panel.x.title},
        "y": {**vars(panel.y), "title": panel.y.title},
        "marks": [{"kind": mark.kind, **_mark(mark, maps)} for mark in panel.marks],
        "size": [width, height],
    }


def _mark(mark: Mark, maps: dict[str, int]) -> dict[str, Any]:
    if isinstance(mark, Line):
        band = None if mark.band is None else [_numbers(end) for end in mark.band]
        return {**vars(mark), "x": _numbers(mark.x), "y": _numbers(mark.y), "band": band}
    if isinstance(mark, HeatMap):
        rows, columns = mark.values.shape
        step = math.ceil(rows * columns / MAX_CELLS)
        minus = None if mark.minus is None else _cells(mark.minus, step, maps)
        return {"values": _cells(mark.values, step, maps), "minus": minus, "rows": rows, "step": step,
                "label": mark.label}  # fmt: skip
    if isinstance(mark, Confusion):
        return {"counts": mark.counts.tolist(), "many": mark.many, "label": mark.label}
    return vars(mark)


def _cells(values: Array, step: int, maps: dict[str, int]) -> int:
    """Index of a map among all that are sent, averaged over every `step` columns."""
    starts = np.arange(0, values.shape[1], step)
    sizes = np.diff([*starts, values.shape[1]])
    cells = np.rint(255 * np.add.reduceat(values, starts, axis=1) / sizes).astype(np.uint8)
    return maps.setdefault(base64.b64encode(cells.tobytes()).decode("ascii"), len(maps))


def _numbers(values: Numbers) -> list[float | None]:
    return [round(float(value), 4) if np.isfinite(value) else None for value in values]
