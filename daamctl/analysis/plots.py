"""Every picture: maps and scores of layers, what replacing layers does, learning curves, confusion matrices, folds.

Figures are built with matplotlib's object interface and returned as PNG bytes, so nothing is global and no display is
needed. Colours are the Okabe-Ito set and the map `cividis`, both readable with colour-blind eyes; bars and lines also
differ in hatch, marker or dash. Heatmaps have layer 1 at the bottom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#5B6470"
MAX_LAYER_LABELS = 24
"""More rows than this are labelled every few layers."""
MAX_ANNOTATED_CLASSES = 12
"""Larger confusion matrices show colour only."""
MANY_CLASSES = 20
"""Above this colours grow with the square root of a share, so that rare confusions show."""


def importance_heatmap(
    trained: Array, untrained: Array | None, layers: Sequence[int], *, title: str, dpi: int = 150
) -> bytes:
    """Layers x features map of the Importance Factor, trained beside untrained.

    Args:
        trained: IF, shape (L, D), in [0, 1].
        untrained: the same of the module before training; None: not known.
        layers: L layer numbers, first row first; drawn from the bottom up.
        title: stands above both maps.
        dpi: resolution.

    Returns:
        A PNG.
    """
    maps = [("Trained", trained)] + ([("Untrained", untrained)] if untrained is not None else [])
    figure = Figure(figsize=(5.4 * len(maps) + 1.2, _clamp(1.9 + 0.16 * len(layers), 3.0, 7.5)), layout="constrained")
    axes = figure.subplots(1, len(maps), squeeze=False, sharey=True)[0]
    for axis, (name, values) in zip(axes, maps, strict=True):
        image = axis.imshow(_enlarged(values), aspect="auto", origin="lower", cmap="cividis", vmin=0.0, vmax=1.0,
                            extent=(0.5, values.shape[1] + 0.5, -0.5, len(layers) - 0.5))  # fmt: skip
        axis.set_title(name, fontsize=11)
        axis.set_xlabel("Feature number")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    _label_layers(axes[0], layers, vertical=True)
    figure.colorbar(image, ax=list(axes), label="Importance Factor", pad=0.015)
    figure.suptitle(title, fontsize=13)
    return _png(figure, dpi)


def layer_bars(trained: Array, untrained: Array | None, layers: Sequence[int], *, title: str, dpi: int = 150) -> bytes:
    """Layer contribution in percent, trained beside untrained, with the share of a uniform map.

    Args:
        trained: percent per layer, shape (L,).
        untrained: the same before training; None: not known.
        layers: L layer numbers.
        title: stands above the bars.
        dpi: resolution.

    Returns:
        A PNG.
    """
    figure = Figure(figsize=(_clamp(2.0 + 0.33 * len(layers), 5.0, 13.0), 3.6), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(layers))
    width = 0.4 if untrained is not None else 0.7
    shift = width / 2 if untrained is not None else 0.0
    axis.bar(places - shift, trained, width, color=BLUE, label="Trained")
    if untrained is not None:
        axis.bar(places + shift, untrained, width, color="white", edgecolor=ORANGE, hatch="////", label="Untrained")
    axis.axhline(100.0 / len(layers), color="black", linestyle="--", linewidth=1.2, label="Uniform")
    axis.set_ylabel("Layer contribution (%)")
    axis.margins(x=0.01)
    _label_layers(axis, layers, vertical=False)
    _legend(axis, columns=3)
    figure.suptitle(title, fontsize=13)
    return _png(figure, dpi)


def layer_band(
    trained: Array, untrained: Array | None, layers: Sequence[int], *, title: str, label: str, dpi: int = 150
) -> bytes:
    """A score of the layers: mean over runs, with the range from the lowest to the highest run as a band.

    Args:
        trained: (runs, L).
        untrained: (runs, L) before training, drawn as a dashed line at its mean; None: not known.
        layers: L layer numbers.
        title: stands above.
        label: of the score.
        dpi: resolution.

    Returns:
        A PNG.
    """
    figure = Figure(figsize=(_clamp(2.0 + 0.28 * len(layers), 5.0, 12.0), 3.6), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(layers))
    if len(trained) > 1:
        _band(axis, places, trained, BLUE, "Lowest to highest run")
    axis.plot(places, trained.mean(axis=0), color=BLUE, marker="o", markersize=4, label="Trained, mean")
    if untrained is not None:
        axis.plot(places, untrained.mean(axis=0), color=ORANGE, linestyle="--", marker="s", markersize=3.5,
                  markerfacecolor="white", label="Untrained, mean")  # fmt: skip
    axis.set_ylabel(label)
    axis.margins(x=0.02)
    axis.grid(alpha=0.25)
    _label_layers(axis, layers, vertical=False)
    _legend(axis, columns=3)
    figure.suptitle(title, fontsize=13)
    return _png(figure, dpi)


def replacement_panels(
    panels: Mapping[str, tuple[Array, Array, Array | None]],
    counts: Sequence[int],
    *,
    title: str,
    clip: str = "clip",
    dpi: int = 150,
) -> bytes:
    """Accuracy while layers are replaced by their mean, or put back, in order of a score and in random orders.

    Args:
        panels: label of the x axis, e.g. `Layers replaced` -> accuracies of the score's order (S,), of random orders
            (R, S), and of the untrained score's order (S,) or None; fractions.
        counts: (S,) numbers of layers.
        title: stands above the panels.
        clip: what is counted.
        dpi: resolution.

    Returns:
        A PNG.
    """
    figure = Figure(figsize=(4.6 * len(panels), 3.8), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (name, (own, others, untrained)) in zip(axes, panels.items(), strict=True):
        _band(axis, counts, 100 * others, GREY, "Random orders, range")
        axis.plot(counts, 100 * others.mean(axis=0), color=GREY, linestyle=":", linewidth=1.8, label="Random, mean")
        if untrained is not None:
            axis.plot(counts, 100 * untrained, color=ORANGE, linestyle="--", marker="s", markersize=4,
                      markerfacecolor="white", label="Untrained order")  # fmt: skip
        axis.plot(counts, 100 * own, color=BLUE, marker="o", markersize=4.5, label="Order of the score")
        axis.set_xlabel(name)
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axis.grid(alpha=0.25)
    axes[0].set_ylabel(f"Accuracy per {clip} (%)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.suptitle(title, fontsize=12)
    return _png(figure, dpi)


def learning_curves(
    curves: Mapping[str, tuple[Sequence[int], Array]],
    *,
    title: str,
    clip: str = "clip",
    chance: float | None = None,
    dpi: int = 110,
) -> bytes:
    """Accuracy per epoch: mean over folds and seeds, with their range shaded.

    Args:
        curves: name of a curve -> (epochs, fractions of shape (runs, epochs)); NaN where an epoch is absent.
        title: stands above the curves.
        clip: what is counted.
        chance: share of the most frequent class, drawn as a dotted line.
        dpi: resolution.

    Returns:
        A PNG.
    """
    styles = [(BLUE, "-"), (ORANGE, "--"), (GREEN, "-.")]
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axis = figure.subplots()
    for (name, (epochs, values)), (colour, dash) in zip(curves.items(), styles, strict=False):
        marker = "o" if len(epochs) <= 3 else ""
        axis.plot(epochs, 100 * np.nanmean(values, axis=0), color=colour, linestyle=dash, marker=marker, label=name)
        axis.fill_between(epochs, 100 * np.nanmin(values, axis=0), 100 * np.nanmax(values, axis=0), color=colour,
                          alpha=0.15, linewidth=0)  # fmt: skip
    if chance is not None:
        axis.axhline(100 * chance, color=GREY, linestyle=":", linewidth=1.2, label="Most frequent class")
    axis.set_xlabel("Epoch")
    axis.set_ylabel(f"Accuracy per {clip} (%)")
    axis.set_ylim(0, 101)
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.grid(alpha=0.25)
    _legend(axis, columns=2)
    figure.suptitle(title, fontsize=12)
    return _png(figure, dpi)


def confusion_picture(counts: NDArray[np.integer[Any]], classes: Sequence[str], *, title: str, dpi: int = 110) -> bytes:
    """Confusion matrix: colour and number are the share of the actual class, the count stands below.

    Args:
        counts: (C, C); row = actual, column = predicted.
        classes: C names.
        title: stands above the matrix.
        dpi: resolution.

    Returns:
        A PNG.
    """
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros(counts.shape), where=totals > 0)
    many = len(classes) > MANY_CLASSES
    side = _clamp(2.6 + 0.11 * len(classes), 9.5, 15.0) if many else _clamp(2.6 + 0.62 * len(classes), 4.0, 9.5)
    figure = Figure(figsize=(side + 0.7, side - 0.2), layout="constrained")
    axis = figure.subplots()
    norm = PowerNorm(0.5 if many else 1.0, vmin=0, vmax=100)
    image = axis.imshow(100 * shares, cmap="cividis", norm=norm, interpolation="nearest")
    if len(classes) <= MAX_ANNOTATED_CLASSES:
        _annotate(axis, counts, shares)
    small = 9.5 if len(classes) <= MAX_ANNOTATED_CLASSES else 6.0
    axis.set_xticks(range(len(classes)), list(classes), rotation=90 if many else 40, ha="center" if many else "right",
                    fontsize=small)  # fmt: skip
    axis.set_yticks(range(len(classes)), list(classes), fontsize=small)
    axis.set_xlabel("Predicted class")
    axis.set_ylabel("Actual class")
    figure.colorbar(image, ax=axis, label="Share of the actual class (%)", shrink=0.85)
    figure.suptitle(title, fontsize=12)
    return _png(figure, dpi)


def fold_dots(
    values: Mapping[str, Sequence[float]], *, label: str, chance: float | None = None, dpi: int = 130
) -> bytes:
    """One row per method: a circle per fold and seed, a bar at the mean.

    Args:
        values: method -> fractions, first method on top.
        label: name of the x axis, without unit.
        chance: fraction drawn as a dotted line.
        dpi: resolution.

    Returns:
        A PNG.
    """
    figure = Figure(figsize=(8.0, _clamp(1.3 + 0.45 * len(values), 2.2, 9.0)), layout="constrained")
    axis = figure.subplots()
    for row, fractions in enumerate(values.values()):
        points = 100 * np.asarray(fractions)
        axis.plot(points, np.full(len(points), row), "o", color=BLUE, markerfacecolor="none", markersize=7,
                  label="One run" if row == 0 else None)  # fmt: skip
        axis.plot([points.mean()] * 2, [row - 0.3, row + 0.3], color=ORANGE, linewidth=3, solid_capstyle="butt",
                  label="Mean" if row == 0 else None)  # fmt: skip
    if chance is not None:
        axis.axvline(100 * chance, color=GREY, linestyle=":", linewidth=1.4, label="Most frequent class")
    axis.set_yticks(range(len(values)), list(values))
    axis.set_ylim(len(values) - 0.4, -0.6)
    axis.set_xlabel(f"{label} (%)")
    axis.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return _png(figure, dpi)


def _band(axis: Axes, places: Sequence[int] | NDArray[np.integer[Any]], values: Array, colour: str, label: str) -> None:
    """Shade from the lowest to the highest row, with thin edges that show on paper too."""
    axis.fill_between(places, values.min(axis=0), values.max(axis=0), facecolor=colour, edgecolor=colour, alpha=0.22,
                      linewidth=0.8, label=label)  # fmt: skip


def _enlarged(values: Array) -> Array:
    # More cells than pixels: matplotlib then averages every feature in, but does not blur one layer into the next.
    rows, columns = -(-1000 // values.shape[0]), -(-1600 // values.shape[1])
    return values.repeat(rows, axis=0).repeat(columns, axis=1)


def _annotate(axis: Axes, counts: NDArray[np.integer[Any]], shares: Array) -> None:
    for row, column in np.ndindex(*counts.shape):
        share = shares[row, column]
        # cividis is dark below the middle: white text there, black above.
        axis.text(column, row, f"{100 * share:.0f}%\n{counts[row, column]}", ha="center", va="center", fontsize=9,
                  color="white" if share < 0.5 else "black")  # fmt: skip


def _label_layers(axis: Axes, layers: Sequence[int], *, vertical: bool) -> None:
    step = -(-len(layers) // MAX_LAYER_LABELS)
    places = list(range(0, len(layers), step))
    names = [str(layers[place]) for place in places]
    if vertical:
        axis.set_yticks(places, names, fontsize=8)
        axis.set_ylabel(f"Layer number ({layers[0]} at the bottom)")
    else:
        axis.set_xticks(places, names, fontsize=9)
        axis.set_xlabel("Layer number")


def _legend(axis: Axes, *, columns: int) -> None:
    axis.figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False,
                       fontsize=9)  # fmt: skip


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _png(figure: Figure, dpi: int) -> bytes:
    stream = BytesIO()
    # Without the version stamp the same figure gives the same bytes.
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()
