"""Our weights files: what is saved is what is loaded, and a file that does not fit says why."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daamctl.errors import ArtifactError, MethodError
from daamctl.fit.features import InMemorySplit, fit_standardize
from daamctl.methods import FusionClassifier, build, load_weights, save_weights
from daamctl.methods.base import Standardize

SIZES = {"num_layers": 6, "embed_dim": 8, "num_classes": 3}
HEAD = {"method": "daam-v1", "settings": {"num_heads": 2, "hidden_channels": 4}, **SIZES}
ENTRY = {"schema": 1, "kind": "fusion", **HEAD}


def make(method: str, settings: dict[str, Any], seed: int = 0) -> FusionClassifier:
    """A model with every parameter off its start, and some running statistics."""
    torch.manual_seed(seed)
    model = build(method, **SIZES, **settings)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape))
        model(torch.randn(5, 6, 8))
    return model.eval()


def save(path: Path, head: Any = HEAD, **changes: Any) -> FusionClassifier:
    model = make(HEAD["method"], HEAD["settings"])
    save_weights(model, path, **{**head, **changes})
    return model


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("daam-v1", {"num_heads": 3, "variance": "moments", "hidden_channels": 4}),
        ("daam-v1-mlp", {"num_heads": 2, "hidden_dim": 5}),
        ("mha-bn", {"num_heads": 2, "attend_over": "batch", "hidden_channels": 4}),
        ("mixture-daam", {"num_heads": 3, "num_blocks": 2, "op": "sum", "norm_axis": "features", "hidden_channels": 4}),
        ("weighted-sum", {}),
    ],
)
def test_a_file_rebuilds_its_model(tmp_path: Path, method: str, settings: dict[str, Any]) -> None:
    model, x = make(method, settings), torch.randn(4, 6, 8)
    path = tmp_path / "made" / "weights.safetensors"
    save_weights(model, path, method=method, settings=settings, **SIZES)
    for source in (path, str(path)):
        other = load_weights(source)
        assert not other.training
        assert other.traits == model.traits
        assert torch.equal(other(x), model(x))
        for name, value in model.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name
    assert [item.name for item in path.parent.iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize("kind", ["layer", "feature", "whiten"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_holds_the_standardisation(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    model, x = make("daam-v1", HEAD["settings"]), 3 * torch.randn(9, 6, 8) + 1
    model.standardize = fit_standardize(InMemorySplit(x, torch.zeros(9)), kind, "cpu")
    plain = model(x)
    save_weights(model.to(dtype), tmp_path / "w.safetensors", **HEAD)
    other = load_weights(tmp_path / "w.safetensors")
    assert isinstance(other.standardize, Standardize)
    assert other.standardize.kind == kind
    assert torch.equal(other(x.to(dtype)), model(x.to(dtype)))
    torch.testing.assert_close(other(x.to(dtype)).float(), plain, atol=1e-6 if dtype == torch.float32 else 0.1, rtol=0)


def test_a_probe_of_the_mean_of_raw_layers_stays_one(tmp_path: Path) -> None:
    """As earlier versions solved it."""
    model, x = make("ridge-mean", {}), torch.randn(5, 6, 8)
    model.standardize = torch.nn.Identity()
    save_weights(model, tmp_path / "old.safetensors", method="ridge-mean", settings={}, **SIZES)
    assert not any(name.startswith("standardize") for name in load_file(tmp_path / "old.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(load_weights(tmp_path / "old.safetensors")(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_number_format_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    model = make("daam-v1", HEAD["settings"]).to(dtype)
    save_weights(model, tmp_path / "w.safetensors", **HEAD)
    other = load_weights(tmp_path / "w.safetensors")
    x = torch.randn(4, 6, 8, dtype=dtype)
    assert {p.dtype for p in other.parameters()} == {dtype}
    assert torch.equal(other(x), model(x))


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save(a)
    save(b, dict(reversed(HEAD.items())), settings={"hidden_channels": 4, "num_heads": 2})
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("step", ["write", "rename"])
def test_a_file_is_replaced_whole_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(b"old")

    def refuse(target: Path, *_: Any) -> None:
        target.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "write_bytes") if step == "write" else (os, "replace")), refuse)
        with pytest.raises(ArtifactError, match=f"^cannot write {path}: No space left on device\n  free space"):
            save(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    save(path)
    assert load_weights(path).fusion.num_heads == 2


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=f"^cannot write {tmp_path}: "):
        save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def refusal(path: Path) -> str:
    with pytest.raises(MethodError) as caught:
        load_weights(path)
    assert "\n" not in caught.value.message
    return str(caught.value)


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    assert refusal(path) == f"no file {path}"
    assert refusal(tmp_path) == f"no file {tmp_path}"
    save(path)
    for content in (b"", b"not weights", path.read_bytes()[:-1]):
        path.write_bytes(content)
        assert refusal(path).startswith(f"{path} cannot be read as weights: ")


def test_foreign_file_names_the_importer(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for metadata in (None, {"format": "pt"}):
        save_file({"fc.weight": torch.zeros(2)}, path, metadata=metadata)
        assert refusal(path) == (
            f"{path} is not a weights file of daamctl: no metadata entry 'daamctl'\n"
            "  a checkpoint of the published code: daamctl import-checkpoint FILE"
        )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{", "metadata entry 'daamctl' is not JSON: Expecting property name"),
        (
            "[]",
            "metadata entry 'daamctl' lacks a valid schema, kind, method, settings, num_layers, embed_dim, num_classes",
        ),
        (json.dumps({**ENTRY, "embed_dim": "8"}), "metadata entry 'daamctl' lacks a valid embed_dim"),
        (json.dumps({**ENTRY, "num_layers": True}), "metadata entry 'daamctl' lacks a valid num_layers"),
        (
            json.dumps({"schema": 1, "kind": "fusion", "method": "daam-v1", "settings": {}}),
            "metadata entry 'daamctl' lacks a valid num_l",
        ),
        (json.dumps({**ENTRY, "method": "daam-v7"}), "unknown method 'daam-v7'"),
        (json.dumps({**ENTRY, "settings": {"heads": 2}}), "daam-v1: unknown setting 'heads'"),
        (json.dumps({**ENTRY, "settings": {"num_heads": 4}}), "num_heads (4) must divide the number of layers (6)"),
        (json.dumps({**ENTRY, "num_layers": 0}), "daam-v1: num_layers must be at least 1, got 0"),
        (json.dumps({**ENTRY, "num_classes": 4}), "weights do not fit: decoder.fc.weight is (3, 48) where (4, 48) is"),
        (
            json.dumps({**ENTRY, "method": "none", "settings": {}}),
            "weights do not fit: missing none; unknown fusion.off",
        ),
    ],
)
def test_metadata_that_does_not_fit(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "w.safetensors"
    save(path)
    save_file(load_file(path), path, metadata={"daamctl": entry})
    assert refusal(path).startswith(f"{path}: {message}")


@pytest.mark.parametrize(("name", "number"), [("num_layers", 10**9), ("embed_dim", 10**10), ("num_classes", 10**10)])
def test_sizes_that_the_tensors_do_not_have_take_no_memory(tmp_path: Path, name: str, number: int) -> None:
    """A model of such sizes would fill the memory of any machine."""
    torch.manual_seed(0)
    save_weights(build("weighted-sum", **SIZES), tmp_path / "w", method="weighted-sum", settings={}, **SIZES)
    tensors = load_file(tmp_path / "w")
    head = {"schema": 1, "kind": "fusion", "method": "weighted-sum", "settings": {}, **SIZES, name: number}
    save_file(tensors, tmp_path / "w", {"daamctl": json.dumps(head)})
    started = time.perf_counter()
    with pytest.raises(MethodError, match=r"weights do not fit|cannot be built as the file says"):
        load_weights(tmp_path / "w")
    assert time.perf_counter() - started < 1.0


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save(path)
    tensors, metadata = load_file(path), {"daamctl": json.dumps(ENTRY)}
    save_file({name: value for name, value in tensors.items() if "conv" not in name}, path, metadata=metadata)
    assert refusal(path) == (
        f"{path}: weights do not fit: missing decoder.conv1.bias, decoder.conv1.weight, decoder.conv2.bias, "
        "decoder.conv2.weight; unknown none"
    )
    save_file({**tensors, "fusion.offset": torch.zeros(2, 9)}, path, metadata=metadata)
    assert refusal(path) == f"{path}: weights do not fit: fusion.offset is (2, 9) where (2, 8) is needed"
    many = {f"more.{i}": torch.zeros(1) for i in range(7)}
    save_file({**tensors, **many}, path, metadata=metadata)
    assert refusal(path).endswith("missing none; unknown more.0, more.1, more.2, more.3, more.4 and 2 more")
