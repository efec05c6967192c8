"""`daamctl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli import common

if TYPE_CHECKING:
    from daamctl.methods.contract import Finding

ALL = "all"


def complete(incomplete: str) -> list[str]:
    """Shell completion: methods, and `all`."""
    return [name for name in (*common.complete_method(incomplete), ALL) if name.startswith(incomplete)]


def command(
    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", help="Check this method, or 'all', instead of the machine.", autocompletion=complete
        ),
    ] = None,
    pipeline: common.Pipeline = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting of the method or of the pipeline. Repeatable."
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=2, help="Number of encoder layers, with --method.")] = 24,
    width: Annotated[int, typer.Option(min=1, help="Width of a layer, with --method.")] = 1024,
    classes: Annotated[int, typer.Option(min=2, help="Number of classes, with --method.")] = 4,
) -> None:
    """Show hardware and software of this machine. With --method or --pipeline, check that methods work."""
    if pipeline is not None:
        if method is not None:
            raise typer.BadParameter(
                "cannot be combined with --method: it checks every method of the pipeline", param_hint="-p"
            )
        _pipeline(pipeline, sets)
        return
    if sets and method in (None, ALL):
        raise typer.BadParameter("needs one method (--method NAME) or a pipeline (-p NAME)", param_hint="--set")
    sizes = {"num_layers": layers, "embed_dim": width, "num_classes": classes}
    if method is None:
        _machine()
    elif method == ALL:
        _methods(sizes)
    else:
        _method(method, sets or [], sizes)


def _machine() -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from daamctl.config import nearest_root
    from daamctl.doctor import examine

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in examine(nearest_root()):
        table.add_row(name, escape(text))
    Console().print(table)


def _method(method: str, sets: list[str], sizes: dict[str, int]) -> None:
    """Check one method and print one line per check."""
    from daamctl.config import parse_overrides
    from daamctl.errors import MethodError
    from daamctl.methods import resolve_method

    resolve_method(method)
    from daamctl.doctor import examine_method

    findings = list(examine_method(method, parse_overrides(sets), **sizes))
    _show(findings)
    failing = [finding for finding in findings if not finding.ok]
    if failing:
        lines = "".join(f"\n  {finding.name}: {finding.text}" for finding in failing)
        raise MethodError(f"{method}: failed {len(failing)} of {len(findings)} checks{lines}")


def _pipeline(pipeline: str, sets: list[str] | None) -> None:
    """Check every method of a pipeline at the pipeline's sizes and print one line per method."""
    layout, config = common.resolve(pipeline, sets)
    from daamctl.doctor import examine_pipeline
    from daamctl.errors import MethodError

    words, found = examine_pipeline(layout, config)
    typer.echo(words)
    findings = list(found)
    _show(findings)
    failing = [finding for finding in findings if not finding.ok]
    if failing:
        lines = "".join(f"\n  {finding.name}: {finding.text}" for finding in failing)
        raise MethodError(f"pipeline '{pipeline}': {len(failing)} of {len(findings)} methods failed{lines}")


def _show(findings: list[Finding]) -> None:
    """Print a table on a terminal, otherwise one unwrapped line per finding."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    width = max([11, *(len(finding.name) for finding in findings)])
    if not console.is_terminal:
        for finding in findings:
            typer.echo(f"{_word(finding.ok):<6}  {finding.name:<{width}}  {finding.text}")
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        colour = "green" if finding.ok else "red"
        table.add_row(f"[{colour}]{_word(finding.ok)}[/]", finding.name, escape(finding.text))
    console.print(table)


def _methods(sizes: dict[str, int]) -> None:
    """Check every method and print one line per method."""
    from daamctl.doctor import examine_method
    from daamctl.errors import MethodError
    from daamctl.methods import METHODS

    width = max(map(len, METHODS))
    lines = []
    for method in METHODS:
        try:
            findings = list(examine_method(method, {}, **sizes))
        except MethodError as error:  # the method does not support these sizes, which is not a failure
            typer.echo(f"{'-':<6}  {method:<{width}}  {error.message}")
            continue
        failing = [finding.name for finding in findings if not finding.ok]
        text = f"fails {', '.join(failing)}" if failing else f"{len(findings)} checks"
        typer.echo(f"{_word(not failing):<6}  {method:<{width}}  {text}")
        lines += [f"\n  {method}: {finding.name}: {finding.text}" for finding in findings if not finding.ok]
    if lines:
        raise MethodError(f"failed checks: {len(lines)}{''.join(lines)}")


def _word(ok: bool) -> str:
    return "ok" if ok else "FAILED"
