"""`daamctl import-vectors`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from daamctl.cli.options import whole_numbers


class TimePooling(StrEnum):
    """What becomes of the time axis."""

    mean = "mean"
    last = "last"


def command(
    source: Annotated[Path, typer.Argument(help="Folder of items, file of items, or task of HEAR.")],
    table: Annotated[
        Path | None, typer.Option(help="Table with id and label, optionally speaker, group, utterance, sentence.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")] = Path("vectors.parquet"),
    axes: Annotated[
        str | None,
        typer.Option(metavar="LTD", help="Order of layers (L), time (T), features (D). Default: by what is stored."),
    ] = None,
    pool: Annotated[
        TimePooling, typer.Option(help="Mean over the time axis, or its last position.")
    ] = TimePooling.mean,
    layers: Annotated[
        Any | None,
        typer.Option(
            metavar="N,N,…", parser=whole_numbers, help="Numbers of the layers. Default: as stored, or from 1."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What made the vectors, for the report.")] = None,
) -> None:
    """Read vectors that another tool stored item by item, and write the file that `corpus: embeddings` takes."""
    from daamctl.artifacts.terms import counted
    from daamctl.cli.terminal import show_line, show_path
    from daamctl.corpora.dumps import import_vectors

    found = import_vectors(source, out, table=table, axes=axes, pool=pool.value, layers=layers, name=name)
    items, _, width = found.shape
    span = f", {pool.value} of {found.steps[0]} to {found.steps[1]} frames or tokens" if found.steps else ""
    stored = f"axes {found.axes}: layers {', '.join(map(str, found.layers))} of {width} features{span}"
    show_line(f"{counted(items, 'item')}, {stored}")
    if found.unlisted:
        show_line(f"left out: {counted(found.unlisted, 'item')} that the table does not list")
    show_path(out)
    show_line(f"use it in a pipeline: download: {{corpus: embeddings, source: {out}}}")
