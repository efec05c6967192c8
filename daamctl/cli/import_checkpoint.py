"""`daamctl import-checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from daamctl.methods.published import Recognised


def command(
    file: Annotated[Path, typer.Argument(help="A .pth, .pt or .safetensors file saved by the published code.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Output file. Default: next to FILE, with the method in its name."),
    ] = None,
    norm_axis: Annotated[
        int, typer.Option(help="Axis of a Mixture, which its file does not store: 1 for layers, 2 for features.")
    ] = 1,
) -> None:
    """Convert a checkpoint saved by the papers' published code into a daamctl weights file."""
    from daamctl.errors import ConfigError, MethodError
    from daamctl.methods import DensityBlock, load_published, save_weights
    from daamctl.methods.published import read_published, recognise

    state = read_published(file)
    seen = recognise(state, norm_axis=norm_axis)
    model = load_published(state, norm_axis=norm_axis)
    path = output or file.with_name(f"{file.stem}.{seen.method}.safetensors")
    if path.exists() and path.samefile(file):
        raise ConfigError(f"{path} is the checkpoint itself; choose another file with --output")
    if isinstance(model, DensityBlock) and output is not None:
        raise MethodError(f"a density block has no decoder and cannot be written to {output}")
    _show(seen, sum(p.numel() for p in model.parameters()))
    if isinstance(model, DensityBlock):
        typer.echo(f'no file written; load it with daamctl.methods.load_published("{file}", norm_axis={norm_axis})')
    else:
        save_weights(model, path, method=seen.method, **seen.sizes, settings=seen.settings, origin=None)
        typer.echo(f'load it with daamctl.methods.load_weights("{path}")')


def _show(seen: Recognised, num_parameters: int) -> None:
    """Print one line per fact."""
    facts = {"method": seen.method, **seen.sizes, **seen.settings, "parameters": f"{num_parameters:,}"}
    for name, value in {**facts, "note": seen.note}.items():
        typer.echo(f"{name.replace('_', ' '):<16}{value}")
