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
    import signal
    import subprocess
    import sys
    import time
    from contextlib import suppress

    from daamctl.config import find_root
    from daamctl.errors import ConfigError
    from daamctl.fit.tracking import run_links, shown_store, store_uri
    from daamctl.stages.serve import listen
    from daamctl.stages.track import unsent

    root = find_root()
    uri = store_uri(root)
    served = uri.startswith("http")
    links = run_links(root, shown_store(root) if served else f"http://{host}:{port}")
    if not served:
        listen(host, port).close()  # what else answers there would show the runs of another project under our links
    width = max(map(len, links))
    for name, link in links.items():
        typer.echo(f"{name:<{width}}  {link}")
    if line := unsent(root):
        typer.echo(line, err=True)
    if served:
        return
    typer.echo("The links work once the server runs; stop it with Ctrl+C.")
    sys.stdout.flush()
    # Runs need none of MLflow's workers for jobs, six processes that outlive the server by a minute after Ctrl+C.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    words = ["ui", "--backend-store-uri", uri, "--host", host, "--port", str(port), "--workers", "1"]
    server = subprocess.Popen([sys.executable, "-m", "mlflow", *words], start_new_session=True)
    try:
        while (code := server.poll()) is None:
            time.sleep(0.2)  # a call that only waits might not see Ctrl+C
        fix = "its messages above say why; repair that, then: daamctl ui"
        raise ConfigError(f"the server of MLflow has ended by itself, with exit code {code}", fix=fix)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    finally:  # by itself MLflow ends seconds after Ctrl+C, with tracebacks
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
