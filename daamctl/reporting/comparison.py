"""Sections that set our figures beside others: the papers, the untrained map, other layers.

Published figures are in percent, ours are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daamctl.reporting.document import DASH, Picture, Section, Table, listed, mean_std, percent, points
from daamctl.reporting.published import PublishedRow, PublishedTable

NO_MODULE = ("single-layer",)
"""Published rows that are layer choices, not methods; they belong to the ablation."""


def published(evaluation: Mapping[str, Any], table: PublishedTable) -> Section:
    """Printed figures beside ours, under the published protocol and under our own."""
    corpus, encoder = _made_with(evaluation)
    warnings = []
    for what, ours, theirs in (("corpus", corpus, table.dataset), ("encoder", encoder, table.encoder)):
        if ours != theirs:
            warnings.append(f"Our {what} is {ours}, the published one is {theirs}: the figures are not comparable.")
    rows = [row for row in table.rows if not row.method.startswith(NO_MODULE)]
    return Section(
        "published", "Published figures and ours",
        [
            table.protocol,
            "“Ours, same protocol” is our accuracy per clip at the best epoch on test (scored as published; further "
            f"settings are under Provenance). “Ours, as reported” is the main figure of this report, per "
            f"{evaluation['main_unit']}.",
            _disagreements(rows),
        ],
        warnings=warnings,
        tables=[_published_table(evaluation, table, rows), _print_check(rows)],
    )  # fmt: skip


def importance(summary: Mapping[str, Any] | None, pictures: Mapping[str, bytes], command: str) -> Section:
    """Importance Factor maps and layer contributions, each beside the untrained module's."""
    title = "Importance Factor and layer contribution"
    if summary is None:
        return Section("importance", title, [f"Not made yet; make it: {command}"])
    if not summary["methods"]:
        return Section("importance", title, [summary["note"]])
    text = (
        "The Importance Factor scales the mean density to 0..1 over the whole map; higher means a feature nearer its "
        "head’s mean. Layer 1 is at the bottom. The untrained map stands beside the trained one: what both show was "
        "not learned."
    )
    without = summary["without_density"]
    paragraphs = [text] + ([f"Without a density, so without a map: {listed(without)}."] if without else [])
    rows, shown, warnings = [], [], []
    for method, entry in summary["methods"].items():
        ranking = [str(layer) for layer in entry["ranking"][:5]]
        correlation = entry["correlation_with_untrained"]
        rows.append(
            [method, ", ".join(ranking), ", ".join(str(layer) for layer in entry["ranking_untrained"][:5]),
             DASH if correlation is None else f"{correlation:.3f}", str(entry["num_heads"] or "default")]
        )  # fmt: skip
        warnings += [f"{method}: {entry['caution']}"] if entry["caution"] else []
        shown += [
            Picture(entry["heatmap"], _heatmap_alt(method, entry), pictures[entry["heatmap"]], wide=True),
            Picture(entry["layers_picture"], _bars_alt(method, entry), pictures[entry["layers_picture"]], wide=True),
        ]
    table = Table(
        "Layers of highest mean Importance Factor, and the correlation of the trained with the untrained map",
        ["Method", "Highest layers, trained", "Highest layers, untrained", "Pearson r", "Heads"], rows,
        frozenset({1, 2}),
    )  # fmt: skip
    return Section("importance", title, paragraphs, warnings=warnings, tables=[table], pictures=shown)


def ablation(result: Mapping[str, Any] | None, command: str, table: PublishedTable | None) -> Section:
    """Retraining on few layers, and what the papers print for it."""
    title = "Training on few layers"
    if result is None:
        return Section("ablation", title, [f"Not made yet; make it: {command}"])
    if not result["groups"]:
        return Section("ablation", title, ["No layers were chosen, so none were trained alone.", *result["notes"]])
    baseline = result["baseline"]
    rows = [_group_row("baseline", baseline, baseline)]
    rows += [_group_row(group["name"], group, baseline) for group in result["groups"]]
    text = f"The method “{result['method']}” is trained again on the chosen layers alone."
    if result["ranking"]:
        ranking = ", ".join(map(str, result["ranking"]))
        text = f"By the Importance Factor of {result['rank_by']}, from high to low: layers {ranking}. {text}"
    columns = ["Layers chosen", "Numbers", "Mean ± std", "n", "Against baseline (points)"]
    tables = [Table(f"Accuracy per {result['unit']} in percent", columns, rows, frozenset({1}))]
    tables += _differences(result)
    tables += _published_layers(table)
    return Section("ablation", title, [text, *result["notes"]], tables=tables)


def _published_table(evaluation: Mapping[str, Any], table: PublishedTable, rows: list[PublishedRow]) -> Table:
    methods, unit = evaluation["methods"], evaluation["main_unit"]
    cells = []
    for row in rows:
        entry = methods.get(row.method)
        same = mean_std(entry["selection"]["accuracy_best_on_test"]) if entry else "no counterpart"
        ours = mean_std(entry["summary"][unit]["accuracy"]) if entry else "no counterpart"
        cells.append([row.method, _printed(row), same, _gap(row, entry), ours])
    named = {row.method for row in rows}
    for name, entry in methods.items():
        if name not in named:
            same = mean_std(entry["selection"]["accuracy_best_on_test"])
            cells.append([name, "not printed", same, DASH, mean_std(entry["summary"][unit]["accuracy"])])
    columns = ["Method", "Printed", "Ours, same protocol", "Ours minus printed (points)", "Ours, as reported"]
    caption = f"Accuracy in percent: {table.source} {table.name} ({table.dataset}, {table.encoder}) and this run"
    note = "✗: disagrees with its own folds. Deviations: printed ones as printed, ours with divisor n − 1."
    return Table(caption, columns, cells, note=note)


def _print_check(rows: list[PublishedRow]) -> Table:
    splits = list(rows[0].folds)
    cells = [
        [row.method, *[f"{row.folds[s]:.1f}" if s in row.folds else DASH for s in splits], f"{row.mean:.2f}",
         f"{row.sample_std:.2f}", f"{row.population_std:.2f}", _verdict(row)]
        for row in rows
    ]  # fmt: skip
    columns = ["Method", *splits, "Mean", "Sample std", "Population std", "The print agrees?"]
    note = "Printed folds are rounded to 0.1; agreement allows for that."
    caption = "The printed folds in percent, and what they give"
    return Table(caption, columns, cells, frozenset({len(columns) - 1}), note)


def _verdict(row: PublishedRow) -> str:
    mean = "" if row.mean_agrees else f"✗ mean printed as {row.printed_mean:.1f}; "
    if row.std_is == "not printed":
        return mean + "no std printed"
    return mean + (f"✗ std {row.printed_std:g} is neither" if row.std_is == "neither" else f"✓ {row.std_is} std")


def _disagreements(rows: list[PublishedRow]) -> str:
    wrong = [row.method for row in rows if row.disagrees]
    if not wrong:
        return "Every printed mean and deviation can come from the printed folds."
    return f"The print disagrees with its own folds, beyond rounding, for {listed(wrong)}; see the second table."


def _printed(row: PublishedRow) -> str:
    text = row.printed or f"{row.mean:.1f} (from folds)"
    return text + (" ✗" if row.disagrees else "")


def _gap(row: PublishedRow, entry: Mapping[str, Any] | None) -> str:
    best = entry["selection"]["accuracy_best_on_test"] if entry else None
    return DASH if best is None else points(best["mean"] - row.mean / 100)


def _made_with(evaluation: Mapping[str, Any]) -> tuple[str, str]:
    made = evaluation["provenance"]["config"]
    return made.get("download", {}).get("corpus", "unknown"), made.get("extract", {}).get("encoder", "unknown")


def _heatmap_alt(method: str, entry: Mapping[str, Any]) -> str:
    correlation = entry["correlation_with_untrained"]
    same = "" if correlation is None else f" Their correlation is {correlation:.2f}."
    return (
        f"Importance Factor of {method}, {len(entry['layers'])} layers by {entry['num_features']} features, trained "
        f"beside untrained. Highest on average: layer {entry['ranking'][0]}.{same}"
    )


def _bars_alt(method: str, entry: Mapping[str, Any]) -> str:
    shares = entry["contribution_percent"]
    high, low = max(shares, key=shares.get), min(shares, key=shares.get)
    return (
        f"Layer contribution in {method}, trained beside untrained bars: from {shares[low]:.2f} % (layer {low}) to "
        f"{shares[high]:.2f} % (layer {high})."
    )


def _group_row(name: str, group: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[str]:
    against = DASH if group is baseline else points(_paired_mean(group, baseline))
    return [name, _layers(group["layers"]), mean_std(group), str(group["n"]), against]


def _paired_mean(group: Mapping[str, Any], baseline: Mapping[str, Any]) -> float | None:
    base = {(row["fold"], row["seed"]): row["accuracy"] for row in baseline["per_fold"]}
    gaps = [row["accuracy"] - base[key] for row in group["per_fold"] if (key := (row["fold"], row["seed"])) in base]
    return sum(gaps) / len(gaps) if gaps else None


def _differences(result: Mapping[str, Any]) -> list[Table]:
    rows = [
        [str(part["k"]), mean_std(part, signed=True), str(part["n"]),
         f"{sum(row['difference'] > 0 for row in part['per_fold'])} of {len(part['per_fold'])}"]
        for part in result["differences"]
    ]  # fmt: skip
    if not rows:
        return []
    columns = ["Layers each (k)", "Mean ± std (points)", "n", "Highest ahead in"]
    return [Table("Highest minus lowest layers, fold by fold, in percentage points", columns, rows)]


def _published_layers(table: PublishedTable | None) -> list[Table]:
    rows = [row for row in table.rows if row.method.startswith(NO_MODULE)] if table else []
    if not rows:
        return []
    cells = [[row.method, row.layers, f"{row.mean:.1f}", percent(row.sample_std / 100)] for row in rows]
    return [Table("What the papers print for single layers (percent, per clip, best epoch on test)",
                  ["Choice", "Layer", "Mean of folds", "Sample std of folds"], cells)]  # fmt: skip


def _layers(numbers: list[int]) -> str:
    if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))
