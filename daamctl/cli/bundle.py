"""`daamctl bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import show_path


def command(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. Default: PIPELINE.zip here.", show_default=False)
    ] = None,
) -> None:
    """Write a run as one file that anybody can verify: settings, predictions, tables, report, methods section."""
    from daamctl.config import find_root
    from daamctl.stages import bundle

    show_path(bundle.write(find_root(), str(run.pipeline), out))
