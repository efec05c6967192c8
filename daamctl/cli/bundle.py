"""`daamctl bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import complete_pipeline
from daamctl.cli.terminal import show_path


def command(
    name: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A pipeline or run that was evaluated.", autocompletion=complete_pipeline),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Default: RUN.zip here.", show_default=False)
    ] = None,
) -> None:
    """Write a run as one file that anybody can verify: settings, predictions, tables, report, methods section."""
    from daamctl import bundle
    from daamctl.config import find_root

    show_path(bundle.write(find_root(), name, out))
