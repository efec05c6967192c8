"""`daamctl doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import escaped, is_terminal, print_table

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
    if run.pipeline is not None and method is not None:
        raise typer.BadParameter(
            "cannot be combined with --method: it checks every method of the pipeline", param_hint="PIPELINE"
        )
    if run.sets and run.pipeline is None and method in (None, ALL):
        raise typer.BadParameter("needs one method (--method NAME) or a pipeline", param_hint="--set")
    sizes = {"num_layers": num_layers, "embed_dim": width, "num_classes": num_classes}
    if run.pipeline is not None:
        layout, config = run.settings()
        from daamctl.stages.doctor import examine_pipeline

        words, found = examine_pipeline(layout, config)
        typer.echo(words)
        _show(list(found), f"pipeline '{run.pipeline}'", "methods")
    elif method is None:
        from daamctl.config import nearest_root
        from daamctl.stages.doctor import examine

        print_table(("", ""), examine(nearest_root()), width=None, bold=True)
    elif method == ALL:
        _methods(sizes)
    else:
        from daamctl.config import parse_overrides
        from daamctl.methods import resolve_method

        resolve_method(method)
        from daamctl.stages.doctor import examine_method

        _show(list(examine_method(method, parse_overrides(run.sets or []), **sizes)), method, "checks")


def _show(findings: list[Finding], what: str, checked: str) -> None:
    """Print a table on a terminal, otherwise one unwrapped line per finding.

    Raises:
        MethodError: a finding is not as it should be.
    """
    from daamctl.errors import MethodError

    width = max([11, *(len(finding.name) for finding in findings)])
    if is_terminal():
        rows = (
            (f"[{'green' if one.ok else 'red'}]{_word(one.ok)}[/]", f"[bold]{one.name}[/]", escaped(one.text))
            for one in findings
        )
        print_table(("", "", ""), rows, markup=True)
    else:
        for one in findings:
            typer.echo(f"{_word(one.ok):<6}  {one.name:<{width}}  {one.text}")
    if failing := [f"\n  {finding.name}: {finding.text}" for finding in findings if not finding.ok]:
        raise MethodError(f"{what}: {len(failing)} of {len(findings)} {checked} failed{''.join(failing)}")


def _methods(sizes: dict[str, int]) -> None:
    """Check every method and print one line per method."""
    from daamctl.errors import MethodError
    from daamctl.methods import METHODS
    from daamctl.stages.doctor import examine_method

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
