"""Parts of a pipeline's report that compare our results with the papers.

They are the published accuracies, the results of training on few layers, and the learned density parameters. Published
values are in percent, ours are fractions. Evaluations are those of `verdict.labelled`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev

import numpy as np

from daamctl.artifacts.evaluation import Evaluation
from daamctl.artifacts.scores import BEST_ON_TEST
from daamctl.artifacts.terms import listed
from daamctl.paper.tables import PublishedRow, PublishedTable, learned_ranges
from daamctl.reporting.document import DASH, Block, Cell, Kind, Number, Section, Table, Text, plural, spread
from daamctl.reporting.run_record import RunFacts
from daamctl.reporting.terms import is_official, selection_rule
from daamctl.reporting.verdict import names, order


def published(evaluation: Evaluation, table: PublishedTable, raw_names: Mapping[str, str]) -> Section:
    """Published results beside ours, under the published protocol and under our own.

    Published repeats of an official split are compared with our seeds, published folds with our folds.
    """
    corpus, encoder = names(evaluation)
    warnings = []
    for what, ours, theirs in (("corpus", corpus, table.corpus), ("encoder", encoder, table.encoder)):
        if ours != theirs:
            warnings.append(f"Our {what} is {ours}, but the published one is {theirs}. The results are not comparable.")
    official = is_official(evaluation)
    if table.repeats != official:
        theirs, own = ("repeats of one official split", "folds") if table.repeats else ("folds", "seeds of one split")
        warnings.append(
            f"The published columns are {theirs}, but our runs are {own}. Neither means nor deviations are comparable."
        )
    rows, seeds = table.methods, plural(len(evaluation.seeds), "seed")
    number = seeds if official else f"{plural(evaluation.num_folds, 'fold')}, {seeds}"
    texts = [
        table.protocol,
        f"“Ours, same protocol” is our accuracy per {evaluation.task.clip} at the best epoch on test, scored as "
        "published; Provenance lists the other settings. “Ours, as reported” is the main result of this report: per "
        f"{evaluation.item}, {number}; {selection_rule(evaluation)}.",
    ]
    blocks: list[Block] = [Text(line, caution=True) for line in warnings]
    if rows:
        if table.repeats and official:
            repeats = " or ".join(map(str, sorted({len(row.folds) for row in rows})))
            texts.append(
                "A published repeat corresponds to one of our seeds: the same training and test items, another start. "
                f"The papers do not say how the {repeats} repeats were seeded, so they are not paired with our "
                f"{seeds}. Both deviations are over repeats of one split."
            )
        wrong, of = [row.method for row in rows if row.disagrees], _columns(rows)
        agree = f"All printed means and deviations agree with the printed {of}."
        differ = f"Printed mean or deviation disagrees with the printed {of}, beyond rounding: {listed(wrong)}."
        texts.append(f"{differ} See the second table." if wrong else agree)
    blocks += map(Text, texts)
    if rows:
        blocks += [_published_table(evaluation, table, rows, raw_names), print_check(rows, "print-check")]
    return Section("published", "Published results and ours", blocks)


def print_check(rows: Sequence[PublishedRow], key: str, *, where: str = "") -> Table:
    """The printed folds, their mean and deviations, and whether these agree with the printed mean and deviation."""
    splits = list(dict.fromkeys(split for row in rows for split in row.folds))
    of = _columns(rows)
    cells: list[list[Cell]] = []
    for row in rows:
        folds: list[Cell] = [Number(row.folds[name] / 100) if name in row.folds else DASH for name in splits]
        computed = [Number(value / 100, "share") for value in (row.mean, row.sample_std, row.population_std)]
        cells.append([row.method, *folds, *computed, row.printed or DASH, agreement(row)])
    columns = ["Method", *splits, "Mean", "Sample std", "Population std", "Printed", "Consistent?"]
    note = f"Mean and deviations are recomputed from the printed {of}. The check allows for their rounding to 0.1."
    last = len(columns) - 1
    caption = f"The printed {of}{where} in percent, and the mean and deviation computed from them"
    return Table(key, caption, columns, cells, frozenset({last - 1, last}), note)


def agreement(row: PublishedRow) -> str:
    """Whether the printed mean and deviation agree with the printed folds, and which deviation was printed."""
    if row.std_is == "not printed":
        std = "no std printed"
    elif row.std_is == "neither":
        std = f"✗ std {row.printed_std:g} is neither"
    else:
        std = f"✓ {row.std_is} std"
    return std if row.mean_agrees else f"✗ mean printed as {row.printed_mean:.1f}; {std}"


def few_layers(table: PublishedTable) -> list[Table]:
    """Published results of training on few layers; nothing if the table has none."""
    if not table.few_layers:
        return []
    cells: list[list[Cell]] = [
        [row.method, row.layers, Number(row.mean / 100, std=row.sample_std / 100)] for row in table.few_layers
    ]
    of = _columns(table.few_layers)
    unit = "" if table.repeats else ", per clip"
    caption = f"Published results for few layers (percent{unit}, best epoch on test)"
    columns = ["Choice", "Layers", f"Mean ± sample std of the {of}"]
    return [Table("published-layers", caption, columns, cells, frozenset({1}))]


def learned(runs: Sequence[RunFacts], evaluation: Evaluation) -> Section | None:
    """Learned offset and scaled variance of density methods, beside the published ranges; None without any."""
    title = "How far the density parameters moved"
    found: dict[str, list[RunFacts]] = {}
    for name in order(evaluation):
        if part := [run for run in runs if run.label == name and run.offset]:
            found[name] = part
    if not found:
        return None
    rows: list[list[Cell]] = []
    for name, part in found.items():
        offsets = [run.offset for run in part if run.offset]
        widths = [run.scaled_variance for run in part if run.scaled_variance]
        cells: list[Cell] = [name, Number(part[0].num_heads, "count")]
        cells += [_over_runs([one[index] for one in offsets], "signed") for index in range(3)]
        cells += [_over_runs([one[index] for one in widths], "plain") for index in range(3)]
        lowest, highest = (mean(one[index] for one in widths) for index in range(2))
        rows.append([*cells, _weights(lowest, highest, part[0].kernel)])
    foot: list[list[Cell]] = []
    for learned_range in learned_ranges():
        offset = [Number(value, "signed") for value in learned_range.offset]
        scaled_variance = [Number(value, "plain") for value in learned_range.scaled_variance]
        name = f"{learned_range.corpus}, {learned_range.encoder} (authors’ post)"
        weights = _weights(*learned_range.scaled_variance, "2xi")
        foot.append([name, Number(8, "count"), *offset, DASH, *scaled_variance, DASH, weights])
    columns = [
        "Method", "Heads", "δ lowest", "δ highest", "δ mean", "ξ lowest", "ξ highest", "ξ mean",
        "Weight at y² = 2",
    ]  # fmt: skip
    text = (
        "A density has two parameters per head and feature: the offset δ, initially 0, and the scaled variance ξ, "
        "initially 2. With the initial values, a feature √2 deviations from the mean of its head (y² = 2) has the "
        "weight 0.607. The less the parameters move, the less of a map was learned (D29)."
    )
    note = (
        "Lowest, highest and mean over all heads and features of a run; mean ± sample std over runs. The weight is "
        "given for the lowest and the highest ξ. Mixtures have other parameters and are not listed. The authors’ post "
        "gives one range per modality, for its best model with 8 heads, and does not say over which folds."
    )
    caption = "Learned offset δ and scaled variance ξ, and the published ranges"
    return Section(
        "learned", title, [Text(text), Table("learned-ranges", caption, columns, rows, note=note, foot=foot)]
    )


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
    ours = {raw_names.get(label, label): label for label in evaluation.methods}
    cells: list[list[Cell]] = []
    shown = set()
    for row in rows:
        printed: list[Cell] = [
            row.printed or f"{row.mean:.1f} (from {_columns([row])})",
            "no" if row.disagrees else "yes",
            row.protocol,
        ]
        labels = [ours[name] for name in (f"{row.method}-published", row.method) if name in ours]
        shown |= set(labels)
        for label in labels or [""]:
            name = f"{row.method} / {label}" if label not in ("", row.method) else row.method
            cells.append([name, *printed, *_our_cells(evaluation, label, row)])
    for label in order(evaluation):
        if label not in shown:
            cells.append([label, "not published", DASH, DASH, *_our_cells(evaluation, label, None)])
    columns = [
        "Method", "Published", f"Fits its {_columns(rows)}?", "Published protocol", "Ours, same protocol",
        "Ours minus published (points)", "Ours, as reported",
    ]  # fmt: skip
    caption = f"Accuracy in percent: {table.source} {table.name} ({table.corpus}, {table.encoder}) and this run"
    note = "Deviations: published ones as printed, ours with divisor n − 1."
    if any(ours.get(f"{row.method}-published") for row in rows):
        note += " After a slash: our run of the released form of the method."
    return Table("published", caption, columns, cells, frozenset({1, 2, 3}), note)


def _our_cells(evaluation: Evaluation, label: str, row: PublishedRow | None) -> list[Cell]:
    if label not in evaluation.methods:
        return ["no counterpart", DASH, "no counterpart"]
    best = evaluation.scores.find(label, BEST_ON_TEST)
    gap = None if best is None or row is None else best.mean - row.mean / 100
    return [spread(best), Number(gap, "points"), spread(evaluation.accuracy(label))]


def _columns(rows: Sequence[PublishedRow]) -> str:
    """Whether the printed columns are folds or repeats."""
    return "repeats" if all(split.startswith("R") for row in rows for split in row.folds) else "folds"
