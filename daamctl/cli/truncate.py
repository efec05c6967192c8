"""`daamctl truncate`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from daamctl.cli import common

if TYPE_CHECKING:
    from daamctl.artifacts.layer_sets import Truncation


def command(
    run: common.Run,
    margin: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=50.0,
            help="Loss in points of accuracy, or of entity F1, up to which fewer layers are enough. Choose it before "
            "you see results.",
        ),
    ] = 2.0,
    force: common.Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON instead of the table.")] = False,
) -> None:
    """Find how few layers of the encoder are enough: train on layers 1 to k for every k, and test against all.

    RUN is PIPELINE/METHOD; PIPELINE alone takes a closed-form probe, which is quick.
    """
    from daamctl.artifacts.layer_sets import find_truncation
    from daamctl.config import find_root
    from daamctl.stages import truncate

    path = truncate.run(find_root(), run, margin=margin / 100, force=force)
    found = find_truncation(path.parent, again=f"daamctl truncate {run}")
    assert found is not None
    if as_json:
        record = json.loads(path.read_text(encoding="utf-8"))
        shortest = found.shortest and found.shortest.layers[-1]
        rows = [{**row._asdict(), "enough": found.enough.get(row.set)} for row in found.rows]
        typer.echo(json.dumps({**record, "smallest": shortest, "layers": rows}, indent=2))
        return
    _show(found)
    common.show_path(path)


def _show(found: Truncation) -> None:
    from rich.console import Console
    from rich.table import Table

    from daamctl.reporting.document import Folded
    from daamctl.reporting.document import Table as Content
    from daamctl.reporting.truncation import notes, section, sentence

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    content = section(found, embeddings_key=found.embeddings_key, command="")
    assert content is not None
    blocks = [inner for block in content.blocks for inner in (block.blocks if isinstance(block, Folded) else [block])]
    for block in blocks:
        if isinstance(block, Content):
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            for name in block.columns:
                table.add_column(common.escaped(name))
            for row in block.rows:
                table.add_row(*(common.escaped(str(cell)) for cell in row))
            common.show_line(console, f"[bold]{common.escaped(block.caption)}[/]")
            console.print(table)
    for note in notes(found):
        common.show_line(console, f"- {common.escaped(note)}")
    common.show_line(console, f"[bold]{common.escaped(sentence(found))}[/]")
