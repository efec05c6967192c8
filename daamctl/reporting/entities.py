"""Entities found by the taggers: F1 with intervals, scores per type, kinds of errors.

The functions take an evaluation after `verdict.labelled`.
"""

from __future__ import annotations

from collections.abc import Sequence

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.layer_sets import LayerRow
from daamctl.artifacts.scores import F1_BEST_ON_TEST, F1_STRICT
from daamctl.artifacts.terms import counted, listed
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
    gap,
    p_value,
    percent,
    points,
    pooled,
)
from daamctl.reporting.figure_spec import Axis, Figure, Line, Mark, Panel, rows
from daamctl.reporting.figures import profile
from daamctl.reporting.sentences import say
from daamctl.reporting.terms import chosen_on_test, is_official
from daamctl.reporting.verdict import against

ALPHA = 0.05
METRIC = "entity_f1"
ERRORS = ("exact", "wrong_type", "wrong_boundaries", "wrong_both", "missed", "spurious")


def sentence(evaluation: Evaluation) -> str:
    """Which tagger is best, and whether it differs from the reference."""
    equal = evaluation.best(METRIC)
    best = equal[0]
    f1, compared = evaluation.scores.figure(best, METRIC), against(evaluation, METRIC).get(best)
    level = f"F1 {percent(f1.mean)} % [{percent(f1.low)}, {percent(f1.high)}]"
    text = f"{listed(equal)} {'finds' if len(equal) == 1 else 'find'} entities best: {level}"
    if 1 < len(equal) == len(evaluation.ranked):
        text = f"All methods find entities equally well: {level}"
    if compared is None or compared.second in equal:
        return f"{text}."
    ends = f"{points(compared.low)}, {points(compared.high)}; not corrected"
    difference, p = f"{points(compared.difference)} points [{ends}]", compared.p_holm
    verdict = "differs" if p is not None and p <= ALPHA else "does not differ by more than chance"
    who = "It" if len(equal) == 1 else best
    return f"{text}. {who} {verdict} from {compared.second}: {difference}; {p_value(p)} after correction."


def section(evaluation: Evaluation) -> Section | None:
    """The section of the report; None if the items are no words."""
    if evaluation.by_accuracy:
        return None
    unit, f1 = evaluation.task.source, evaluation.scores.figure(evaluation.ranked[0], METRIC)
    units, sentences = counted(f1.units or 0, unit), evaluation.counts.wholes
    of = units if sentences == f1.units else f"{sentences:,} sentences in {units}"
    part = evaluation.provenance.config.get("train", {}).get("test_part") or "test"
    where = f"the {part} part" if is_official(evaluation) else f"all {evaluation.num_folds} folds"
    blocks: list[Block] = [Text(say("entities", of, where, f1, unit)), _table(evaluation)]
    if chosen := chosen_on_test(evaluation):
        figures = "every F1" if len(chosen) == len(evaluation.methods) else f"the F1 of {listed(chosen)}"
        text = f"The epochs were chosen on the {part} part itself, as published, so {figures} is too high."
        blocks.insert(1, Text(text, caution=True))
    blocks.append(Folded("Scores of every entity type", [_types(evaluation, f1.runs)]))
    blocks.append(Folded("Kinds of errors", [_errors(evaluation)]))
    return Section("entities", "Entities", blocks)


def figure(evaluation: Evaluation, layers: Sequence[LayerRow] = ()) -> Figure:
    """F1 of a linear probe of every layer, and of every method: its interval, and its trials.

    Args:
        layers: F1 of the probed layers; empty: the methods alone.
    """
    names = evaluation.ranked
    found = [evaluation.scores.figure(name, METRIC) for name in names]
    ends = [(one.low or 0.0, one.high or 0.0) for one in found]
    trials = [(value, at) for at, name in enumerate(names) for value in evaluation.scores.trials(name, METRIC).values()]
    marks: list[Mark] = [
        Line([100 * low, 100 * high], [at, at], "95 % interval", "blue", width=2.2, legend="" if at else None)
        for at, (low, high) in enumerate(ends)
    ]
    if len(trials) > len(names):
        dots = [100 * value for value, _ in trials], [place for _, place in trials]
        marks.append(Line(*dots, "One trial", "grey", None, "circle"))
    means = [100 * one.mean for one in found]
    marks.append(Line(means, range(len(means)), "Mean", "orange", None, "diamond", filled=True, size=7.0))
    alt = f"Entity F1. {sentence(evaluation)} The numbers are in the tables."
    if not layers:
        panel = Panel("", Axis("Entity F1", "%"), rows(names), marks, (5.4, 0.3 + 0.27 * len(names)))
        return Figure("entities", alt, {(): [panel]})
    every = [*(end for both in ends for end in both), *(value for value, _ in trials)]
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


def _table(evaluation: Evaluation) -> Table:
    """F1 of every method. Of an epoch that was chosen on the reported part, the inflation is unknown."""
    compared, scores, chosen = against(evaluation, METRIC), evaluation.scores, chosen_on_test(evaluation)
    lines: list[Sequence[Cell]] = []
    for name in evaluation.ranked:
        f1, micro, pair = scores.figure(name, METRIC), scores.entities(name)[None], compared.get(name)
        best = None if name in chosen else scores.find(name, F1_BEST_ON_TEST)
        line: list[Cell] = [name, pooled(f1), Number(micro.precision), Number(micro.recall)]
        line.append(Number(scores.figure(name, F1_STRICT).mean))
        line.append(Number(best.mean - f1.mean if best else None, "points"))
        if compared:
            line += [gap(pair), Number(pair.p_holm, "p") if pair else DASH]
        lines.append(line)
    columns = ["Method", "F1" + INTERVAL, "Precision", "Recall", "F1, strict", "Inflation (points)"]
    if compared:
        columns += [f"Minus {evaluation.comparison.reference} (points){UNCORRECTED}", "p (Holm)"]
    return Table("entities", "Entity F1, in percent", columns, lines, note=say("note_entities"))


def _types(evaluation: Evaluation, trials: int) -> Table:
    found = [evaluation.scores.entities(name) for name in evaluation.ranked]
    lines: list[Sequence[Cell]] = [
        [kind, Number(one.gold / trials, "count"), *(Number(part[kind].f1) for part in found)]
        for kind, one in found[0].items()
        if kind is not None
    ]
    columns = ["Type", "Entities", *evaluation.ranked]
    return Table("entity-types", "F1 per entity type, in percent", columns, lines)


def _errors(evaluation: Evaluation) -> Table:
    columns = ["Method", *(name.replace("_", " ").capitalize() for name in ERRORS)]
    lines: list[Sequence[Cell]] = []
    for name in evaluation.ranked:
        one = evaluation.scores.entities(name)[None]
        lines.append([name, *(Number(getattr(one, kind) / one.gold if one.gold else None) for kind in ERRORS)])
    note = "Every true entity is in one of the first five columns. Spurious ones overlap no true entity."
    return Table("entity-errors", "What became of the true entities, in percent of them", columns, lines, note=note)
