"""What `daamctl serve` takes: many clients, one request after the other each; nothing may be lost.

Repeat it:

    python -m benchmarks.serve MODEL FILE --out data/bench/serve.json    # --help for other numbers

Starts a server on loopback with an exported model and sends FILE (a recording or an image; for a model of texts its
content is one text) from several clients at once, first with waiting requests predicted together and then one by one.
Every answer has to have the status 200 and the same class. The times are those of whole requests, as clients see them.
"""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from daamctl.artifacts.io import write_json
from daamctl.models.folder import read_model
from daamctl.provenance import device_name

WAYS = {"together": 64, "one by one": 1}
"""Way -> most items that are predicted together."""


def measure(
    model: Path, body: bytes, kind: str, *, together: int, clients: int, requests: int, more: list[str]
) -> dict[str, Any]:
    """Start a server, send the requests, and stop it again.

    Args:
        model: the exported model.
        body: body of every request.
        kind: its content type.
        together: most items that are predicted together.
        clients: number of clients.
        requests: number of requests of all clients together.
        more: further words of the command.

    Returns:
        requests, lost, p50_s, p95_s, longest_s, and requests_per_s.
    """
    words = ["serve", str(model), "--port", "0", "--together", str(together), *more]
    server = subprocess.Popen([sys.executable, "-m", "daamctl", *words], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        found = next(
            (found for line in server.stderr if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))), None
        )
        if found is None:
            raise SystemExit("the server did not start")
        port = int(found[1])

        def client(number: int) -> list[tuple[float, str]]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            answers = []
            for _ in range(number, requests, clients):
                started = time.perf_counter()
                connection.request("POST", "/predict", body, {"content-type": kind})
                answer = connection.getresponse()
                content = json.load(answer)
                item = content["items"][0] if "items" in content else content
                answers.append((time.perf_counter() - started, item.get("class", "") if answer.status == 200 else ""))
            return answers

        client(requests - 1)  # warm up with one request
        started = time.perf_counter()
        with ThreadPoolExecutor(clients) as threads:
            answers = [one for part in threads.map(client, range(clients)) for one in part]
        elapsed = time.perf_counter() - started
    finally:
        server.terminate()
        server.communicate(timeout=60)
    times, classes = zip(*answers, strict=True)
    return {
        "requests": len(answers),
        "lost": requests - sum(bool(one) for one in classes),
        "classes": len(set(classes)),
        "p50_s": float(np.quantile(times, 0.5)),
        "p95_s": float(np.quantile(times, 0.95)),
        "longest_s": max(times),
        "requests_per_s": len(answers) / elapsed,
    }


def main(
    model: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    file: Annotated[Path, typer.Argument(help="What every request sends.")],
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 32,
    requests: Annotated[int, typer.Option(help="Requests of all clients together.")] = 1000,
    encoder: Annotated[Path | None, typer.Option(help="Folder of the encoder.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Measure requests to a server on this machine."""
    body, kind = file.read_bytes(), "application/octet-stream"
    if read_model(model).modality == "text":
        body, kind = json.dumps({"texts": [body.decode()]}).encode(), "application/json"
    more = ["--encoder", str(encoder)] if encoder else []
    results: dict[str, Any] = {"machine": device_name("cpu"), "clients": clients}
    for way, together in WAYS.items():
        one = measure(model, body, kind, together=together, clients=clients, requests=requests, more=more)
        results[way] = one
        print(
            f"{way}: {one['requests']} requests, {one['lost']} lost, p50 {1000 * one['p50_s']:.0f} ms, "
            f"p95 {1000 * one['p95_s']:.0f} ms, {one['requests_per_s']:.1f} requests/s"
        )
    if out is not None:
        write_json(out, results)


if __name__ == "__main__":
    typer.run(main)
