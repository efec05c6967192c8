"""Serving: the address, and a stop that answers what was asked."""

from __future__ import annotations

import http.client
import json
import logging
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from daamctl.errors import ConfigError
from daamctl.models.model import ExportedModel
from daamctl.models.server import Limits, connections, make_app
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


LIMITS = Limits(megabytes=1.0, connections=4, timeout_s=0.5)
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server of this process, with narrow limits."""
    folder = handmade(tmp_path_factory.mktemp("limited") / "model", "text", depth=1)
    app = make_app(ExportedModel.open(folder, device="cpu"), LIMITS)
    running = uvicorn.Server(uvicorn.Config(app, http=connections(LIMITS), ws="none", log_level="warning"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        running.should_exit = True
        thread.join(60)


def is_answering(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/predict", json.dumps({"texts": ["rain"]}))
    found = connection.getresponse()
    content = found.read()
    connection.close()
    return found.status == 200 and b"class" in content


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HT", HEAD, HEAD + b"{" * 5000], ids=["nothing", "half a head", "no body", "half a body"]
)
def test_a_client_that_does_not_finish_is_sent_away(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(sent)
        answer = b""
        while part := slow.recv(1000):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408")
    assert answer.endswith(b'{"error": "no whole request came within 0.5 s"}')
    assert is_answering(port)


def test_a_second_request_has_a_deadline_too(port: int) -> None:
    body = b'{"texts": ["rain"]}'
    first = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as slow:
        slow.sendall(first + HEAD)  # the head of the next one arrives with it, its body never
        answer = b""
        while part := slow.recv(1000):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in answer


def test_connections_are_limited(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(12)]
    answers = [one.recv(1000) for one in slow]  # all end, with one of these
    assert {answer.split(b"\r\n")[0] for answer in answers} == {
        b"HTTP/1.1 503 Service Unavailable",
        b"HTTP/1.1 408 Request Timeout",
    }
    assert sum(answer.startswith(b"HTTP/1.1 503") for answer in answers) == 8
    assert all(json.loads(answer.partition(b"\r\n\r\n")[2])["error"] for answer in answers)
    for one in slow:
        one.close()
    assert is_answering(port)


def test_a_client_that_leaves_is_not_logged(port: int, caplog: pytest.LogCaptureFixture) -> None:
    body = b'{"texts": ["rain"]}'
    whole = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for sent in (HEAD, HEAD + b"{" * 70_000, whole, b""):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as gone:
            gone.sendall(sent)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        assert is_answering(port)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "sent",
    [
        HEAD.replace(b"100000", b"1000000000") + b"{" * 1_000_100,
        HEAD.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked") + b"f4300\r\n" + b"{" * 1_000_192,
        HEAD.replace(b"100000", b"99999999999"),
    ],
    ids=["announced", "not announced", "none of it"],
)
def test_a_body_that_is_too_large_is_refused_before_it_has_arrived(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as large:
        large.sendall(sent)
        assert large.recv(1000).startswith(b"HTTP/1.1 413")
    assert is_answering(port)
