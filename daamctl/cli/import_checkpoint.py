"""`daamctl import-checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(help="A .pth, .pt or .safetensors file saved by the published code.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Output file. Default: next to FILE, with the method in its name."),
    ] = None,
    norm_axis: Annotated[
        int, typer.Option(help="Axis of a Mixture, which its file does not store: 1 for layers, 2 for features.")
    ] = 1,
) -> None:
    """Convert a checkpoint saved by the papers' published code into a daamctl weights file."""
    from daamctl.errors import MethodError
    from daamctl.methods import DensityBlock, load_published, read_metadata, save_weights
    from daamctl.methods.published import read_published, recognise
    from daamctl.store.files import check_output

    state = read_published(file)
    seen = recognise(state, norm_axis=norm_axis)
    model = load_published(state, norm_axis=norm_axis)
    path = out or file.with_name(f"{file.stem}.{seen.method}.safetensors")
    check_output(path, "a converted checkpoint", lambda path: not read_metadata(path).encoder)  # as trained ones have
    if isinstance(model, DensityBlock) and out is not None:
        raise MethodError(f"a density block has no decoder and cannot be written to {out}")
    parameters = sum(p.numel() for p in model.parameters())
    facts = {"method": seen.method, **seen.sizes, **seen.settings, "parameters": f"{parameters:,}", "note": seen.note}
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):<16}{value}")
    if isinstance(model, DensityBlock):
        typer.echo(f'no file written; load it with daamctl.methods.load_published("{file}", norm_axis={norm_axis})')
    else:
        save_weights(model, path, method=seen.method, **seen.sizes, settings=seen.settings, origin=None)
        typer.echo(f'load it with daamctl.methods.load_weights("{path}")')
