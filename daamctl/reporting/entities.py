"""Entities found by the taggers: F1 with intervals, scores per type, kinds of errors. Input: `Evaluation.entities`."""

from __future__ import annotations

from collections.abc import Sequence

from daamctl.artifacts.entities import Entities
from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.layer_sets import LayerRow
from daamctl.artifacts.terms import counted
from daamctl.figures.spec import Axis, Figure, Line, Mark, Panel, rows
from daamctl.reporting.document import (
    DASH,
    INTERVAL,
    UNCORRECTED,
    Block,
    Cell,
    Folded,
    Number,
    Section,
    Table,
    Text,
    p_value,
    percent,
    points,
)
from daamctl.reporting.figures import profile

ALPHA = 0.05
ERRORS = ("exact", "wrong_type", "wrong_boundaries", "wrong_both", "missed", "spurious")


def sentence(found: Entities) -> str:
    """Which tagger is best, and whether it differs from the reference."""
    best = order(found)[0]
    f1 = found.methods[best].f1
    text = f"{best} finds entities best: F1 {percent(f1.value)} % [{percent(f1.low)}, {percent(f1.high)}]"
    compared = found.comparisons.get(best)
    if compared is None or compared.interval is None or compared.primary is None:
        return f"{text}."
    ends = f"{points(compared.interval.low)}, {points(compared.interval.high)}; not corrected"
    gap, p = f"{points(compared.difference)} points [{ends}]", compared.primary.p_holm
    verdict = "differs" if p is not None and p <= ALPHA else "does not differ by more than chance"
    return f"{text}. It {verdict} from {found.reference}: {gap}; {p_value(p)} after correction."


def section(evaluation: Evaluation) -> Section | None:
    """The section of the report; None if the items are no words.

    Args:
        evaluation: output of `verdict.labelled`.
    """
    found = evaluation.entities
    if found is None:
        return None
    first = next(iter(found.methods.values()))
    trials, units = len(first.per_trial), counted(first.f1.n_clusters, found.unit)
    of = units if found.sentences in (None, first.f1.n_clusters) else f"{found.sentences:,} sentences in {units}"
    part = evaluation.provenance.config.get("train", {}).get("test_part") or "test"
    how = (
        f"Entities of {of} of the {part} part. F1 is micro-averaged over entities; an entity counts if its "
        "boundaries and its type are right. "
    )
    how += f"Figures are means of {trials} trials (seeds). " if trials > 1 else ""
    how += f"Intervals are over {found.unit}s and take the trained models as given."
    blocks: list[Block] = [Text(how), _table(found, chosen_here=evaluation.selection == "best-on-test")]
    if evaluation.selection == "best-on-test":
        text = f"The epochs were chosen on the {part} part itself, as published, so every F1 is too high."
        blocks.insert(1, Text(text, caution=True))
    blocks.append(Folded("Scores of every entity type", [_types(found)]))
    blocks.append(Folded("Kinds of errors", [_errors(found)]))
    return Section("entities", "Entities", blocks)


def order(found: Entities) -> list[str]:
    """Methods by F1, best first."""
    return sorted(found.methods, key=lambda name: -found.methods[name].f1.value)


def figure(found: Entities, layers: Sequence[LayerRow] = ()) -> Figure:
    """F1 of a linear probe of every layer, and of every method: its interval, and its trials.

    Args:
        layers: F1 of the probed layers; empty: the methods alone.
    """
    names = order(found)
    trials = [(value, place) for place, name in enumerate(names) for value in found.methods[name].per_trial]
    marks: list[Mark] = []
    for place, name in enumerate(names):
        f1 = found.methods[name].f1
        marks.append(
            Line([100 * f1.low, 100 * f1.high], [place, place], f"{100 * f1.level:.0f} % interval", "blue",
                 width=2.2, legend=None if not place else "")
        )  # fmt: skip
    if len(trials) > len(names):
        dots = [100 * value for value, _ in trials], [place for _, place in trials]
        marks.append(Line(*dots, "One trial", "grey", None, "circle"))
    means = [100 * found.methods[name].f1.value for name in names]
    marks.append(Line(means, range(len(names)), "Mean", "orange", None, "diamond", filled=True, size=7.0))
    alt = f"Entity F1. {sentence(found)} The numbers are in the tables."
    if not layers:
        panel = Panel("", Axis("Entity F1", "%"), rows(names), marks, (5.4, 0.3 + 0.27 * len(names)))
        return Figure("entities", alt, {(): [panel]})
    every = [end for name in names for end in (found.methods[name].f1.low, found.methods[name].f1.high)]
    every += [value for value, _ in trials]
    every += [end for one in layers for end in (one.value, one.low, one.high) if end is not None]
    limits, height = (100 * min(every) - 2.0, 100 * max(every) + 2.0), 0.4 + 0.27 * max(len(names), 8)
    best = max(layers, key=lambda one: one.value)
    top = f"highest {percent(best.value)} % at layer {best.layers[0]}"
    alt = f"Entity F1 of a linear probe of every layer, {top}. {alt}"
    panels = [  # the names of methods are long: on the left they have room
        Panel("Methods", Axis("Entity F1", "%", limits=limits), rows(names), marks, (3.6, height)),
        profile(layers, "Entity F1", limits, height),
    ]
    return Figure("entities", alt, {(): panels})


def _table(found: Entities, *, chosen_here: bool) -> Table:
    """F1 of every method; `chosen_here`: the epoch was chosen on the reported part, so its inflation is unknown."""
    columns = ["Method", "F1" + INTERVAL, "Precision", "Recall", "F1, strict",
               "Inflation (points)", f"Minus {found.reference} (points){UNCORRECTED}", "p (Holm)"]  # fmt: skip
    lines: list[Sequence[Cell]] = []
    for name in order(found):
        one, compared = found.methods[name], found.comparisons.get(name)
        micro, f1 = one.scores.micro, one.f1
        inflation = None if one.best_on_test is None or chosen_here else one.best_on_test - f1.value
        gap: Cell = DASH
        p: Cell = DASH
        if compared is not None and compared.interval is not None and compared.primary is not None:
            gap = Number(compared.difference, "points", low=compared.interval.low, high=compared.interval.high)
            p = Number(compared.primary.p_holm, "p")
        lines.append(
            [
                name,
                Number(f1.value, low=f1.low, high=f1.high),
                Number(micro.precision),
                Number(micro.recall),
                Number(one.strict),
                Number(inflation, "points"),
                gap,
                p,
            ]
        )
    note = (
        "F1 reads an I- tag without a B- as the begin of an entity (seqeval's default, conlleval); strict does not. "
        "Inflation is what the epoch with the highest F1 on the test part would add, which some papers report."
    )
    if found.reference is None:
        columns, lines = columns[:-2], [line[:-2] for line in lines]
    return Table("entities", "Entity F1, in percent", columns, lines, note=note)


def _types(found: Entities) -> Table:
    names = order(found)
    first = next(iter(found.methods.values()))
    trials = len(first.per_trial)
    lines: list[Sequence[Cell]] = []
    for kind in first.scores.per_type:
        scores = [found.methods[name].scores.per_type[kind] for name in names]
        lines.append([kind, Number(scores[0].gold / trials, "count"), *(Number(one.f1) for one in scores)])
    return Table("entity-types", "F1 per entity type, in percent", ["Type", "Entities", *names], lines)


def _errors(found: Entities) -> Table:
    columns = ["Method", *(name.replace("_", " ").capitalize() for name in ERRORS)]
    lines: list[Sequence[Cell]] = []
    for name in order(found):
        one = found.methods[name]
        total = one.scores.micro.gold
        shares = [getattr(one.scores.errors, kind) / total if total else None for kind in ERRORS]
        lines.append([name, *(Number(share) for share in shares)])
    note = "Every true entity is in one of the first five columns. Spurious ones overlap no true entity."
    return Table("entity-errors", "What became of the true entities, in percent of them", columns, lines, note=note)
