"""`daamctl finetune`: what reaches the stage, the light way out, and names that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

from daamctl.adapters import FINETUNES
from daamctl.cli.app import app
from daamctl.stages import finetune


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the stage was asked to do."""
    calls: list[dict[str, Any]] = []

    def run(layout: Any, config: Any, **options: Any) -> Path:
        calls.append({"device": config.finetune.device, "seeds": config.seeds_of("finetune"), **options})
        return Path.cwd() / options["method"]

    monkeypatch.setattr(finetune, "run", run)
    return calls


def test_options_reach_the_stage(project: Path, asked: list[dict[str, Any]]) -> None:
    words = ("--fold", "2", "--seed", "7", "--device", "cpu", "--seeds", "1,2", "--force", "--no-track")
    result = call("finetune", "-p", "demo", "-m", "lora-r8", *words)
    assert (result.exit_code, result.stdout) == (0, "lora-r8\n")
    assert asked == [
        {
            "device": "cpu", "seeds": (1, 2), "method": "lora-r8", "fold": 2, "seed": 7, "force": True, "track": False,
            "engine": ANY,
        }
    ]  # fmt: skip


def test_seeds_hold_where_fine_tuning_has_its_own(project: Path, asked: list[dict[str, Any]]) -> None:
    (project / "pipelines/mine.yaml").write_text("finetune: {seeds: [42]}\n")
    for words in ((), ("--seeds", "1,2"), ("--seeds", "1,2", "--set", "finetune.seeds=[7]")):
        call("finetune", "-p", "mine", "-m", "ia3", *words)
    assert [one["seeds"] for one in asked] == [(42,), (1, 2), (7,)]


def test_dry_run_shows_the_settings_only(project: Path, asked: list[dict[str, Any]]) -> None:
    result = call("finetune", "-p", "demo", "-m", "lora-r8", "--set", "finetune.lr=0.5", "--dry-run")
    assert "lr: 0.5" in result.stdout
    assert asked == []


def test_unknown_name_ends_in_a_suggestion(project: Path) -> None:
    result = call("finetune", "-p", "demo", "-m", "dora")
    assert result.exit_code == 3
    assert result.stderr.startswith("UnknownNameError: unknown fine-tuning method 'dora'\n  did you mean 'dora-r8'?")
    assert call("finetune", "-p", "demo", "-m", "ia3", "--fold", "two").exit_code == 2


def test_ls_shows_every_way_with_a_line(project: Path) -> None:
    result = call("ls", "finetunes")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in FINETUNES)
    assert "BitFit" in result.stdout
