"""`daamctl predict` on the command line: standard input, output, exit codes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from typer.testing import CliRunner

from daamctl.cli import predict
from daamctl.cli.app import app
from tests.fixtures.exported import handmade


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade(tmp_path_factory.mktemp("texts") / "model", "text")


def test_lines_of_standard_input(texts: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(texts), "-", "--device", "cpu"], input="one text\nanother\n")
    assert done.exit_code == 0, done.output
    assert pl.read_csv(io.StringIO(done.stdout))["item"].to_list() == [1, 2]
    out = tmp_path / "found.csv"
    done = CliRunner().invoke(app, ["predict", str(texts), "--out", str(out), "--device", "cpu"], input="one text\n")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{out}\n"
    assert len(pl.read_csv(out)) == 1


def test_without_inputs_a_terminal_is_not_waited_for(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(predict, "sys", SimpleNamespace(stdin=terminal, stdout=sys.stdout))
    done = CliRunner().invoke(app, ["predict", str(texts), "--device", "cpu"], input="one text\n")
    assert done.exit_code == 3
    assert "there is no text to predict" in done.stderr


def test_metrics_go_to_standard_error(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "known.csv").write_text("text,label\none,high\ntwo,low\nthree,other\n")
    done = CliRunner().invoke(app, ["predict", str(texts), str(tmp_path / "known.csv"), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert "2 items with a label" in done.stderr
    assert "Accuracy (WA)" in done.stderr
    assert "labels that are no class of the model: other (1)" in done.stderr
    assert len(pl.read_csv(io.StringIO(done.stdout))) == 3


def test_lines_in_another_encoding_are_refused(texts: Path) -> None:
    done = CliRunner().invoke(app, ["predict", str(texts), "-"], input="one\nfür\n".encode("latin1"))
    assert done.exit_code == 3
    assert "standard input cannot be read: it is not UTF-8 (line 2: byte 0xfc)" in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [("model",), ("model", "gone.txt"), ("gone", "-")])
def test_expected_failures_are_one_line_and_a_remedy(texts: Path, words: tuple[str, ...]) -> None:
    folder, *inputs = words
    done = CliRunner().invoke(app, ["predict", str(texts.with_name(folder)), *inputs], input="")
    assert done.exit_code == 3
    assert len(done.stderr.splitlines()) <= 2
    assert "Traceback" not in done.stderr
