"""`daamctl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import escaped, make_console, print_table

if TYPE_CHECKING:
    from daamctl.methods.contract import Finding

ALL = "all"


def command(
    run: Run,
    num_layers: Annotated[int, typer.Option(min=2, help="Number of encoder layers, with --method.")] = 24,
    width: Annotated[int, typer.Option(min=1, help="Width of a layer, with --method.")] = 1024,
    num_classes: Annotated[int, typer.Option(min=2, help="Number of classes, with --method.")] = 4,
) -> None:
    """Show hardware and software of this machine. With a pipeline, or --method NAME or all, check that methods work.

    With --method, --set takes settings of the method, e.g. --set num_heads=4.
    """
    method = run.method
    if run.pipeline is not None:
        if method is not None:
            raise typer.BadParameter(
                "cannot be combined with --method: it checks every method of the pipeline", param_hint="PIPELINE"
            )
        _pipeline(run)
        return
    if run.sets and method in (None, ALL):
        raise typer.BadParameter("needs one method (--method NAME) or a pipeline", param_hint="--set")
    sizes = {"num_layers": num_layers, "embed_dim": width, "num_classes": num_classes}
    if method is None:
        _machine()
    elif method == ALL:
        _methods(sizes)
    else:
        _method(method, run.sets or [], sizes)


def _machine() -> None:
    from daamctl.config import nearest_root
    from daamctl.doctor import examine

    print_table(make_console(None), ("", ""), examine(nearest_root()), bold=True)


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


def _pipeline(run: Run) -> None:
    """Check every method of a pipeline at the pipeline's sizes and print one line per method."""
    layout, config = run.settings()
    from daamctl.doctor import examine_pipeline
    from daamctl.errors import MethodError

    words, found = examine_pipeline(layout, config)
    typer.echo(words)
    findings = list(found)
    _show(findings)
    failing = [finding for finding in findings if not finding.ok]
    if failing:
        lines = "".join(f"\n  {finding.name}: {finding.text}" for finding in failing)
        raise MethodError(f"pipeline '{run.pipeline}': {len(failing)} of {len(findings)} methods failed{lines}")


def _show(findings: list[Finding]) -> None:
    """Print a table on a terminal, otherwise one unwrapped line per finding."""
    console = make_console()
    width = max([11, *(len(finding.name) for finding in findings)])
    if not console.is_terminal:
        for finding in findings:
            typer.echo(f"{_word(finding.ok):<6}  {finding.name:<{width}}  {finding.text}")
        return
    rows = (
        (f"[{'green' if one.ok else 'red'}]{_word(one.ok)}[/]", f"[bold]{escaped(one.name)}[/]", escaped(one.text))
        for one in findings
    )
    print_table(console, ("", "", ""), rows, markup=True)


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
