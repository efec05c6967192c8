"""Pictures that set many methods side by side, each as PNG for the page and as PDF for print.

Colours are the Okabe-Ito set and the map `cividis`, as in `daamctl.analysis.plots`; markers, dashes and labels tell
everything apart without them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from daamctl.reporting.document import Picture

Array = NDArray[np.floating[Any]]
Drawn = tuple[bytes, bytes]
Candidate = tuple[str, Sequence[float], int, int]
"""Of a search: settings in words, accuracy of every epoch, number of runs that chose it, number of runs."""
Item = TypeVar("Item")
Draw = Callable[[Mapping[str, Item]], Drawn]
LayerMaps = tuple[Sequence[int], Array, Array, Array, Array]

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#5B6470"
STYLES = [(BLUE, "-"), (ORANGE, "--"), (GREEN, "-.")]
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "d")
DASHES = ("-", "--", "-.", ":")
MAX_MARKED = len(MARKERS)
"""More lines than this are drawn alike."""
MAX_SHARES = 6
"""Larger confusion matrices show colour only."""
MAX_NAMED = 20
"""Larger ones are drawn larger, name every few classes, and stand few to a picture; their colours grow with the square
root of a share, so that rare confusions show."""
NAMED_OF_MANY = 20
LARGE_PER_PICTURE = 4
COLUMNS = 4
"""Of small panels."""
PER_PICTURE = 16
"""Panels of one picture; more fit no page."""
ROWS_PER_PICTURE = 4
"""Methods of one picture of maps."""
DPI = 130


def rank_rows(ranks: Mapping[str, Any]) -> Drawn:
    """Average ranks, one method per row, and bars that join methods which are not told apart.

    Args:
        ranks: average_ranks (best first), critical_difference, groups.
    """
    average, critical = ranks["average_ranks"], ranks["critical_difference"]
    rows = {name: row for row, name in enumerate(average)}
    figure = Figure(figsize=(8.0, 1.6 + 0.27 * len(average)), layout="constrained")
    axis = figure.subplots()
    values = np.array(list(average.values()))
    axis.hlines(range(len(values)), 1, values, color=GREY, linewidth=0.7, alpha=0.5)
    axis.plot(values, range(len(values)), "o", color=BLUE, markersize=6, label="Average rank")
    for name, row in rows.items():
        axis.annotate(f"{average[name]:.1f}", (average[name], row), (7, -3), textcoords="offset points", fontsize=8)
    far = max(len(average), float(values.max())) + 0.12 * len(average)
    for column, group in enumerate(ranks["groups"]):
        x = far + 0.05 * len(average) * column
        axis.plot([x, x], [rows[group[0]] - 0.3, rows[group[-1]] + 0.3], color="black", linewidth=3.2,
                  solid_capstyle="butt", label="Not told apart" if column == 0 else None)  # fmt: skip
    if critical < len(average):
        axis.plot([1, 1 + critical], [-1.2, -1.2], color=ORANGE, linewidth=2.5, marker="|", markersize=9,
                  label=f"Critical difference {critical:.2f}")  # fmt: skip
    axis.set_yticks(range(len(average)), list(average), fontsize=9)
    axis.set_ylim(len(average) - 0.4, -1.8)
    axis.set_xlabel("Average rank over folds (1 is best)")
    ticks = [tick for tick in MaxNLocator(10, integer=True).tick_values(1, len(average)) if 1 < tick <= len(average)]
    axis.set_xticks([1, *ticks])
    axis.set_xlim(1 - 0.03 * len(average), None)
    axis.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return _drawn(figure)


def speaker_lines(
    found: Mapping[str, Mapping[str, float]], speakers: Sequence[str], *, label: str, source: str = "speaker"
) -> Drawn:
    """One row per method, one line per speaker.

    Args:
        found: method -> speaker -> accuracy; first method on top.
        speakers: in order.
        label: name of the x axis, without unit.
        source: what a speaker is called.
    """
    marked = len(speakers) <= MAX_MARKED
    figure = Figure(figsize=(8.0, 1.9 + 0.27 * len(found)), layout="constrained")
    axis = figure.subplots()
    rows = np.arange(len(found))
    table = np.array([[part.get(speaker, np.nan) for speaker in speakers] for part in found.values()])
    for number, speaker in enumerate(speakers):
        style: dict[str, Any] = {"color": GREY, "linewidth": 0.6, "alpha": 0.5, "marker": ".", "markersize": 4}
        if marked:
            style = {"color": COLOURS[number % 6], "linestyle": DASHES[number % 4], "linewidth": 1.0,
                     "marker": MARKERS[number], "markersize": 5, "markerfacecolor": "white",
                     "label": speaker}  # fmt: skip
        axis.plot(100 * table[:, number], rows, **style)
    known = np.isfinite(table)
    means = np.divide(np.where(known, table, 0).sum(axis=1), known.sum(axis=1), out=np.full(len(table), np.nan),
                      where=known.any(axis=1))  # fmt: skip
    axis.plot(100 * means, rows, color="black", linewidth=2.2, marker="|", markersize=11, label=f"Mean of {source}s")
    axis.set_yticks(rows, list(found), fontsize=9)
    axis.set_ylim(len(found) - 0.5, -0.5)
    axis.set_xlabel(f"{label} (%)")
    axis.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
    return _drawn(figure)


def parts(stem: str, alt: str, items: Mapping[str, Item], size: int, draw: Draw[Item]) -> list[Picture]:
    """Pictures of a few methods each.

    Args:
        stem: file name without number and ending.
        alt: what they show together.
        items: method -> what is drawn of it.
        size: most methods of one picture.
        draw: draws some of the methods.
    """
    names = list(items)
    groups = [names[start : start + size] for start in range(0, len(names), size)]
    found = []
    for number, group in enumerate(groups, start=1):
        which = "" if len(groups) == 1 else f" Part {number} of {len(groups)}: {group[0]} to {group[-1]}."
        name = f"{stem}.png" if len(groups) == 1 else f"{stem}-{number}.png"
        found.append(Picture(name, f"{alt}{which}", *draw({method: items[method] for method in group})))
    return found


def learning_panels(
    curves: Mapping[str, Mapping[str, Mapping[str, Any]]], chance: float, *, clip: str = "clip"
) -> Drawn:
    """One small panel of learning curves per method.

    Args:
        curves: method -> name of a curve -> epochs, mean, low and high (fractions).
        chance: share of the most frequent class.
        clip: what is counted.
    """
    figure, axes = _panels(len(curves), 1.95, 1.3, gap=0.42, left=0.75, bottom=0.95)
    for axis, (method, part) in zip(axes, curves.items(), strict=False):
        for (name, curve), (colour, dash) in zip(part.items(), STYLES, strict=False):
            low, middle, high = (100 * np.asarray(curve[key], dtype=float) for key in ("low", "mean", "high"))
            marker = "o" if len(middle) <= 3 else ""
            axis.plot(curve["epochs"], middle, color=colour, linestyle=dash, marker=marker, linewidth=1.2, label=name)
            axis.fill_between(curve["epochs"], low, high, color=colour, alpha=0.15, linewidth=0)
        axis.axhline(100 * chance, color=GREY, linestyle=":", linewidth=0.9, label="Most frequent class")
        axis.set_ylim(0, 101)
        axis.set_title(method, fontsize=8, pad=3)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axis.tick_params(labelsize=7, pad=2)
        axis.grid(alpha=0.25)
    _label_panels(figure, "Epoch", f"Accuracy per {clip} (%)", bottom=0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=8)
    return _drawn(figure)


def search_panels(curves: Mapping[str, Sequence[Candidate]], *, clip: str = "clip") -> Drawn:
    """One small panel per method: held-out accuracy of every candidate, and the one chosen most often in colour.

    Args:
        curves: method -> its candidates; accuracies are fractions.
        clip: what is counted.
    """
    figure, axes = _panels(len(curves), 1.95, 1.3, gap=0.56, left=0.75, bottom=0.95)
    for axis, (method, candidates) in zip(axes, curves.items(), strict=False):
        top = max(candidates, key=lambda one: one[2])
        for candidate in candidates:
            _, accuracy, chosen, _ = candidate
            first = candidate is top
            style: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": "--", "alpha": 0.8}
            if chosen:
                style = {"color": BLUE, "linewidth": 1.1, "linestyle": "-."}
            if first:
                style = {"color": ORANGE, "linewidth": 2.0, "zorder": 3}
            label = "Chosen most often" if first else "Chosen in some runs" if chosen else "Not chosen"
            marker = "o" if len(accuracy) <= 3 else ""
            epochs = range(1, len(accuracy) + 1)
            axis.plot(epochs, 100 * np.asarray(accuracy), marker=marker, markersize=4, label=label, **style)
        axis.set_title(f"{method}\n{top[0]} in {top[2]} of {top[3]}", fontsize=7, pad=3)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axis.tick_params(labelsize=7, pad=2)
        axis.grid(alpha=0.25)
    _label_panels(figure, "Epoch of the search", f"Held-out accuracy per {clip} (%)", bottom=0.5)
    known = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(known.values(), known.keys(), loc="lower center", ncols=3, frameon=False, fontsize=8)
    return _drawn(figure)


def gap_rows(gaps: Mapping[str, Sequence[float]], margin: float) -> Drawn:
    """Accuracy of every method minus that of its closed-form probe: a dot per fold and the mean, one row per method.

    Args:
        gaps: method -> fractions, one per fold; first method on top.
        margin: how far below is allowed.
    """
    figure = Figure(figsize=(8.0, 1.6 + 0.27 * len(gaps)), layout="constrained")
    axis = figure.subplots()
    for row, values in enumerate(gaps.values()):
        shown = 100 * np.asarray(values)
        axis.plot(shown, np.full(len(shown), row), "o", color=BLUE, markersize=4, alpha=0.6, markerfacecolor="white",
                  label="Fold" if row == 0 else None)  # fmt: skip
        axis.plot([shown.mean()], [row], "D", color=ORANGE, markersize=6, label="Mean" if row == 0 else None)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.axvline(-100 * margin, color=GREY, linestyle=":", linewidth=1.4, label="Undertrained below")
    axis.set_yticks(range(len(gaps)), list(gaps), fontsize=9)
    axis.set_ylim(len(gaps) - 0.5, -0.5)
    axis.set_xlabel("Accuracy minus that of the closed-form probe (points)")
    axis.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return _drawn(figure)


def confusion_panels(matrices: Mapping[str, Array], classes: Sequence[str]) -> Drawn:
    """One small confusion matrix per method: shares of the actual class in percent.

    Args:
        matrices: method -> shares, shape (C, C); row = actual class.
        classes: C names.
    """
    many = len(classes) > MAX_NAMED
    room = 0.35 + 0.07 * max(map(len, classes))
    most, side = (2, 3.9) if many else (COLUMNS, 1.75)
    figure, axes = _panels(len(matrices), side, side, gap=0.36, left=room + 0.35, bottom=room + 0.95, columns=most)
    small = 7 if len(classes) <= 10 or many else 5
    columns = min(most, len(axes))
    named = list(range(0, len(classes), -(-len(classes) // NAMED_OF_MANY) if many else 1))
    labels = [classes[place] for place in named]
    for number, (axis, (method, shares)) in enumerate(zip(axes, matrices.items(), strict=True)):
        norm = PowerNorm(0.5 if many else 1.0, vmin=0, vmax=100)
        image = axis.imshow(100 * shares, cmap="cividis", norm=norm, interpolation="nearest")
        if len(classes) <= MAX_SHARES:
            for row, column in np.ndindex(*shares.shape):
                axis.text(column, row, f"{100 * shares[row, column]:.0f}", ha="center", va="center", fontsize=7,
                          color="white" if shares[row, column] < 0.5 else "black")  # fmt: skip
        axis.set_title(method, fontsize=8, pad=3)
        lowest, first = number + columns >= len(axes), number % columns == 0
        axis.set_xticks(named, labels if lowest else [], rotation=45, ha="right", fontsize=small)
        axis.set_yticks(named, labels if first else [], fontsize=small)
        axis.tick_params(pad=2)
    _label_panels(figure, "Predicted class", "Actual class", bottom=0.62)
    height = figure.get_figheight()
    scale = figure.add_axes((0.3, 0.42 / height, 0.4, 0.12 / height))
    figure.colorbar(image, cax=scale, orientation="horizontal").set_label("Share of the actual class (%)", fontsize=8)
    scale.tick_params(labelsize=7, pad=1)
    return _drawn(figure)


def importance_rows(maps: Mapping[str, LayerMaps]) -> Drawn:
    """One row per method: its map, the untrained one, and what both give each layer.

    Args:
        maps: method -> L layer numbers, trained and untrained Importance Factor (L, D), trained and untrained
            contribution (L,) in percent.
    """
    figure = Figure(figsize=(9.6, 1.0 + 1.9 * len(maps)), layout="constrained")
    axes = figure.subplots(len(maps), 3, squeeze=False, width_ratios=(1, 1, 0.6))
    for row, (method, (layers, *images, own, before)) in zip(axes, maps.items(), strict=True):
        places = np.arange(len(layers))
        for axis, name, values in zip(row, ("trained", "untrained"), images, strict=False):
            # More cells than pixels: layers then do not blur into one another.
            image = axis.imshow(values.repeat(-(-240 // len(places)), axis=0), aspect="auto", origin="lower",
                                cmap="cividis", vmin=0, vmax=1,
                                extent=(0.5, values.shape[1] + 0.5, -0.5, len(places) - 0.5))  # fmt: skip
            axis.set_title(f"{method}, {name}", fontsize=8.5)
        row[2].plot(own, places, color=BLUE, marker="o", markersize=3, linewidth=1, label="Trained")
        row[2].plot(before, places, color=ORANGE, marker="s", markersize=3, linewidth=1, linestyle="--",
                    markerfacecolor="white", label="Untrained")  # fmt: skip
        row[2].axvline(100 / len(places), color="black", linestyle=":", linewidth=1, label="Uniform")
        row[2].set_title("Layer contribution (%)", fontsize=8.5)
        row[2].set_ylim(-0.5, len(places) - 0.5)
        row[2].xaxis.set_major_locator(MaxNLocator(4))
        step = -(-len(places) // 8)
        for axis in row:
            axis.set_yticks(places[::step], [str(number) for number in layers][::step])
            axis.tick_params(labelsize=7)
        row[0].set_ylabel("Layer", fontsize=8)
    for axis in axes[-1, :2]:
        axis.set_xlabel("Feature number", fontsize=8)
    figure.colorbar(image, ax=axes[:, :2], label="Importance Factor", shrink=min(1.0, 1.8 / len(maps)), pad=0.01)
    figure.legend(
        *axes[0, 2].get_legend_handles_labels(), loc="outside lower right", ncols=3, frameon=False, fontsize=8
    )
    return _drawn(figure, dpi=110)


def _panels(
    number: int, width: float, height: float, *, gap: float, left: float, bottom: float, columns: int = COLUMNS
) -> tuple[Figure, list[Axes]]:
    """A grid of panels at fixed places, in inches: laying out dozens of them automatically takes minutes."""
    columns = min(columns, number)
    rows = -(-number // columns)
    wide = left + max(3.6, columns * (width + 0.3))
    tall = bottom + rows * (height + gap)
    figure = Figure(figsize=(wide, tall))
    axes = []
    for index in range(number):
        row, column = divmod(index, columns)
        place = (left + column * (width + 0.3), bottom + (rows - 1 - row) * (height + gap), width, height)
        axes.append(figure.add_axes((place[0] / wide, place[1] / tall, place[2] / wide, place[3] / tall)))
    return figure, axes


def _label_panels(figure: Figure, x: str, y: str, *, bottom: float) -> None:
    figure.text(0.5, bottom / figure.get_figheight(), x, ha="center", va="bottom", fontsize=9)
    figure.text(0.08 / figure.get_figwidth(), 0.5, y, ha="left", va="center", rotation=90, fontsize=9)


def _drawn(figure: Figure, dpi: int = DPI) -> Drawn:
    # Without dates and version stamps the same figure gives the same bytes.
    png, pdf = BytesIO(), BytesIO()
    figure.savefig(png, format="png", dpi=dpi, metadata={"Software": None})
    figure.set_layout_engine("none")  # everything has found its place
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it reports every table of a font
    with mpl.rc_context({"pdf.fonttype": 42}):  # text stays text
        figure.savefig(pdf, format="pdf", dpi=dpi, metadata={"CreationDate": None, "Producer": None, "Creator": None})
    return png.getvalue(), pdf.getvalue()
