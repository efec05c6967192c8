"""The `daamctl` command: registers the subcommands and reports expected errors as one message with exit code 3."""

from __future__ import annotations

import importlib
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from daamctl import __version__
from daamctl.cli import (
    check,
    common,
    compare,
    deviations,
    doctor,
    explain,
    export,
    import_checkpoint,
    init,
    ls,
    mlm,
    new,
    paper,
    plan,
    predict,
    preflight,
    run,
    serve,
    shots,
    show,
    track,
    truncate,
    ui,
)
from daamctl.stage_table import STAGES

EXPECTED_FAILURE = 3
SIGNALLED = 128
"""A process that a signal ended exits with this plus the number of the signal."""
NO_MEMORY = (
    "Cannot allocate memory",
    "can't allocate memory",
    "failed to map segment from shared object",
    "can't start new thread",
    "out of memory",
)
"""Words of libraries that could not get memory; few of them raise MemoryError."""
KEPT = {
    "extract": "finished shards are kept",
    "train": "finished folds and saved epochs are kept",
    "finetune": "finished folds and saved epochs are kept",
    "ablate": "finished folds are kept",
    "truncate": "finished folds are kept",
    "mlm": "finished trainings are kept",
    "predict": "with --out, finished items are kept",
}
"""What is left of a command that was interrupted, if not simply all that it finished."""


class _Signalled(KeyboardInterrupt):
    """Another signal than Ctrl+C asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class _Group(TyperGroup):
    """Command group that prints expected errors to stderr without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        from daamctl.errors import DaamctlError

        try:
            with _end_cleanly():
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            kept = KEPT.get(ctx.invoked_subcommand, "what is finished is kept")
            typer.echo(f"interrupted; {kept}; run the same command again to resume", err=True)
            number = stop.number if isinstance(stop, _Signalled) else signal.SIGINT
            raise typer.Exit(SIGNALLED + number) from None
        except DaamctlError as error:
            message = f"{type(error).__name__}: {error}"
        except Exception as error:
            message = _explained(error)
            if not message:
                raise
        typer.echo(message, err=True)
        raise typer.Exit(EXPECTED_FAILURE)


@contextmanager
def _end_cleanly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl+C does, so that temporary files, locks and workers are cleared.

    A second signal ends the process at once. What somebody ignores, as nohup does, stays ignored.
    """

    def stop(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise _Signalled(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _explained(error: Exception) -> str:
    """Message about an error of the file system or of memory; empty for any other, which is a bug."""
    from daamctl.files import repair_of

    advice = repair_of(error)
    if advice is not None:
        return f"ArtifactError: {error}\n  {advice}"
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, MemoryError) or any(words in reason for words in NO_MEMORY):
        return (
            f"MemoryError: there is not enough memory{f': {reason}' if reason else ''}\n"
            "  end what else runs here, or raise the limit (ulimit -v), then run it again"
        )
    return ""


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
    _command = importlib.import_module(f"daamctl.cli.{_stage}").command
    app.command(name=_stage, rich_help_panel="Stages")(common.pipeline_first(_command))
_OTHER = (
    init,
    run,
    plan,
    paper,
    show,
    shots,
    preflight,
    compare,
    truncate,
    mlm,
    export,
    predict,
    serve,
    ls,
    new,
    deviations,
    explain,
    check,
    doctor,
    track,
    ui,
    import_checkpoint,
)
for _module in _OTHER:
    app.command(rich_help_panel="Other commands")(common.pipeline_first(_module.command))


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
