"""`daamctl deviations`: every row once, one column per pipeline, as a table and as Markdown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.config import load_config, pipeline_names
from daamctl.paper.deviations import deviations, verdict


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["deviations", *words])


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def test_markdown_has_every_row_with_what_each_pipeline_uses(project: Path) -> None:
    result = call("iemocap", "iemocap-as-published", "--markdown")
    assert result.exit_code == 0, result.output
    head, rule, *lines = map(cells_of, result.stdout.splitlines())
    assert {line.count("|") for line in result.stdout.splitlines()} == {9}
    assert head == ["D", "class", "finding", "switch", "as-published", "corrected", "iemocap", "iemocap-as-published"]
    assert rule == ["---"] * 8
    assert [line[0] for line in lines] == [f"D{number}" for number in range(1, 65)]
    configs = [load_config(project, name) for name in head[6:]]
    for row, line in zip(deviations(), lines, strict=True):
        assert line[1:6] == [row.kind, row.finding, row.where, row.published, row.corrected]
        assert line[6:] == [verdict(row, config) for config in configs]
    assert lines[6][3:] == ["train.selection", "best-on-test", "dev-group or last", "corrected", "as-published"]


def test_default_is_every_pipeline(project: Path) -> None:
    (project / "pipelines/mine.yaml").write_text("train: {selection: last}\n")
    head, _, *lines = map(cells_of, call("--markdown").stdout.splitlines())
    assert head[6:] == pipeline_names(project)
    assert lines[6][head.index("mine")] == "corrected"


def test_definitions_leave_out_the_pipelines(project: Path) -> None:
    head, _, *lines = map(cells_of, call("--markdown", "--definitions").stdout.splitlines())
    assert head == ["D", "class", "finding", "switch", "as-published", "corrected"]
    assert lines == [
        [f"D{row.number}", row.kind, row.finding, row.where, row.published, row.corrected] for row in deviations()
    ]
    assert "D64" in call("--definitions").stdout
    assert call("iemocap", "--definitions").exit_code == 2


def test_table_without_a_terminal_is_plain(project: Path) -> None:
    result = call("demo")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout
    firsts = [line.split()[:2] for line in result.stdout.splitlines() if line[:1] == "D"]
    assert firsts == [["D", "class"], *([f"D{row.number}", row.kind] for row in deviations())]
    assert max(map(len, result.stdout.splitlines())) <= 220


def test_many_pipelines_are_told_in_words(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = call().stdout.splitlines()
    assert lines[0].split("  ")[:1] == ["D"]
    assert "as-published in" in lines[0]
    text = " ".join(" ".join(lines).split())
    configs = [load_config(project, name) for name in pipeline_names(project)]
    for row in deviations():
        states = [verdict(row, config) for config in configs]
        for state, word in (("corrected", "corrected"), ("does not apply", "not concerned")):
            if number := states.count(state):
                assert f"{number} {word}" in text
    assert "iemocap-as-published" in text


def test_unknown_pipeline_is_one_message(project: Path) -> None:
    result = call("iemocap-as-publishd")
    assert result.exit_code == 3
    assert result.stderr.startswith("ConfigError: unknown pipeline 'iemocap-as-publishd'\n  did you mean 'iemocap-as-")


def test_needs_no_torch(project: Path) -> None:
    script = (
        "import sys\nfrom daamctl.cli.app import app\n"
        "try: app(['deviations'])\nexcept SystemExit as end: assert not end.code\n"
        "print([n for n in ('torch', 'transformers', 'datasets', 'mlflow') if n in sys.modules])"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, check=True, capture_output=True, text=True, cwd=project)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("width", ["60", "300"])
def test_terminal_of_any_width(project: Path, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = call("demo")
    assert result.exit_code == 0
    assert "D64" in result.stdout
    assert "\x1b[32m" in result.stdout
