"""`daamctl show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli.options import Alone, Run
from daamctl.cli.terminal import escaped, print_table, show_line

if TYPE_CHECKING:
    from daamctl.artifacts.evaluation import Evaluation
    from daamctl.config import Config
    from daamctl.layout import Layout

Gap = tuple[float, float | None, float | None, float | None]
"""Method minus reference, both ends of its interval, and the corrected p-value."""
PLAIN_WIDTH = 200
ALPHA = 0.05


TABLE_NAMES = ("figures", "scores", "comparisons", "confusion", "speakers", "history", "layers")


def command(
    run: Run,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help=f"One of {', '.join(TABLE_NAMES)}. Default: a summary.",
            autocompletion=lambda incomplete: [name for name in TABLE_NAMES if name.startswith(incomplete)],
        ),
        Alone(lambda word: word in TABLE_NAMES),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV.")] = False,
) -> None:
    """Print the results of an evaluation: each method, its interval, its difference from the reference, and a verdict.

    RUN is PIPELINE, or PIPELINE/METHOD for one method beside the reference. With TABLE, print a table of all figures.
    """
    from daamctl.artifacts.runs import find_run
    from daamctl.config import find_root

    name, _, method = str(run.pipeline).partition("/")
    layout, config = find_run(find_root(), name)
    if table is not None or csv or run.json:
        show_table(
            layout, table or "figures", method=method or None, form="csv" if csv else "json" if run.json else "text"
        )
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
        cells = (
            ["–" if one is None else f"{one:.4g}" if isinstance(one, float) else str(one) for one in row]
            for row in rows.iter_rows()
        )
        numeric = [index for index, kind in enumerate(rows.dtypes) if kind.is_numeric()]
        print_table(rows.columns, cells, width=PLAIN_WIDTH, right=numeric)


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
    from daamctl.artifacts.evaluation import read_evaluation
    from daamctl.errors import UnknownNameError
    from daamctl.evaluation.consistency import scored_folds
    from daamctl.reporting.answers import fusing
    from daamctl.reporting.document import percent, points
    from daamctl.reporting.verdict import against, labelled, order, warnings

    evaluation = read_evaluation(layout.stage("evaluate"))
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
    cells = []
    figure = "entity F1 %" if tagged else f"accuracy % per {evaluation.item}"
    head = ("method", figure, "95 % interval", f"minus {reference} (points) [95 %, not corrected]", "verdict")
    for name in rows:
        if only not in (None, name) and name != reference:
            continue
        value, interval = evaluation.accuracy(name).mean, evaluation.methods[name].intervals.metrics["accuracy"]
        if tagged and name in tagged.methods:
            value, interval = tagged.methods[name].f1.value, tagged.methods[name].f1
        gap, low, high, p = gaps.get(name, (None, None, None, None))
        text = "" if gap is None else points(gap) + (f" [{points(low)}, {points(high)}]" if low is not None else "")
        limits = f"{percent(interval.low)} to {percent(interval.high)}" if interval else "–"
        cells.append((name, percent(value), limits, text, _verdict(evaluation, name, gap, p)))
    show_line(f"[bold]{escaped(evaluation.run)}[/]")
    print_table(head, cells, width=PLAIN_WIDTH)
    if not tagged and evaluation.num_folds > 1:
        show_line("Accuracies are means over folds; intervals and differences are over all items.")
    for text in (*evaluation.leaks, *warnings(evaluation, stale)) if only is None else stale:
        show_line(f"[yellow]{escaped(text)}[/]")
    if only is None:
        show_line(escaped(fusing(evaluation)))


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
