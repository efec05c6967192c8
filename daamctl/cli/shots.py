"""`daamctl shots`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli.terminal import show_path


def command(
    family: Annotated[
        str,
        typer.Argument(
            metavar="FAMILY", help="The part before -N-shots of the pipelines' names, e.g. wnut17.", show_default=False
        ),
    ],
) -> None:
    """Write the report on a family of few-shot pipelines: entity F1 against the number of shots."""
    from daamctl.config import find_root
    from daamctl.stages import shots

    show_path(shots.run(find_root(), family))
