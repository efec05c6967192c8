"""`daamctl ui`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Start the MLflow UI for the runs of this project."""
    import os
    import sys

    from daamctl.config import find_root
    from daamctl.errors import DaamctlError

    root = find_root()
    remote = os.environ.get("MLFLOW_TRACKING_URI")
    if remote and remote.startswith("http"):
        from daamctl.tracking import shown_store

        typer.echo(f"runs are logged to the MLflow server at {shown_store(root)}; open that address in a browser")
        return
    uri = remote or f"sqlite:///{root / 'mlflow.db'}"
    if not remote and not (root / "mlflow.db").exists():
        raise DaamctlError(f"no runs in {root} yet", fix="run a pipeline first: daamctl run demo")
    words = ["ui", "--backend-store-uri", uri, "--host", host, "--port", str(port)]
    typer.echo(f"http://{host}:{port}  (stop with Ctrl+C)")
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *words])


command.__name__ = "ui"
