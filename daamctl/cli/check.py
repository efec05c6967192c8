"""`daamctl check`."""

from __future__ import annotations

from typing import Annotated

import typer

from daamctl.cli.options import Run


def command(
    run: Run,
    write: Annotated[
        bool, typer.Option("--write", help="Also write stages.yaml, the stages that dvc.yaml has.")
    ] = False,
    inventory: Annotated[
        bool,
        typer.Option(
            "--inventory", help="Show which pipelines can run here and what the others need; write data/check/ for DVC."
        ),
    ] = False,
) -> None:
    """Check the settings of every pipeline and show all errors at once. Needs no GPU and does not import torch."""
    from daamctl.config import find_root

    pipeline = run.pipeline
    if inventory:
        _show_inventory(pipeline)
        return
    from daamctl.stages import check

    names = check.run(find_root(), [pipeline] if pipeline else None, write=write)
    typer.echo(f"{len(names)} pipeline(s) valid: {', '.join(names)}")


def _show_inventory(pipeline: str | None) -> None:
    from daamctl.artifacts.dag import check_stages
    from daamctl.config import find_root
    from daamctl.stages import inventory

    check_stages(find_root())
    found = inventory.run(find_root(), [pipeline] if pipeline else None)
    running = [name for name, obstacle in found.items() if obstacle is None]
    typer.echo(f"{len(running)} of {len(found)} pipeline(s) can run here: {', '.join(running) or 'none'}")
    for obstacle in dict.fromkeys(obstacle for obstacle in found.values() if obstacle is not None):
        typer.echo(f"{', '.join(name for name, other in found.items() if other == obstacle)}: {obstacle.reason}")
        if obstacle.fix:
            typer.echo(f"  {obstacle.fix}")
