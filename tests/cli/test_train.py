"""`daamctl train`: the decoder as an option, and the light way out where the pipeline does not list a method."""

from __future__ import annotations

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
