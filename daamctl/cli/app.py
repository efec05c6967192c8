"""The `daamctl` command: registers the subcommands and reports expected errors as one message with exit code 3."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from daamctl.cli.options import with_options
from daamctl.data.stage_table import STAGES
from daamctl.store.version import __version__

EXPECTED_FAILURE = 3
SIGNALLED = 128
"""A process that a signal ended exits with this plus the number of the signal."""
ANSWER_S: dict[int, float] = {signal.SIGINT: 1.0, signal.SIGTERM: 5.0, signal.SIGHUP: 5.0}
"""Seconds that a signal leaves to clear temporary files and workers."""
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
    "train": "finished folds and saved steps are kept",
    "finetune": "finished folds and saved steps are kept",
    "ablate": "finished folds are kept",
    "truncate": "finished folds are kept",
    "mlm": "finished trainings and saved steps are kept",
    "reconstruct": "finished trainings and saved steps are kept",
    "predict": "with --out, finished items are kept",
    "protocols": "finished probes of a protocol are kept",
}
"""What is left of a command that was interrupted, if not simply all that it finished."""
NOTHING_KEPT = ("bundle", "identify", "judge", "serve", "ui", "verify")
"""Commands that write all at their end, or nothing."""


class _Group(TyperGroup):
    """Command group that prints expected errors to stderr without a traceback."""

    running: Any = None
    """Context of the command, until its end is told."""
    signalled = 0
    """Number of the signal that ends it."""

    def invoke(self, ctx: Any) -> Any:
        _Group.running = ctx
        with _in_one_message(), _end_cleanly():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **more: Any) -> Any:
        _Group.running, _Group.signalled = None, 0
        with _in_one_message():  # --version prints here
            return super().make_context(*args, **more)


class _Command(TyperCommand):
    """Command that refuses an option given twice, of which the last value alone would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _Group.running = ctx
        found = self.make_parser(ctx).parse_args(args=list(args))[2]
        for option in () if ctx.resilient_parsing else found:
            takes_one = isinstance(option, TyperOption) and not (option.multiple or option.count or option.is_flag)
            if takes_one and found.count(option) > 1:
                ctx.fail(f"{option.opts[0]} is given {found.count(option)} times, but takes one value.")
        return super().parse_args(ctx, args)


def _interrupted() -> str:
    """That the command was interrupted, and what is kept; empty if it was told already."""
    ctx, _Group.running = _Group.running, None
    if ctx is None:
        return ""
    if ctx.info_name in NOTHING_KEPT:
        return "interrupted; nothing is kept; the same command starts from the beginning\n"
    kept = KEPT.get(ctx.info_name, "what is finished is kept")
    how = "to resume"
    if ctx.info_name in KEPT and ctx.params.get("force"):
        how = "without --force to resume; with --force it starts over"
    return f"interrupted; {kept}; run the same command again {how}\n"


@contextmanager
def _in_one_message() -> Iterator[None]:
    """Tell an interruption or an expected error of the block, and exit; let any other error through."""
    from daamctl.errors import DaamctlError

    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, KeyboardInterrupt) or _Group.signalled:  # which a library may turn into another error
            number = _Group.signalled or signal.SIGINT
            typer.echo(_interrupted(), err=True, nl=False)
            raise typer.Exit(SIGNALLED + number) from None
        message = f"{type(error).__name__}: {error}" if isinstance(error, DaamctlError) else _explained(error)
        if not message:
            raise
        typer.echo(message, err=True)
        raise typer.Exit(EXPECTED_FAILURE) from None


@contextmanager
def _end_cleanly() -> Iterator[None]:
    """Let Ctrl+C, SIGTERM and SIGHUP end the block, so that temporary files, locks and workers are cleared.

    While a module is imported, or at a second signal, the process ends at once: libraries swallow an exception there.
    What somebody ignores, as nohup does, stays ignored.
    """

    def stop(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)
        _Group.signalled = number
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                _end_now(number)
            frame = frame.f_back
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    handled = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _end_now(number: int) -> None:
    """End the process and its workers without clearing anything; what is finished is written already."""
    os.write(2, _interrupted().encode())  # not through a buffer, which another thread may hold
    if multiprocessing := sys.modules.get("multiprocessing"):
        for worker in multiprocessing.active_children():
            worker.kill()
    os._exit(SIGNALLED + number)


def _watch(signals: int) -> None:
    """End the process some time after a signal, which Python writes to `signals`, if something does not let go.

    That is a long call, or a callback of the garbage collector, from which Python lets no exception out.
    """
    while True:
        number = os.read(signals, 1)[0]
        serves = _Group.running is not None and _Group.running.info_name == "serve"
        if number == signal.SIGINT or (number in ANSWER_S and not serves):  # `serve` answers what it was asked
            time.sleep(ANSWER_S[number])
            _end_now(number)


def _explained(error: Exception) -> str:
    """Message about an error of the file system or of memory; empty for any other, which is a bug."""
    from daamctl.store.files import repair_of

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
    epilog="A command about a pipeline takes it first: daamctl plan demo. To run all of it: daamctl run demo.",
)
PANELS = {
    "First steps": "init doctor ls new plan run show compare judge export predict",
    "Stages, in the order in which `run` runs them": " ".join(STAGES),
    "Questions before and after a run": "check explain preflight protocols truncate mlm shots deviations paper",
    "Models and records": "serve import-checkpoint import-vectors identify bundle verify track ui",
}
"""Heading of `daamctl --help` -> its commands."""
for _panel, _names in PANELS.items():
    for _name in _names.split():
        _module = importlib.import_module(f"daamctl.cli.{'stages' if _name in STAGES else _name.replace('-', '_')}")
        _help = STAGES[_name].help if _name in STAGES else None
        app.command(_name, cls=_Command, help=_help, rich_help_panel=_panel)(with_options(_module.command, _name))


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
    from daamctl.compute.environment import prepare

    prepare(verbose=verbose)


def main() -> None:
    """Entry point of the console script."""
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(signals,), daemon=True).start()
    try:
        app()
    except SystemExit as end:
        if _Group.signalled:  # Python would take seconds to clear modules
            stopped = 0 if _Group.signalled != signal.SIGINT else SIGNALLED + signal.SIGINT  # `serve` ends by itself
            os._exit(int(end.code or stopped))
        raise
