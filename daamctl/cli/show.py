"""`daamctl show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli import common

if TYPE_CHECKING:
    from daamctl.artifacts.evaluation import Evaluation
    from daamctl.config import Config
    from daamctl.layout import Layout

Gap = tuple[float, float | None, float | None, float | None]
"""Method minus reference, both ends of its interval, and the corrected p-value."""
PLAIN_WIDTH = 200
ALPHA = 0.05


TABLE_NAMES = ("figures", "scores", "comparisons", "confusion", "speakers", "history", "layers")
TableName = Annotated[
    str | None,
    typer.Argument(
        metavar="[TABLE]",
        help=f"One of {', '.join(TABLE_NAMES)}. Default: a summary.",
        autocompletion=lambda incomplete: [name for name in TABLE_NAMES if name.startswith(incomplete)],
    ),
]


def command(
    argument: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="PIPELINE or PIPELINE/METHOD.", autocompletion=common.complete_run),
    ] = None,
    table: TableName = None,
    option: Annotated[
        str | None,
        typer.Option("--pipeline", "-p", metavar="RUN", help="The same as RUN.", autocompletion=common.complete_run),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON, a list of rows.")] = False,
) -> None:
    """Print the results of an evaluation: each method, its interval, its difference from the reference, and a verdict.

    RUN is PIPELINE, or PIPELINE/METHOD for one method beside the reference. With TABLE, print a table of all figures.
    """
    if option and argument in TABLE_NAMES and table is None:
        argument, table = None, argument  # daamctl show -p RUN TABLE
    run = common.one_of(argument, option, "RUN")
    if run is None:
        raise typer.BadParameter("give it as an argument, or with -p RUN", param_hint="RUN")
    common.check_run(run)
    from daamctl.artifacts.runs import find_run
    from daamctl.config import find_root

    name, _, method = run.partition("/")
    layout, config = find_run(find_root(), name)
    if table is not None or csv or json:
        show_table(layout, table or "figures", method=method or None, form="csv" if csv else "json" if json else "text")
    else:
        show_results(layout, config, method=method or None)


def show_table(layout: Layout, table: str, *, method: str | None = None, form: str = "text") -> None:
    """Print a table of a run.

    Args:
        table: one of `daamctl.evaluation.scores.TABLES`.
        method: only its rows; of comparisons, those with it on either side. None: all.
        form: text, csv or json.

    Raises:
        UnknownNameError: there is no such table.
        ArtifactError: the stage that writes it has not run, or a file is damaged.
    """
    import polars as pl
    from rich.console import Console
    from rich.table import Table

    from daamctl.evaluation.scores import csv_of, read_scores

    rows = read_scores(layout, table)
    if method is not None:
        sides = [name for name in ("method", "first", "second") if name in rows.columns]
        rows = rows.filter(pl.any_horizontal(pl.col(sides) == method))
    if form == "csv":
        typer.echo(csv_of(rows), nl=False)
    elif form == "json":
        typer.echo(rows.write_json())
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = PLAIN_WIDTH
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        numeric = [kind.is_numeric() for kind in rows.dtypes]
        for name, right in zip(rows.columns, numeric, strict=True):
            shown.add_column(name, justify="right" if right else "left")
        for row in rows.iter_rows():
            cells = ("–" if one is None else f"{one:.4g}" if isinstance(one, float) else str(one) for one in row)
            shown.add_row(*map(common.escaped, cells))
        console.print(shown)


def show_results(layout: Layout, config: Config | None = None, *, method: str | None = None) -> None:
    """Print the results of a run.

    Args:
        config: the current settings, to say whether the evaluation is of the folds that are there; None: it was just
            made, so only evaluation.json is read.
        method: the method to print beside the reference; None: all.

    Raises:
        ArtifactError: there is no evaluation, or it is damaged.
        UnknownNameError: the method was not evaluated.
    """
    from rich.console import Console
    from rich.table import Table

    from daamctl.artifacts.evaluation import read_evaluation
    from daamctl.errors import UnknownNameError
    from daamctl.evaluation.consistency import scored_folds
    from daamctl.reporting.answers import fusing
    from daamctl.reporting.document import percent, points
    from daamctl.reporting.verdict import against, labelled, order, warnings

    evaluation = read_evaluation(layout.stage("evaluate"), again=layout.command("evaluate"))
    if method is not None and method not in evaluation.methods:
        raise UnknownNameError("evaluated method", method, evaluation.methods)
    only = None if method is None else evaluation.methods[method].label
    stale = scored_folds(layout, config, evaluation)[1] if config else []
    evaluation = labelled(evaluation)
    reference, tagged = evaluation.comparison.reference, evaluation.entities
    gaps: dict[str, Gap] = {
        name: (one.difference, one.low, one.high, one.p_holm) for name, one in against(evaluation, "accuracy").items()
    }
    rows = order(evaluation)
    if tagged:
        for name, found in tagged.comparisons.items():
            ends = (found.interval.low, found.interval.high) if found.interval else (None, None)
            gaps[name] = found.difference, *ends, found.primary.p_holm if found.primary else None
        rows.sort(key=lambda name: -tagged.methods[name].f1.value if name in tagged.methods else 0.0)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    figure = "entity F1 %" if tagged else f"accuracy % per {evaluation.item}"
    for heading in ("method", figure, "95 % interval", f"minus {reference} (points) [95 %, not corrected]", "verdict"):
        table.add_column(common.escaped(heading))
    for name in rows:
        if only not in (None, name) and name != reference:
            continue
        value, interval = evaluation.accuracy(name).mean, evaluation.methods[name].intervals.metrics["accuracy"]
        if tagged and name in tagged.methods:
            value, interval = tagged.methods[name].f1.value, tagged.methods[name].f1
        gap, low, high, p = gaps.get(name, (None, None, None, None))
        text = "" if gap is None else points(gap) + (f" [{points(low)}, {points(high)}]" if low is not None else "")
        limits = f"{percent(interval.low)} to {percent(interval.high)}" if interval else "–"
        cells = (name, percent(value), limits, text, _verdict(evaluation, name, gap, p))
        table.add_row(*map(common.escaped, cells))
    common.show_line(console, f"[bold]{common.escaped(evaluation.run)}[/]")
    console.print(table)
    if not tagged and evaluation.num_folds > 1:
        common.show_line(console, "Accuracies are means over folds; intervals and differences are over all items.")
    for text in (*evaluation.leaks, *warnings(evaluation, stale)) if only is None else stale:
        common.show_line(console, f"[yellow]{common.escaped(text)}[/]")
    if only is None:
        common.show_line(console, common.escaped(fusing(evaluation)))


def _verdict(evaluation: Evaluation, name: str, gap: float | None, p: float | None) -> str:
    """What the corrected test says about a method; whoever is badly trained, on either side, puts it in doubt."""
    from daamctl.reporting.document import p_value
    from daamctl.reporting.verdict import doubtful

    reference, result = evaluation.comparison.reference, evaluation.comparison.result
    if name == reference:
        return "reference"
    if gap is None or p is None:
        return "not tested"
    alpha = result.family.alpha if result else ALPHA
    words = ("better" if gap > 0 else "worse") if p <= alpha else "no difference shown"
    doubt = "; training may explain it" if doubtful(evaluation, [name, str(reference)]) else ""
    return f"{words}, {p_value(p)} (Holm){doubt}"


command.__name__ = "show"
