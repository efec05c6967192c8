"""`daamctl train`: the decoder as an option, and the light way out where the pipeline does not list a method."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.stages import train


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["train", *words])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that the stage was asked to train."""
    names: list[str] = []

    def run(layout: Any, config: Any, *, method: str, **options: Any) -> Path:
        names.append(method)
        return Path.cwd() / method

    monkeypatch.setattr(train, "run", run)
    return names


@pytest.mark.parametrize(
    ("method", "decoder", "name"),
    [
        ("daam-v1", "mlp", "daam-v1-mlp"),
        ("daam-v1", "conv", "daam-v1"),
        ("daam-v1-mlp", "mlp", "daam-v1-mlp"),
        ("mha-published", "mlp", "mha-published-mlp"),
    ],
)
def test_decoder_makes_the_name(project: Path, trained: list[str], method: str, decoder: str, name: str) -> None:
    assert call("-p", "demo", "-m", method, "--decoder", decoder).exit_code == 0
    assert trained == [name]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-m", "weighted-sum", "--decoder", "mlp"],
            "MethodError: weighted-sum: no decoder 'mlp'; this method has only one decoder\n",
        ),
        (
            ["-m", "daam-v1", "--decoder", "lstm"],
            "MethodError: daam-v1: no decoder 'lstm'; available: conv, mlp\n",
        ),
        (
            ["-m", "daam-v1-mlp", "--decoder", "conv"],
            "MethodError: daam-v1: --decoder conv contradicts 'daam-v1-mlp', which sets mlp\n",
        ),
        (
            ["-m", "daam-v1", "--decoder", "conv", "--set", "method_settings.daam-v1.decoder=mlp"],
            "MethodError: daam-v1: --decoder conv contradicts method_settings, which sets mlp\n",
        ),
    ],
)
def test_decoder_that_cannot_be(project: Path, trained: list[str], words: list[str], message: str) -> None:
    result = call("-p", "demo", *words)
    assert (result.exit_code, result.stderr) == (3, message)
    assert trained == []


def test_unlisted_variant_is_skipped(project: Path, trained: list[str]) -> None:
    result = call("-p", "demo", "-m", "daam-v1", "--decoder", "mlp", "--if-listed")
    assert result.stdout == "daam-v1-mlp: not listed under methods in demo, nothing to train\n"
    assert (project / "data/train/demo/daam-v1-mlp/skipped.json").exists()
    assert trained == []


def test_unlisted_method_loads_next_to_nothing(project: Path) -> None:
    """DVC calls this where a line of stages.yaml has outlived its method."""
    script = (
        "import sys\nfrom daamctl.cli.app import app\n"
        "try: app(['train', '-p', 'demo', '-m', 'sga', '--if-listed'])\nexcept SystemExit as end: assert not end.code\n"
        "print([n for n in ('torch', 'numpy', 'polars', 'pyarrow', 'mlflow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=project)
    assert done.stdout == "sga: not listed under methods in demo, nothing to train\n[]\n"
