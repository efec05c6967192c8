"""`--engine`, which `extract`, `train` and `finetune` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.engines import ray as engines_ray
from daamctl.engines.local import LocalEngine
from daamctl.engines.ray import RayEngine
from daamctl.stages import extract, finetune, train

COMMANDS = {"extract": (), "train": ("--method", "none"), "finetune": ("--method", "lora-r8")}
STAGES = {"extract": extract, "train": train, "finetune": finetune}


def call(command: str, *words: str, **environment: str) -> Any:
    return CliRunner().invoke(app, [command, "--pipeline", "demo", *COMMANDS[command], *words], env=environment)


@pytest.mark.parametrize("command", COMMANDS)
def test_engine_comes_from_the_option_or_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    engines: list[Any] = []

    def run(*_: Any, engine: Any, **options: Any) -> Path:
        engines.append(engine)
        return Path.cwd()

    monkeypatch.setattr(STAGES[command], "run", run)
    assert call(command).exit_code == 0
    assert call(command, "--engine", "ray", "--workers", "3", "--gpus-per-worker", "0.5").exit_code == 0
    assert call(command, DAAMCTL_ENGINE="ray").exit_code == 0
    assert call(command, "--engine", "local", "--workers", "2", DAAMCTL_ENGINE="ray").exit_code == 0
    assert [type(engine) for engine in engines] == [LocalEngine, RayEngine, RayEngine, LocalEngine]
    assert [engine.workers for engine in engines] == [None, 3, None, 2]
    assert engines[1].gpus_per_worker == 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_engine_and_one_that_is_not_installed(
    project: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    result = call(command, "--engine", "rai")
    assert (result.exit_code, result.stderr) == (
        3,
        "UnknownNameError: unknown engine 'rai'\n  did you mean 'ray'? known: local, ray\n",
    )
    monkeypatch.setattr(engines_ray, "find_spec", lambda name: None)
    result = call(command, "--engine", "ray")
    assert (result.exit_code, result.stderr) == (
        3,
        "ConfigError: engine 'ray' is not installed\n  pip install 'daamctl[ray]'\n",
    )


def test_options_of_another_engine_are_refused(project: Path) -> None:
    result = call("extract", "--gpus-per-worker", "0.5")
    assert result.exit_code == 3
    assert "--gpus-per-worker is for clusters" in result.stderr
