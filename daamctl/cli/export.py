"""`daamctl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run
from daamctl.cli.terminal import show_path


def command(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.", show_default=False)],
    folds: Annotated[
        str,
        typer.Option(
            metavar="mean|N|refit",
            help="mean: average the folds' logits; N: this fold; refit: train on all data.",
        ),
    ] = "mean",
    layers: Annotated[
        str | None,
        typer.Option(metavar="1-K", help="Train on the layers 1 to K only (see truncate), and export that."),
    ] = None,
    with_encoder: Annotated[
        bool, typer.Option("--with-encoder", help="Include the encoder, so that the folder works offline.")
    ] = False,
    encoder: Annotated[Path | None, typer.Option(help="Its folder, if it is not where the settings say.")] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write encoder and method as one ONNX graph (daamctl[onnx]).")
    ] = False,
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="Also register the model in MLflow, under this name.")
    ] = None,
) -> None:
    """Export a trained method as a folder that predicts new files. RUN is PIPELINE/METHOD, e.g. emodb/daam-v1."""
    from daamctl.config import find_root
    from daamctl.stages import export

    written = export.run(
        find_root(),
        str(run.pipeline),
        out,
        folds=folds,
        layers=layers,
        with_encoder=with_encoder,
        encoder=encoder,
        onnx=onnx,
        register=register,
        force=run.force,
    )
    show_path(written)
