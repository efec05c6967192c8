"""`daamctl ui`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Print links to the runs of this project, and start the MLflow UI if no server has them. Sends nothing."""
    import os
    import sys

    from daamctl.config import find_root
    from daamctl.stages.track import unsent
    from daamctl.tracking import run_links, shown_store, store_uri

    root = find_root()
    uri = store_uri(root)
    served = uri.startswith("http")
    links = run_links(root, shown_store(root) if served else f"http://{host}:{port}")
    width = max(map(len, links))
    for name, link in links.items():
        typer.echo(f"{name:<{width}}  {link}")
    if line := unsent(root):
        typer.echo(line, err=True)
    if served:
        return
    typer.echo("The links work once the server runs; stop it with Ctrl+C.")
    sys.stdout.flush()
    words = ["ui", "--backend-store-uri", uri, "--host", host, "--port", str(port), "--workers", "1"]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *words])
