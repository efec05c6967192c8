"""`daamctl serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from daamctl.cli.options import Run


def command(
    run: Run,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of an exported model.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0: all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free one.")] = 8000,
    encoder: Annotated[
        Path | None, typer.Option(help="Folder of the encoder, if the model does not contain it.")
    ] = None,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Largest request, in MB.")] = 50.0,
    max_seconds: Annotated[float, typer.Option(min=0.1, help="Longest recording, in seconds.")] = 600.0,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts in one request.")] = 256,
    max_characters: Annotated[int, typer.Option(min=1, help="Longest text or sentence.")] = 100_000,
    together: Annotated[
        int, typer.Option(min=1, help="Most clips, texts or images to predict together; long recordings take turns.")
    ] = 16,
    max_total_mb: Annotated[float, typer.Option(min=0.001, help="All unanswered requests together, in MB.")] = 256.0,
    max_connections: Annotated[int, typer.Option(min=1, help="Most open connections.")] = 128,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a client has to send its request.")] = 60.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name or address under which clients may ask, beside localhost and --host. '*': any."),
    ] = None,
) -> None:
    """Serve an exported model over HTTP, until Ctrl+C."""
    from daamctl.models.folder import record_file

    record_file(model)
    from daamctl.models.server import Limits
    from daamctl.stages import serve

    limits = Limits(max_mb, max_seconds, max_texts, max_characters, together, max_total_mb, max_connections, timeout)
    hosts = allow_host or ()
    serve.run(
        model,
        host=host,
        port=port,
        encoder=encoder,
        device=run.device or "auto",
        coverage=run.coverage,
        limits=limits,
        hosts=hosts,
    )
