"""`daamctl identify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run


def command(
    run: Run,
    vectors: Annotated[Path, typer.Argument(help="File of embeddings: Parquet, npz or safetensors.")],
    encoder: Annotated[list[str], typer.Option(help="Preset, id or folder of an encoder to try. Repeatable.")],
    audio: Annotated[Path | None, typer.Option(help="Folder of the recordings, named like the items.")] = None,
    texts: Annotated[Path | None, typer.Option(help="Table of the texts, with the columns id and text.")] = None,
    items: Annotated[int, typer.Option(min=1, help="Number of items to embed again.")] = 8,
) -> None:
    """Say which encoder, layer, norm, pooling, input and arithmetic made vectors, or that none of these did."""
    from dataclasses import asdict

    from daamctl.cli.terminal import print_table, show_line
    from daamctl.stages import identify

    found = identify.run(vectors, encoders=encoder, audio=audio, texts=texts, items=items, device=run.device or "auto")
    if run.json:
        import json

        typer.echo(json.dumps({**asdict(found), "same": found.same, "exact": found.exact}, indent=2))
        return
    rows = [
        [str(one.layer), one.state, f"{one.distance:.4f}", one.next_state, f"{one.next_distance:.4f}"]
        for one in found.matches
    ]
    print_table(["layer of the file", "closest", "distance", "second closest", "distance"], rows, right=(2, 4))
    if found.exact:
        how = f"{found.pool}; input {found.reading}; computed in {found.precision}; {found.scale}"
        show_line(f"made by {found.encoder}: {how}; stored as {found.storage} ({found.items} items)")
    elif found.same:
        show_line(
            f"close to {found.encoder}, but not equal, {found.worst:.4f} apart: made by other weights, such as a "
            f"fine-tuned or later checkpoint, or by arithmetic that was not tried here ({found.items} items)"
        )
    else:
        show_line(
            f"made by none of these: the closest is {found.encoder}, {found.worst:.4f} apart ({found.items} items)"
        )
    for line in found.left_out:
        show_line(f"- not tried: {line}")
