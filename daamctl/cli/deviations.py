"""`daamctl deviations`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli.options import complete_pipeline
from daamctl.cli.terminal import escaped, print_table

PLAIN_WIDTH = 220
"""Width of the table in characters when the output is not a terminal."""
MOST_COLUMNS = 3
"""With more pipelines, they have no column each."""


def command(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of files in pipelines/, without .yaml. Default: all.", autocompletion=complete_pipeline
        ),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option("--pipeline", "-p", help="The same as PIPELINES. Repeatable.", autocompletion=complete_pipeline),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    definitions: Annotated[
        bool,
        typer.Option("--definitions", help="Show the deviations only, without the pipelines, as in docs/sources.md."),
    ] = False,
) -> None:
    """Show where the papers' code deviates from their text, and which variant each pipeline uses."""
    from daamctl.config import find_root, load_config, pipeline_names
    from daamctl.paper.deviations import ALWAYS, AS_PUBLISHED, CORRECTED, NOT_HERE, deviations, verdict

    pipelines = [*(pipelines or []), *(named or [])]
    if definitions and pipelines:
        raise typer.BadParameter(
            "cannot be combined with pipelines: it shows the deviations only", param_hint="--definitions"
        )
    configs = {}
    if not definitions:
        root = find_root()
        configs = {name: load_config(root, name) for name in pipelines or pipeline_names(root)}
    head = ["D", "class", "finding", "switch", "as-published", "corrected", *configs]
    rows = [
        [f"D{row.number}", row.kind, row.finding, row.where, row.published, row.corrected]
        + [verdict(row, config) for config in configs.values()]
        for row in deviations()
    ]
    if markdown:
        for cells in [head, ["---"] * len(head), *rows]:
            typer.echo(f"| {' | '.join(cells)} |")
        return
    # a terminal has no room for variants that are long texts, nor for a column for each of many pipelines
    if len(configs) > MOST_COLUMNS:
        head = ["D", "class", "finding", "as-published in", "otherwise"]
        rows = [[*cells[:3], *_in_words(dict(zip(configs, cells[6:], strict=True)))] for cells in rows]
    elif configs:
        head, *rows = ([*cells[:4], *cells[6:]] for cells in (head, *rows))
    styles = {AS_PUBLISHED: "yellow", CORRECTED: "green", ALWAYS: "green", NOT_HERE: "dim"}
    shown = ([f"[{styles[cell]}]{cell}[/]" if cell in styles else escaped(cell) for cell in row] for row in rows)
    print_table(head, shown, width=PLAIN_WIDTH, markup=True)


def _in_words(verdicts: dict[str, str]) -> tuple[str, str]:
    """The pipelines that do as the released code does, and how many do what else."""
    from daamctl.paper.deviations import ALWAYS, AS_PUBLISHED, CORRECTED, NOT_HERE

    names: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        names.setdefault("other" if verdict.startswith("other") else verdict, []).append(name)
    published = ", ".join(names.pop(AS_PUBLISHED, [])) or "–"
    if names.keys() == {ALWAYS}:
        return published, ALWAYS
    words = {CORRECTED: CORRECTED, ALWAYS: ALWAYS, NOT_HERE: "not concerned"}
    told = [f"{len(names[state])} {word}" for state, word in words.items() if state in names]
    return published, "; ".join([*told, *([f"other: {', '.join(names['other'])}"] if "other" in names else [])])
