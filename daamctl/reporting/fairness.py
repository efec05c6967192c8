"""Section "Is this comparison fair?": gaps to closed-form probes, their causes, and the searches.

Input: an evaluation after `verdict.labelled`, and the searches recorded in the folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.results import SearchPart
from daamctl.reporting import figures
from daamctl.reporting.document import DASH, Block, Cell, Number, Plot, Section, Table, Text, percent, points, spread
from daamctl.reporting.sentences import say, sentence
from daamctl.reporting.terms import is_closed_form, runs
from daamctl.reporting.verdict import order


@dataclass(frozen=True)
class SearchCurve:
    """One candidate of a method's search: its settings, e.g. `lr 0.001`, and how many runs chose it.

    Args:
        accuracy: accuracy on the held-out group at every record; mean over runs.
    """

    name: str
    accuracy: list[float]
    chosen: int
    runs: int


def search_curves(searches: Sequence[SearchPart]) -> list[SearchCurve]:
    """Candidates of one method over all its runs, sorted by their settings. Closed-form probes have no records."""
    curves: dict[str, list[list[float]]] = {}
    chosen: dict[str, int] = {}
    order: dict[str, list[float | str]] = {}
    for search in searches:
        for number, candidate in enumerate(search["candidates"]):
            values = candidate["settings"].items()
            name = ", ".join(f"{key} {value if isinstance(value, str) else f'{value:g}'}" for key, value in values)
            curves.setdefault(name, []).append(candidate["dev_accuracy"])
            chosen[name] = chosen.get(name, 0) + (number == search["chosen"])
            order[name] = list(candidate["settings"].values())
    names = sorted(curves, key=lambda name: [(isinstance(value, str), value) for value in order[name]])
    found = []
    for name in names:  # the mean at every record is over the curves that reach it
        longest = max(map(len, curves[name]))
        means = [mean(curve[record] for curve in curves[name] if len(curve) > record) for record in range(longest)]
        found.append(SearchCurve(name, means, chosen[name], len(searches)))
    return found


def fairness(evaluation: Evaluation, searches: Mapping[str, Sequence[SearchPart]]) -> Section:
    """How well every method was trained, and the evidence for it.

    Args:
        searches: label -> the searches of its runs; methods without a search may be absent.
    """
    found = evaluation.fairness
    first = Text(found.text, caution=found.verdict == "not fair")
    blocks: list[Block] = [first, Text(say("fairness", evaluation))]
    blocks += [Text(sentence(group.text), caution=True) for group in found.identical]
    blocks.append(_table(evaluation))
    if any(one.counterpart for one in found.methods.values()):
        blocks.append(_gaps(evaluation))
    curves = {}
    for name in order(evaluation):
        searched = search_curves(searches.get(name, ()))
        if searched and not is_closed_form(name):
            curves[name] = searched
    if curves:
        blocks.append(_searches(evaluation, curves))
    return Section("fairness", "Is this comparison fair?", blocks)


def _table(evaluation: Evaluation) -> Table:
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        one = evaluation.fairness.methods[name]
        gaps = list(one.gaps.values())
        settings = [
            f"{setting} {', '.join(f'{value} ({number})' for value, number in values.items())}"
            for setting, values in one.chosen.items()
        ]
        edges = ", ".join(f"{setting} in {number} of {one.runs}" for setting, number in one.edges.items())
        reasons = f": {'; '.join(one.reasons)}" if one.reasons else ""
        rows.append(
            [
                name,
                spread(evaluation.primary(name)),
                one.counterpart or DASH,
                Number(one.gap, "points", std=stdev(gaps) if len(gaps) > 1 else None),
                Number(one.train_gap, "points"),
                Number(one.dev_gap, "points"),
                "; ".join(settings) or "not searched",
                edges or ("none" if one.chosen else DASH),
                f"{one.status}{reasons}",
            ]
        )
    what = evaluation.task.metric
    columns = [
        "Method", evaluation.task.title, "Closed-form probe", "Gap to probe (points)",
        "On training parts (points)", "On held-out groups (points)", "Chosen (runs)", "At edge of search", "Verdict",
    ]  # fmt: skip
    caption = f"How well every method was trained ({what}{evaluation.task.per(evaluation.main_unit)} in percent)"
    return Table("fairness", caption, columns, rows, frozenset({2, 6, 7, 8}), say("note_fairness", evaluation))


def _gaps(evaluation: Evaluation) -> Plot:
    methods, margin = evaluation.fairness.methods, evaluation.fairness.margin
    found = {name: list(methods[name].gaps.values()) for name in order(evaluation) if methods[name].gaps}
    means = ", ".join(f"{name} {points(mean(part))}" for name, part in found.items())
    what, title = evaluation.task.metric, evaluation.task.title
    label = f"{title} of every method minus the {what} of its closed-form probe, in points, mean over folds: {means}."
    probes = {name: str(methods[name].counterpart) for name in found}
    return figures.drawn(figures.gaps(found, probes, margin, title, label))


def _searches(evaluation: Evaluation, curves: Mapping[str, Sequence[SearchCurve]]) -> Plot:
    clip = evaluation.task.clip
    tops = []
    for name, part in curves.items():
        top = max(part, key=lambda one: one.chosen)
        if top.accuracy:
            tops.append(f"{name} {top.name} ({percent(max(top.accuracy))} %)")
    label = (
        f"Held-out accuracy per {clip} along the search, one curve per candidate, mean over "
        f"{runs(evaluation)}. Most frequent choices and their highest accuracy: {', '.join(tops)}."
    )
    return figures.drawn(figures.searches(curves, clip, label))
