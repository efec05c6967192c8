"""How few layers are enough: a sentence, a figure of accuracy against cost, and tables. Input: `truncate`'s result."""

from __future__ import annotations

from collections.abc import Sequence

from daamctl.artifacts.truncation import LayersResult, Truncation
from daamctl.data.task import task_of
from daamctl.figures.spec import Axis, Figure, Line, Mark, Panel, Rule
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
from daamctl.reporting.figures import drawn

TITLE = "The shortest encoder that is enough"


def sentence(found: Truncation) -> str:
    """The answer in one sentence."""
    margin = f"margin {percent(found.margin)} points{'' if found.whole.entity_f1 is None else ' of entity F1'}"
    whole = f"all {len(found.whole.layers)} layers ({found.method}, {margin})"
    if all(one.p is None for one in found.prefixes):
        return f"Whether fewer layers are enough cannot be tested: {found.design.reason}."
    best = found.enough
    if best is None:
        longest = found.prefixes[-1]
        gap = f"layers {_range(longest)} differ by {_gap(longest)} from {whole}"
        return f"No shorter encoder is shown to be enough: {gap}."
    text = f"Layers {_range(best)} are enough: {_gap(best)} against {whole}"
    costs = [
        f"{100 * share:.0f} % of {name}"
        for name, share in (("the encoder's time", best.time), ("its parameters", best.parameters))
        if share is not None
    ]
    return f"{text}; {' and '.join(costs)}." if costs else f"{text}."


def notes(found: Truncation) -> list[str]:
    """What to bear in mind about the numbers."""
    if found.whole.entity_f1 is not None or found.design.n_folds == 1:
        return found.notes
    means = "Accuracies are means over folds; differences and intervals are over all items, so signs may disagree."
    return [*found.notes, means]


def section(found: Truncation | None, *, embeddings_key: str, command: str) -> Section | None:
    """The section of the report; None if there is no result.

    Args:
        embeddings_key: content key of the embeddings that the report is about.
        command: command that makes the result again.
    """
    if found is None:
        return None
    if found.embeddings_key != embeddings_key:
        return Section(
            "truncation", TITLE, [Text(f"It was found on other embeddings. Run again: {command}", caution=True)]
        )
    method = (
        f"“{found.label}” was trained again on layers 1 to k for every k, and on each layer alone. k layers are enough "
        f"if they are shown to lose less than {percent(found.margin)} points against all layers, and all larger k too."
    )
    where = [] if found.device is None else [Text(f"Time was measured on {found.device}.")]
    blocks: list[Block] = [Text(sentence(found)), Text(method), drawn(figure(found)), *where]
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
    base = 100 * found.whole.compared
    marks: list[Mark] = []
    band = None
    ends = [(one.low, one.high) for one in rows]
    if all(low is not None and high is not None for low, high in ends):
        band = ([base + 100 * (low or 0.0) for low, _ in ends], [base + 100 * (high or 0.0) for _, high in ends])
    marks.append(
        Line([_cost(found, one) for one in rows], [100 * one.compared for one in rows], "Layers 1 to k",
             marker="circle", filled=True, width=1.5, band=band,
             band_name=f"{100 * found.level:.0f} % interval of the difference from all layers",
             notes=[f"layers {_range(one)}: {_gap(one)}" for one in rows])
    )  # fmt: skip
    if found.singles:
        marks.append(
            Line([_cost(found, one) for one in found.singles], [100 * one.compared for one in found.singles],
                 "One layer alone", "grey", None, "circle", notes=[f"layer {one.highest}" for one in found.singles])
        )  # fmt: skip
    if found.enough is not None:
        best = found.enough
        marks.append(
            Line([_cost(found, best)], [100 * best.compared], "Shortest that is enough", "orange", None, "diamond",
                 filled=True, size=9.0, texts=[f"  1–{best.highest}"], notes=[f"layers {_range(best)}: {_gap(best)}"])
        )  # fmt: skip
    marks.append(Rule(base - 100 * found.margin, f"All layers minus {percent(found.margin)} points"))
    name = {"time": "Encoder's time", "parameters": "Encoder's parameters", None: "Layers"}[found.cost]
    panel = Panel("", Axis(name, "%", limits=(0.0, 105.0)), Axis(_label(found), "%"), marks, (5.4, 3.2))
    return Figure(
        "truncation", f"{_label(found)} against cost. {sentence(found)} The numbers are in the tables.", {(): [panel]}
    )


def _label(found: Truncation) -> str:
    """The primary figure, with the unit that accuracy has."""
    task = task_of(found.modality)
    return task.title + task.per(found.unit)


def _cost(found: Truncation, one: LayersResult) -> float:
    """Percent of the whole encoder; of the number of layers if nothing else is known."""
    share = {"time": one.time, "parameters": one.parameters, None: None}[found.cost]
    return 100 * (one.highest / found.whole.highest if share is None else share)


def _table(key: str, caption: str, found: Truncation, rows: Sequence[LayersResult]) -> Table:
    """Of layers 1 to k with the tests, of single layers without."""
    tested = key == "truncation"
    level = f"{100 * found.level:.0f} %"
    columns = [
        "Layers",
        task_of(found.modality).title,
        f"Minus all layers (points) [{level} interval]",
        "Time (%)",
        "Parameters (%)",
    ]
    note = "Time and parameters are shares of the whole encoder's."
    if tested:
        columns += ["p, worse by the margin", "Enough?"]
        note += (
            " p is one-sided: it tests that the layers are worse than all layers by the margin or more. Tests go from "
        )
        note += "the longest encoder to the first that fails, so p needs no correction. Intervals are not corrected."
    cells = [[*_cells(one, found), *(_test(one, found) if tested else [])] for one in rows]
    return Table(key, f"{caption}, in percent", columns, cells, frozenset({6} if tested else ()), note)


def _cells(one: LayersResult, found: Truncation) -> list[Cell]:
    gap: Cell = DASH if one is found.whole else Number(one.difference, "points", low=one.low, high=one.high)
    return [_range(one), Number(one.compared), gap, Number(one.time), Number(one.parameters)]


def _test(one: LayersResult, found: Truncation) -> list[Cell]:
    if one.enough is None:
        return [DASH, DASH if one is found.whole else "not tested"]
    return [Number(one.p, "p"), "yes" if one.enough else "no"]


def _range(one: LayersResult) -> str:
    first, last = one.layers[0], one.layers[-1]
    whole = len(one.layers) > 1 and one.layers == list(range(first, last + 1))
    return f"{first}–{last}" if whole else layers_text(one.layers)


def _gap(one: LayersResult) -> str:
    ends = "" if one.low is None or one.high is None else f" [{points(one.low)}, {points(one.high)}]"
    return f"{points(one.difference)} points{ends}"
