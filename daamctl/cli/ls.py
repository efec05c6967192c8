"""`daamctl ls`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli.terminal import print_table, show_line


def command(
    what: Annotated[
        str | None,
        typer.Argument(help="pipelines, corpora, encoders, methods, finetunes, blocks or metrics. Default: all."),
    ] = None,
) -> None:
    """List pipelines, corpora, encoders, methods, fine-tuning methods, blocks and metrics."""
    from daamctl.config import nearest_root
    from daamctl.errors import UnknownNameError
    from daamctl.stages.ls import KINDS, entries

    if what is not None and what not in KINDS:
        raise UnknownNameError("category", what, KINDS)
    for kind in [what] if what else KINDS:
        where = " (of a new project: daamctl init DIR)" if kind == "pipelines" and nearest_root() is None else ""
        show_line(f"[bold underline]{kind}[/]{where}")
        print_table(("", ""), entries(kind), width=None, bold=True)
