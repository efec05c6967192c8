"""One process that serves the stages of a `dvc repro`, so that they need not import torch one by one.

DVC runs every stage as a command of its own. The first command starts a server, which imports the large libraries once
and forks a process for each stage. There the command runs as it would alone, with the same arguments, environment,
folder, terminal and exit code. The server ends with its `dvc`. Where there is none (no DVC, not Linux, another
environment), a command runs by itself, which only takes longer.

The server computes nothing, and imports neither daamctl's stages, which may change between two of them, nor polars,
whose threads a forked process would lack.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from daamctl.compute.environment import set_defaults

SMALL = ("typer", "pydantic", "yaml", "numpy")
LARGE = ("rich.progress", "torch", "torch._dynamo", "scipy.stats", "mlflow.tracking", "transformers")
LIGHT = ("check", "download", "segment")
"""Stages that need only the small libraries."""
START_S = 5.0
"""Longest wait for a server that was started."""
LOOK_S = 1.0
"""Seconds between two looks at whether `dvc` is still there."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "fish")
OWN = ("DVC_STAGE", "_", "SHLVL", "OLDPWD")
"""Variables that differ from stage to stage."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILLED = "the process of this stage was killed; what it had finished is kept\n"


def run(words: list[str]) -> int | None:
    """Run a command of a DVC stage on the server; None: there is none, and the command has not run."""
    dvc, folder = _dvc(), Path(".dvc/tmp")
    if not dvc or not folder.is_dir():
        return None
    address = str(folder / f"stages-{dvc}.sock")  # relative: the name of a socket has at most 107 bytes
    request = {"words": words, "folder": str(Path.cwd()), "environment": dict(os.environ)}
    received: list[int] = []
    process = 0

    def forward(number: int, _: Any) -> None:
        if not process:  # the command has not begun
            os.write(2, b"interrupted; run the same command again to resume\n")
            os._exit(128 + number)
        received.append(number)
        with suppress(ProcessLookupError):
            os.kill(process, number)

    usual = {number: signal.getsignal(number) for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    for number in usual:
        signal.signal(number, forward)
    try:
        server = _connect(address, dvc)
        socket.send_fds(server, [b"!"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        answers = server.makefile()
        process = int(answers.readline() or 0)
    except OSError:
        process = 0
    if not process:
        for number, handler in usual.items():
            signal.signal(number, handler)
        return None
    try:
        code = answers.readline()
    except OSError:
        code = ""
    if not code and not received:
        os.write(2, KILLED.encode())
    return int(code) if code else 128 + received[0] if received else 1


def serve(address: str, dvc: int) -> None:
    """Serve commands until the process `dvc` ends."""
    os.setsid()  # Ctrl+C goes to the commands, which forward it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the stages
    environment = _shared(dict(os.environ))
    set_defaults()
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(LOOK_S)
    own = Path(f"{address}-{os.getpid()}")
    listener.bind(str(own))
    own.chmod(0o600)
    listener.listen()
    own.replace(address)
    while Path(f"/proc/{dvc}").exists():
        with suppress(OSError, ValueError):
            client, _ = listener.accept()
            with client:
                client.settimeout(START_S)
                _, files, _, _ = socket.recv_fds(client, 1, 3)
                try:
                    request = json.loads(client.makefile().readline())
                    if _shared(request["environment"]) != environment:
                        client.sendall(b"0\n")
                        continue
                    for name in SMALL if set(request["words"]) & set(LIGHT) else (*SMALL, *LARGE):
                        importlib.import_module(name)
                    if not os.fork():
                        try:
                            listener.close()
                            _run_forked(client.dup(), request, files)
                            return
                        except (OSError, ValueError):  # before it began: the command runs by itself
                            os._exit(1)
                finally:  # who reads the output of a stage waits until nobody holds it open
                    for file in files:
                        os.close(file)
    Path(address).unlink(missing_ok=True)


def _run_forked(client: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """Run a command in this process, which was forked for it, and send its exit code when all else has ended.

    Raises:
        SystemExit: always, also after an error, which must not reach the loop of the server.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    client.settimeout(None)
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["daamctl", *request["words"]]
    code = 0

    def end() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        with suppress(OSError):
            client.sendall(f"{code}\n".encode())

    def watch() -> None:
        if not client.recv(1):  # the command was killed
            os.kill(os.getpid(), signal.SIGTERM)

    atexit.register(end)  # the first to be registered runs last
    try:
        client.sendall(f"{os.getpid()}\n".encode())
    except OSError:  # the command was killed before it began
        os._exit(1)
    threading.Thread(target=watch, daemon=True).start()
    try:
        from daamctl.cli.app import main

        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
        sys.exit(code)


def _dvc() -> int | None:
    """Process number of the `dvc` whose stage this command is."""
    if "DVC_STAGE" not in os.environ or sys.platform != "linux":
        return None
    parent = os.getppid()
    try:
        if Path(f"/proc/{parent}/comm").read_text().strip() in SHELLS:
            parent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
    return parent


def _connect(address: str, dvc: int) -> socket.socket:
    """Connect to the server, which is started if there is none.

    Raises:
        OSError: it does not answer.
    """
    server = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError, ConnectionRefusedError):
        server.connect(address)
        return server
    nowhere = subprocess.DEVNULL
    # the same import path: `-m` would put the project first, which may have a folder of the name of a module
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from daamctl.cli.stage_server import serve; serve({address!r}, {dvc})"
    )
    started = subprocess.Popen([sys.executable, "-c", code], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    end = time.monotonic() + START_S
    while time.monotonic() < end and started.poll() is None:
        with suppress(FileNotFoundError, ConnectionRefusedError):
            server.connect(address)
            return server
        time.sleep(0.02)
    raise TimeoutError(address)


def _shared(environment: dict[str, str]) -> dict[str, str]:
    """The environment without what differs from stage to stage."""
    return {name: value for name, value in environment.items() if name not in OWN}
