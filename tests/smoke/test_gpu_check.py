"""The check of the GPU path: goals, blocks that fail or hang, and every block at tiny sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import gpu_check
from benchmarks.gpu_check import Row, Sizes
from daamctl.config import TrainConfig, load_config
from tests.fixtures.projects import REPOSITORY


@pytest.mark.parametrize(
    ("value", "goal", "expected"),
    [
        (20.0, ">= 20", "pass"),
        (19.9, ">= 20", "fail"),
        (60, "<= 60", "pass"),
        (60.1, "<= 60", "fail"),
        ("not possible: no kernel", ">= 1", "fail"),
        (1.0, None, ""),
    ],
)
def test_goals(value: float | str, goal: str | None, expected: str) -> None:
    row = {"figure": "x", "value": value, "goal": goal}
    assert gpu_check.verdict(row, applies=True) == expected
    assert gpu_check.verdict(row, applies=False) == (expected and "not applicable")


def test_a_block_that_fails_keeps_the_figures_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def block(sizes: Sizes) -> Iterator[Row]:
        yield Row("first", 1.0)
        raise RuntimeError("broken")

    monkeypatch.setitem(gpu_check.BLOCKS, "toy", block)
    with pytest.raises(RuntimeError, match="broken"):
        gpu_check.measure("toy", Sizes("cpu", tiny=True), tmp_path)
    found = json.loads((tmp_path / "toy.json").read_text())
    assert found["rows"] == [{"figure": "first", "value": 1.0, "goal": None}]


@pytest.mark.parametrize(
    ("code", "limit", "error"),
    [
        ("print('broken'); raise SystemExit(3)", 60, "exit code 3"),
        ("import time; print('broken', flush=True); time.sleep(60)", 1, "ended after 1 s"),
        ("print('broken')", 60, "no figures"),
    ],
)
def test_a_block_that_does_not_end_well_is_told(tmp_path: Path, code: str, limit: float, error: str) -> None:
    found = gpu_check.run_block("toy", [sys.executable, "-c", code], tmp_path / "toy.json", limit)
    assert found["error"] == error
    assert found == json.loads((tmp_path / "toy.json").read_text())
    console = Console(width=200)
    with console.capture() as printed:
        console.print(gpu_check.table_of({"toy": found}, applies=True))
    assert error in printed.get()


def test_what_a_machine_cannot_compute_is_a_figure_without_a_number() -> None:
    def no_kernel() -> float:
        raise RuntimeError("No available kernel.\nAborting execution.")

    assert gpu_check.attempt("x", no_kernel, ">= 1") == Row("x", "not possible: No available kernel.", ">= 1")


def test_five_folds_take_the_published_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """135,800 of batch 8, not a quarter as many of the default batch."""
    seen: list[TrainConfig] = []

    def trained(words: list[str], root: Path) -> dict[str, float]:
        seen.append(load_config(root, words[words.index("train") + 1]).train)
        return {"seconds": 1.0}

    monkeypatch.setattr(gpu_check, "command", trained)
    assert gpu_check.five_folds(60, 8, 16, 35, "cpu", "auto") == 1.0
    (train,) = seen
    assert (train.batch_size, train.epochs, train.search, train.graphs) == (8, 35, "none", "auto")


@pytest.mark.slow
def test_every_block_runs_at_tiny_sizes(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.gpu_check", "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert found.keys() == gpu_check.BLOCKS.keys()
    assert all(block["rows"] for block in found.values())
    assert "fail" not in done.stdout.replace("tests failed", "")
