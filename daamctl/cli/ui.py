"""`daamctl ui`."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    port: Annotated[int, typer.Option(help="Port on this machine.")] = 5000,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Open the MLflow UI on this project's runs."""
    import os
    import sys

    from daamctl.config import find_root
    from daamctl.errors import DaamctlError

    root = find_root()
    remote = os.environ.get("MLFLOW_TRACKING_URI")
    if remote and remote.startswith("http"):
        from daamctl.tracking import shown_store

        typer.echo(f"runs are logged to the server at {shown_store(root)}: open that address")
        return
    uri = remote or f"sqlite:///{root / 'mlflow.db'}"
    if not remote and not (root / "mlflow.db").exists():
        raise DaamctlError(f"no runs in {root} yet", fix="make some: daamctl run demo")
    words = ["ui", "--backend-store-uri", uri, "--host", host, "--port", str(port)]
    typer.echo(f"http://{host}:{port}  (stop with Ctrl+C)")
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *words])


command.__name__ = "ui"
