"""What a protocol is worth: sentences, a table and a figure. Input: the result of `protocols`."""

from __future__ import annotations

from daamctl.artifacts.protocols import PROBES, Protocols
from daamctl.artifacts.scores import ProtocolScore
from daamctl.reporting.document import DASH, Block, Bullets, Cell, Document, Number, Section, Table, Text, points
from daamctl.reporting.figure_spec import COLOURS, MARKERS, Axis, Figure, Line, Mark, Panel, Rule, rows
from daamctl.reporting.figures import ROW_WIDTH, drawn

TITLE = "What the protocol is worth"
PRICES = {
    "speakers": ("random", "speakers"),
    "sentences": ("random", "sentences"),
    "speakers and sentences": ("random-less", "both"),
}
"""What training and test share -> protocols with and without it, which train on about as many items."""


def sentences(found: Protocols) -> list[str]:
    """What it is worth to share speakers, sentences, and both, for every probe."""
    lines = []
    for what, (shared, apart) in PRICES.items():
        cells = [(name, found.cell(shared, probe, apart)) for probe, name in PROBES.items()]
        told = [f"{name} {_gap(cell)}" for name, cell in cells if cell is not None and cell.difference is not None]
        if told:
            lines.append(f"To share {what} is worth, in points (`{shared}` minus `{apart}`): {', '.join(told)}.")
    return lines


def notes(found: Protocols) -> list[str]:
    """What the protocols are, and why others were left out."""
    sources = {name: f" ({source})" if source else "" for name, source in found.sources.items()}
    lines = [f"`{name}`: {text}{sources[name]}." for name, text in found.texts.items()]
    reasons: dict[str, list[str]] = {}
    for name, why in found.absent.items():
        reasons.setdefault(why, []).append(f"`{name}`")
    return lines + [f"Left out: {', '.join(names)}, because {why}." for why, names in reasons.items()]


def table(found: Protocols) -> Table:
    """A row for each protocol."""
    cells: list[list[Cell]] = []
    for name in found.texts:
        row: list[Cell] = [name]
        priced = {probe: cell for probe in PROBES if (cell := found.cell(name, probe)) is not None}
        row += [Number(cell.value, low=cell.low, high=cell.high) for cell in priced.values()]
        probe = next((one for one, cell in priced.items() if cell.source_probe), "best")
        one = priced[probe]
        gap: Cell = DASH if one.against is None else Number(one.difference, "points", low=one.difference_low,
                                                            high=one.difference_high)  # fmt: skip
        seconds = sum(cell.seconds for cell in priced.values())
        cells.append([*row, gap, PROBES[probe], Number(one.trained, "count"), Number(seconds, "seconds")])
    heads = [f"{name[0].upper()}{name[1:]} (%)" for name in PROBES.values()]
    minus = f"Minus {found.reference} (points)"
    return Table(
        "protocols",
        f"Accuracy per {found.item} of closed-form probes, over all {found.item}s at once, with 95 % intervals",
        ["Protocol", *heads, minus, "Of", "Trains on", "Seconds"],
        cells,
        frozenset({len(heads) + 2}),
        note="The difference is of the probe that comes closest to that of the source, else of the best layer. "
        "It is over the items that both protocols test. Intervals are not corrected. Accuracies are the pooled "
        "figures of an evaluation, whose means over folds may differ.",
    )


def figure(found: Protocols) -> Figure:
    """One row for each protocol: the difference of every probe from the reference."""
    names = [name for name in found.texts if name != found.reference]
    marks: list[Mark] = [Rule(0, vertical=True, colour="text", dash="solid")]
    for number, (probe, title) in enumerate(PROBES.items()):
        shift, own = 0.18 * (number - 1.5), [found.cell(name, probe, found.reference) for name in names]
        known = [(place + shift, one) for place, one in enumerate(own) if one is not None]
        ends = [(place, one.difference_low, one.difference_high) for place, one in known]
        x = [100 * (end if end is not None else float("nan")) for _, *pair in ends for end in (*pair, None)]
        y = [place for place, *_ in ends for _ in range(3)]
        marks += [
            Line(x, y, f"95 % interval, {title}", COLOURS[number], width=1.0, legend=""),
            Line([100 * float(one.difference or 0) for _, one in known], [place for place, _ in known], title,
                 COLOURS[number], None, MARKERS[number], filled=True),
        ]  # fmt: skip
    panel = Panel("", Axis(f"Accuracy minus {found.reference}", "points", signed=True), rows(names), marks,
                  (ROW_WIDTH, 0.4 + 0.4 * len(names)))  # fmt: skip
    return Figure("protocols", f"Differences of protocols from {found.reference}; the numbers are in the table.",
                  {(): [panel]})  # fmt: skip


def section(found: Protocols) -> Section:
    """The section of a report."""
    blocks: list[Block] = [Text(line) for line in sentences(found)]
    blocks += [drawn(figure(found))] if len(found.texts) > 1 else []
    return Section("protocols", TITLE, [*blocks, table(found), Bullets(notes(found))])


def document(found: Protocols) -> Document:
    """The page of the command."""
    return Document(f"{TITLE}: {found.run}", found.run, [section(found)])


def _gap(cell: ProtocolScore) -> str:
    ends = "" if cell.difference_low is None else f" [{points(cell.difference_low)}, {points(cell.difference_high)}]"
    return f"{points(cell.difference)}{ends}"
