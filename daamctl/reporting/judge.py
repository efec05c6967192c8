"""What a verdict on predictions says: ten sentences for the terminal, and a page with tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from daamctl.artifacts.predictions import Predictions, Verdict
from daamctl.artifacts.scores import ALPHA, Compared
from daamctl.artifacts.terms import listed
from daamctl.data.task import FIGURES, title_of
from daamctl.reporting.document import (
    Block,
    Bullets,
    Cell,
    Document,
    Number,
    Plot,
    Section,
    Table,
    Text,
    percent,
    plural,
    points,
)

MOST = 5
"""Groups, classes and items that a sentence names."""
MOST_NEEDED = 100_000
MOST_ROWS = 50
"""Items in a table of the page."""


def sentences(verdict: Verdict) -> list[str]:
    """The verdict on the best two models, and the tiers of several."""
    first, second = verdict.models[:2]
    pair, unit = verdict.pair(first, second), verdict.design.unit_word
    lines = []
    if pair.difference == 0:
        lines.append(f"{first} and {second} have the same {FIGURES[verdict.metric]}, {percent(pair.first_value)} %.")
    else:
        lines.append(
            f"{first} leads {second} by {points(pair.difference)} points of {FIGURES[verdict.metric]} "
            f"({percent(pair.first_value)} and {percent(pair.second_value)} %){_between(pair)}."
        )
    if pair.p is None:
        lines.append(f"There is no test: {verdict.design.reason.removeprefix('no test is available: ')}.")
    else:
        kind = "Exact sign-flip test" if pair.exact else f"Sign-flip test ({pair.flips:,} random flips)"
        told = "can be told apart" if pair.is_significant else "cannot be told apart"
        holm = f", {pair.p_holm:.2g} after Holm's correction over all pairs" if len(verdict.models) > 2 else ""
        lines.append(
            f"{kind} over {pair.units} {unit}s: p = {pair.p:.2g}{holm}. They {told} at a level of {100 * ALPHA:g} %."
        )
    if pair.detectable:
        more = ""
        if verdict.needed and pair.units:
            more = (
                f" A lead of {points(pair.difference)} takes about {verdict.needed:,} {unit}s, "
                f"{verdict.needed - pair.units:,} more."
                if verdict.needed <= MOST_NEEDED
                else f" A lead of {points(pair.difference)} takes more than {MOST_NEEDED:,} {unit}s."
            )
        lines.append(f"Detectable with 80 % power: {100 * pair.detectable:.1f} points.{more}")
    for metric in verdict.metrics:
        if metric != verdict.metric:
            other = verdict.pair(first, second, metric)
            p = "" if other.p is None else f"; p = {other.p:.2g}"
            lines.append(
                f"{title_of(metric)}: {percent(other.first_value)} and "
                f"{percent(other.second_value)} %, {points(other.difference)} points{_between(other)}{p}."
            )
    lines.append(
        f"Only {first} is right on {pair.wins} of {verdict.design.n_items:,} items, only {second} on {pair.losses}."
    )
    if verdict.items["label"].null_count() == 0:
        lines.append(f"By class, only {first} / only {second}: {_counts(verdict.by('label', first, second), 'label')}")
    if verdict.design.unit == "speaker":
        found = verdict.by("group", first, second).filter(pl.col("sum") != 0)
        gaps = [f"{row['group']} {points(row['difference'])}" for row in found.head(MOST).iter_rows(named=True)]
        lines.append(f"The {unit}s that decide, in points of accuracy: {', '.join(gaps) or 'none'}.")
    deciding = verdict.deciding(first, second, MOST)["item"].to_list()
    if deciding:
        lines.append(f"Items that decide: {', '.join(deciding)}{', …' if len(deciding) == MOST else '.'}")
    for name, one in verdict.not_worse.items():
        against = next(model for model in verdict.models if model not in verdict.not_worse)
        if one.p is None:
            lines.append(f"Whether {name} is less than {100 * (verdict.margin or 0):g} points worse cannot be tested.")
        else:
            shown = "is shown" if one.p <= ALPHA else "is not shown"
            lines.append(
                f"That {name} is less than {100 * (verdict.margin or 0):g} points of accuracy worse than {against} "
                f"{shown}: p = {one.p:.2g} (one-sided)."
            )
    if len(verdict.models) > 2:
        tiers = [f"{number}. {listed(tier)}" for number, tier in enumerate(verdict.tiers, 1)]
        lines.append(f"Tiers, each of models that cannot be told apart from its first: {'; '.join(tiers)}.")
    return lines


def ranking(verdict: Verdict) -> Table:
    """Every model with its tier, its metrics with intervals, and its distance from the best."""
    best = verdict.models[0]
    columns = ["Model", "Tier", *(f"{title_of(one)} (%)" for one in verdict.metrics)]
    rows: list[list[Cell]] = []
    for name in verdict.models:
        row: list[Cell] = [name, str(verdict.tier(name))]
        for metric in verdict.metrics:
            interval = verdict.intervals.get(name, {}).get(metric)
            ends = (interval.low, interval.high) if interval else (None, None)
            row.append(Number(verdict.values[metric][name], "percent", low=ends[0], high=ends[1]))
        if name == best:
            rows.append([*row, "", "", ""])
            continue
        pair = verdict.pair(best, name)
        gap = Number(-pair.difference, "points", low=_minus(pair.high), high=_minus(pair.low))
        rows.append([*row, gap, Number(pair.p, "p"), Number(pair.p_holm, "p")])
    return Table(
        "models",
        f"Models on the same {verdict.design.n_items:,} items",
        [*columns, "Minus best", "p", "p (Holm)"],
        rows,
    )


def document(verdict: Verdict, files: Sequence[Predictions]) -> Document:
    """The page."""
    first, second = verdict.models[:2]
    told: list[Block] = [Bullets(sentences(verdict)), ranking(verdict)]
    if len(verdict.models) > 2:
        told.append(_pairs(verdict))
    figure = _figure(verdict, first, second)
    where: list[Block] = [figure] if figure else []
    for column, name in (("group", verdict.design.source_word), ("label", "class")):
        if verdict.items[column].drop_nulls().n_unique() > 1:
            where.append(_within(verdict, column, name, first, second))
    where.append(_items(verdict, first, second))
    read = [
        f"{file.name}: {file.tool}, {plural(len(file.rows), 'row')}, {plural(file.rows['item'].n_unique(), 'item')}"
        for file in files
    ]
    how: list[Block] = [Bullets([*read, verdict.design.reason, *verdict.notes]), Text(METHOD)]
    return Document(
        f"Which is better: {listed(verdict.models)}?",
        "judge",
        [
            Section("verdict", "Verdict", told),
            Section("where", f"Where {first} and {second} differ", where),
            Section("how", "How this was computed", how),
        ],
        tables_beside=False,
    )


METHOD = (
    "Items are paired and repeats averaged. The test flips the signs of the differences of whole groups, such as "
    "speakers, because items of one group are not independent. An interval of a difference holds the values that this "
    "test does not reject; with more than 20 groups, it comes from redrawing groups. Intervals are not corrected for "
    "the number of models; Holm's correction is over all pairs."
)


def _pairs(verdict: Verdict) -> Table:
    rows: list[list[Cell]] = []
    for one in verdict.pairs:
        if one.metric == verdict.metric:
            gap = Number(one.difference, "points", low=one.low, high=one.high)
            tests: list[Cell] = [Number(one.p, "p"), Number(one.p_holm, "p"), Number(one.detectable, "percent")]
            rows.append([f"{one.first} − {one.second}", gap, *tests, str(one.wins), str(one.losses)])
    columns = ["Pair", "Difference", "p", "p (Holm)", "Detectable", "Only the first right", "Only the second right"]
    return Table("pairs", f"All pairs, {FIGURES[verdict.metric]}", columns, rows)


def _within(verdict: Verdict, column: str, name: str, first: str, second: str) -> Table:
    rows: list[list[Cell]] = [
        [str(row[column]), str(row["items"]), Number(row["difference"], "points"), str(row["wins"]), str(row["losses"])]
        for row in verdict.by(column, first, second).iter_rows(named=True)
    ]
    columns = [name.capitalize(), "Items", "Difference", f"Only {first} right", f"Only {second} right"]
    return Table(column, f"By {name}, those that decide most first", columns, rows)


def _items(verdict: Verdict, first: str, second: str) -> Table:
    found = verdict.deciding(first, second, MOST_ROWS)
    rows = [
        [
            row["item"],
            row["group"] or "",
            row["label"] or "",
            Number(row[first], "percent"),
            Number(row[second], "percent"),
        ]
        for row in found.iter_rows(named=True)
    ]
    columns = ["Item", verdict.design.source_word.capitalize(), "Label", f"{first} (%)", f"{second} (%)"]
    note = f"The first {MOST_ROWS}; --json has all items." if len(found) == MOST_ROWS else ""
    return Table(
        "items", "Items that decide: share of repeats that are right", columns, rows, frozenset({1, 2}), note=note
    )


def _figure(verdict: Verdict, first: str, second: str) -> Plot | None:
    """Difference of the best two in every group."""
    if verdict.design.unit != "speaker":
        return None
    from daamctl.reporting.figures import differences, drawn

    rows = verdict.by("group", first, second).sort("difference", "group", descending=[True, False])
    values = dict(zip(rows["group"].to_list(), rows["difference"].to_list(), strict=True))
    mean = float(np.mean(list(values.values())))
    label, word = f"Accuracy of {first} minus that of {second}", verdict.design.unit_word
    alt = f"{label} for every {word}; the mean is {points(mean)} points"
    return drawn(differences(values, label, alt))


def _counts(found: pl.DataFrame, column: str) -> str:
    rows = found.filter(pl.col("wins") + pl.col("losses") > 0)
    told = [f"{row[column]} {row['wins']}/{row['losses']}" for row in rows.head(MOST).iter_rows(named=True)]
    return (", ".join(told) or "none") + (", …" if len(rows) > MOST else ".")


def _between(pair: Compared) -> str:
    if pair.low is None or pair.high is None:
        return ""
    return f", 95 % interval {points(pair.low)} to {points(pair.high)}"


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
