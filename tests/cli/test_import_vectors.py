"""`daamctl import-vectors`: what it prints, one line for what it cannot read, and a pipeline over what it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.corpora import embeddings


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["import-vectors", *map(str, words)])


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of arrays (T, L, D) and a table, which lists all but one of them."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "dump"
    folder.mkdir()
    for number in range(5):
        np.save(folder / f"u{number}.npy", np.full((3 + number, 2, 4), number, np.float16))
    pl.DataFrame({"id": [f"u{number}.wav" for number in range(4)], "label": list("abab")}).write_csv("items.csv")
    return folder


def test_it_says_what_it_read_and_how_to_use_it(dump: Path) -> None:
    result = call(dump, "--table", "items.csv", "--layers", "3,7", "-o", "mine.parquet")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "4 items, axes TLD: layers 3, 7 of 4 features, mean of 3 to 6 frames or tokens",
        "left out: 1 item that the table does not list",
        "mine.parquet",
        "use it in a pipeline: download: {corpus: embeddings, source: mine.parquet}",
    ]
    rows = embeddings.prepare(Path("mine.parquet"))
    assert rows["clip_id"].to_list() == ["u0", "u1", "u2", "u3"]
    assert embeddings.facts(Path("mine.parquet"))["layers"] == [3, 7]


def test_mistakes_are_one_line(dump: Path) -> None:
    for words in (["--axes", "XY"], ["--table", "none.csv"], ["--out", "mine.csv"], ["--layers", "1"]):
        result = call(dump, *(["--table", "items.csv"] if "--table" not in words else []), *words)
        assert (result.exit_code, result.stdout) == (3, ""), result.output
        assert "Traceback" not in result.stderr
    assert not Path("vectors.parquet").exists()
