"""Sections that set our figures beside the papers': accuracies, and where their parameters ended.

Published figures are in percent, ours are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

from daamctl.artifacts.terms import listed
from daamctl.reporting.document import DASH, Cell, Kind, Number, Section, Table, Text, plural, spread
from daamctl.reporting.published import NO_MODULE, PublishedRow, PublishedTable, learned_ranges
from daamctl.reporting.run_record import RunFacts
from daamctl.reporting.terms import Evaluation, held_out, is_official, item, terms
from daamctl.reporting.verdict import names, order


def published(evaluation: Evaluation, table: PublishedTable, raw_names: Mapping[str, str]) -> Section:
    """Printed figures beside ours, under the published protocol and under our own.

    Printed repeats of an official split stand beside our seeds, printed folds beside our folds.

    Args:
        evaluation: labelled.
        table: the papers'.
        raw_names: label -> method.
    """
    corpus, encoder = names(evaluation)
    warnings = [
        Text(f"Our {what} is {ours}, the published one is {theirs}: the figures are not comparable.", caution=True)
        for what, ours, theirs in (("corpus", corpus, table.dataset), ("encoder", encoder, table.encoder))
        if ours.replace("-", "") != theirs.replace("-", "")
    ]
    if table.repeats != is_official(evaluation):
        theirs, own = ("repeats of one official split", "folds") if table.repeats else ("folds", "seeds of one split")
        text = (
            f"The printed columns are {theirs}, our runs are {own}: neither means nor deviations are of the same thing."
        )
        warnings.append(Text(text, caution=True))
    rows = [row for row in table.rows if not row.method.startswith(NO_MODULE)]
    texts = [
        table.protocol,
        f"“Ours, same protocol” is our accuracy per {terms(evaluation).clip} at the best epoch on test (scored as "
        "published; further settings are under Provenance). “Ours, as reported” is the main figure of this report: per "
        f"{item(evaluation)}, {_rule(evaluation)}, {_number_of_runs(evaluation)}.",
        *(_repeats(evaluation, rows) if table.repeats and is_official(evaluation) else []),
        *([_disagreements(rows)] if rows else []),
    ]
    tables = [_published_table(evaluation, table, rows, raw_names), print_check(rows, "print-check")] if rows else []
    return Section("published", "Published figures and ours", [*warnings, *map(Text, texts), *tables])


def _rule(evaluation: Evaluation) -> str:
    test = "test part" if is_official(evaluation) else "test fold"
    return {
        "dev-group": f"best epoch on {held_out(evaluation, article=True)}"
        + (", trained again with it" if evaluation.get("refit") else ""),
        "best-on-test": f"best epoch on the {test}",
        "last": "last epoch",
    }[evaluation["selection"]]


def _number_of_runs(evaluation: Evaluation) -> str:
    seeds = plural(len(evaluation["seeds"]), "seed")
    return seeds if is_official(evaluation) else f"{plural(evaluation['num_folds'], 'fold')}, {seeds}"


def _repeats(evaluation: Evaluation, rows: Sequence[PublishedRow]) -> list[str]:
    """What a printed repeat and one of our seeds have in common."""
    printed = sorted({len(row.folds) for row in rows})
    if not printed:
        return []
    seeds = len(evaluation["seeds"])
    text = (
        f"A printed repeat is compared with one of our seeds: the same training and test items, another start. How the "
        f"{' or '.join(map(str, printed))} printed repeats were seeded is not said, so they are not paired with our "
        f"{plural(seeds, 'seed')}; the deviations, ours and theirs, are over repeats of one split."
    )
    return [text]


def print_check(rows: Sequence[PublishedRow], key: str, *, where: str = "") -> Table:
    """The printed folds, what they give, and whether the printed mean and deviation can come from them.

    Args:
        rows: with folds of the same names.
        key: of the table.
        where: which folds, for the caption.
    """
    splits = list(dict.fromkeys(split for row in rows for split in row.folds))
    of = _columns(rows)
    cells: list[list[Cell]] = [
        [row.method, *[Number(row.folds[s] / 100) if s in row.folds else DASH for s in splits],
         Number(row.mean / 100, "share"), Number(row.sample_std / 100, "share"),
         Number(row.population_std / 100, "share"), row.printed or DASH, agreement(row)]
        for row in rows
    ]  # fmt: skip
    columns = ["Method", *splits, "Mean", "Sample std", "Population std", "Printed", "The print agrees?"]
    note = f"Mean and deviations recomputed from the printed {of}, which are rounded to 0.1; agreement allows for that."
    last = len(columns) - 1
    caption = f"The printed {of}{where} in percent, and what they give"
    return Table(key, caption, columns, cells, frozenset({last - 1, last}), note)


def agreement(row: PublishedRow) -> str:
    """Whether a printed mean and deviation can come from the printed folds, and which deviation it is."""
    mean_part = "" if row.mean_agrees else f"✗ mean printed as {row.printed_mean:.1f}; "
    if row.std_is == "not printed":
        return mean_part + "no std printed"
    return mean_part + (f"✗ std {row.printed_std:g} is neither" if row.std_is == "neither" else f"✓ {row.std_is} std")


def learned(runs: Sequence[RunFacts], evaluation: Evaluation) -> Section:
    """Where offset and scaled variance of density methods ended, beside the papers'."""
    title = "How far the density parameters moved"
    found = {
        name: part for name in order(evaluation) if (part := [run for run in runs if run.label == name and run.offset])
    }
    if not found:
        return Section("learned", title, [Text("No finished run at hand has the offset and scaled variance of DAAM.")])
    rows = [_learned_row(name, part) for name, part in found.items()]
    foot: list[list[Cell]] = [
        [f"{part.dataset}, {part.encoder} (authors’ post)", Number(8, "count"), Number(part.offset[0], "signed"),
         Number(part.offset[1], "signed"), DASH, Number(part.scaled_variance[0], "plain"),
         Number(part.scaled_variance[1], "plain"), DASH, _weights(*part.scaled_variance, "2xi")]
        for part in learned_ranges()
    ]  # fmt: skip
    columns = [
        "Method", "Heads", "δ lowest", "δ highest", "δ mean", "ξ lowest", "ξ highest", "ξ mean",
        "Weight at y² = 2",
    ]  # fmt: skip
    text = (
        "A density has two parameters per head and feature: the offset δ, 0 at the start, and the scaled variance ξ, 2 "
        "at the start, where a feature √2 deviations from its head’s mean (y² = 2) has the weight 0.607. The less they "
        "move, the less of a map was learned (D29)."
    )
    note = (
        "Lowest, highest and mean over all heads and features of a run; mean ± sample std over runs. The weight spans "
        "the lowest to the highest ξ. Mixtures have other parameters and are not listed. The post prints one range per "
        "modality, of its best model with 8 heads, and does not say over which folds."
    )
    caption = "Learned offset δ and scaled variance ξ, and the printed ranges"
    return Section(
        "learned", title, [Text(text), Table("learned-ranges", caption, columns, rows, note=note, foot=foot)]
    )


def _learned_row(name: str, runs: Sequence[RunFacts]) -> list[Cell]:
    offsets = [run.offset for run in runs if run.offset]
    widths = [run.scaled_variance for run in runs if run.scaled_variance]
    cells: list[Cell] = [name, Number(runs[0].num_heads, "count")]
    cells += [_over_runs([part[index] for part in offsets], "signed") for index in range(3)]
    cells += [_over_runs([part[index] for part in widths], "plain") for index in range(3)]
    lowest, highest = (mean(part[index] for part in widths) for index in range(2))
    return [*cells, _weights(lowest, highest, runs[0].kernel)]


def _over_runs(values: Sequence[float], kind: Kind) -> Number:
    return Number(mean(values), kind, std=stdev(values) if len(values) > 1 else None)


def _weights(lowest: float, highest: float, kernel: str) -> str:
    """Density at y^2 = 2: exp(-1 / xi), or exp(-1 / c^2)."""
    if min(lowest, highest) <= 0:
        return "not bounded (D61)"
    low, high = (float(np.exp(-1 / (value if kernel == "2xi" else value**2))) for value in (lowest, highest))
    return f"{low:.3f} to {high:.3f}"


def _published_table(
    evaluation: Evaluation, table: PublishedTable, rows: Sequence[PublishedRow], raw_names: Mapping[str, str]
) -> Table:
    unit = evaluation["main_unit"]
    ours = {raw_names.get(label, label): label for label in evaluation["methods"]}
    cells: list[list[Cell]] = []
    shown = set()
    for row in rows:
        printed: list[Cell] = [_printed(row), "no" if row.disagrees else "yes", row.protocol]
        labels = [ours[name] for name in (f"{row.method}-published", row.method) if name in ours]
        shown |= set(labels)
        for label in labels or [""]:
            name = f"{row.method} / {label}" if label not in ("", row.method) else row.method
            cells.append([name, *printed, *_our_cells(evaluation["methods"].get(label), unit, row)])
    for label in order(evaluation):
        if label not in shown:
            cells.append([label, "not printed", DASH, DASH, *_our_cells(evaluation["methods"][label], unit, None)])
    columns = [
        "Method", "Printed", f"Fits its {_columns(rows)}?", "Protocol of the print", "Ours, same protocol",
        "Ours minus printed (points)", "Ours, as reported",
    ]  # fmt: skip
    caption = f"Accuracy in percent: {table.source} {table.name} ({table.dataset}, {table.encoder}) and this run"
    note = "Deviations: printed ones as printed, ours with divisor n − 1."
    if any(ours.get(f"{row.method}-published") for row in rows):
        note += " Behind a stroke: ours of the released form of the method."
    return Table("published", caption, columns, cells, frozenset({1, 2, 3}), note)


def _our_cells(entry: Mapping[str, Any] | None, unit: str, row: PublishedRow | None) -> list[Cell]:
    if entry is None:
        return ["no counterpart", DASH, "no counterpart"]
    best = entry["selection"]["accuracy_best_on_test"]
    gap = None if best is None or row is None else best["mean"] - row.mean / 100
    return [spread(best), Number(gap, "points"), spread(entry["summary"][unit]["accuracy"])]


def _disagreements(rows: Sequence[PublishedRow]) -> str:
    wrong = [row.method for row in rows if row.disagrees]
    if not wrong:
        return f"Every printed mean and deviation can come from the printed {_columns(rows)}."
    of = _columns(rows)
    return f"The print disagrees with its own {of}, beyond rounding, for {listed(wrong)}; see the second table."


def _columns(rows: Sequence[PublishedRow]) -> str:
    """What the printed columns are."""
    return "repeats" if all(split.startswith("R") for row in rows for split in row.folds) else "folds"


def _printed(row: PublishedRow) -> str:
    return row.printed or f"{row.mean:.1f} (from {_columns([row])})"
