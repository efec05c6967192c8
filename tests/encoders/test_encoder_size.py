"""The size of an encoder without its weights: as large as the opened one says it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import requests
from huggingface_hub.constants import is_offline_mode

from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import (
    EncoderSize,
    encoder_size_of,
    is_cached,
    shape_of,
    use_cache_without_hub,
    weight_bytes,
)
from daamctl.encoders.load import open_encoder
from tests.fixtures.tiny_models import tiny


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("name", "modality"), [("wavlm-micro", "speech"), ("llama-micro", "text"), ("beit-micro", "image")]
)
def test_outline_is_that_of_the_opened_encoder(name: str, modality: Modality) -> None:
    config = ExtractConfig(encoder=name)
    found = encoder_size_of(config, modality)
    opened = open_encoder(config, modality=modality, max_duration_s=5.0, device="cpu", precision="float32")
    assert found is not None
    number = sum(value.numel() for value in opened.encoder.model.parameters())
    assert found.num_parameters == pytest.approx(number, rel=0.01)  # less a pooling layer that is left out
    assert (found.num_layers, found.embed_dim) == (max(opened.encoder.layers), opened.encoder.embed_dim)
    assert found.here


def test_preset_tells_the_shape_of_weights_that_are_elsewhere() -> None:
    found = encoder_size_of(ExtractConfig(encoder="wavlm-large"), "speech")
    assert found is not None
    assert (found.num_layers, found.embed_dim, found.here) == (24, 1024, False)
    assert found.num_parameters == pytest.approx(315e6, rel=0.01)
    random = encoder_size_of(ExtractConfig(encoder="wavlm-large", weights="random"), "speech")
    assert random is not None
    assert random.here


def test_whisper_layers_are_its_encoders() -> None:
    found = encoder_size_of(ExtractConfig(encoder="whisper-tiny"), "speech")
    assert found is not None
    assert (found.num_layers, found.embed_dim) == (4, 384)


@pytest.mark.parametrize("name", list(ENCODERS))
def test_shape_is_that_of_the_outline(name: str) -> None:
    preset = ENCODERS[name]
    found = encoder_size_of(ExtractConfig(encoder=name), preset.modality)
    assert found is not None
    assert shape_of(ExtractConfig(encoder=name), None) == (found.num_layers, found.embed_dim)
    with_00 = ExtractConfig(encoder=name, layer_00=True)  # methods are not trained on the embedding output
    assert shape_of(with_00, preset.modality) == (found.num_layers, found.embed_dim)


@pytest.mark.parametrize(
    ("values", "modality", "expected"),
    [
        ({"num_hidden_layers": 12, "hidden_size": 384}, "text", (12, 384)),
        ({"num_layers": 6, "num_decoder_layers": 3, "d_model": 512}, "text", (6, 512)),
        ({"encoder_layers": 6, "decoder_layers": 4, "num_hidden_layers": 6, "d_model": 512}, "speech", (6, 512)),
        ({"n_layer": 12, "n_embd": 768}, "text", (12, 768)),
        ({"n_layers": 6, "dim": 768}, "text", (6, 768)),
        ({"text_config": {"num_hidden_layers": 2, "hidden_size": 8},
          "vision_config": {"num_hidden_layers": 3, "hidden_size": 16}}, "image", (3, 16)),
        ({"text_config": {"num_hidden_layers": 2, "hidden_size": 8}}, None, None),
        ({"hidden_size": 8}, "text", None),
        ({"num_hidden_layers": "twelve", "hidden_size": 8}, "text", None),
    ],
)  # fmt: skip
def test_shape_of_a_folder(tmp_path: Path, values: Any, modality: Modality | None, expected: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert shape_of(ExtractConfig(encoder=str(tmp_path)), modality) == expected


def test_shape_of_the_hub_only_where_it_is_cached(hub: Path, tmp_path: Path) -> None:
    assert shape_of(ExtractConfig(encoder="someone/thing"), "text") is None
    snapshot = hub / "models--someone--thing/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"num_hidden_layers": 12, "hidden_size": 384}))
    (hub / "models--someone--thing/refs").mkdir()
    (hub / "models--someone--thing/refs/main").write_text("abc")
    assert shape_of(ExtractConfig(encoder="someone/thing"), "text") == (12, 384)
    (snapshot / "config.json").write_text("{")
    assert shape_of(ExtractConfig(encoder="someone/thing"), "text") is None
    assert shape_of(ExtractConfig(encoder=str(tmp_path)), "text") is None  # a folder without a config.json


def test_folder_needs_no_network(tmp_path: Path) -> None:
    tiny("bert").model.save_pretrained(tmp_path / "bert")
    found = encoder_size_of(ExtractConfig(encoder=str(tmp_path / "bert")), "text")
    assert found is not None
    assert (found.num_layers, found.embed_dim, found.here) == (2, 32, True)


@pytest.mark.parametrize("name", ["someone/else", "no-such-encoder"])
def test_nothing_is_known_of_what_is_not_here(name: str) -> None:
    assert encoder_size_of(ExtractConfig(encoder=name), "speech") is None


def test_damaged_configuration_is_left_to_the_one_who_opens_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert encoder_size_of(ExtractConfig(encoder=str(tmp_path)), "speech") is None


@pytest.mark.parametrize(
    ("modality", "device", "dtype", "each"),
    [
        ("text", "cuda", "auto", 2),
        ("text", "cpu", "auto", 4),
        ("speech", "cuda", "auto", 4),
        ("text", "cpu", "float16", 2),
    ],
)
def test_weights_take_what_their_format_takes(modality: Modality, device: str, dtype: str, each: int) -> None:
    config = ExtractConfig.model_validate({"weights_dtype": dtype})
    assert weight_bytes(EncoderSize(10, 1, 1, True), config, modality, device, "bfloat16") == 10 * each


def test_cached_means_all_files_of_the_weights(hub: Path) -> None:
    folder = hub / "models--a--b"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "snapshots/abc/config.json").write_text("{}")
    assert not is_cached("a/b", None)
    index = {"weight_map": {"one": "model-1.safetensors", "two": "model-2.safetensors"}}
    (folder / "snapshots/abc/model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "snapshots/abc/model-1.safetensors").touch()
    assert not is_cached("a/b", None)
    (folder / "snapshots/abc/model-2.safetensors").touch()
    assert is_cached("a/b", None)
    assert not is_cached("a/b", "other")
    (folder / "snapshots/abc/model.safetensors.index.json").write_text(json.dumps(index)[:-9])
    assert not is_cached("a/b", None)


def test_without_the_hub_only_the_cache_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would try to reach the hub for a minute."""

    def head(*_: object, **__: object) -> None:
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "head", head)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    use_cache_without_hub()
    assert is_offline_mode()
