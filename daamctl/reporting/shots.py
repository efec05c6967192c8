"""Entity F1 against the number of training sentences, over the pipelines of a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import Compared, Figure
from daamctl.artifacts.terms import counted, listed
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
    gap,
    percent,
    pooled,
)
from daamctl.reporting.entities import METRIC
from daamctl.reporting.figure_spec import COLOURS, DASHES, MARKERS, Axis, Line, Mark, Panel, Rule
from daamctl.reporting.figure_spec import Figure as Drawing
from daamctl.reporting.figures import drawn
from daamctl.reporting.sentences import say
from daamctl.reporting.verdict import against, source

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
    over_trials: Mapping[str, tuple[float, float, float, int]]

    @property
    def name(self) -> str:
        """Number of shots in words."""
        return "all" if self.shots is None else str(self.shots)

    @property
    def best(self) -> list[str]:
        """The method with the highest F1, or all that share it."""
        return self.evaluation.best(METRIC)

    def f1(self, method: str) -> Figure | None:
        """F1 of a method."""
        return self.evaluation.scores.find(method, METRIC)

    @cached_property
    def against(self) -> dict[str, Compared]:
        """Every method minus the reference."""
        return against(self.evaluation, METRIC)


def document(family: str, found: Sequence[Point], absent: Mapping[str, str], stale: Sequence[str] = ()) -> Document:
    """Build the report on a family from its pipelines with results, by shots.

    Args:
        absent: pipeline without results -> why it has none.
        stale: what makes results out of date.
    """
    blocks: list[Block] = []
    if found:
        blocks += [Text(_sentence(found)), drawn(_figure(found)), _table(found)]
    marked: dict[str, list[str]] = {}  # method -> its numbers of shots
    for point in found:
        for name, one in point.evaluation.fairness.methods.items():
            if one.doubtful and point.f1(name):
                marked.setdefault(name, []).append(point.name)
    if marked:
        doubts = "; ".join(f"{name} ({', '.join(numbers)})" for name, numbers in marked.items())
        text = f"Some methods were not trained well, so their figures may be too low: {doubts}."
        blocks.append(Text(text, caution=True))
    blocks += [Text(note, caution=True) for note in stale]
    if absent:
        blocks += [Text("Without a result:"), Bullets([f"{name}: {reason}" for name, reason in absent.items()])]
    sections = [Section("shots", "Entity F1 against shots", blocks)]
    if any(point.against for point in found):
        sections.append(Section("differences", "Differences from the reference", [_differences(found)]))
    subtitle = f"{source(found[0].evaluation)}." if found else ""
    return Document(f"Few-shot curves: {family}", f"{family}-shots", sections, subtitle)


def _methods(found: Sequence[Point]) -> list[str]:
    """All methods: best first with the most sentences, then those that are only elsewhere."""
    return list(dict.fromkeys(name for point in reversed(found) for name in point.evaluation.ranked))


def _sentence(found: Sequence[Point]) -> str:
    """Which method is best with the fewest and with the most sentences, and where it differs from the reference."""
    parts = []
    for number in dict.fromkeys((0, len(found) - 1)):
        one = found[number]
        f1 = one.evaluation.scores.figure(one.best[0], METRIC)
        what = "all sentences" if one.shots is None else counted(one.shots, "shot")
        interval = f"[{percent(f1.low)}, {percent(f1.high)}]"
        does = f"{listed(one.best)} {'finds' if len(one.best) == 1 else 'find'} entities best"
        parts.append(f"with {what}, {does}: F1 {percent(f1.mean)} % {interval}")
    text = f"{'; '.join(parts)}."
    text = f"{text[0].upper()}{text[1:]}"
    own = [point for point in found if point.evaluation.comparison.reference in point.best]
    if own:
        text += f" The best method is the reference {_where(own)}."
    if len(own) == len(found):
        return text
    differing, doubtful = [], []
    for point in found:
        compared = [point.against.get(name) for name in point.best]
        if all(one and one.is_significant for one in compared):
            differing.append(point)
            trials = [point.over_trials[name] for name in point.best if name in point.over_trials]
            if any(low <= 0 <= high for _, low, high, _ in trials):
                doubtful.append(point)
    end = _where(differing) if differing else f"for no {'other ' if own else ''}number of shots"
    text += f" The best method differs from the reference by more than chance {end}."
    if doubtful:
        text += f" This holds for these trained models; over trials, the difference may be chance {_where(doubtful)}."
    return text


def _where(points: Sequence[Point]) -> str:
    """`for 8 and 16 shots and with all sentences`."""
    numbers = [str(point.shots) for point in points if point.shots is not None]
    parts = [f"for {listed(numbers)} shot{'' if numbers == ['1'] else 's'}"] if numbers else []
    return " and ".join([*parts, *(["with all sentences"] if len(numbers) < len(points) else [])])


def _figure(found: Sequence[Point]) -> Drawing:
    """F1 of every method, and its difference from the reference, against the number of shots."""
    names = _methods(found)
    curves: list[Mark] = []
    gaps: list[Mark] = [Rule(0, colour="text")]
    for number, name in enumerate(names):
        shift = SPREAD * ((number + 0.5) / len(names) - 0.5)
        f1 = {at + shift: one for at, point in enumerate(found) if (one := point.f1(name))}
        curves += _marks(name, number, {x: (one.mean, one.low, one.high) for x, one in f1.items()})
        between = {at + shift: gap for at, point in enumerate(found) if (gap := point.against.get(name))}
        lines = _marks(name, number, {x: (gap.difference, gap.low, gap.high) for x, gap in between.items()})
        gaps += [replace(mark, legend="") for mark in lines]
    x = Axis("Training sentences per entity type (shots)", names=[point.name for point in found])
    width = 1.2 + 0.75 * len(found)
    panels = [Panel("Entity F1", x, Axis("Entity F1", "%"), curves, (width, 3.2))]
    if len(gaps) > 1:
        panels.append(
            Panel("Minus the reference", x, Axis("Minus the reference (points)", signed=True), gaps, (width, 3.2))
        )
    tops = [(point, point.evaluation.scores.figure(point.best[0], METRIC)) for point in found]
    best = "; ".join(f"{point.name}: {listed(point.best)} {percent(f1.mean)} %" for point, f1 in tops)
    return Drawing("shots", f"Entity F1 against the number of shots. Best method: {best}.", {(): panels})


def _marks(name: str, number: int, values: Mapping[float, tuple[float, float | None, float | None]]) -> list[Line]:
    """A curve of fractions with their intervals, which are vertical lines; `values` maps place -> value, low, high."""
    if not values:
        return []
    colour, nan = COLOURS[number % len(COLOURS)], float("nan")
    places = [place for x in values for place in (x, x, nan)]
    heights = [100 * end for _, low, high in values.values() for end in (low or 0.0, high or 0.0, nan)]
    x, y = list(values), [100 * value for value, _, _ in values.values()]
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
            one = point.f1(name)
            cells.append(DASH if one is None else pooled(one))
        lines.append(cells)
    trials = [f"{len(point.evaluation.seeds)} ({point.name})" for point in found]
    note = say("note_shots", trials, found[0].evaluation.task.source)
    columns = ["Method", *(point.name for point in found)]
    return Table("shots", f"Entity F1 in percent{INTERVAL}, by number of shots", columns, lines, note=note)


def _differences(found: Sequence[Point]) -> Table:
    lines: list[Sequence[Cell]] = []
    for point in found:
        for name in point.evaluation.ranked:
            if (compared := point.against.get(name)) is None:
                continue
            trials, number = point.over_trials.get(name), point.evaluation.scores.figure(name, METRIC).runs
            lines.append(
                [
                    point.name,
                    name,
                    compared.second,
                    gap(compared),
                    Number(compared.p_holm, "p"),
                    DASH if trials is None else Number(trials[0], "points", low=trials[1], high=trials[2]),
                    DASH if trials is None else f"{trials[3]} of {number}",
                ]
            )
    unit = found[0].evaluation.task.source
    columns = ["Shots", "Method", "Reference", f"Over {unit}s{UNCORRECTED}", "p (Holm)",
               f"Over trials{INTERVAL}", "Ahead in"]  # fmt: skip
    caption, note = "Entity F1 minus that of the reference, in points", say("note_shots_differences", unit)
    return Table("shots-differences", caption, columns, lines, frozenset({1, 2}), note)
