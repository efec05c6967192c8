"""`daamctl import-checkpoint`: what it prints and writes, and one message for what it cannot read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from daamctl.cli.app import app
from daamctl.methods import load_published, load_weights


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["import-checkpoint", *map(str, words)])


def decoder(layers: int, inputs: int) -> dict[str, Tensor]:
    return {
        "conv1.weight": torch.randn(4, layers, 3, 3),
        "conv1.bias": torch.randn(4),
        "conv2.weight": torch.randn(layers, 4, 3, 3),
        "conv2.bias": torch.randn(layers),
        "fc.weight": torch.randn(3, inputs),
        "fc.bias": torch.randn(3),
    }


def density() -> dict[str, Tensor]:
    heads = {f"daam.gcts.{i}.{name}": torch.rand(1, 9) + 1 for i in range(2) for name in ("c", "mean_offset")}
    return {**heads, **decoder(4, 36)}


def mixture(start: str) -> dict[str, Tensor]:
    names = [f"{start}layers.0.attention_heads.{i}.{name}" for i in range(2) for name in ("c", "mean_offsets")]
    return {name: torch.rand(3) + 1 for name in names}


def test_table_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"epoch": 3, "state_dict": {f"module.{key}": value for key, value in density().items()}}, "best.pth")
    result = call("best.pth")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "method          daam-v1\n"
        "num layers      4\n"
        "embed dim       9\n"
        "num classes     3\n"
        "variance        moments\n"
        "num heads       2\n"
        "hidden channels 4\n"
        "parameters      443\n"
        "note            variance as a difference of moments (D25)\n"
        'load it with daamctl.methods.load_weights("best.daam-v1.safetensors")\n'
    )
    assert sorted(os.listdir()) == ["best.daam-v1.safetensors", "best.pth"]
    x = torch.randn(5, 4, 9)
    assert torch.equal(load_weights("best.daam-v1.safetensors")(x), load_published("best.pth")(x))


def test_output_is_replaced_and_never_the_input(tmp_path: Path) -> None:
    source, target = tmp_path / "best.safetensors", tmp_path / "out" / "mine.safetensors"
    save_file(density(), source)
    for _ in range(2):
        assert call(source, "--out", target).exit_code == 0
    assert load_weights(target).fusion.num_heads == 2
    before = source.read_bytes()
    link = tmp_path / "link.safetensors"
    link.symlink_to(source)
    for same in (source, tmp_path / "out" / ".." / "best.safetensors", link):
        result = call(source, "-o", same)
        assert (result.exit_code, result.stdout) == (3, "")
        told = f"ArtifactError: {same} exists and is not a converted checkpoint\n  choose another file with --out\n"
        assert result.stderr == told
    assert source.read_bytes() == before


@pytest.mark.parametrize(("axis", "name"), [("1", "layers"), ("2", "features"), ("-1", "features")])
def test_norm_axis_of_a_mixture(tmp_path: Path, axis: str, name: str) -> None:
    path = tmp_path / "best.safetensors"
    save_file({**mixture("daam."), **decoder(4, 36)}, path)
    result = call(path, "--norm-axis", axis)
    assert result.exit_code == 0, result.output
    assert f"norm axis       {name}\n" in result.stdout
    x = torch.randn(2, 4, 9)
    ours = load_weights(tmp_path / "best.mixture-daam.safetensors")
    assert torch.equal(ours(x), load_published(path, norm_axis=int(axis))(x))


def test_bare_density_block_is_shown_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "block.safetensors"
    save_file(mixture(""), path)
    result = call(path, "--norm-axis", "2")
    assert result.exit_code == 0
    assert result.stdout.startswith("method          density-block\n")
    assert result.stdout.endswith(
        f'no file written; load it with daamctl.methods.load_published("{path}", norm_axis=2)\n'
    )
    assert os.listdir(tmp_path) == ["block.safetensors"]
    result = call(path, "--out", tmp_path / "x.safetensors")
    assert result.exit_code == 3
    assert result.stderr == (
        f"MethodError: a density block has no decoder and cannot be written to {tmp_path}/x.safetensors\n"
    )


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made-by-unpickling",)


def test_bad_input_is_one_line_and_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.pth").write_text("not weights")
    Path("text.safetensors").write_text("not weights")
    torch.save({"fc.weight": Evil()}, "evil.pth")
    torch.save({"epoch": 3}, "empty.pth")
    torch.save(decoder(4, 36), "none.pth")
    save_file({**density(), "gate": torch.zeros(1)}, "more.safetensors")
    save_file({**density(), "fc.weight": torch.zeros(3, 8)}, "other.safetensors")
    expected = {
        "gone.pth": "no file gone.pth",
        ".": "no file .",
        "text.pth": "text.pth cannot be read as weights: it is damaged or of another format",
        "text.safetensors": "text.safetensors cannot be read as weights: ",
        "evil.pth": "evil.pth cannot be read as weights: it contains code",
        "empty.pth": "empty.pth does not map names to tensors",
        "none.pth": "no published module has these keys: conv1.bias, ",
        "more.safetensors": "not a published checkpoint, but closest to daam-v1: missing none; unknown gate",
        "other.safetensors": "weights do not fit: fc.weight is (3, 8) where (3, 36) is needed",
    }
    before = sorted(os.listdir())
    for name, message in expected.items():
        result = call(name)
        assert (result.exit_code, result.stdout) == (3, ""), name
        assert result.stderr.startswith(f"MethodError: {message}"), result.stderr
        assert result.stderr.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_usage() -> None:
    assert call().exit_code == 2
    assert call("x.pth", "--norm-axis", "layers").exit_code == 2
    assert "--norm-axis" in call("--help").output
