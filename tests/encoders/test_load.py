"""Opening encoders: presets, local folders, hub ids offline; nothing that carries code, nothing half loaded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS
from daamctl.encoders.base import weights_hash
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.errors import EncoderError

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": (8,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
}


def opened(encoder: str, **settings: Any) -> OpenedEncoder:
    config = ExtractConfig.model_validate({"encoder": encoder, **settings})
    return open_encoder(config, max_duration_s=5.0, device="cpu", precision="float32")


def refused(encoder: str, **settings: Any) -> str:
    with pytest.raises(EncoderError) as caught:
        opened(encoder, **settings)
    return str(caught.value)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import WavLMConfig, WavLMModel

    torch.manual_seed(4)
    return WavLMModel(WavLMConfig(**TINY)).eval()


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    """The tiny model as a local folder."""
    from transformers import Wav2Vec2FeatureExtractor

    path = tmp_path / "tiny"
    model.save_pretrained(path)
    Wav2Vec2FeatureExtractor(do_normalize=True, sampling_rate=16000).save_pretrained(path)
    return path


@pytest.fixture
def altered(folder: Path) -> Callable[[dict[str, torch.Tensor]], str]:
    """The folder with other weights."""

    def write(state: dict[str, torch.Tensor]) -> str:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)

    return write


def state_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_random_preset_repeats_by_seed() -> None:
    before = torch.get_rng_state()
    first, again, other = opened("wavlm-micro"), opened("wavlm-micro"), opened("wavlm-micro", seed=1)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers are left alone
    assert first.facts == again.facts
    assert first.facts["weights_sha256"] != other.facts["weights_sha256"]
    assert first.facts["source"] == "wavlm-micro (random weights, seed 0)"
    assert first.facts["revision"] is None
    assert first.facts["num_layers"] == 24
    assert first.encoder.layers == tuple(range(1, 25))
    wave = [0.1 * torch.randn(4000, generator=torch.Generator().manual_seed(0))]
    assert torch.equal(first.encoder.pool(wave)[0], again.encoder.pool(wave)[0])


def test_weights_hash_sees_names_shapes_types_and_values() -> None:
    def linear(value: float, rows: int = 2, dtype: torch.dtype = torch.float32) -> torch.nn.Linear:
        module = torch.nn.Linear(6 // rows, rows, bias=False, dtype=dtype)
        torch.nn.init.constant_(module.weight, value)
        return module

    plain = weights_hash(linear(1.0))
    assert plain == weights_hash(linear(1.0))
    others = [linear(2.0), linear(1.0, rows=3), linear(1.0, dtype=torch.float64), torch.nn.Sequential(linear(1.0))]
    assert len({plain, *(weights_hash(other) for other in others)}) == 5


def test_local_folder_equals_the_model_in_memory(folder: Path, model: Any) -> None:
    encoder = opened(str(folder))
    assert encoder.facts["weights_sha256"] == weights_hash(model)
    assert encoder.facts["source"] == "tiny"
    assert encoder.facts["normalize"] is True
    assert encoder.facts["final_norm"] is True
    assert not any(p.requires_grad for p in encoder.encoder.model.parameters())
    wave = 0.2 * torch.randn(4000, generator=torch.Generator().manual_seed(0))
    normal = (wave - wave.mean()) / torch.sqrt(wave.var(correction=0) + 1e-7)
    with torch.no_grad():
        output = model(normal[None], output_hidden_states=True)
    pooled = encoder.encoder.pool([wave])[0][0]
    torch.testing.assert_close(pooled[0], output.hidden_states[1][0].mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pooled[1], output.last_hidden_state[0].mean(0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("setting", "expected"), [("encoder", True), ("always", True), ("never", False)])
def test_normalisation_setting(folder: Path, setting: str, expected: bool) -> None:
    found = opened(str(folder), normalize=setting)
    assert found.facts["normalize"] is expected
    assert found.encoder.normalize is expected


def test_feature_extractor_decides_the_normalisation(folder: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    Wav2Vec2FeatureExtractor(do_normalize=False, sampling_rate=8000).save_pretrained(folder)
    found = opened(str(folder))
    assert found.facts["normalize"] is False
    assert found.encoder.sampling_rate == found.facts["sampling_rate"] == 8000


def test_options_reach_the_encoder(folder: Path) -> None:
    found = opened(str(folder), layer_00=True, final_norm=False, pooling="all-frames", storage="float32")
    assert found.encoder.layers == (0, 1, 2)
    assert found.encoder.options.all_frames
    assert found.encoder.options.pad_to_s == 5.0
    assert found.facts["final_norm"] is False
    assert found.facts["storage"] == "float32"


def test_folder_without_config(tmp_path: Path) -> None:
    assert refused(str(tmp_path)) == f"folder {tmp_path} holds no config.json, so it is not a Hugging Face model"


def test_unknown_name_names_the_nearest() -> None:
    text = refused("wavlm-larg")
    assert text.startswith("unknown encoder 'wavlm-larg'\n  did you mean 'wavlm-large'? presets: wavlm-micro, ")
    assert all(name in text for name in ENCODERS)
    assert text.endswith("; or a Hugging Face id (owner/name), or a local folder")


@pytest.mark.parametrize(("revision", "at"), [(None, ""), ("v1", " --revision v1")])
def test_hub_id_offline_names_the_command(revision: str | None, at: str) -> None:
    text = refused("nobody/nothing-at-all", revision=revision)
    assert text.startswith("encoder 'nobody/nothing-at-all' is neither in the local cache nor reachable: ")
    assert text.endswith(
        f"\n  with network: hf download nobody/nothing-at-all{at}; "
        "or copy a downloaded folder here and pass --encoder FOLDER"
    )


def test_random_weights_need_a_preset(folder: Path) -> None:
    assert refused(str(folder), weights="random") == (
        f"extract.weights=random works with presets only, met '{folder}'\n  daamctl ls encoders"
    )


def test_text_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8).save_pretrained(tmp_path)
    assert refused(str(tmp_path)) == (
        f"encoder '{tmp_path}' is of type 'bert', which is not a speech encoder known here\n"
        "  known types: wavlm, hubert, wav2vec2, unispeech, unispeech-sat, data2vec-audio, whisper"
    )


def test_bin_checkpoint_loads(folder: Path, model: Any) -> None:
    torch.save(state_of(folder), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert opened(str(folder)).facts["weights_sha256"] == weights_hash(model)


class Evil:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def test_pickle_with_code_is_refused_and_not_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Evil(str(mark))}, folder / "pytorch_model.bin")
    assert refused(str(folder)).startswith(f"encoder folder {folder} cannot be loaded: Weights only load failed")
    assert not mark.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)  # the file does carry code
    assert mark.exists()


@pytest.mark.parametrize("size", [2, 2000])
def test_damaged_weights(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refused(str(folder)).startswith(f"encoder folder {folder} cannot be loaded: ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("preprocessor_config.json", "Can't load feature extractor"),
        ("model.safetensors", "no file named model.safetensors"),
    ],
)
def test_missing_file(folder: Path, name: str, reason: str) -> None:
    (folder / name).unlink()
    text = refused(str(folder))
    assert text.startswith(f"encoder folder {folder} cannot be loaded: ")
    assert reason in text


def test_weights_of_another_shape(folder: Path, altered: Callable[..., str]) -> None:
    state = state_of(folder)
    key = next(name for name, value in state.items() if value.ndim == 2)
    assert refused(altered({**state, key: torch.zeros(3, 3)})).startswith(f"encoder folder {folder} cannot be loaded: ")


@pytest.mark.parametrize("damage", ["all renamed", "one missing"])
def test_missing_weights_are_refused(folder: Path, altered: Callable[..., str], damage: str) -> None:
    state = state_of(folder)
    if damage == "all renamed":
        path = altered({f"other.{name}": value for name, value in state.items()})
    else:
        gone = next(name for name in state if name.endswith("layers.1.feed_forward.output_dense.weight"))
        path = altered({name: value for name, value in state.items() if name != gone})
    text = refused(path)
    assert text.startswith(f"encoder '{path}' lacks weights that its config.json asks for: ")
    assert "more" in text if damage == "all renamed" else text.endswith("layers.1.feed_forward.output_dense.weight")
