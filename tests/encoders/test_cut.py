"""Cut encoders: the layers below the cut are those of the whole encoder, in memory and from a saved folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from daamctl.config import ExtractConfig
from daamctl.encoders.cut import MARK
from daamctl.encoders.image import plain_processor
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.encoders.save import save_cut_encoder
from daamctl.encoders.text import BYTE_TOKENS, byte_tokenizer
from daamctl.errors import EncoderError

LAYERS = 3
SMALL = {"hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 24}
SPEECH = {**SMALL, "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2}
PRE_NORM = {**SPEECH, "feat_extract_norm": "layer", "do_stable_layer_norm": True}
POST_NORM = {**SPEECH, "feat_extract_norm": "layer", "do_stable_layer_norm": False}
WHISPER = {
    "d_model": 16,
    "encoder_layers": LAYERS,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_mel_bins": 80,
    "max_source_positions": 100,
    "vocab_size": 8,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
}
TEXT = {**SMALL, "vocab_size": 300, **BYTE_TOKENS}
T5 = {"d_model": 16, "num_layers": LAYERS, "num_heads": 2, "d_kv": 8, "d_ff": 24, "vocab_size": 300}
IMAGE = {**SMALL, "image_size": 32, "patch_size": 8}
MODELS: dict[str, tuple[str, Callable[[], Any]]] = {
    "wavlm": ("speech", lambda: hf.WavLMModel(hf.WavLMConfig(**PRE_NORM))),
    "hubert": ("speech", lambda: hf.HubertModel(hf.HubertConfig(**PRE_NORM))),
    "wav2vec2-pre-norm": ("speech", lambda: hf.Wav2Vec2Model(hf.Wav2Vec2Config(**PRE_NORM))),
    "wav2vec2-post-norm": ("speech", lambda: hf.Wav2Vec2Model(hf.Wav2Vec2Config(**POST_NORM))),
    "whisper": ("speech", lambda: hf.WhisperModel(hf.WhisperConfig(**WHISPER))),
    "bert": ("text", lambda: hf.BertModel(hf.BertConfig(**TEXT))),
    "roberta": ("text", lambda: hf.RobertaModel(hf.RobertaConfig(**TEXT))),
    "llama": ("text", lambda: hf.LlamaModel(hf.LlamaConfig(**TEXT, num_key_value_heads=2))),
    "qwen3": ("text", lambda: hf.Qwen3Model(hf.Qwen3Config(**TEXT, num_key_value_heads=2, head_dim=8))),
    "t5": ("text", lambda: hf.T5Model(hf.T5Config(**T5))),
    "beit": ("image", lambda: hf.BeitModel(hf.BeitConfig(**IMAGE, use_relative_position_bias=True))),
    "vit": ("image", lambda: hf.ViTModel(hf.ViTConfig(**IMAGE))),
    "dinov2": ("image", lambda: hf.Dinov2Model(hf.Dinov2Config(**IMAGE))),
}
CLOSE = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a whole model, as transformers saves it."""

    @cache
    def make(name: str) -> Path:
        modality, build = MODELS[name]
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(0)
        model = build()
        with torch.no_grad():  # fresh norms have weight one and bias zero, which would hide that they were skipped
            for value in model.parameters():
                value.add_(0.05 * torch.randn_like(value))
        model.save_pretrained(folder)
        reader: Any = {"text": byte_tokenizer, "image": lambda: plain_processor(32)}.get(
            modality, hf.WhisperFeatureExtractor if name == "whisper" else hf.Wav2Vec2FeatureExtractor
        )()
        reader.save_pretrained(folder)
        return folder

    return make


def opened(folder: Path, name: str, highest_layer: int | None = None, **settings: Any) -> OpenedEncoder:
    modality: Any = MODELS[name][0]
    config = ExtractConfig.model_validate({"encoder": str(folder), "layer_00": True, **settings})
    usual: dict[str, Any] = {"max_duration_s": 5.0, "device": "cpu", "precision": "float32"}
    return open_encoder(config, modality=modality, highest_layer=highest_layer, **usual)


def items_of(found: OpenedEncoder) -> list[Tensor]:
    encoder: Any = found.encoder
    if encoder.modality == "speech":
        return [0.3 * torch.randn(9000, generator=torch.Generator().manual_seed(2))]
    if encoder.modality == "text":
        items: list[Tensor] = encoder.tokens(["nine layers", "are enough for it"], 64)[0]
        return items
    noise = np.random.default_rng(0)
    return [encoder.pixels(Image.fromarray(noise.integers(0, 256, (40, 40, 3), np.uint8))) for _ in range(2)]


@pytest.mark.parametrize("name", MODELS)
def test_layers_below_the_cut_are_those_of_the_whole_encoder(
    name: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    whole, cut = opened(folder_of(name), name), opened(folder_of(name), name, 2)
    items = items_of(whole)
    expected = whole.encoder.pool(items)[0]
    assert cut.encoder.layers == (0, 1, 2)
    assert (cut.facts["num_layers"], cut.facts["cut"]) == (2, {"highest_layer": 2, "of_layers": LAYERS})
    torch.testing.assert_close(cut.encoder.pool(items)[0], expected[:, :3], **CLOSE)
    sizes = [sum(value.numel() for value in one.encoder.model.parameters()) for one in (whole, cut)]
    assert sizes[1] < sizes[0]
    # the cut model's own output is the state of its last layer too: fine-tuning and export read it
    inputs, mask = cut.encoder.collate(items)
    with torch.no_grad():
        last = cut.encoder.hidden(inputs)
    weights = mask.float() / mask.sum(1, keepdim=True)
    torch.testing.assert_close(torch.einsum("bt,btd->bd", weights, last), expected[:, 2], **CLOSE)

    save_cut_encoder(cut, tmp_path / "cut")
    again = opened(tmp_path / "cut", name)
    assert again.facts == {**cut.facts, "name": again.facts["name"], "source": "cut"}
    torch.testing.assert_close(again.encoder.pool(items)[0], expected[:, :3], **CLOSE)
    shorter = opened(tmp_path / "cut", name, 1)
    assert shorter.facts["cut"] == {"highest_layer": 1, "of_layers": LAYERS}
    torch.testing.assert_close(shorter.encoder.pool(items)[0], expected[:, :2], **CLOSE)
    assert opened(tmp_path / "cut", name, 2).facts == again.facts


@pytest.mark.parametrize("name", ["wavlm", "whisper", "llama", "beit"])
def test_transformers_opens_a_saved_cut_encoder(name: str, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    cut = opened(folder_of(name), name, 2)
    save_cut_encoder(cut, tmp_path / "cut")
    model = hf.AutoModel.from_pretrained(tmp_path / "cut")
    assert model.config.num_hidden_layers == 2
    assert model.dtype == torch.float32
    encoder = model.encoder if name == "whisper" else model
    theirs, ours = encoder.state_dict(), cut.encoder.model.state_dict()
    assert all(torch.equal(theirs[weight], value) for weight, value in ours.items())
    prefix = "encoder." if name == "whisper" else ""
    assert load_file(tmp_path / "cut" / "model.safetensors").keys() == {f"{prefix}{weight}" for weight in ours}


def test_random_weights_are_cut_alike() -> None:
    config = ExtractConfig(encoder="wavlm-micro", weights="random")
    usual: dict[str, Any] = {"modality": "speech", "max_duration_s": 5.0, "device": "cpu", "precision": "float32"}
    before = torch.get_rng_state()
    whole, cut = (open_encoder(config, highest_layer=k, **usual) for k in (None, 5))
    assert torch.equal(torch.get_rng_state(), before)
    items = items_of(whole)
    torch.testing.assert_close(cut.encoder.pool(items)[0], whole.encoder.pool(items)[0][:, :5], **CLOSE)


def test_the_highest_layer_of_all_cuts_nothing(folder_of: Callable[[str], Path]) -> None:
    assert opened(folder_of("wavlm"), "wavlm", LAYERS).facts == opened(folder_of("wavlm"), "wavlm").facts


@pytest.mark.parametrize("layer", [0, -1, 4])
def test_there_is_no_such_layer(folder_of: Callable[[str], Path], layer: int) -> None:
    folder = folder_of("bert")
    with pytest.raises(EncoderError) as caught:
        opened(folder, "bert", layer)
    assert str(caught.value) == f"encoder '{folder}' has layers 1 to 3, so it cannot be cut after layer {layer}"


def test_a_damaged_mark_is_refused(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    save_cut_encoder(opened(folder_of("bert"), "bert", 2), tmp_path / "cut")
    path = tmp_path / "cut" / "config.json"
    values = json.loads(path.read_text())
    for mark in ("yes", {"highest_layer": 1, "of_layers": 3}, {**values[MARK], "final_norm": True}, {"later": 1}):
        path.write_text(json.dumps({**values, MARK: mark}))
        with pytest.raises(EncoderError, match="does not describe the encoder"):
            opened(tmp_path / "cut", "bert")


def test_what_cannot_be_saved(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    cut = opened(folder_of("wavlm"), "wavlm", 2)
    with pytest.raises(EncoderError, match="exists already"):
        save_cut_encoder(cut, tmp_path)
    cut.encoder.prepare_for_inference()  # folds the weight norm
    with pytest.raises(EncoderError, match="has changed since it was opened"):
        save_cut_encoder(cut, tmp_path / "cut")
    assert not list(tmp_path.iterdir())
