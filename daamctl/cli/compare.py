"""`daamctl compare`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daamctl.cli.options import Run, check_run, complete_run
from daamctl.cli.terminal import escaped, print_table, print_wide, show_line, show_path

if TYPE_CHECKING:
    from daamctl.artifacts.comparison import (
        ComparisonReport,
        PairedMethods,
        PairedResult,
        PrintedPair,
        PrintedResult,
        SettingDifference,
    )
    from daamctl.artifacts.scores import Figure

FIGURES = {"accuracy": "WA", "balanced_accuracy": "UA"}
ONE_SHOWN, MANY_SHOWN = 10, 3
"""Disagreements printed per pair: for a single pair, and for several. comparison.json has ten per pair."""
DASH = "–"


class Unit(StrEnum):
    """Unit of scoring."""

    utterance = "utterance"
    clip = "clip"


def complete(incomplete: str) -> list[str]:
    """Shell completion: pipelines, PIPELINE/METHOD, and published tables."""
    from daamctl.paper.tables import published_tables

    if incomplete.startswith("published:"):
        tables = [f"published:{table}" for table in published_tables()]
        return [table for table in tables if table.startswith(incomplete)]
    return [*complete_run(incomplete), *(["published:"] if "published:".startswith(incomplete) else [])]


SIDE = "PIPELINE, PIPELINE/METHOD, published:TABLE or published:TABLE/METHOD."


def command(
    run: Run,
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE, autocompletion=complete, show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help=SIDE, autocompletion=complete, show_default=False)],
    unit: Annotated[Unit | None, typer.Option(help="Unit of scoring. Default: evaluate.unit of the pipelines.")] = None,
) -> None:
    """Compare two pipelines, methods or published rows: different settings and paired differences."""
    for side in (a, b):
        if not side.startswith("published:"):
            check_run(side)
    from daamctl.artifacts.comparison import read_comparison
    from daamctl.config import find_root
    from daamctl.stages import compare

    path = compare.run(find_root(), a, b, unit=unit.value if unit else None)
    if run.json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    _show(read_comparison(path))
    show_path(path)


def _show(report: ComparisonReport) -> None:
    """Print settings, results and notes. Without a terminal, print no colours and do not wrap lines."""
    from daamctl.artifacts.comparison import PairedResult

    result = report.result
    how = "1 pair" if len(report.matched) == 1 else f"{len(report.matched)} methods matched by name"
    scored = f"by {report.item}" if report.item else report.unit
    show_line(f"[bold]{escaped(report.first)}[/] (A) and [bold]{escaped(report.second)}[/] (B), {scored}; {how}")
    for letter, methods in (("A", report.unmatched["first"]), ("B", report.unmatched["second"])):
        if methods:
            show_line(escaped(f"only in {letter}: {', '.join(methods)}"))
    _show_settings(result.settings.can_change, "can change the results")
    _show_settings(result.settings.cannot_change, "cannot change the results")
    if result.settings.not_known:
        show_line(escaped(result.settings.not_known))
    if isinstance(result, PairedResult):
        _show_paired(result, str(report.item))
    else:
        _show_printed(result, str(report.item))
    show_line("\n[bold]Notes[/]")
    for note in result.notes:
        show_line(f"- {escaped(note)}")


def _show_settings(rows: Sequence[SettingDifference], heading: str) -> None:
    show_line(f"\n[bold]Different settings that {heading}[/]: {len(rows) or 'none'}")
    from daamctl.evaluation.settings_diff import ABSENT

    cells: list[list[str]] = []
    alone: dict[str, list[str]] = {"A": [], "B": []}  # a closed-form method has none of the settings of training
    for row in rows:
        name = row.name + (f" ({', '.join(row.methods)})" if row.methods else "")
        if ABSENT in (row.first, row.second):
            side, value = ("A", row.first) if row.second == ABSENT else ("B", row.second)
            alone[side].append(f"{name} {_value(value)}")
        else:
            cells.append([name, _value(row.first), _value(row.second)])
    if cells:
        print_table(["setting", "A", "B"], cells)
    for side, names in alone.items():
        if names:
            show_line(f"only {side} has: {escaped(', '.join(names))}")


def _show_paired(result: PairedResult, item: str) -> None:
    from daamctl.reporting.document import plural

    design = result.pairs[0].design
    show_line(
        "\n[bold]Results[/] over all test items, averaged over seeds. A - B in points, its interval not corrected; "
        "detectable: the difference found with 80 % power, in points",
    )
    head = [
        "method", "metric", "A %", "B %", "A - B", "95 % CI", "p", "p (Holm)", "p folds", "p folds (Holm)",
        "detectable",
    ]  # fmt: skip
    cells = [row for entry in result.pairs for row in _paired_rows(entry, result)]
    print_wide(head, cells, keys=2)
    for entry in result.pairs:
        if entry.doubt:
            show_line(f"[bold]{escaped(_pair(entry))}: {escaped(entry.doubt)}[/]")
    accuracies = [one for one in result.comparisons if one.metric == "accuracy"]
    tested = (accuracies or result.comparisons)[0]
    show_line(
        f"p: {f'{tested.test} over {tested.unit}s' if tested.test else 'no test'}; p folds: "
        f"{'nadeau-bengio over folds' if design.n_folds > 1 else 'no test'}; Holm correction over "
        f"{plural(len(result.pairs), 'test')}",
    )
    seeds = "; ".join(
        f"{letter} {', '.join(map(str, part))}" for letter, part in zip("AB", design.seeds.values(), strict=True)
    )
    sources = f"{design.n_speakers or 'unknown'} {design.source_word}s"
    show_line(
        f"Design: {design.n_items} items, {design.n_folds or 'no common'} folds, {sources}; {escaped(design.reason)}; "
        f"seeds {seeds}",
    )
    wins = {(one.first, one.second): (one.wins, one.losses, one.ties) for one in accuracies}
    if wins:
        what = "only A (wins), only B (losses), both or neither (ties); half of the seeds are not enough"
        show_line(f"\n[bold]By {item}[/]: right in most seeds: {what}")
        counts = [[_pair(entry), *map(str, wins[entry.first, entry.second])] for entry in result.pairs]
        print_wide(["method", "wins", "losses", "ties"], counts, keys=1)
    shown = MANY_SHOWN if len(result.pairs) > 1 else ONE_SHOWN
    rows = []
    for entry in result.pairs:
        for row in entry.disagreements[:shown]:
            right = [_share(row.first_right), _share(row.second_right)]
            rows.append([_pair(entry), row.item, str(row.fold), row.speaker or DASH, row.label, *right])
    if rows:
        show_line(
            f"\n[bold]Most consistent disagreements[/]: share of seeds that are right; at most {shown} per method",
        )
        heads = ["method", item, "fold", design.source_word, "class", "A", "B"]
        print_wide(heads, rows, keys=2)


def _paired_rows(entry: PairedMethods, result: PairedResult) -> list[list[str]]:
    """One row per metric."""
    from daamctl.data.task import FIGURES as NAMES

    rows = []
    for one in result.comparisons:
        if (one.first, one.second) == (entry.first, entry.second):
            row = [
                _pair(entry),
                {**NAMES, **FIGURES}[one.metric],
                _percent(one.first_value),
                _percent(one.second_value),
            ]
            ends = DASH if one.low is None or one.high is None else f"{_points(one.low)} to {_points(one.high)}"
            row += [_points(one.difference), ends]
            rows.append(
                [*row, *map(_p, (one.p, one.p_holm, one.p_folds, one.p_folds_holm)), _percent(one.detectable_here)]
            )
    return rows


def _show_printed(result: PrintedResult, item: str) -> None:
    from daamctl.artifacts.comparison import by_session
    from daamctl.artifacts.scores import BEST_ON_TEST

    ours = result.kind == "printed"
    head = ["", "row", "printed", "mean of its folds"]
    if ours:
        head = [*head[:3], "per clip, best on test", f"as reported by {item}, WA", "UA"]
    cells, pairs = [], list(zip(result.pairs, result.comparisons, strict=True))
    for entry, compared in pairs:
        for letter, one in (("A", entry.first), ("B", entry.second)):
            found = {figure.metric: _spread(figure) for figure in result.figures if figure.method == one.name}
            shown = (one.printed or DASH) + (" ✗" if one.wrong else "") if one.published else DASH
            row = [letter, one.label, shown, found[BEST_ON_TEST]]
            cells.append([*row, *(found.get(name, DASH) for name in FIGURES)] if ours else row)
        cells.append(["", "A - B", "", _points(compared.difference), *(["", ""] if ours else [])])
    show_line(
        "\n[bold]Accuracy[/] in percent, mean ± sample standard deviation; ✗: printed value contradicts its folds",
    )
    print_wide(head, cells, keys=2)
    rows = []
    for entry in result.pairs:
        if entry.not_aligned is None:
            first, second = (by_session(result.scores, row) for row in (entry.first, entry.second))
            for session in sorted(first):
                values = first[session], second[session]
                rows.append([_pair(entry), str(session), *map(_percent, values), _points(values[0] - values[1])])
    if rows:
        show_line("\n[bold]By session[/]")
        print_wide(["method", "session", "A", "B", "A - B"], rows, keys=2)
    tested = [pair for pair in pairs if pair[1].test]
    if tested:
        show_line(f"\n[bold]Test[/] {escaped(tested[0][0].about_test)}")
        head = ["method", "A - B", "p", "p (Holm)"]
        rows = [[_pair(entry), _points(one.difference), _p(one.p), _p(one.p_holm)] for entry, one in tested]
        print_wide(head, rows, keys=1)
    for reason in dict.fromkeys(entry.about_test for entry, one in pairs if not one.test):
        show_line(escaped(reason))


def _pair(entry: PairedMethods | PrintedPair) -> str:
    """Name of the method, or both names if the two sides differ."""
    from daamctl.artifacts.comparison import PairedMethods

    if isinstance(entry, PairedMethods):
        labels = entry.first_label, entry.second_label
    else:
        labels = entry.first.label, entry.second.label
    first, second = (label.rpartition("/")[2] for label in labels)
    return first if first == second else f"{first} - {second}"


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _spread(figure: Figure) -> str:
    if figure.std is None:
        return _percent(figure.mean)
    return f"{_percent(figure.mean)} ± {_percent(figure.std)} (n = {figure.runs})"


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+z.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _p(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"
