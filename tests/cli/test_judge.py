"""`daamctl judge`: the words on the terminal, JSON, exit codes, and that it imports no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from tests.stages.test_judge import table


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in a folder that is no project."""
    monkeypatch.chdir(tmp_path)
    table(0.8, 1).write_csv("a.csv")
    table(0.6, 2).write_csv("b.csv")
    return tmp_path


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["judge", *words])


def test_ten_lines_say_it(files: Path) -> None:
    result = call("a.csv", "b.csv", "--margin", "1")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("a leads b by +")
    assert "Exact sign-flip test over 12 speakers: p = " in lines[1]
    assert len(lines) <= 12
    assert "- read: item = utterance, label = label, prediction = pred, group = speaker" in lines
    assert "\x1b" not in result.stdout


def test_one_file_may_have_all_models(files: Path) -> None:
    both = [pl.read_csv(f"{name}.csv").with_columns(system=pl.lit(name)) for name in "ab"]
    pl.concat(both).write_csv("long.csv")
    both[0].with_columns(other=both[1]["pred"]).write_csv("wide.csv")
    two = call("a.csv", "b.csv").stdout.splitlines()
    assert call("long.csv", "--model", "system").stdout.splitlines()[:8] == two[:8]
    assert call("long.csv").stdout.splitlines()[:8] == two[:8]
    wide = call("wide.csv", "--prediction", "pred", "--prediction", "other").stdout.splitlines()
    assert wide[0].startswith(two[0].replace("a leads b", "pred leads other"))
    pl.concat([*both, both[0].with_columns(system=pl.lit("c"))]).write_csv("three.csv")
    assert call("three.csv").stdout.startswith("Model  Tier")


def test_json_and_page(files: Path) -> None:
    result = call("a.csv", "b.csv", "--json", "--html", "page.html", "--metric", "balanced-accuracy")
    found = json.loads(result.stdout)
    assert (found["metric"], found["tiers"]) == ("balanced_accuracy", [["a"], ["b"]])
    assert len(found["items"]) == 240
    assert {"first", "second", "p", "low", "high", "detectable"} <= set(found["pairs"][0])
    assert (files / "page.html").stat().st_size > 10_000
    (files / "empty.html").touch()
    for replaced in ("page.html", "empty.html"):
        assert call("b.csv", "a.csv", "--html", replaced).exit_code == 0
        assert "<title>Which is better: a and b?</title>" in (files / replaced).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.csv"], "a comparison needs predictions of two models or more, got 1"),
        (["a.csv", "b.csv", "--model", "x"], "several models in one file (--model) are judged alone, got 2 files"),
        (["a.csv", "b.csv", "--prediction", "x", "--prediction", "y"], "(--prediction) are judged alone, got 2 files"),
        (["a.csv", "c.csv"], "no file c.csv"),
        (["a.csv", "~nobody-of-this-name/c.csv"], "no file ~nobody-of-this-name/c.csv"),
        (["a.csv", "b.csv", "--item", "x"], "has no column 'x'"),
        (["a.csv", "b.csv", "--items", "nothing.csv"], "no file nothing.csv"),
        (["a.csv", "b.csv", "--html", "a.csv"], "a.csv exists and is not a page of judge"),
        (["--html", "b.csv", "a.csv", "c.csv"], "b.csv exists and is not a page of judge"),  # before c.csv is missed
        (["a.csv", "b.csv", "--html", "../"], "exists and is not a page of judge"),
        (["a.csv", "b.csv", "--margin", "100"], "for one point, give margin=0.01 in Python, or --margin 1"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_3(files: Path, words: list[str], message: str) -> None:
    before = {path: path.read_bytes() for path in files.iterdir()}
    result = call(*words)
    assert result.exit_code == 3
    assert message in result.output
    assert "Traceback" not in result.output
    assert {path: path.read_bytes() for path in files.iterdir()} == before


def test_no_torch_is_imported(files: Path) -> None:
    code = """
import sys
from daamctl.cli.app import main
sys.argv = ["daamctl", "judge", "a.csv", "b.csv"]
try:
    main()
finally:
    print("torch" in sys.modules, "matplotlib" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=files)
    assert done.stdout.splitlines()[-1] == "False False"
