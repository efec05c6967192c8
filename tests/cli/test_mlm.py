"""`daamctl mlm` on the command line."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from daamctl.cli.app import app
from tests.fixtures.masked_models import save_masked, save_texts


def test_table_and_refusal(project: Path) -> None:
    texts = save_texts(project / "texts")
    words = ["mlm", "--from", str(texts), "--fusion", "concat", "--epochs", "1", "--encoder"]
    done = CliRunner().invoke(app, [*words, str(save_masked(project / "tiny"))])
    assert done.exit_code == 0, done.output
    assert "Ratio to last layer" in done.output
    assert "concat" in done.output
    assert done.output.splitlines()[-1] == "data/mlm/tiny/mlm.json"
    refused = CliRunner().invoke(app, [*words, str(save_masked(project / "headless", head=False))])
    assert refused.exit_code == 3
    assert "EncoderError: encoder 'headless' has no MLM head among its weights" in refused.output
