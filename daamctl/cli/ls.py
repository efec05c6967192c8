"""`daamctl ls`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    what: Annotated[
        str | None,
        typer.Argument(help="pipelines, corpora, encoders, methods, finetunes, blocks or metrics. Default: all."),
    ] = None,
) -> None:
    """List pipelines, corpora, encoders, methods, fine-tuning methods, blocks and metrics."""
    from daamctl.config import nearest_root
    from daamctl.errors import UnknownNameError
    from daamctl.listing import KINDS, entries

    if what is not None and what not in KINDS:
        raise UnknownNameError("category", what, KINDS)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(soft_wrap=False)
    for kind in [what] if what else KINDS:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for name, text in entries(kind):
            table.add_row(escape(name), escape(text))
        where = " (of a new project: daamctl init DIR)" if kind == "pipelines" and nearest_root() is None else ""
        console.print(f"[bold underline]{kind}[/]{where}")
        console.print(table)
