"""`daamctl check`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli import common


def command(
    pipeline: common.Pipeline = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write what each stage reads to data/check/ (for DVC).")
    ] = False,
) -> None:
    """Validate every pipeline's settings and show all errors at once; needs no GPU and no torch."""
    from daamctl.config import find_root
    from daamctl.stages import check

    names = check.run(find_root(), [pipeline] if pipeline else None, write=write)
    typer.echo(f"{len(names)} pipeline(s) valid: {', '.join(names)}")


command.__name__ = "check"
