"""What `daamctl serve` takes: many clients, one request after the other each; nothing may be lost.

Repeat it:

    python -m benchmarks.serve MODEL FILE --out data/bench/serve.json    # --help for other numbers
    python -m benchmarks.serve MODEL FILE --seconds 60 --slow 100 --long LONG_FILE

Starts a server on loopback with an exported model and sends FILE (a recording or an image; for a model of texts its
content is one text) from several clients for ten minutes. Meanwhile, `--slow` clients open connections and never
finish their requests, and one client sends LONG_FILE again and again. Every answer to FILE has to have the status 200
and the same class. The times are those of whole requests, as clients see them; the memory is the peak of the server.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil  # type: ignore[import-untyped]
import typer

from daamctl.models.folder import read_model
from daamctl.store.files import write_json
from daamctl.store.provenance import device_name

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 40000000\r\n\r\n"


def ask(port: int, body: bytes, kind: str, until: float) -> list[tuple[float, str]]:
    """Send a request again and again; (seconds, predicted class, or empty if it was not answered) of each."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    answers: list[tuple[float, str]] = []
    while time.perf_counter() < until or not answers:
        started = time.perf_counter()
        try:
            connection.request("POST", "/predict", body, {"content-type": kind})
            answer = connection.getresponse()
            content = json.load(answer)
            item = content["items"][0] if "items" in content else content
            found = item.get("class", "") if answer.status == 200 else ""
        except (OSError, http.client.HTTPException, ValueError):
            connection.close()
            found = ""
        answers.append((time.perf_counter() - started, found))
    return answers


def never_finish(port: int, until: float) -> None:
    """Send a part of a large request and no more, again and again."""
    while time.perf_counter() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
            slow.sendall(HEAD + bytes(1_000_000))
            while time.perf_counter() < until and slow.recv(1000):
                pass


def watch(server: psutil.Process, peak: list[int], done: threading.Event) -> None:
    """Note the largest resident memory of a process, ten times a second."""
    while not done.wait(0.1):
        with contextlib.suppress(psutil.Error):
            peak[0] = max(peak[0], server.memory_info().rss)


def figures(answers: list[tuple[float, str]], elapsed: float) -> dict[str, Any]:
    """Requests, lost ones, classes, p50_s, p95_s, p99_s, longest_s and requests_per_s."""
    times, classes = zip(*answers, strict=True)
    quantiles = {f"p{100 * q:.0f}_s": float(np.quantile(times, q)) for q in (0.5, 0.95, 0.99)}
    counts = {"requests": len(answers), "lost": classes.count(""), "classes": len(set(classes) - {""})}
    return {**counts, **quantiles, "longest_s": max(times), "requests_per_s": len(answers) / elapsed}


def measure(
    model: Path, body: bytes, kind: str, *, clients: int, seconds: float, slow: int, long: bytes, more: list[str]
) -> dict[str, Any]:
    """Start a server, send requests, and stop it again.

    Args:
        model: the exported model.
        body: body of every request.
        kind: its content type.
        clients: number of clients.
        seconds: how long they ask.
        slow: number of clients that never finish a request.
        long: body of the requests of one more client; empty: none.
        more: further words of the command.

    Returns:
        `figures` of the clients, and `long`, those of the one more; peak_bytes, resident memory of the server, and
        idle_bytes, that before the first request.
    """
    words = ["serve", str(model), "--port", "0", *more]
    server = subprocess.Popen([sys.executable, "-m", "daamctl", *words], stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    done, process = threading.Event(), psutil.Process(server.pid)
    try:
        lines = (re.search(r"http://127\.0\.0\.1:(\d+)", line) for line in server.stderr)
        found = next((found for found in lines if found), None)
        if found is None:
            raise SystemExit("the server did not start")
        port, idle = int(found[1]), process.memory_info().rss
        threading.Thread(target=server.stderr.read, daemon=True).start()  # so that it is never full
        ask(port, body, kind, 0.0)  # warm up with one request
        peak = [idle]
        threading.Thread(target=watch, args=(process, peak, done), daemon=True).start()
        started = time.perf_counter()
        until = started + seconds
        with ThreadPoolExecutor(clients + slow + 1) as threads:
            for _ in range(slow):
                threads.submit(never_finish, port, until)
            other = threads.submit(ask, port, long, kind, until) if long else None
            asked = [threads.submit(ask, port, body, kind, until) for _ in range(clients)]
            answers = [one for part in asked for one in part.result()]
            elapsed = time.perf_counter() - started
            more_found = {"long": figures(other.result(), elapsed)} if other else {}
    finally:
        done.set()
        server.terminate()
        server.wait(timeout=60)
    return {**figures(answers, elapsed), **more_found, "idle_bytes": idle, "peak_bytes": peak[0]}


def main(
    model: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    file: Annotated[Path, typer.Argument(help="What every request sends.")],
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 32,
    seconds: Annotated[float, typer.Option(help="How long they ask.")] = 600.0,
    slow: Annotated[int, typer.Option(help="Clients that never finish a request.")] = 0,
    long: Annotated[Path | None, typer.Option(help="What one more client sends, e.g. a long recording.")] = None,
    together: Annotated[int, typer.Option(help="The server's --together.")] = 16,
    timeout: Annotated[float, typer.Option(help="The server's --timeout.")] = 60.0,
    encoder: Annotated[Path | None, typer.Option(help="Folder of the encoder.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Measure requests to a server on this machine."""
    body, kind = file.read_bytes(), "application/octet-stream"
    other = long.read_bytes() if long else b""
    if read_model(model).modality == "text":
        body, kind = json.dumps({"texts": [body.decode()]}).encode(), "application/json"
        other = json.dumps({"texts": [other.decode()]}).encode() if long else b""
    more = ["--together", str(together), "--timeout", str(timeout)]
    more += ["--encoder", str(encoder)] if encoder else []
    load: dict[str, Any] = {"clients": clients, "seconds": seconds, "slow": slow}
    one = measure(model, body, kind, **load, long=other, more=more)
    for name, part in (("", one), ("long: ", one.get("long"))):
        if part:
            print(
                f"{name}{part['requests']} requests, {part['lost']} lost, p50 {1000 * part['p50_s']:.0f} ms, p99 "
                f"{1000 * part['p99_s']:.0f} ms, {part['requests_per_s']:.1f} requests/s"
            )
    print(f"memory of the server: {one['idle_bytes'] / 1e6:.0f} MB before, {one['peak_bytes'] / 1e6:.0f} MB at most")
    if out is not None:
        write_json(out, {"machine": device_name("cpu"), **load, **one})


if __name__ == "__main__":
    typer.run(main)
