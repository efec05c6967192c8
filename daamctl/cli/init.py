"""`daamctl init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new project.")],
) -> None:
    """Make a project: settings, pipelines and the DVC graph. Files that exist are never changed."""
    import shlex

    from daamctl.stages import init

    refusal = init.run(folder.absolute())
    typer.echo(f"{folder} is a project. Next:")
    if folder.absolute() != Path.cwd():
        typer.echo(f"  cd {shlex.quote(str(folder))}")
    for words, purpose in (
        ("daamctl run demo", "run all stages on a built-in corpus; with DVC: dvc repro report@demo"),
        ("daamctl ls", "see pipelines, corpora, encoders and methods"),
        ("daamctl doctor", "see what this machine has"),
    ):
        typer.echo(f"  {words:<16}  # {purpose}")
    if refusal is not None:
        typer.echo(f"dvc repro needs DVC, which could not be set up ({refusal}). Later: dvc init", err=True)
