"""What a verdict on predictions says: ten sentences for the terminal, and a page with tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from daamctl.artifacts.predictions import ERRORS, LOSS, MEAN, VALUED, Predictions, Verdict
from daamctl.artifacts.scores import ALPHA
from daamctl.artifacts.terms import listed
from daamctl.data.sign_flip import sign_flip_floor
from daamctl.data.task import FIGURES, title_of
from daamctl.reporting.document import (
    Block,
    Bullets,
    Cell,
    Document,
    Kind,
    Number,
    Plot,
    Section,
    Table,
    Text,
    kinds_of,
    plural,
    points,
)
from daamctl.reporting.sentences import say, say_each

MOST = 5
"""Groups, classes and items that a sentence names, and models that a title does."""
MOST_NEEDED = 100_000
MOST_ROWS = 50
"""Items in a table of the page."""
BETTER = {MEAN: "higher", LOSS: "lower"}
"""What a model is where it is better than another, besides nearer to a label."""


def sentences(verdict: Verdict) -> list[str]:
    """The verdict on the best two models, and the tiers of several."""
    first, second = verdict.models[:2]
    pair = verdict.pair(first, second)
    others = {title_of(one): verdict.pair(first, second, one) for one in verdict.metrics if one != verdict.metric}
    classes, speakers = "", None
    if verdict.items["label"].null_count() == 0:
        rows = verdict.by("label", first, second).filter(pl.col("wins") + pl.col("losses") > 0)
        told = [f"{row['label']} {row['wins']}/{row['losses']}" for row in rows.head(MOST).iter_rows(named=True)]
        classes = (", ".join(told) or "none") + (", …" if len(rows) > MOST else ".")
    if verdict.design.unit == "speaker":
        found = verdict.by("group", first, second).filter(pl.col("sum") != 0)
        gap = item_kinds(verdict.metric)[1]
        gaps = [f"{row['group']} {Number(row['difference'], gap)}" for row in found.head(MOST).iter_rows(named=True)]
        speakers = ", ".join(gaps)
    items = verdict.deciding(first, second, MOST + 1)["item"].to_list()
    deciding = ", ".join(items[:MOST]) + (", …" if len(items) > MOST else ".") if items else ""
    facts = (FIGURES[verdict.metric], others, classes, speakers, deciding)
    further = {"errors": ERRORS.get(verdict.metric, ""), "is_share": kinds_of(verdict.metric)[0] == "percent"}
    compared = len(verdict.models) - 1  # Holm's strictest step of the lead
    floor = min(1.0, sign_flip_floor(pair.units or 0) * compared)
    further |= {"floor": floor, "detectable": pair.detectable_at(ALPHA / compared)}
    return say_each("judge.verdict", verdict, pair, *facts, ALPHA, MOST_NEEDED, **further)


def ranking(verdict: Verdict) -> Table:
    """Every model with its tier, its metrics with intervals, and its distance from the best."""
    best = verdict.models[0]
    shown, signed = kinds_of(verdict.metric)
    columns = ["Model", "Tier", *(title_of(one) + _unit(verdict) for one in verdict.metrics)]
    rows: list[list[Cell]] = []
    for name in verdict.models:
        row: list[Cell] = [name, str(verdict.tier(name))]
        for metric in verdict.metrics:
            interval = verdict.intervals.get(name, {}).get(metric)
            ends = (interval.low, interval.high) if interval else (None, None)
            row.append(Number(verdict.values[metric][name], shown, low=ends[0], high=ends[1]))
        if name == best:
            rows.append([*row, "", "", ""])
            continue
        pair = verdict.pair(best, name)
        low, high = (None if end is None else -end for end in (pair.high, pair.low))
        gap = Number(-pair.difference, signed, low=low, high=high)
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
    how: list[Block] = [
        Bullets([*read, verdict.design.reason, *verdict.notes]),
        Text(say("judge.method", verdict.metric)),
    ]
    many = len(verdict.models) > MOST
    return Document(
        f"Which of {len(verdict.models)} models is best?" if many else f"Which is better: {listed(verdict.models)}?",
        "judge",
        [
            Section("verdict", "Verdict", told),
            Section("where", f"Where {first} and {second} differ", where),
            Section("how", "How this was computed", how),
        ],
        tables_beside=False,
    )


def item_kinds(metric: str) -> tuple[Kind, Kind]:
    """How what is known of an item is shown, and a difference of it."""
    if metric in VALUED:
        return kinds_of(metric)
    return ("plain", "signed") if metric in ERRORS else ("percent", "points")


def _unit(verdict: Verdict) -> str:
    """What follows the name of a figure in the head of a column."""
    return " (%)" if kinds_of(verdict.metric)[0] == "percent" else ""


def _pairs(verdict: Verdict) -> Table:
    rows: list[list[Cell]] = []
    shown, signed = kinds_of(verdict.metric)
    for one in verdict.pairs:
        if one.metric == verdict.metric:
            gap = Number(one.difference, signed, low=one.low, high=one.high)
            tests: list[Cell] = [Number(one.p, "p"), Number(one.p_holm, "p"), Number(one.detectable_here, shown)]
            rows.append([f"{one.first} − {one.second}", gap, *tests, str(one.wins), str(one.losses)])
    better = BETTER.get(verdict.metric, "closer")
    won = [f"First {better}", f"Second {better}"]
    if verdict.metric not in ERRORS:
        won = ["Only the first right", "Only the second right"]
    columns = ["Pair", "Difference", "p", "p (Holm)", "Detectable, not corrected", *won]
    return Table("pairs", f"All pairs, {FIGURES[verdict.metric]}", columns, rows)


def _within(verdict: Verdict, column: str, name: str, first: str, second: str) -> Table:
    _, signed = item_kinds(verdict.metric)
    rows: list[list[Cell]] = [
        [str(row[column]), str(row["items"]), Number(row["difference"], signed), str(row["wins"]), str(row["losses"])]
        for row in verdict.by(column, first, second).iter_rows(named=True)
    ]
    if verdict.metric in ERRORS:
        better = BETTER.get(verdict.metric, "closer")
        gap = "Difference" if verdict.metric in BETTER else "Difference of errors"
        shown = [gap, f"{first} {better}", f"{second} {better}"]
    else:
        shown = ["Difference", f"Only {first} right", f"Only {second} right"]
    title = f"By {name}, those that decide most first"
    return Table(column, title, [name.capitalize(), "Items", *shown], rows)


def _items(verdict: Verdict, first: str, second: str) -> Table:
    every = verdict.deciding(first, second, MOST_ROWS + 1)
    found = every.head(MOST_ROWS)
    titles = {"group": verdict.design.source_word.capitalize(), "label": "Label"}
    known = {name: title for name, title in titles.items() if found[name].null_count() < len(found)}
    shown, _ = item_kinds(verdict.metric)
    rows: list[list[Cell]] = [
        [row["item"], *(row[name] or "" for name in known), *(Number(row[one], shown) for one in (first, second))]
        for row in found.iter_rows(named=True)
    ]
    unit = "" if verdict.metric in ERRORS else " (%)"
    columns = ["Item", *known.values(), first + unit, second + unit]
    note = f"The first {MOST_ROWS}; --json has all items." if len(every) > MOST_ROWS else ""
    texts = frozenset(range(1, len(known) + 1))
    what = ERRORS.get(verdict.metric, "share of repeats that are right")
    return Table("items", f"Items that decide: {what}", columns, rows, texts, note=note)


def _figure(verdict: Verdict, first: str, second: str) -> Plot | None:
    """Difference of the best two in every group."""
    if verdict.design.unit != "speaker" or verdict.metric in ERRORS:
        return None
    from daamctl.reporting.figures import differences, drawn

    rows = verdict.by("group", first, second).sort("difference", "group", descending=[True, False])
    values = dict(zip(rows["group"].to_list(), rows["difference"].to_list(), strict=True))
    whole = verdict.pair(first, second, "accuracy").difference  # a group counts by its items
    label, word = f"Accuracy of {first} minus that of {second}", verdict.design.unit_word
    alt = f"{label} for every {word}; over all items {points(whole)} points"
    return drawn(differences(values, whole, label, alt))
