"""Panels of layer scores: Importance Factor maps, layer contribution, scores over runs, and replaced layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daamctl.reporting.figure_spec import Array, Axis, HeatMap, Line, Mark, Panel, Rule

MAP_WIDTH, SHARES_WIDTH = 4.2, 2.3
"""Inches."""


@dataclass(frozen=True)
class LayerRun:
    """The maps (L, D) of one fold, e.g. `fold 2, seed 1`, or their mean; contributions (L,) of the layers in %."""

    name: str
    trained: Array
    untrained: Array
    share: Array
    share_untrained: Array


@dataclass(frozen=True)
class MethodMaps:
    """The maps of one method and its L layer numbers; the first run is the mean over folds."""

    layers: Sequence[int]
    runs: Sequence[LayerRun]

    @property
    def mean(self) -> LayerRun:
        """The mean over folds."""
        return self.runs[0]


def importance_map(values: Array, layers: Sequence[int], title: str, *, minus: Array | None = None) -> Panel:
    """Importance Factor (L, D) by layer and feature, first layer at the bottom.

    Args:
        minus: a map to subtract, e.g. that of the untrained module.
    """
    label = "Importance Factor" if minus is None else "Trained minus untrained"
    marks = [HeatMap(values, label, minus)]
    return Panel(title, Axis("Feature number", whole=True), _layers(layers), marks, (MAP_WIDTH, _height(layers)))


def contribution(trained: Array, untrained: Array, layers: Sequence[int]) -> Panel:
    """Layer contribution of the trained and of the untrained module, and that of a uniform map; shapes (L,), percent.

    Layers are on the vertical axis, as in `importance_map`, to be read beside it.
    """
    places = range(len(layers))
    marks: list[Mark] = [
        Line(trained, places, "Trained", marker="circle", filled=True, size=4.0),
        Line(untrained, places, "Untrained", colour="orange", dash="dash", marker="square", size=4.0),
        Rule(100 / len(layers), "Uniform", vertical=True, colour="text"),
    ]
    x = Axis("Layer contribution", "%", digits=2)
    return Panel("Layer contribution", x, _layers(layers), marks, (SHARES_WIDTH, _height(layers)))


def contribution_change(trained: Array, untrained: Array, layers: Sequence[int]) -> Panel:
    """Trained minus untrained layer contribution; shapes (L,), percent."""
    change = Line(trained - untrained, range(len(layers)), "Trained minus untrained", marker="circle", filled=True)
    x = Axis("Contribution, trained minus untrained", "points", signed=True, digits=3)
    marks: list[Mark] = [change, Rule(0, vertical=True, colour="text")]
    return Panel("Change of the contribution", x, _layers(layers), marks, (SHARES_WIDTH, _height(layers)))


def score_over_runs(trained: Array, untrained: Array, layers: Sequence[int], label: str) -> Panel:
    """A score (runs, L) of the layers: mean over runs, and the range from the lowest to the highest run."""
    places = range(len(layers))
    band = (trained.min(axis=0), trained.max(axis=0)) if len(trained) > 1 else None
    marks = [
        Line(places, trained.mean(axis=0), "Trained, mean", marker="circle", filled=True, width=1.5, band=band,
             band_name="Lowest to highest run"),
        Line(places, untrained.mean(axis=0), "Untrained, mean", colour="orange", dash="dash", marker="square",
             width=1.5),
    ]  # fmt: skip
    return Panel("", _layers(layers), Axis(label, digits=3), marks, (min(max(4.2, 0.28 * len(layers)), 11.0), 2.7))


def replaced_layers(
    curves: Mapping[str, tuple[Array, Array, Array | None]], counts: Sequence[int], clip: str
) -> list[Panel]:
    """Accuracy while layers are replaced by their mean, or put back, in the order of a score and in random orders.

    Args:
        curves: label of the x axis -> accuracy as fractions in the order of the score (S,), in random orders (R, S),
            and in the order of the untrained score (S,) or None, at S numbers of layers.
    """
    every = [100 * part for parts in curves.values() for part in parts if part is not None]
    low, high = min(part.min() for part in every), max(part.max() for part in every)
    room = 0.05 * (high - low) or 1.0
    y = Axis(f"Accuracy per {clip}", "%", limits=(float(low - room), float(high + room)))
    panels = []
    for label, (own, others, untrained) in curves.items():
        band = (100 * others.min(axis=0), 100 * others.max(axis=0))
        marks = [Line(counts, 100 * others.mean(axis=0), "Random orders, mean", colour="grey", dash="dot", width=1.8,
                      band=band, band_name="Random orders, range")]  # fmt: skip
        if untrained is not None:
            marks.append(Line(counts, 100 * untrained, "Order of the untrained score", colour="orange", dash="dash",
                              marker="square", width=1.5))  # fmt: skip
        marks.append(Line(counts, 100 * own, "Order of the score", marker="circle", filled=True, width=1.5))
        panels.append(Panel("", Axis(label, whole=True), y, marks, (4.2, 2.7)))
    return panels


def _layers(layers: Sequence[int]) -> Axis:
    return Axis("Layer", names=[str(layer) for layer in layers])


def _height(layers: Sequence[int]) -> float:
    return min(max(2.0, 0.17 * len(layers)), 6.0)
