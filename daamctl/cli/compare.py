"""`daamctl compare`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from daamctl.cli.options import Run, check_run, complete_run
from daamctl.cli.terminal import escaped, print_table, show_line, show_path

if TYPE_CHECKING:
    from daamctl.artifacts.comparison import (
        ComparisonReport,
        PairedMethods,
        PairedResult,
        PrintedPair,
        PrintedResult,
        SettingDifference,
    )
    from daamctl.artifacts.evaluation import Spread
    from daamctl.artifacts.statistics import PairedTest

FIGURES = {"accuracy": "WA", "balanced_accuracy": "UA"}
ENTITIES = {"entity_f1": "entity F1"}
"""What the methods of a token corpus are compared by besides."""
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
    for letter, methods in (("A", report.unmatched.first), ("B", report.unmatched.second)):
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
    if rows:
        cells = []
        for row in rows:
            methods = f" ({', '.join(row.methods)})" if row.methods else ""
            cells.append([row.name + methods, _value(row.first), _value(row.second)])
        print_table(["setting", "A", "B"], cells)


def _show_paired(result: PairedResult, item: str) -> None:
    design = result.comparisons[0].design
    show_line(
        "\n[bold]Results[/] over all test items, averaged over seeds. A - B in points, its interval not corrected; "
        "detectable: the difference found with 80 % power, in points",
    )
    head = [
        "method", "metric", "A %", "B %", "A - B", "95 % CI", "p", "p (Holm)", "p folds", "p folds (Holm)",
        "detectable",
    ]  # fmt: skip
    _table(head, [row for entry in result.comparisons for row in _paired_rows(entry)])
    for entry in result.comparisons:
        if entry.doubt:
            show_line(f"[bold]{escaped(_pair(entry))}: {escaped(entry.doubt)}[/]")
    show_line(
        f"p: {_test(result, 'primary')}; p folds: {_test(result, 'secondary')}; Holm correction over "
        f"{result.family.size} tests",
    )
    seeds = "; ".join(
        f"{letter} {', '.join(map(str, part))}" for letter, part in zip("AB", design.seeds.values(), strict=True)
    )
    sources = f"{design.n_speakers or 'unknown'} {design.source_word}s"
    show_line(
        f"Design: {design.n_items} items, {design.n_folds or 'no common'} folds, {sources}; {escaped(design.reason)}; "
        f"seeds {seeds}",
    )
    show_line(
        f"\n[bold]By {item}[/]: right in most seeds: only A (wins), only B (losses), both or neither (ties)",
    )
    counts = [[_pair(entry), str(entry.wins), str(entry.losses), str(entry.ties)] for entry in result.comparisons]
    _table(["method", "wins", "losses", "ties"], counts)
    shown = MANY_SHOWN if len(result.comparisons) > 1 else ONE_SHOWN
    rows = []
    for entry in result.comparisons:
        for row in entry.disagreements[:shown]:
            right = [_share(row.first_right), _share(row.second_right)]
            rows.append([_pair(entry), row.item, str(row.fold), row.speaker or DASH, row.label, *right])
    if rows:
        show_line(
            f"\n[bold]Most consistent disagreements[/]: share of seeds that are right; at most {shown} per method",
        )
        _table(["method", item, "fold", design.source_word, "class", "A", "B"], rows)


def _paired_rows(entry: PairedMethods) -> list[list[str]]:
    """One row per metric."""
    rows = []
    for metric, alias in (ENTITIES | FIGURES).items():
        one = entry.metrics.get(metric)
        if one is None:
            continue
        points = one.minimal_detectable.points if one.minimal_detectable else None
        row = [_pair(entry), alias, _percent(one.first_value), _percent(one.second_value), _points(one.difference)]
        row.append(f"{_points(one.interval.low)} to {_points(one.interval.high)}" if one.interval else DASH)
        row += [*_p(one.primary), *_p(one.secondary), DASH if points is None else f"{points:.1f}"]
        rows.append(row)
    return rows


def _show_printed(result: PrintedResult, item: str) -> None:
    ours = result.kind == "printed"
    head = ["", "row", "printed", "mean of its folds"]
    if ours:
        head = [*head[:3], "per clip, best on test", f"as reported by {item}, WA", "UA"]
    cells = []
    for entry in result.comparisons:
        for letter, one in (("A", entry.figures.first), ("B", entry.figures.second)):
            shown = DASH
            if one.print:
                shown = (one.print.text or DASH) + (" ✗" if one.print.disagrees else "")
            row = [letter, one.label, shown, _spread(one.as_published)]
            if ours:
                row += [_spread(one.as_reported[name]) if one.as_reported else DASH for name in FIGURES]
            cells.append(row)
        cells.append(["", "A - B", "", _points(entry.difference), *(["", ""] if ours else [])])
    show_line(
        "\n[bold]Accuracy[/] in percent, mean ± sample standard deviation; ✗: printed value contradicts its folds",
    )
    _table(head, cells)
    rows = [
        [_pair(entry), str(row.session), _percent(row.first), _percent(row.second), _points(row.difference)]
        for entry in result.comparisons
        for row in entry.folds or []
    ]
    if rows:
        show_line("\n[bold]By session[/]")
        _table(["method", "session", "A", "B", "A - B"], rows)
    tests = [(_pair(entry), entry.test) for entry in result.comparisons if entry.test]
    if tests:
        show_line(f"\n[bold]Test[/] {escaped(tests[0][1].label)}")
        head = ["method", "A - B", "p", "p (Holm)"]
        _table(head, [[name, _points(test.mean), *_p(test)] for name, test in tests])
    for reason in dict.fromkeys(entry.no_test for entry in result.comparisons if entry.no_test):
        show_line(escaped(reason))


def _pair(entry: PairedMethods | PrintedPair) -> str:
    """Name of the method, or both names if the two sides differ."""
    from daamctl.artifacts.comparison import PairedMethods

    if isinstance(entry, PairedMethods):
        labels = entry.first_label, entry.second_label
    else:
        labels = entry.figures.first.label, entry.figures.second.label
    first, second = (label.rpartition("/")[2] for label in labels)
    return first if first == second else f"{first} - {second}"


def _test(result: PairedResult, name: Literal["primary", "secondary"]) -> str:
    """Describe the test, e.g. `sign-flip over speakers`."""
    found = result.comparisons[0].metrics["accuracy"]
    test = found.primary if name == "primary" else found.secondary
    return f"{test.test} over {test.unit}s" if test else "no test"


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    print_table(head, cells, fold=False)


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _spread(figure: Spread) -> str:
    if figure.sample_std is None:
        return _percent(figure.mean)
    return f"{_percent(figure.mean)} ± {_percent(figure.sample_std)} (n = {figure.n})"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _p(test: PairedTest | None) -> list[str]:
    """The p-value of a test, uncorrected and Holm-corrected."""
    values = (test.p, test.p_holm) if test else (None, None)
    return [DASH if value is None else f"{value:.3g}" for value in values]
