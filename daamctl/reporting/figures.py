"""Figures of the report, built from the evaluation and the folds. `figure_interactive` and `figure_static` draw them.

Accuracies and their differences are fractions. Mappings have one entry per method, in the order of the report, best
first. Common arguments: `chance` is the share of the most frequent class, `label` the name of the accuracy, `clip` the
unit that it counts, and `alt` the text alternative.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daamctl.artifacts.layer_sets import LayerRow
from daamctl.reporting import figure_static as static
from daamctl.reporting.document import Plot
from daamctl.reporting.figure_interactive import MAX_CELLS
from daamctl.reporting.figure_layers import MethodMaps, contribution, contribution_change, importance_map
from daamctl.reporting.figure_spec import (
    COLOURS,
    DASHES,
    MANY_CLASSES,
    MARKERS,
    Axis,
    Colour,
    Confusion,
    Figure,
    Line,
    Mark,
    Marker,
    Panel,
    Picture,
    Rule,
    rows,
)

CHANCE = "Most frequent class"
ROW_WIDTH = 6.4
"""Inches, of figures with one row per method."""
SMALL = (1.95, 1.3)
"""Inches, of one panel among many."""
LARGE_PER_PICTURE = 4
"""Large confusion matrices on one picture."""
MAX_MAP_BYTES = 4_000_000
"""Of all maps in the page; above it, the page has the mean maps only."""


def drawn(figure: Figure) -> Plot:
    """The figure as a block of a document, with its pictures."""
    return Plot(figure, static.pictures(figure))


def per_method(figure: Figure, names: Mapping[str, str], what: str) -> list[Picture]:
    """A larger picture of `what` of every view.

    Args:
        names: label of a method -> start of the file name.
    """
    return [
        Picture(f"{names[method]}-{figure.key}.png", f"{what} of {method}.", static.png(panels))
        for (method,), panels in figure.views.items()
    ]


def accuracy(methods: Mapping[str, Sequence[tuple[float, str]]], chance: float, label: str, alt: str) -> Figure:
    """One row per method: its runs, given as (accuracy, name), and their mean."""
    values = [[value for value, _ in runs] for runs in methods.values()]
    names = [name for runs in methods.values() for _, name in runs]
    means = [100 * float(np.mean(row)) for row in values]
    marks: list[Mark] = [
        _dots(values, "One run", notes=names),
        Line(means, range(len(means)), "Mean", "orange", None, "line-ns", width=3.0, size=14.0),
        Rule(100 * chance, CHANCE, vertical=True),
    ]  # fmt: skip
    return _row_figure("accuracy", alt, list(methods), Axis(label, "%"), marks)


def profile(
    layers: Sequence[LayerRow], label: str, limits: tuple[float, float], height: float, chance: float | None = None
) -> Panel:
    """Score of a linear probe of every layer; limits in percent, height in inches."""
    band = None
    if all(one.low is not None and one.high is not None for one in layers):
        band = ([100 * (one.low or 0.0) for one in layers], [100 * (one.high or 0.0) for one in layers])
    marks: list[Mark] = [
        Line(range(len(layers)), [100 * one.value for one in layers], "Linear probe of one layer", marker="circle",
             filled=True, width=1.5, band=band, band_name="95 % interval of a layer"),
        *([] if chance is None else [Rule(100 * chance)]),
    ]  # fmt: skip
    places = Axis("Layer", names=[str(one.layers[0]) for one in layers])
    return Panel("Layers", places, Axis(label, "%", limits=limits), marks, (4.2, height))


def answers(
    layers: Sequence[LayerRow],
    methods: Mapping[str, tuple[float, tuple[float, float] | None]],
    chance: float,
    label: str,
    alt: str,
) -> Figure:
    """Accuracy of a linear probe of every layer, if any, and of every method, on axes with the same limits.

    Args:
        methods: method -> accuracy, and the ends of its interval.
    """
    values = [100 * mean for mean, _ in methods.values()]
    found = [(low, high, place) for place, (_, ends) in enumerate(methods.values()) if ends for low, high in [ends]]
    every = [*values, 100 * chance, *(100 * end for low, high, _ in found for end in (low, high))]
    every += [100 * end for one in layers for end in (one.value, one.low, one.high) if end is not None]
    limits = (min(every) - 2.0, max(every) + 2.0)
    marks: list[Mark] = [
        _segments([(100 * low, place, 100 * high, place) for low, high, place in found], "95 % interval",
                  colour="grey", width=2.5),
        Line(values, range(len(values)), "Method", "orange", None, "circle", filled=True, size=6.0),
        Rule(100 * chance, CHANCE, vertical=True),
    ]  # fmt: skip
    height = 0.4 + 0.27 * max(len(methods), 8)
    panels = [Panel("Methods", Axis(label, "%", limits=limits), rows(list(methods)), marks, (3.4, height))]
    if layers:
        panels.insert(0, profile(layers, label, limits, height, chance))
    return Figure("answers", alt, {(): panels})


def speakers(
    methods: Mapping[str, Mapping[str, float]], names: Sequence[str], chance: float, *, label: str, who: str, alt: str
) -> Figure:
    """One row per method and one line per speaker.

    `methods` maps speaker -> accuracy, where speakers may be absent; `names` are all speakers in order; `who` is what a
    speaker is called.
    """
    table = np.array([[100 * part.get(name, np.nan) for name in names] for part in methods.values()])  # (methods, S)
    places = range(len(methods))
    marks: list[Mark] = []
    for number, name in enumerate(names):
        if len(names) > len(MARKERS):  # too many to tell apart
            marks.append(Line(table[:, number], places, f"{who} {name}", "grey", marker="circle", width=0.4, size=2.0,
                              legend=""))  # fmt: skip
            continue
        marks.append(Line(table[:, number], places, f"{who} {name}", COLOURS[number % len(COLOURS)],
                          DASHES[number % len(DASHES)], MARKERS[number], width=1.0))  # fmt: skip
    means = [float(np.nanmean(row)) if np.isfinite(row).any() else np.nan for row in table]
    marks.append(Line(means, places, f"Mean of {who}s", "text", marker="line-ns", width=2.2, size=11.0))
    if np.nanmin(table) < 100 * chance:  # further left, it would only squeeze the lines
        marks.append(Rule(100 * chance, CHANCE, vertical=True))
    return _row_figure("speakers", alt, list(methods), Axis(label, "%"), marks)


def differences(groups: Mapping[str, float], whole: float, label: str, alt: str) -> Figure:
    """One row per group, e.g. speaker: the difference of two models in it; and that over all items."""
    values = [100 * value for value in groups.values()]
    marks: list[Mark] = [
        _segments([(0, place, value, place) for place, value in enumerate(values)], colour="grey", width=0.8),
        Line(values, range(len(values)), "Difference", "blue", None, "circle", filled=True, size=6.0),
        Rule(100 * whole, "All items", vertical=True),
        Rule(0, vertical=True, colour="text", dash="solid"),
    ]
    return _row_figure("differences", alt, list(groups), Axis(label, "points", signed=True), marks)


def gaps(
    methods: Mapping[str, Sequence[float]], probes: Mapping[str, str], margin: float, metric: str, alt: str
) -> Figure:
    """Accuracy, or another metric, of every method minus that of its closed-form probe: one dot per fold, and the mean.

    A method that is more than `margin` below its probe was not trained well; `probes` names the probes.
    """
    means = [100 * float(np.mean(values)) for values in methods.values()]
    beside = [f"to {probes[name]}" for name in methods]
    marks: list[Mark] = [
        _dots(methods.values(), "Fold", notes=[f"to {probes[name]}" for name in methods for _ in methods[name]]),
        Line(means, range(len(means)), "Mean", "orange", None, "diamond", filled=True, size=6.0, notes=beside),
        Rule(0, vertical=True, colour="text", dash="solid"),
        Rule(-100 * margin, "Not trained well below", vertical=True),
    ]
    x = Axis(f"{metric} minus that of the closed-form probe", "points", signed=True)
    return _row_figure("gaps", alt, list(methods), x, marks)


def searches(methods: Mapping[str, Sequence[Any]], clip: str, alt: str) -> Figure:
    """Held-out accuracy of every candidate of the searches (`SearchCurve`); the one chosen most often is orange."""
    views: dict[tuple[str, ...], list[Panel]] = {}
    for method, candidates in methods.items():
        top = max(candidates, key=lambda one: one.chosen)
        marks = []
        for number, one in enumerate(candidates):
            records, values = range(1, len(one.accuracy) + 1), 100 * np.array(one.accuracy)
            name = f"{one.name} (chosen in {one.chosen} of {one.runs})" if one.chosen else one.name
            dash = DASHES[1 + number % 3]
            marker: Marker | None = "circle" if len(records) <= 3 else None
            if one is top:
                line = Line(records, values, name, "orange", "solid", marker, width=2.0, legend="Chosen most often")
            elif one.chosen:
                line = Line(records, values, name, "blue", dash, marker, legend="Chosen in some runs")
            else:
                line = Line(records, values, name, "grey", dash, marker, width=0.8, legend="Not chosen")
            marks.append(line)
        title = f"{method}\n{top.name} in {top.chosen} of {top.runs}"
        y = Axis(f"Held-out accuracy per {clip}", "%")
        views[method,] = [Panel(title, Axis("Record of the search", whole=True), y, marks)]
    return Figure("search", alt, views, ("Method",), small=SMALL)


def learning(
    methods: Mapping[str, Mapping[str, Mapping[str, Any]]], chance: float, clip: str, unit: str, alt: str
) -> Figure:
    """Accuracy along training: mean over runs, and the range from the lowest to the highest run.

    `methods` maps name of a curve -> at (epochs or steps, as `unit` says), mean, low and high; a value is None if no
    run was scored there.
    """
    views: dict[tuple[str, ...], list[Panel]] = {}
    for method, curves in methods.items():
        marks: list[Mark] = []
        for number, (name, curve) in enumerate(curves.items()):
            mean, low, high = (100 * np.array(curve[key], dtype=float) for key in ("mean", "low", "high"))
            marker = MARKERS[number] if len(mean) <= 3 else None
            marks.append(Line(curve["at"], mean, name, COLOURS[number], DASHES[number], marker, band=(low, high)))
        marks.append(Rule(100 * chance, CHANCE))
        y = Axis(f"Accuracy per {clip}", "%", limits=(0, 101))
        views[method,] = [Panel(method, Axis(unit.capitalize(), whole=True), y, marks)]
    return Figure("learning", alt, views, ("Method",), small=SMALL)


def confusion(methods: Mapping[str, NDArray[np.int64]], classes: Sequence[str], alt: str) -> Figure:
    """Confusion matrices from counts of shape (C, C); row = actual class."""
    many = len(classes) > MANY_CLASSES
    side = min(max(7.4, 0.11 * len(classes)), 12.5) if many else min(max(2.5, 0.62 * len(classes)), 7.4)
    small = max(1.75, 0.115 * len(classes))  # room for the name of every class
    x, y = Axis("Predicted class", names=classes), Axis("Actual class", names=classes, reverse=True)
    views: dict[tuple[str, ...], list[Panel]] = {
        (method,): [Panel(method, x, y, [Confusion(counts)], (side, side))] for method, counts in methods.items()
    }
    if many:
        return Figure("confusion", alt, views, ("Method",), small=(3.9, 3.9), columns=2, per_picture=LARGE_PER_PICTURE)
    return Figure("confusion", alt, views, ("Method",), small=(small, small))


def importance(methods: Mapping[str, MethodMaps], alt: str) -> Figure:
    """Importance Factor and layer contribution: trained, untrained and the difference. On paper, the mean over runs."""
    # Of a run, the page holds two maps (`figure_interactive`): a byte per cell, and base64 makes 4 of 3.
    cells = [len(maps.runs) * min(maps.mean.trained.size, MAX_CELLS) for maps in methods.values()]
    if 2 * sum(cells) * 4 / 3 > MAX_MAP_BYTES:
        methods = {name: replace(maps, runs=[maps.mean]) for name, maps in methods.items()}
    views: dict[tuple[str, ...], list[Panel]] = {}
    printed: dict[tuple[str, ...], list[Panel]] = {}
    for method, maps in methods.items():
        layers = maps.layers
        for run in maps.runs:
            trained = importance_map(run.trained, layers, f"{method}, trained")
            untrained = importance_map(run.untrained, layers, f"{method}, untrained")
            change = importance_map(run.trained, layers, f"{method}, trained minus untrained", minus=run.untrained)
            shares = contribution(run.share, run.share_untrained, layers)
            views[method, run.name, "trained"] = [trained, shares]
            views[method, run.name, "untrained"] = [untrained, shares]
            views[method, run.name, "difference"] = [
                change,
                contribution_change(run.share, run.share_untrained, layers),
            ]
            if run is maps.mean:
                printed[method,] = [trained, untrained, shares]
    return Figure("importance", alt, views, ("Method", "Run", "Map"), printed=printed, per_picture=4)


def _row_figure(key: str, alt: str, methods: Sequence[str], x: Axis, marks: Sequence[Mark]) -> Figure:
    """A figure with one row per method."""
    size = (ROW_WIDTH, 0.4 + 0.27 * len(methods))
    return Figure(key, alt, {(): [Panel("", x, rows(methods), marks, size)]})


def _dots(values: Collection[Sequence[float]], name: str, notes: Sequence[str]) -> Line:
    """One open circle per value of every row, as percent."""
    x = [100 * value for row in values for value in row]
    y = [place for place, row in enumerate(values) for _ in row]
    return Line(x, y, name, "blue", None, "circle", notes=notes)


def _segments(
    ends: Sequence[tuple[float, float, float, float]], name: str = "", *, colour: Colour, width: float
) -> Line:
    """Separate straight lines from (x, y) to (x, y)."""
    x = [value for one in ends for value in (one[0], one[2], np.nan)]
    y = [value for one in ends for value in (one[1], one[3], np.nan)]
    return Line(x, y, name, colour, width=width)
