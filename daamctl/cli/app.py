"""The `daamctl` command: registers the subcommands and reports expected errors as one message with exit code 3."""

from __future__ import annotations

import errno
import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from daamctl import __version__
from daamctl.cli import (
    check,
    compare,
    deviations,
    doctor,
    import_checkpoint,
    init,
    ls,
    paper,
    plan,
    preflight,
    run,
    track,
    ui,
)
from daamctl.stage_table import STAGES

EXPECTED_FAILURE = 3
INTERRUPTED = 130
FILE_SYSTEM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


class _Group(TyperGroup):
    """Command group that prints expected errors to stderr without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        from daamctl.errors import DaamctlError

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted; run the same command again to resume", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except DaamctlError as error:
            message = f"{type(error).__name__}: {error}"
        except Exception as error:
            if not _is_file_system(error):
                raise
            message = f"ArtifactError: {error}\n  free space or fix permissions, then run it again"
        typer.echo(message, err=True)
        raise typer.Exit(EXPECTED_FAILURE)


def _is_file_system(error: Exception) -> bool:
    """Whether a write failed: disk full, read-only file system or no permission. Libraries wrap this differently."""
    return getattr(error, "errno", None) in FILE_SYSTEM or f"os error {errno.ENOSPC}" in str(error)


app = typer.Typer(
    name="daamctl",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Probe frozen encoders layer by layer, and test Density Adaptive Attention against simple baselines.",
    epilog=f"Stages, in order: {', '.join(STAGES)}. "
    "To run a whole pipeline: daamctl run demo, or dvc repro report@demo.",
)

for _stage in STAGES:
    app.command(name=_stage, rich_help_panel="Stages")(importlib.import_module(f"daamctl.cli.{_stage}").command)
_OTHER = (init, run, plan, paper, preflight, compare, ls, deviations, check, doctor, track, ui, import_checkpoint)
for _module in _OTHER:
    app.command(rich_help_panel="Other commands")(_module.command)


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def callback(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show debug messages.")] = False,
) -> None:
    """Set up logging and the environment before any command runs."""
    from daamctl.environment import prepare

    prepare(verbose=verbose)


def main() -> None:
    """Entry point of the console script."""
    app()
