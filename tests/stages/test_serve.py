"""Serving: the address, and a stop that answers what was asked."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daamctl.errors import ConfigError
from daamctl.stages import serve
from tests.fixtures.exported import handmade


def test_a_port_in_use_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ConfigError, match="it is in use"):
            serve.run(tmp_path / "no-model", port=other.getsockname()[1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    folder = handmade(tmp_path / "model", "text")
    command = [sys.executable, "-m", "daamctl", "serve", str(folder), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_signal_stops_the_server(server: subprocess.Popen[str]) -> None:
    assert server.stderr is not None
    line = next(line for line in server.stderr if "serving on" in line)
    found = re.search(r"127\.0\.0\.1:(\d+)", line)
    assert found is not None
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=60)
    connection.request("POST", "/predict", json.dumps({"texts": ["rain"]}))
    assert len(json.load(connection.getresponse())["items"]) == 1
    connection.close()
    server.send_signal(signal.SIGTERM)
    _, rest = server.communicate(timeout=60)
    assert server.returncode == 0, rest
    assert "stopped" in rest
