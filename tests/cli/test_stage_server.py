"""The process that serves the stages of a `dvc repro`; a Python that runs commands stands in for `dvc`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from daamctl.cli import stage_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a stage server")

DVC = """
import json, os, subprocess, sys
for command in json.loads(sys.argv[1]):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    print(json.dumps([done.returncode, done.stdout, done.stderr]), flush=True)
"""
DAAMCTL = str(Path(sys.executable).with_name("daamctl"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "DVC_STAGE": "stage", **more}


def repro(project: Path, *commands: str) -> list[list]:
    """Exit code, output and errors of each command, run one after the other by one process."""
    dvc = [sys.executable, "-c", DVC, json.dumps(commands)]
    found = subprocess.run(dvc, cwd=project, env=environment(), capture_output=True, text=True, timeout=120)
    assert not found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def servers(project: Path) -> list[Path]:
    return sorted((project / ".dvc/tmp").glob("*.sock"))


def test_commands_answer_as_they_do_alone(project: Path) -> None:
    (project / "daamctl").mkdir()  # must not hide the package
    (project / "rich.py").touch()
    words = ("--version segment", "segment --pipeline nothing-of-that-name", "segment --no-such-option")
    alone = [
        subprocess.run(f"{DAAMCTL} {word}", shell=True, cwd=project, capture_output=True, text=True) for word in words
    ]
    served = repro(project, *(f"{DAAMCTL} {word}" for word in words))
    assert served == [[one.returncode, one.stdout, one.stderr] for one in alone]
    assert [code for code, _, _ in served] == [0, 3, 2]


def test_one_server_for_all_stages_of_one_dvc(project: Path) -> None:
    look = "ls .dvc/tmp"
    first, second, third = repro(
        project, f"{DAAMCTL} --version segment && {look}", f"{DAAMCTL} --version segment && {look}", f"{look}"
    )
    assert first[1].count(".sock") == second[1].count(".sock") == third[1].count(".sock") == 1
    deadline = time.monotonic() + 30
    while servers(project) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not servers(project), "the server outlived its dvc"


def test_another_environment_is_not_served(project: Path) -> None:
    command = f"{DAAMCTL} --version segment"
    served, own = repro(project, command, f"COLUMNS=77 {command}")
    assert served == own  # which ran by itself


def test_no_dvc_no_server(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.chdir(project)
    assert stage_server.run(["--version"]) is None
    assert not servers(project)


def test_outside_of_a_dvc_project_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", "stage")
    monkeypatch.chdir(tmp_path)
    assert stage_server.run(["--version"]) is None
    assert not list(tmp_path.iterdir())


SLOW = """
import os, signal, sys, time, types
from pathlib import Path

def main():
    signal.signal(signal.SIGINT, lambda number, _: sys.exit(128 + number))
    Path("process").write_text(str(os.getpid()))
    time.sleep(60)

sys.modules["daamctl.cli.app"] = types.SimpleNamespace(main=main)
"""
"""Takes the place of the command line: a stage that works for a minute."""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=["int", "term", "kill"]
)
def test_a_signal_to_the_command_ends_its_stage(project: Path, number: signal.Signals, code: int) -> None:
    (project / "sitecustomize.py").write_text(SLOW)
    path = os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])
    run = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-m', 'daamctl', 'segment']).returncode)"
    dvc = subprocess.Popen([sys.executable, "-c", run], cwd=project, env=environment(PYTHONPATH=path))
    try:
        stage = int(wait_for(lambda: (project / "process").read_text()))
        command = int(wait_for(lambda: Path(f"/proc/{dvc.pid}/task/{dvc.pid}/children").read_text()).split()[0])
        assert stage != command
        os.kill(command, number)
        assert dvc.wait(30) == code % 256 if code > 0 else dvc.wait(30)
        wait_for(lambda: not Path(f"/proc/{stage}").exists())
    finally:
        dvc.kill()


def test_a_stage_that_is_killed_fails_in_one_line(project: Path) -> None:
    (project / "sitecustomize.py").write_text(SLOW.replace("time.sleep(60)", "os.kill(os.getpid(), 9)"))
    [[code, output, errors]] = repro(project, f"PYTHONPATH={project}:$PYTHONPATH {DAAMCTL} segment")
    assert (code, output, errors) == (1, "", stage_server.KILLED)


@pytest.mark.parametrize("error", ["ValueError", "OSError", "RuntimeError"])
def test_an_unexpected_error_ends_the_stage_with_its_traceback(project: Path, error: str) -> None:
    (project / "sitecustomize.py").write_text(SLOW.replace("time.sleep(60)", f"raise {error}('a bug')"))
    first, second = repro(project, *[f"PYTHONPATH={project}:$PYTHONPATH {DAAMCTL} segment"] * 2)
    for code, output, errors in (first, second):
        assert (code, output) == (1, "")
        assert errors.startswith("Traceback")
        assert errors.endswith(f"{error}: a bug\n")


def test_a_signal_before_the_stage_begins(project: Path) -> None:
    """While the server imports."""
    stubs = f"sys.modules |= {{name: types.ModuleType(name) for name in {stage_server.LARGE[1:]}}}\n"
    (project / "sitecustomize.py").write_text(SLOW + stubs)
    (project / "typer.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(1)\n")
    path = os.pathsep.join([str(project), os.environ.get("PYTHONPATH", "")])
    run = (
        "import os, subprocess, sys, time\n"
        "command = subprocess.Popen([sys.executable, '-m', 'daamctl', 'train'], stderr=subprocess.PIPE, text=True)\n"
        "while not os.path.exists('importing'): time.sleep(0.02)\n"
        "command.send_signal(2)\n"
        "print(command.communicate()[1], command.returncode, flush=True)\n"
        "time.sleep(2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], cwd=project, env=environment(PYTHONPATH=path), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("interrupted; run the same command again to resume\n 130\n", "")
    wait_for(lambda: not servers(project))
    assert not (project / "process").exists(), "the stage ran, although nobody waited for it"


def test_a_stage_that_cannot_begin_leaves_no_process(project: Path) -> None:
    """E.g. its folder is gone."""
    address = str(project / ".dvc/tmp/x.sock")
    code = f"from daamctl.cli.stage_server import serve; serve({address!r}, {os.getpid()})"
    server = subprocess.Popen(
        [sys.executable, "-c", code], cwd=project, env=dict(os.environ), stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: os.path.exists(address))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(address)
            socket.send_fds(client, [b"!"], [0, 1, 2])
            request = {"words": ["check"], "folder": str(project / "gone"), "environment": dict(os.environ)}
            client.sendall(json.dumps(request).encode() + b"\n")
            assert client.recv(10) == b""
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        wait_for(lambda: not children.read_text())
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


def wait_for(look: Callable[[], Any]) -> Any:
    """What `look` returns as soon as it is true."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(FileNotFoundError):
            if found := look():
                return found
        time.sleep(0.05)
    raise AssertionError("nothing happened in 30 s")
