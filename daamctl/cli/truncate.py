"""`daamctl truncate`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import print_content, show_path


def command(
    run: Run,
    margin: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=50.0,
            help="Loss in points of accuracy, or of entity F1, up to which fewer layers are enough. Choose it before "
            "you see results.",
        ),
    ] = 2.0,
) -> None:
    """Find how few layers of the encoder are enough: train on layers 1 to k for every k, and test against all.

    RUN is PIPELINE/METHOD; PIPELINE alone takes a closed-form probe, which is quick.
    """
    from daamctl.artifacts.layer_sets import find_truncation
    from daamctl.config import find_root
    from daamctl.stages import truncate

    path = truncate.run(find_root(), str(run.pipeline), margin=margin / 100, force=run.force)
    found = find_truncation(path.parent)
    assert found is not None
    if run.json:
        record = json.loads(path.read_text(encoding="utf-8"))
        shortest = found.shortest and found.shortest.layers[-1]
        rows = [{**row._asdict(), "enough": found.enough.get(row.set)} for row in found.rows]
        typer.echo(json.dumps({**record, "smallest": shortest, "layers": rows}, indent=2))
        return
    from daamctl.reporting.document import Folded, Table
    from daamctl.reporting.truncation import notes, section, sentence

    content = section(found).blocks
    blocks = [inner for block in content for inner in (block.blocks if isinstance(block, Folded) else [block])]
    print_content([block for block in blocks if isinstance(block, Table)], notes(found), sentence(found))
    show_path(path)
