"""`daamctl compare`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daamctl.cli import common
from daamctl.cli.common import escaped, show_line

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 160
"""Width of the tables in characters when the output is not a terminal."""
FIGURES = {"accuracy": "WA", "balanced_accuracy": "UA"}
HEADINGS = {"can_change": "can change the results", "cannot_change": "cannot change the results"}
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

    name, slash, method = incomplete.partition("/")
    if incomplete.startswith("published:"):
        return [name for name in (f"published:{table}" for table in published_tables()) if name.startswith(incomplete)]
    if slash:
        return [f"{name}/{found}" for found in common.complete_method(method)]
    return [*common.complete_pipeline(incomplete), *(["published:"] if "published:".startswith(incomplete) else [])]


Side = Annotated[
    str,
    typer.Argument(
        help="PIPELINE, PIPELINE/METHOD, published:TABLE or published:TABLE/METHOD.",
        autocompletion=complete,
        show_default=False,
    ),
]


def command(
    a: Side,
    b: Side,
    unit: Annotated[Unit | None, typer.Option(help="Unit of scoring. Default: evaluate.unit of the pipelines.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print comparison.json instead of the tables.")] = False,
) -> None:
    """Compare two pipelines, methods or published rows: different settings and paired differences."""
    from daamctl.artifacts.io import read_json
    from daamctl.config import find_root
    from daamctl.stages import compare

    path = compare.run(find_root(), a, b, unit=unit.value if unit else None)
    if as_json:
        typer.echo(path.read_text(encoding="utf-8"), nl=False)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    _show(console, read_json(path))
    common.show_path(path)


def _show(console: Console, result: dict[str, Any]) -> None:
    """Print settings, results and notes. Without a terminal, print no colours and do not wrap lines."""
    first, second = result["first"], result["second"]
    pairs = result["matched"]
    how = "1 pair" if len(pairs) == 1 else f"{len(pairs)} methods matched by name"
    scored = result["unit"] if result["unit"] == "as printed" else f"by {result['item']}"
    show_line(console, f"[bold]{escaped(first)}[/] (A) and [bold]{escaped(second)}[/] (B), {scored}; {how}")
    for letter, side in (("A", "first"), ("B", "second")):
        if result["unmatched"][side]:
            show_line(console, escaped(f"only in {letter}: {', '.join(result['unmatched'][side])}"))
    for group, heading in HEADINGS.items():
        _show_settings(console, result["settings"][group], heading)
    if result["settings"]["not_known"]:
        show_line(console, escaped(result["settings"]["not_known"]))
    if result["kind"] == "paired":
        _show_paired(console, result)
    else:
        _show_printed(console, result)
    show_line(console, "\n[bold]Notes[/]")
    for note in result["notes"]:
        show_line(console, f"- {escaped(note)}")


def _show_settings(console: Console, rows: list[dict[str, Any]], heading: str) -> None:
    show_line(console, f"\n[bold]Different settings that {heading}[/]: {len(rows) or 'none'}")
    if rows:
        cells = [
            [row["name"] + (f" ({', '.join(row['methods'])})" if row["methods"] else ""),
             _value(row["first"]), _value(row["second"])]
            for row in rows
        ]  # fmt: skip
        _table(console, ["setting", "A", "B"], cells, fold=True)


def _show_paired(console: Console, result: dict[str, Any]) -> None:
    head = [
        "method", "metric", "A %", "B %", "A - B", "95 % CI", "p", "p Holm", "p folds", "p folds Holm", "detectable",
    ]  # fmt: skip
    cells, counts = [], []
    for entry in result["comparisons"]:
        name = _pair(entry)
        for metric, alias in FIGURES.items():
            one = entry["metrics"][metric]
            interval, detectable = one["interval"], one["minimal_detectable"]
            cells.append(
                [name, alias, _percent(one["first_value"]), _percent(one["second_value"]), _points(one["difference"]),
                 f"{_points(interval['low'])} to {_points(interval['high'])}" if interval else DASH,
                 *_p(one["primary"]), *_p(one["secondary"]),
                 f"{detectable['points']:.1f}" if detectable and detectable["points"] is not None else DASH]
            )  # fmt: skip
        counts.append([name, str(entry["wins"]), str(entry["losses"]), str(entry["ties"])])
    design = result["comparisons"][0]["design"]
    show_line(console, "\n[bold]Results[/] over all test items, averaged over seeds. A - B in points; detectable: "
          "the difference found with 80 % power, in points")  # fmt: skip
    _table(console, head, cells)
    for entry in result["comparisons"]:
        if entry["doubt"]:
            show_line(console, f"[bold]{escaped(_pair(entry))}: {escaped(entry['doubt'])}[/]")
    show_line(console, f"p: {_test(result, 'primary')}; p folds: {_test(result, 'secondary')}; Holm correction over "
          f"{result['family']['size']} tests")  # fmt: skip
    seeds = "; ".join(
        f"{letter} {', '.join(map(str, part))}" for letter, part in zip("AB", design["seeds"].values(), strict=True)
    )
    sources = f"{design['n_speakers'] or 'unknown'} {design['source_word']}s"
    show_line(console, f"Design: {design['n_items']} items, {design['n_folds']} folds, {sources}; "
          f"{escaped(design['reason'])}; seeds {seeds}")  # fmt: skip
    show_line(
        console,
        f"\n[bold]By {result['item']}[/]: right in most seeds: only A (wins), only B (losses), both or neither (ties)",
    )
    _table(console, ["method", "wins", "losses", "ties"], counts)
    shown = MANY_SHOWN if len(result["comparisons"]) > 1 else ONE_SHOWN
    rows = [
        [_pair(entry), row["item"], str(row["fold"]), row["speaker"] or DASH, row["class"],
         _share(row["first_right"]), _share(row["second_right"])]
        for entry in result["comparisons"]
        for row in entry["disagreements"][:shown]
    ]  # fmt: skip
    if rows:
        show_line(console, "\n[bold]Most consistent disagreements[/]: share of seeds that are right; at most "
              f"{shown} per method")  # fmt: skip
        _table(console, ["method", result["item"], "fold", design["source_word"], "class", "A", "B"], rows)


def _show_printed(console: Console, result: dict[str, Any]) -> None:
    ours = result["kind"] == "printed"
    head = ["", "row", "printed", "mean of its folds"]
    if ours:
        head = [*head[:3], "per clip, best on test", f"as reported by {result['item']}, WA", "UA"]
    cells = []
    for entry in result["comparisons"]:
        for letter, side in (("A", "first"), ("B", "second")):
            one = entry["figures"][side]
            printed, reported = one["print"], one["as_reported"]
            shown = (printed["text"] or DASH) + (" ✗" if printed["disagrees"] else "") if printed else DASH
            cells.append(
                [letter, one["label"], shown, _spread(one["as_published"])]
                + [_spread(reported[name]) if reported else DASH for name in FIGURES if ours]
            )
        cells.append(["", "A - B", "", _points(entry["difference"]), *(["", ""] if ours else [])])
    show_line(
        console,
        "\n[bold]Accuracy[/] in percent, mean ± sample standard deviation; ✗: printed value contradicts its folds",
    )
    _table(console, head, cells)
    rows = [
        [_pair(entry), str(row["session"]), _percent(row["first"]), _percent(row["second"]), _points(row["difference"])]
        for entry in result["comparisons"]
        for row in entry["folds"] or []
    ]
    if rows:
        show_line(console, "\n[bold]By session[/]")
        _table(console, ["method", "session", "A", "B", "A - B"], rows)
    tests = [entry for entry in result["comparisons"] if entry["test"]]
    if tests:
        show_line(console, f"\n[bold]Test[/] {escaped(tests[0]['test']['label'])}")
        cells = [[_pair(entry), _points(entry["test"]["mean"]), *_p(entry["test"])] for entry in tests]
        _table(console, ["method", "A - B", "p", "p Holm"], cells)
    for reason in dict.fromkeys(entry["no_test"] for entry in result["comparisons"] if entry["no_test"]):
        show_line(console, escaped(reason))


def _pair(entry: dict[str, Any]) -> str:
    """Name of the method, or both names if the two sides differ."""
    names = [name.rpartition("/")[2] for name in (_label(entry, "first"), _label(entry, "second"))]
    return names[0] if names[0] == names[1] else " - ".join(names)


def _label(entry: dict[str, Any], side: str) -> str:
    label: str = entry[f"{side}_label"] if f"{side}_label" in entry else entry["figures"][side]["label"]
    return label


def _test(result: dict[str, Any], name: str) -> str:
    """Describe the test, e.g. `sign-flip over speakers`."""
    test = result["comparisons"][0]["metrics"]["accuracy"][name]
    return f"{test['test']} over {test['unit']}s" if test else "no test"


def _table(console: Console, head: Sequence[str], cells: Sequence[Sequence[str]], *, fold: bool = False) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        table.add_column(escaped(name), overflow="fold" if fold else "ellipsis", no_wrap=not fold)
    for row in cells:
        table.add_row(*map(escaped, row))
    console.print(table)


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _spread(figure: dict[str, Any]) -> str:
    std = figure["sample_std"]
    return _percent(figure["mean"]) + (f" ± {_percent(std)} (n = {figure['n']})" if std is not None else "")


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _p(test: dict[str, Any] | None) -> list[str]:
    """The p-value of a test, uncorrected and Holm-corrected."""
    return [DASH if not test or test[name] is None else f"{test[name]:.3g}" for name in ("p", "p_holm")]


command.__name__ = "compare"
