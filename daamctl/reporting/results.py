"""Sections of figures: methods against the reference, every metric, folds, speakers, and the rule that picks the epoch.

Input: evaluation.json after `verdict.labelled`. Methods stand in order of their accuracy, best first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from daamctl.reporting import pictures, plots
from daamctl.reporting.document import (
    DASH,
    DOWN,
    INTERVAL,
    UP,
    Block,
    Cell,
    Folded,
    Kind,
    Number,
    Picture,
    Plot,
    Section,
    Table,
    Text,
    count,
    listed,
    percent,
    points,
    spread,
)
from daamctl.reporting.verdict import SELECTION_RULES, Against, Evaluation, against, family_texts, order

COMPARED = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy"}
MAX_SPEAKER_COLUMNS = 24
RULES = {"accuracy": "As reported", "accuracy_best_on_test": "Best on test", "accuracy_last": "Last epoch"}


def results(evaluation: Evaluation, *, declared: bool, dots: Picture) -> Section:
    """Mean, interval and difference to the reference of every method, and what was tested."""
    blocks: list[Block] = [_main_table(evaluation), dots, *family_texts(evaluation, declared=declared)]
    if evaluation["comparison"]["result"] is not None:
        blocks += [_test_table(evaluation, metric) for metric in COMPARED if against(evaluation, metric)]
        blocks += _ranks(evaluation)
    return Section("results", "Results and tests", blocks)


def metrics(evaluation: Evaluation) -> Section:
    """Every metric of every method, with what needs no model, and the recall of every class."""
    unit, described, chance = (
        evaluation["main_unit"],
        evaluation["metrics"],
        evaluation["chance"][evaluation["main_unit"]],
    )
    rows: list[list[Cell]] = [
        [name, *(_metric(evaluation, name, metric) for metric in described), Number(_n(evaluation, name), "count")]
        for name in order(evaluation)
    ]
    table = Table(
        "metrics", f"Every metric per {unit}, mean ± sample std over folds and seeds; percent, log loss in nats",
        ["Method", *map(_heading, described.values()), "n"],
        rows,
        note=f"{UP} higher is better, {DOWN} lower is better. ECE (15 bins) is biased upwards where bins hold few.",
        foot=_no_model(chance, list(described)),
    )  # fmt: skip
    return Section("metrics", "Every metric", [table, _recall_table(evaluation)])


def folds(evaluation: Evaluation) -> Section:
    """Methods x folds, and the other readings of the same predictions."""
    unit, groups = evaluation["main_unit"], evaluation["counts"]["groups"]
    seeds = len(evaluation["seeds"])
    numbers = range(1, evaluation["num_folds"] + 1)
    headings = [f"Fold {number}" + (f" ({groups[str(number)]})" if str(number) in groups else "") for number in numbers]
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        entry = evaluation["methods"][name]
        rows.append(
            [name, *[_fold_cell(entry, number, unit) for number in numbers], spread(entry["summary"][unit]["accuracy"]),
             Number(_n(evaluation, name), "count")]
        )  # fmt: skip
    note = "Std is the sample standard deviation (divisor n − 1) over folds" + (
        f" and seeds; a fold’s cell is the mean of its {seeds} seeds." if seeds > 1 else "."
    )
    caption = f"Accuracy per {unit} in percent, by test fold (the group named was tested, the others trained)"
    return Section("folds", "Fold by fold", [
        Table("folds", caption, ["Method", *headings, "Mean ± std", "n"], rows, note=note),
        _unit_table(evaluation),
    ])  # fmt: skip


def speakers(evaluation: Evaluation) -> Section:
    """Every speaker under every method."""
    title, unit = "Speaker by speaker", evaluation["main_unit"]
    found = {name: _by_speaker(evaluation, name) for name in order(evaluation)}
    known = sorted({speaker for part in found.values() for speaker in part})
    if not known:
        return Section("speakers", title, [Text("The corpus does not say who speaks.")])
    text = (
        f"Accuracy per {unit} of every speaker over all folds and seeds. Each line is one speaker: lines that run in "
        "parallel mean that methods differ alike for everybody, lines that cross that a mean hides who gains."
    )
    data = plots.speaker_data(found, known, unit, evaluation["chance"][unit]["majority_fraction"])
    alt = (
        f"Accuracy per {unit} of {len(known)} speakers under {len(found)} methods; means over speakers: "
        + ", ".join(f"{name} {percent(mean(part.values()))} %" for name, part in found.items() if part)
        + ". The numbers are in the table."
    )
    png, pdf = pictures.speaker_lines(found, known, label=f"Accuracy per {unit}")
    plot = Plot("speakers", "speakers", alt, data, [Picture("speakers.png", alt, png, pdf)])
    table = _speaker_table(evaluation, found, known)
    few = len(known) <= MAX_SPEAKER_COLUMNS
    return Section("speakers", title, [Text(text), plot, table if few else Folded(table.caption, [table])])


def selection(evaluation: Evaluation) -> Section:
    """What choosing the epoch on the test group adds to figures and to leads."""
    blocks: list[Block] = [Text(_selection_text(evaluation)), _selection_table(evaluation)]
    reference = evaluation["comparison"]["reference"]
    if reference in evaluation["methods"] and len(evaluation["methods"]) > 1:
        blocks += [Text(_lead_text(evaluation, reference)), _lead_table(evaluation, reference)]
    return Section("selection", "What choosing the epoch on the test fold adds", blocks)


def _main_table(evaluation: Evaluation) -> Table:
    unit, reference = evaluation["main_unit"], evaluation["comparison"]["reference"]
    others = against(evaluation, "accuracy")
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        entry = evaluation["methods"][name]
        row: list[Cell] = [name]
        for metric in COMPARED:
            row += [spread(entry["summary"][unit][metric]), _interval(entry["intervals"]["metrics"][metric])]
        one = others.get(name)
        gap: Cell = "reference" if name == reference else DASH
        tested: list[Cell] = [_gap(one) if one else gap, Number(one.p_holm if one else None, "p")]
        rows.append([*row, *tested, Number(_n(evaluation, name), "count")])
    over = {"speaker": "speakers", "fold": "folds"}.get(next(iter(evaluation["methods"].values()))["intervals"]["unit"])
    columns = [
        "Method", f"Accuracy (WA)\u00a0{UP}", f"WA pooled{INTERVAL}", f"Balanced accuracy (UA)\u00a0{UP}",
        f"UA pooled{INTERVAL}", f"WA minus {reference}{INTERVAL}", "p, corrected", "n",
    ]  # fmt: skip
    note = (
        "Mean ± sample std (divisor n − 1) over n folds and seeds. Pooled: all test items of all folds as one set, "
        f"seeds averaged; its interval {f'redraws {over}' if over else 'does not exist here'}. Differences in points, "
        "over the same items, with p of the primary test after correction (next tables)."
    )
    caption = f"Accuracy and balanced accuracy per {unit} in percent, and the difference to {reference}"
    return Table("results", caption, columns, rows, note=note)


def _test_table(evaluation: Evaluation, metric: str) -> Table:
    reference = evaluation["comparison"]["reference"]
    found = against(evaluation, metric)
    rows: list[list[Cell]] = [
        [one.method, _gap(one), Number(one.p, "p"), Number(one.p_holm, "p"), Number(one.floor, "p"),
         Number(one.secondary_p, "p"), Number(one.secondary_p_holm, "p"), Number(one.wins, "count"),
         Number(one.losses, "count"), Number(one.detectable, "size")]
        for one in (found[name] for name in order(evaluation) if name in found)
    ]  # fmt: skip
    columns = [
        "Method", f"Difference (points){INTERVAL}", "Primary p", "Primary p, Holm", "Smallest p possible",
        "Secondary p", "Secondary p, Holm", "Wins", "Losses", "Smallest seen (points)",
    ]  # fmt: skip
    note = (
        f"Method minus {reference}. Wins and losses: items that only the method, or only {reference}, got right in "
        "most of its seeds. Smallest seen: true difference found in four of five repeats, without correction."
    )
    caption = f"Every method against {reference} in {COMPARED[metric]} per {evaluation['main_unit']}"
    return Table(f"tests-{metric.replace('_', '-')}", caption, columns, rows, note=note)


def _ranks(evaluation: Evaluation) -> list[Block]:
    ranks = evaluation["comparison"]["result"]["ranks"]
    first = ranks["accuracy"]
    if first is None:
        return [Text("Ranks over folds need three methods or more with all their folds.")]
    rows: list[list[Cell]] = [
        [name, *(Number(ranks[metric]["average_ranks"][name], "plain") for metric in COMPARED)]
        for name in first["average_ranks"]
    ]
    critical = first["critical_difference"]
    together = len(first["groups"]) == 1 and len(first["groups"][0]) == first["k"]
    text = (
        f"Ranks over {first['n']} folds (1 is best): methods less than the critical difference of {critical:.2f} apart "
        f"are not told apart at {first['alpha']:g} (Nemenyi); Friedman’s test gives χ² = {first['chi2']:.1f}, p = "
        f"{Number(first['p'], 'p')}. {'No method is told apart from any other. ' if together else ''}Both assume "
        "independent folds; these share training data, so they are optimistic."
    )
    alt = (
        f"Average ranks of {first['k']} methods over {first['n']} folds, best first: "
        + ", ".join(f"{name} {rank:.1f}" for name, rank in first["average_ranks"].items())
        + f". Bars join methods less than {critical:.2f} apart."
    )
    png, pdf = pictures.rank_rows(first)
    note = f"Critical difference {critical:.3f} (Nemenyi, {first['n']} folds, {first['k']} methods)."
    columns = ["Method", "By accuracy", "By balanced accuracy"]
    table = Table("ranks", "Average rank over folds (1 is best)", columns, rows, note=note)
    return [Text(text), Picture("ranks.png", alt, png, pdf), Folded(table.caption, [table])]


def _recall_table(evaluation: Evaluation) -> Table:
    unit = evaluation["main_unit"]
    counts = evaluation["chance"][unit]["per_class"]
    rows: list[list[Cell]] = [
        [name, *(Number(evaluation["methods"][name]["recalls"][unit][label]) for label in evaluation["classes"])]
        for name in order(evaluation)
    ]
    columns = ["Method", *(f"{label} (n\u00a0=\u00a0{count(counts[label])})" for label in evaluation["classes"])]
    note = "All folds and seeds together. n counts test items, once per seed."
    return Table("recalls", f"Recall of every class per {unit} in percent", columns, rows, note=note)


def _no_model(chance: Mapping[str, Any], described: Sequence[str]) -> list[list[Cell]]:
    known: dict[str, dict[str, Cell]] = {
        f"always “{chance['majority_class']}”": {
            "accuracy": Number(chance["majority_fraction"]),
            "balanced_accuracy": Number(chance["uniform_fraction"]),
        },
        "every class alike": {"log_loss": Number(chance["uniform_log_loss"], "nats")},
        "shares of the classes": {"log_loss": Number(chance["share_log_loss"], "nats")},
    }
    return [[name, *(part.get(metric, DASH) for metric in described), DASH] for name, part in known.items()]


def _unit_table(evaluation: Evaluation) -> Table:
    columns: list[str] = ["Method"]
    rows: list[list[Cell]] = []
    for unit in evaluation["units"]:
        columns += [f"Per {unit}, mean of folds", f"Per {unit}, pooled"]
    for name in order(evaluation):
        entry = evaluation["methods"][name]
        cells: list[Cell] = []
        for unit in evaluation["units"]:
            cells += [spread(entry["summary"][unit]["accuracy"]), Number(entry["pooled"][unit]["accuracy"])]
        rows.append([name, *cells])
    note = "Pooled: all test items of all folds and seeds scored as one set, so larger folds weigh more."
    return Table("units", "Accuracy in percent, per utterance and per clip", columns, rows, note=note)


def _by_speaker(evaluation: Evaluation, name: str) -> dict[str, float]:
    rows = evaluation["methods"][name]["per_speaker"]
    return {row["speaker"]: row["accuracy"] for row in rows if row["speaker"] is not None}


def _speaker_table(evaluation: Evaluation, found: Mapping[str, Mapping[str, float]], known: Sequence[str]) -> Table:
    unit = evaluation["main_unit"]
    sizes: dict[str, int] = {}
    for entry in evaluation["methods"].values():
        for row in entry["per_speaker"]:
            if row["speaker"] is not None:
                sizes[row["speaker"]] = max(row["n"], sizes.get(row["speaker"], 0))
    rows: list[list[Cell]] = [
        [name, *(Number(part.get(speaker)) for speaker in known), Number(min(part.values(), default=None)),
         Number(max(part.values(), default=None))]
        for name, part in found.items()
    ]  # fmt: skip
    columns = [
        "Method",
        *(f"{speaker} (n\u00a0=\u00a0{count(sizes[speaker])})" for speaker in known),
        "Lowest",
        "Highest",
    ]
    return Table("speakers", f"Accuracy per {unit} in percent, by speaker (n {unit}s)", columns, rows)


def _selection_table(evaluation: Evaluation) -> Table:
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        part = evaluation["methods"][name]["selection"]
        rows.append([name, *(spread(part[rule]) for rule in RULES), Number(_inflation(part), "points")])
    rule = evaluation["selection"]
    columns = ["Method", f"{RULES['accuracy']} ({rule})", *list(RULES.values())[1:], "Inflation (points)"]
    caption = "Accuracy per clip in percent, mean ± sample std over folds, by the rule that picks the epoch"
    note = "Inflation: best on test minus as reported. Per clip, because epochs are scored per clip."
    return Table("selection", caption, columns, rows, note=note)


def _selection_text(evaluation: Evaluation) -> str:
    gains = {name: gain for name in order(evaluation)
             if (gain := _inflation(evaluation["methods"][name]["selection"])) is not None}  # fmt: skip
    text = (
        "The published code reports the best epoch on the test fold itself. The same runs, read three ways, show what "
        f"that choice adds. Here {SELECTION_RULES[evaluation['selection']]}."
    )
    if evaluation["selection"] == "best-on-test" or not gains:
        return text
    most = max(gains, key=lambda name: gains[name])
    tops = {label: top for rule, label in RULES.items() if (top := _top(evaluation, rule))}
    agree = len(set(tops.values())) == 1
    which = "the same under all three" if agree else ", ".join(f"{label.lower()}: {top}" for label, top in tops.items())
    return (
        f"{text} It would add {points(mean(gains.values()))} points on average, most to {most} "
        f"({points(gains[most])}). The highest method is {which}."
    )


def _lead_table(evaluation: Evaluation, reference: str) -> Table:
    rows: list[list[Cell]] = []
    for name in order(evaluation):
        if name != reference:
            leads = [_lead(evaluation, name, reference, rule) for rule in RULES]
            added = None if leads[0] is None or leads[1] is None else leads[1] - leads[0]
            rows.append([name, *(Number(lead, "points") for lead in leads), Number(added, "points")])
    columns = ["Method", *(f"Lead, {label.lower()}" for label in RULES.values()), "Of which selection"]
    caption = f"Lead over {reference} in points of accuracy per clip, by the rule that picks the epoch"
    note = "Mean over the folds and seeds that both have. Of which selection: lead at best on test minus as reported."
    return Table("leads", caption, columns, rows, note=note)


def _lead_text(evaluation: Evaluation, reference: str) -> str:
    leads = {
        name: [_lead(evaluation, name, reference, rule) for rule in RULES]
        for name in evaluation["methods"]
        if name != reference
    }
    turned = [
        name for name, (own, best, _) in leads.items() if own is not None and best is not None and own <= 0 < best
    ]
    text = f"Selection inflates the reference {reference} too; what it does to a lead is the difference of the two."
    if turned:
        text += f" Ahead only when the test fold picks the epoch: {listed(turned)}."
    return text


def _lead(evaluation: Evaluation, name: str, reference: str, rule: str) -> float | None:
    """Mean paired difference in one reading."""
    tables = [
        {
            (row["fold"], row["seed"]): row[rule]
            for row in evaluation["methods"][one]["per_fold"]
            if row[rule] is not None
        }
        for one in (name, reference)
    ]
    gaps = [tables[0][key] - tables[1][key] for key in sorted(tables[0].keys() & tables[1].keys())]
    return mean(gaps) if gaps else None


def _top(evaluation: Evaluation, rule: str) -> str | None:
    known = {name: part["mean"] for name, entry in evaluation["methods"].items() if (part := entry["selection"][rule])}
    return max(known, key=lambda name: known[name]) if known else None


def _inflation(part: Mapping[str, Any]) -> float | None:
    chosen, best = part["accuracy"], part["accuracy_best_on_test"]
    return None if chosen is None or best is None else best["mean"] - chosen["mean"]


def _metric(evaluation: Evaluation, name: str, metric: str) -> Number:
    kind: Kind = "nats" if evaluation["metrics"][metric]["unit"] == "nats" else "percent"
    return spread(evaluation["methods"][name]["summary"][evaluation["main_unit"]][metric], kind)


def _heading(described: Mapping[str, Any]) -> str:
    return f"{described['alias']}\u00a0{UP if described['higher_is_better'] else DOWN}"


def _fold_cell(entry: Mapping[str, Any], number: int, unit: str) -> Cell:
    values = [row[unit]["accuracy"] for row in entry["per_fold"] if row["fold"] == number]
    return Number(mean(values)) if values else "missing"


def _n(evaluation: Evaluation, name: str) -> int:
    return int(evaluation["methods"][name]["summary"][evaluation["main_unit"]]["accuracy"]["n"])


def _interval(found: Mapping[str, Any] | None) -> Number:
    return Number(None) if found is None else Number(found["value"], low=found["low"], high=found["high"])


def _gap(one: Against) -> Number:
    return Number(one.difference, "points", low=one.low, high=one.high)
