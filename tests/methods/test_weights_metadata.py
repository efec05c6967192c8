"""What weights files say of themselves: read without torch, complete, and one clear line where it is damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from daamctl.cli import app
from daamctl.config import ExtractConfig, SegmentConfig
from daamctl.encoders.load import open_encoder
from daamctl.errors import MethodError
from daamctl.methods import WeightsMetadata, build, load_weights, read_metadata, save_weights
from daamctl.methods.weights_metadata import IDENTITY, INPUTS, POOLING, Origin

SIZES = {"method": "mean", "settings": {}, "num_layers": 3, "embed_dim": 4, "num_classes": 2}
NEW = {**SIZES, "schema": 1, "kind": "fusion", "classes": ["a", "b"], "layers": [1, 2, 3], "modality": "text"}
ADAPTER = {"schema": 1, "kind": "adapter", "method": "ia3", "settings": {}, "num_layers": 1, "embed_dim": 4,
           "num_classes": 2, "encoder": {"weights_sha256": "00"}, "head_parameters": 10}  # fmt: skip


def write(path: Path, entry: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = entry if isinstance(entry, str) else json.dumps(entry)
    save_file({"decoder.fc.weight": torch.zeros(2)}, path, metadata={"daamctl": text})
    return path


def refusal(path: Path) -> MethodError:
    """The same for both readers, in one line."""
    found = []
    for read in (read_metadata, load_weights):
        with pytest.raises(MethodError) as caught:
            read(path)
        assert "\n" not in caught.value.message
        found.append(caught.value)
    assert str(found[0]) == str(found[1])
    return found[0]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    origin = Origin(
        classes=("b", "a"),
        layers=(0, 4, 2),
        modality="image",
        encoder={"name": "x", "weights_sha256": "00", "revision": None},
        pooling={"class_tokens": {"number": 1, "pooled": False}, "final_norm": None},
        inputs={"image_size": [32, 32], "processor": {"type": "ViT"}},
        precision="bfloat16",
        storage="float16",
        made_with={"extract": {"layer_00": True}},
    )
    sizes = {"num_layers": 3, "embed_dim": 4, "num_classes": 2}
    path = tmp_path / "w.safetensors"
    save_weights(build("mean", **sizes), path, method="mean", settings={}, **sizes, origin=origin)
    assert read_metadata(path) == WeightsMetadata(kind="fusion", method="mean", settings={}, **sizes, **vars(origin))
    save_weights(build("mean", **sizes), path, method="mean", settings={}, **sizes)
    unknown = read_metadata(str(path))
    assert unknown == WeightsMetadata(kind="fusion", method="mean", settings={}, **sizes)
    assert (unknown.classes, unknown.encoder, unknown.schema) == (None, {}, 1)


@pytest.mark.parametrize(
    ("encoder", "modality", "pooling", "inputs"),
    [
        ("wavlm-micro", "speech", ("pooling", "final_norm"), ("sampling_rate", "normalize")),
        ("llama-micro", "text", ("pooling", "final_norm", "special_tokens"), ("tokenizer_sha256", "max_tokens")),
        ("beit-micro", "image", ("final_norm", "class_tokens"), ("processor", "image_size")),
    ],
)
def test_no_fact_of_an_encoder_is_lost(
    encoder: str, modality: Any, pooling: tuple[str, ...], inputs: tuple[str, ...]
) -> None:
    extract = ExtractConfig(encoder=encoder, weights="random")
    facts = open_encoder(extract, modality=modality, max_duration_s=5.0, device="cpu", precision="float32").facts
    sections = {"download": {}, "segment": SegmentConfig().model_dump(), "extract": extract.model_dump(mode="json")}
    found = Origin.of(facts, classes=("a", "b"), layers=(1, 2), modality=modality, settings=sections)
    assert (tuple(found.pooling), tuple(found.inputs)) == (pooling, inputs)
    assert set(IDENTITY) < set(found.encoder)
    both = {"precision": found.precision, "storage": found.storage, "modality": found.modality}
    assert {**found.encoder, **found.pooling, **found.inputs, **both} == facts
    assert list(found.made_with) == (["segment", "extract"] if modality == "speech" else ["extract"])
    assert ExtractConfig.model_validate(found.made_with["extract"]) == extract
    assert not set(POOLING) & set(INPUTS)


@pytest.mark.parametrize(
    ("entry", "lacking"),
    [
        ({**NEW, "schema": "1"}, "schema"),
        ({**NEW, "schema": None}, "schema"),
        ({**NEW, "kind": "probe"}, "kind"),
        ({**NEW, "kind": ["fusion"]}, "kind"),
        ({**NEW, "method": None}, "method"),
        ({**NEW, "settings": []}, "settings"),
        ({**NEW, "embed_dim": None}, "embed_dim"),
        ({**NEW, "num_classes": 2.0}, "num_classes"),
        ({**NEW, "classes": ["a"]}, "classes"),
        ({**NEW, "classes": ["a", "a"]}, "classes"),
        ({**NEW, "classes": ["a", {}]}, "classes"),
        ({**NEW, "layers": [1, 2, "3"]}, "layers"),
        ({**NEW, "layers": 3}, "layers"),
        ({**NEW, "modality": 1}, "modality"),
        ({**NEW, "encoder": "x", "pooling": 1, "inputs": [], "made_with": ""}, "encoder, pooling, inputs, made_with"),
        ({**NEW, "precision": 16, "storage": 16, "standardize": True}, "precision, storage, standardize"),
        ({**NEW, "head_parameters": "1"}, "head_parameters"),
        ({**ADAPTER, "encoder": {}}, "encoder"),
        ({**ADAPTER, "encoder": {"weights_sha256": None}}, "encoder"),
        ({**ADAPTER, "embed_dim": None}, "embed_dim"),
        ({**ADAPTER, "head_parameters": None}, "head_parameters"),
        ({"schema": 1}, "kind, method, settings, num_layers, embed_dim, num_classes"),
        ({**SIZES, "kind": "fusion"}, "schema"),
        (5, "schema, kind, method, settings, num_layers, embed_dim, num_classes"),
    ],
)
def test_damaged_metadata_gives_one_line(tmp_path: Path, entry: Any, lacking: str) -> None:
    path = write(tmp_path / "w.safetensors", entry)
    assert refusal(path).message == f"{path}: metadata entry 'daamctl' lacks a valid {lacking}"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\ud800"])
def test_metadata_that_is_no_json(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "w.safetensors", text.encode("utf-8", "replace").decode())
    assert refusal(path).message.startswith(f"{path}: metadata entry 'daamctl' is not JSON: ")


def test_sizes_that_no_model_has(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", {**NEW, "embed_dim": 10**30})
    assert read_metadata(path).embed_dim == 10**30
    with pytest.raises(MethodError) as caught:
        load_weights(path)
    assert caught.value.message.startswith(f"{path}: mean cannot be built as the file says: ")
    assert "\n" not in caught.value.message


def test_a_schema_of_later_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", {"schema": 2, "whatever": 1})
    assert str(refusal(path)) == (
        f"{path} follows schema 2 of weights files, this version of daamctl knows those up to 1\n"
        "  update daamctl, or train the fold again"
    )


def test_what_later_files_add_is_passed_over(tmp_path: Path) -> None:
    assert read_metadata(write(tmp_path / "w.safetensors", {**NEW, "more": 1})).layers == (1, 2, 3)


def test_only_safetensors_is_read(tmp_path: Path) -> None:
    for name in ("w.safetensors", "w.pth"):
        path = tmp_path / name
        torch.save({"decoder.fc.weight": torch.zeros(2)}, path)
        assert refusal(path).message.startswith(f"{path} cannot be read as weights: ")
    assert refusal(tmp_path / "none.safetensors").message == f"no file {tmp_path / 'none.safetensors'}"


def test_the_error_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "data/train/demo/mean/fold3-seed2/weights.safetensors", "{")
    assert refusal(path).path == path
    path.write_bytes(b"cut")
    assert refusal(path).path == path


def test_the_command_line_makes_it_a_message(tmp_path: Path) -> None:
    """Exit code 3, as for every expected failure."""
    path = write(tmp_path / "w.safetensors", {**NEW, "layers": 3})
    group = typer.Typer(cls=app._Group)
    group.callback()(lambda: None)
    group.command("load")(lambda: load_weights(path) and None)
    result = CliRunner().invoke(group, ["load"])
    assert result.exit_code == 3
    assert result.stderr == f"MethodError: {path}: metadata entry 'daamctl' lacks a valid layers\n"


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", NEW)
    script = (
        "import sys; from daamctl.methods import read_metadata\n"
        f"assert read_metadata({str(path)!r}).classes == ('a', 'b')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
