"""How few layers are enough: a sentence, a figure of accuracy against cost, and tables. Input: `truncate`'s result."""

from __future__ import annotations

from collections.abc import Sequence

from daamctl.artifacts.layer_sets import LayerRow, Truncation
from daamctl.reporting.document import (
    DASH,
    Block,
    Cell,
    Folded,
    Number,
    Section,
    Table,
    Text,
    layers_text,
    percent,
    points,
)
from daamctl.reporting.figure_spec import Axis, Figure, Line, Mark, Panel, Rule
from daamctl.reporting.figures import drawn
from daamctl.reporting.sentences import say

TITLE = "The shortest encoder that is enough"


def sentence(found: Truncation) -> str:
    """The answer in one sentence."""
    margin = f"margin {percent(found.margin)} points{'' if found.task.by_accuracy else f' of {found.task.metric}'}"
    whole = f"all {len(found.whole.layers)} layers ({found.method}, {margin})"
    if all(one.p is None for one in found.prefixes):
        return f"Whether fewer layers are enough cannot be tested: {found.design.reason}."
    best = found.shortest
    doubt = f"; but {found.method} learned nothing on {found.nothing}, so this is no evidence" if found.nothing else ""
    if best is None:
        longest = found.prefixes[-1]
        gap = f"{_these(longest, 'differs', 'differ')} by {_gap(longest)} from {whole}"
        return f"No shorter encoder is shown to be enough: {gap}{doubt}."
    text = f"{_these(best, 'is', 'are').capitalize()} enough: {_gap(best)} against {whole}"
    costs = [
        f"{100 * share:.0f} % of {name}"
        for name, share in (("the encoder's time", best.time), ("its parameters", best.parameters))
        if share is not None
    ]
    return f"{text}; {' and '.join(costs)}{doubt}." if costs else f"{text}{doubt}."


def notes(found: Truncation) -> list[str]:
    """What to bear in mind about the numbers."""
    if not found.task.by_accuracy or found.design.n_folds == 1:
        return found.notes
    means = "Accuracies are means over folds; differences and intervals are over all items, so signs may disagree."
    return [*found.notes, means]


def section(found: Truncation) -> Section:
    """The section of a report."""
    method = say("truncation", found)
    where = [] if found.device is None else [Text(f"Time was measured on {found.device}.")]
    blocks: list[Block] = [
        Text(sentence(found), caution=bool(found.nothing)),
        Text(method),
        drawn(figure(found)),
        *where,
    ]
    blocks += [Text(note) for note in notes(found)]
    rows = [*found.prefixes, found.whole]
    blocks.append(_table("truncation", f"{_label(found)} after training on layers 1 to k", found, rows))
    if found.singles:
        singles = _table("single-layers", f"{_label(found)} of {found.label} on one layer alone", found, found.singles)
        blocks.append(Folded("Single layers", [singles]))
    return Section("truncation", TITLE, blocks)


def figure(found: Truncation) -> Figure:
    """Accuracy, or entity F1, against cost, of layers 1 to k and of single layers."""
    rows = [*found.prefixes, found.whole]
    base = 100 * found.whole.value
    marks: list[Mark] = []
    band = None
    ends = [(one.difference_low, one.difference_high) for one in rows]
    if all(low is not None and high is not None for low, high in ends):
        band = ([base + 100 * (low or 0.0) for low, _ in ends], [base + 100 * (high or 0.0) for _, high in ends])
    marks.append(
        Line([_cost(found, one) for one in rows], [100 * one.value for one in rows], "Layers 1 to k",
             marker="circle", filled=True, width=1.5, band=band,
             band_name=f"{100 * found.level:.0f} % interval of the difference from all layers",
             notes=[f"layers {_range(one)}: {_gap(one)}" for one in rows])
    )  # fmt: skip
    if found.singles:
        marks.append(
            Line([_cost(found, one) for one in found.singles], [100 * one.value for one in found.singles],
                 "One layer alone", "grey", None, "circle", notes=[f"layer {one.layers[0]}" for one in found.singles])
        )  # fmt: skip
    if (best := found.shortest) is not None:
        marks.append(
            Line([_cost(found, best)], [100 * best.value], "Shortest that is enough", "orange", None, "diamond",
                 filled=True, size=9.0, texts=[f"  1–{best.layers[-1]}"],
                 notes=[f"layers {_range(best)}: {_gap(best)}"])
        )  # fmt: skip
    marks.append(Rule(base - 100 * found.margin, f"All layers minus {percent(found.margin)} points"))
    name = "Encoder's time"
    if found.whole.time is None:
        name = "Layers" if found.whole.parameters is None else "Encoder's parameters"
    panel = Panel("", Axis(name, "%", limits=(0.0, 105.0)), Axis(_label(found), "%"), marks, (5.4, 3.2))
    return Figure(
        "truncation", f"{_label(found)} against cost. {sentence(found)} The numbers are in the tables.", {(): [panel]}
    )


def _label(found: Truncation) -> str:
    """The primary figure, with the unit that accuracy has."""
    return found.task.title + found.task.per(found.unit)


def _cost(found: Truncation, one: LayerRow) -> float:
    """Percent of the whole encoder's time, or else of its parameters, or of the number of layers."""
    share = one.parameters if found.whole.time is None else one.time
    return 100 * (one.layers[-1] / found.whole.layers[-1] if share is None else share)


def _table(key: str, caption: str, found: Truncation, rows: Sequence[LayerRow]) -> Table:
    """Of layers 1 to k with the tests, of single layers without."""
    tested = key == "truncation"
    gap_name = f"Minus all layers (points) [{100 * found.level:.0f} % interval]"
    columns = ["Layers", found.task.title, gap_name, "Time (%)", "Parameters (%)"]
    if tested:
        columns += ["p, worse by the margin", "Enough?"]
    cells: list[list[Cell]] = []
    for one in rows:
        gap: Cell = DASH
        if one != found.whole:
            gap = Number(one.difference, "points", low=one.difference_low, high=one.difference_high)
        cells.append([_range(one), Number(one.value), gap, Number(one.time), Number(one.parameters)])
        if tested and (enough := found.enough.get(one.set)) is None:
            cells[-1] += [DASH, DASH if one == found.whole else "not tested"]
        elif tested:
            cells[-1] += [Number(one.p, "p"), "yes" if enough else "no"]
    words, note = frozenset({6} if tested else ()), say("note_truncation", tested)
    return Table(key, f"{caption}, in percent", columns, cells, words, note)


def _these(row: LayerRow, one: str, several: str) -> str:
    """Subject and verb: `layer 1 is`, `layers 1–4 are`."""
    return f"layer{'s' if len(row.layers) > 1 else ''} {_range(row)} {several if len(row.layers) > 1 else one}"


def _range(one: LayerRow) -> str:
    first, last = one.layers[0], one.layers[-1]
    whole = len(one.layers) > 1 and one.layers == tuple(range(first, last + 1))
    return f"{first}–{last}" if whole else layers_text(one.layers)


def _gap(one: LayerRow) -> str:
    low, high = one.difference_low, one.difference_high
    ends = "" if low is None or high is None else f" [{points(low)}, {points(high)}]"
    return f"{points(one.difference)} points{ends}"
