"""`daamctl check --inventory`: what can run here, said once for pipelines that lack the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.stages import inventory


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["check", "--inventory", *words])


@pytest.fixture(autouse=True)
def nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "answers", lambda _: False)


def test_pipelines_that_lack_the_same_stand_together(project: Path) -> None:
    result = call()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    number = len(yaml.safe_load((project / "params.yaml").read_text())["pipelines"])
    generated = ["demo", "demo-random", "demo-text", "demo-tokens", "digits", "demo-vqvae"]
    assert lines[0] == f"{len(generated)} of {number} pipeline(s) can run here: {', '.join(generated)}"
    where = lines.index(
        "emodb, emodb-as-published: corpus 'emodb' is not on this machine, and emodb.bilderbar.info cannot be reached"
    )
    assert lines[where + 1].startswith("  daamctl download emodb")
    assert len(list((project / "data/check").glob("*/machine.json"))) == number


def test_of_one_pipeline(project: Path) -> None:
    call()
    assert call("--pipeline", "digits").stdout == "1 of 1 pipeline(s) can run here: digits\n"
    assert not json.loads((project / "data/check/emodb/machine.json").read_text())["runs"]  # the others stay


def test_stages_that_dvc_lacks_are_named_before_anything_runs(project: Path) -> None:
    text = (project / "pipelines/demo.yaml").read_text()
    (project / "pipelines/demo.yaml").write_text(text + "finetunes: [ia3]\n")
    result = call()
    assert (result.exit_code, result.stderr) == (
        3,
        "ConfigError: stages.yaml is out of date: it lacks finetune@demo-ia3\n"
        "  write it again: daamctl check --write\n",
    )
