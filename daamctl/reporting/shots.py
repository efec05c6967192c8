"""Entity F1 against the number of training sentences, over the pipelines of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from daamctl.artifacts.entities import Entities
from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.terms import counted, listed
from daamctl.figures.spec import COLOURS, DASHES, MARKERS, Axis, Figure, Line, Mark, Panel, Rule
from daamctl.reporting.document import (
    DASH,
    INTERVAL,
    UNCORRECTED,
    Block,
    Bullets,
    Cell,
    Document,
    Number,
    Section,
    Table,
    Text,
    percent,
)
from daamctl.reporting.entities import ALPHA, order
from daamctl.reporting.figures import drawn
from daamctl.reporting.verdict import source

SPREAD = 0.6
"""Width in which the methods of one number of shots stand side by side; the next number is at 1."""


@dataclass(frozen=True)
class Point:
    """One pipeline of a family.

    Args:
        shots: training sentences per entity type; None: all sentences.
        over_trials: method -> mean difference from the reference over trials, lower and upper end of its interval, and
            the number of trials in which the method is ahead.
    """

    pipeline: str
    shots: int | None
    evaluation: Evaluation
    entities: Entities
    over_trials: Mapping[str, tuple[float, float, float, int]]

    @property
    def name(self) -> str:
        """Number of shots in words."""
        return "all" if self.shots is None else str(self.shots)


def document(family: str, found: Sequence[Point], absent: Mapping[str, str]) -> Document:
    """Build the report.

    Args:
        family: name of the family.
        found: pipelines with results, by number of shots.
        absent: pipeline -> why it has no result.
    """
    blocks: list[Block] = []
    if found:
        blocks += [Text(_sentence(found)), drawn(_figure(found)), _table(found)]
    if doubts := _doubts(found):
        blocks.append(
            Text(f"Some methods were not trained well, so their figures may be too low: {doubts}.", caution=True)
        )
    if absent:
        blocks += [Text("Without a result:"), Bullets([f"{name}: {reason}" for name, reason in absent.items()])]
    sections = [Section("shots", "Entity F1 against shots", blocks)]
    if any(point.entities.comparisons for point in found):
        sections.append(Section("differences", "Differences from the reference", [_differences(found)]))
    subtitle = f"{source(found[0].evaluation)}." if found else ""
    return Document(f"Few-shot curves: {family}", f"{family}-shots", sections, subtitle)


def _doubts(found: Sequence[Point]) -> str:
    """Methods that the evaluation marks, with their numbers of shots."""
    marked: dict[str, list[str]] = {}
    for point in found:
        for name, one in point.evaluation.fairness.methods.items():
            if one.mark and name in point.entities.methods:
                marked.setdefault(name, []).append(point.name)
    return "; ".join(f"{name} ({', '.join(numbers)})" for name, numbers in marked.items())


def _methods(found: Sequence[Point]) -> list[str]:
    """All methods: best first with the most sentences, then those that are only elsewhere."""
    return list(dict.fromkeys(name for point in reversed(found) for name in order(point.entities)))


def _sentence(found: Sequence[Point]) -> str:
    """Which method is best with the fewest and with the most sentences, and where it differs from the reference."""
    parts = []
    for point in dict.fromkeys((0, len(found) - 1)):
        one = found[point]
        best = order(one.entities)[0]
        f1 = one.entities.methods[best].f1
        what = "all sentences" if one.shots is None else counted(one.shots, "shot")
        interval = f"[{percent(f1.low)}, {percent(f1.high)}]"
        parts.append(f"with {what}, {best} finds entities best: F1 {percent(f1.value)} % {interval}")
    text = f"{'; '.join(parts)}."
    differing = [point.name for point in found if _best_differs(point)]
    end = f"for {listed(differing)} shots" if differing else "for no number of shots"
    return f"{text[0].upper()}{text[1:]} The best method differs from the reference by more than chance {end}."


def _best_differs(point: Point) -> bool:
    compared = point.entities.comparisons.get(order(point.entities)[0])
    p = compared.primary.p_holm if compared and compared.primary else None
    return p is not None and p <= ALPHA


def _figure(found: Sequence[Point]) -> Figure:
    """F1 of every method, and its difference from the reference, against the number of shots."""
    names = _methods(found)
    curves: list[Mark] = []
    gaps: list[Mark] = [Rule(0, colour="text")]
    for number, name in enumerate(names):
        shift = SPREAD * ((number + 0.5) / len(names) - 0.5)
        f1 = {at: point.entities.methods[name].f1 for at, point in enumerate(found) if name in point.entities.methods}
        ends = [(at + shift, 100 * one.low, 100 * one.high) for at, one in f1.items()]
        xs = [at + shift for at in f1]
        curves += _marks(name, number, xs, [100 * one.value for one in f1.values()], ends)
        between = [(at + shift, point.entities.comparisons.get(name)) for at, point in enumerate(found)]
        shown = [(x, one.difference, one.interval) for x, one in between if one is not None and one.interval]
        ends = [(x, 100 * interval.low, 100 * interval.high) for x, _, interval in shown]
        xs, differences = [x for x, _, _ in shown], [100 * value for _, value, _ in shown]
        gaps += [replace(mark, legend="") for mark in _marks(name, number, xs, differences, ends)]
    x = Axis("Training sentences per entity type (shots)", names=[point.name for point in found])
    width = 1.2 + 0.75 * len(found)
    panels = [Panel("Entity F1", x, Axis("Entity F1", "%"), curves, (width, 3.2))]
    if len(gaps) > 1:
        panels.append(
            Panel("Minus the reference", x, Axis("Minus the reference (points)", signed=True), gaps, (width, 3.2))
        )
    best = "; ".join(
        f"{point.name}: {(top := order(point.entities)[0])} {percent(point.entities.methods[top].f1.value)} %"
        for point in found
    )
    return Figure("shots", f"Entity F1 against the number of shots. Best method: {best}.", {(): panels})


def _marks(
    name: str, number: int, x: Sequence[float], y: Sequence[float], ends: Sequence[tuple[float, float, float]]
) -> list[Line]:
    """A curve with its intervals, which are vertical lines."""
    if not x:
        return []
    colour, nan = COLOURS[number % len(COLOURS)], float("nan")
    places = [value for at, _, _ in ends for value in (at, at, nan)]
    heights = [value for _, low, high in ends for value in (low, high, nan)]
    dash, marker = DASHES[number % len(DASHES)], MARKERS[number % len(MARKERS)]
    return [
        Line(places, heights, "", colour, width=1.0, legend=""),
        Line(x, y, name, colour, dash, marker, filled=True, width=1.2, size=4.5),
    ]


def _table(found: Sequence[Point]) -> Table:
    lines: list[Sequence[Cell]] = []
    for name in _methods(found):
        cells: list[Cell] = [name]
        for point in found:
            one = point.entities.methods.get(name)
            cells.append(DASH if one is None else Number(one.f1.value, low=one.f1.low, high=one.f1.high))
        lines.append(cells)
    trials = listed([f"{len(point.evaluation.seeds)} ({point.name})" for point in found])
    note = (
        f"Means over trials, which draw other sentences and begin with other weights; trials: {trials}. Intervals "
        f"resample test {found[0].entities.unit}s and take the trained models as given."
    )
    columns = ["Method", *(point.name for point in found)]
    return Table("shots", f"Entity F1 in percent{INTERVAL}, by number of shots", columns, lines, note=note)


def _differences(found: Sequence[Point]) -> Table:
    lines: list[Sequence[Cell]] = []
    for point in found:
        scores = point.entities
        for name in order(scores):
            compared = scores.comparisons.get(name)
            if compared is None or compared.interval is None or compared.primary is None:
                continue
            trials = point.over_trials.get(name)
            number = len(scores.methods[name].per_trial)
            lines.append(
                [
                    point.name,
                    name,
                    str(scores.reference),
                    Number(compared.difference, "points", low=compared.interval.low, high=compared.interval.high),
                    Number(compared.primary.p_holm, "p"),
                    DASH if trials is None else Number(trials[0], "points", low=trials[1], high=trials[2]),
                    DASH if trials is None else f"{trials[3]} of {number}",
                ]
            )
    unit = found[0].entities.unit
    columns = ["Shots", "Method", "Reference", f"Over {unit}s{UNCORRECTED}", "p (Holm)",
               f"Over trials{INTERVAL}", "Ahead in"]  # fmt: skip
    note = (
        "Both are differences of the mean F1, paired: methods share test sentences and, in each trial, training "
        f"sentences. Over {unit}s: models as given; approximate randomisation, corrected by Holm within a number of "
        "shots. Over trials: Student's t, for other samples and initial weights, the test sentences as given."
    )
    return Table("shots-differences", "Entity F1 minus that of the reference, in points", columns, lines,
                 frozenset({1, 2}), note)  # fmt: skip
