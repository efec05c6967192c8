"""`daamctl paper`: needs nothing to be there, and says where the page is."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app


def test_writes_the_page_of_a_fresh_project(project: Path) -> None:
    result = CliRunner().invoke(app, ["paper"])
    assert result.exit_code == 0
    assert result.stdout == "data/report/paper/report.html\n"
    assert (project / "data/report/paper/report.html").is_file()
    assert (project / "data/report/paper/tables/results-iemocap.tex").is_file()


def test_outside_a_project_it_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAAMCTL_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["paper"])
    assert result.exit_code == 3
    assert result.stderr.startswith("ConfigError: no params.yaml")
