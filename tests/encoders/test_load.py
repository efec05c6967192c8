"""Opening encoders: presets, local folders, hub ids offline; nothing that carries code, nothing half loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from daamctl.adapters import build_finetune
from daamctl.artifacts.utterances import Modality
from daamctl.config import ExtractConfig
from daamctl.encoders import ENCODERS, load, presets_of
from daamctl.encoders.base import weights_hash
from daamctl.encoders.cost import parameter_shares, time_shares
from daamctl.encoders.encoder_size import encoder_size_of
from daamctl.encoders.image import plain_processor
from daamctl.encoders.load import OpenedEncoder, open_encoder
from daamctl.encoders.text import BYTE_TOKENS, byte_tokenizer, tokenizer_hash
from daamctl.errors import EncoderError
from daamctl.stages.ls import entries

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "whisper-base-encoder"

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


def opened(encoder: str, modality: Modality = "speech", *, keep_pooler: bool = False, **settings: Any) -> OpenedEncoder:
    config = ExtractConfig.model_validate({"encoder": encoder, **settings})
    usual: dict[str, Any] = {"max_duration_s": 5.0, "device": "cpu", "precision": "float32"}
    return open_encoder(config, modality=modality, keep_pooler=keep_pooler, **usual)


def refused(encoder: str, modality: Modality = "speech", **settings: Any) -> str:
    with pytest.raises(EncoderError) as caught:
        opened(encoder, modality, **settings)
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


def test_other_large_numbers_are_no_layers(folder: Path) -> None:
    path = folder / "config.json"
    labels = {"label2id": {"bricklayer": 9_000}, "id2label": {"9000": "bricklayer"}, "max_position_embeddings": 10**6,
              "layer_rope_theta": [10_000.0, 500_000]}  # fmt: skip
    path.write_text(json.dumps({**json.loads(path.read_text()), **labels, "num_labels": 1}))
    assert opened(str(folder)).facts["num_layers"] == 2


@pytest.mark.parametrize(
    ("name", "number"), [("num_hidden_layers", 100_000), ("num_feat_extract_layers", 1_001), ("depths", [2, 100_000])]
)
def test_more_layers_than_any_encoder_has_are_refused_at_once(folder: Path, name: str, number: Any) -> None:
    """Building them would take minutes, also without memory."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: number}))
    started = time.perf_counter()
    said = refused(str(folder))
    assert encoder_size_of(ExtractConfig(encoder=str(folder)), "speech") is None
    assert time.perf_counter() - started < 1.0
    largest = f"{100_000 if number != 1_001 else number:,}"
    assert f"is not usable: {name} is {largest}, supported are up to 1,000 layers" in said
    path.write_text(json.dumps({"text_config": json.loads(path.read_text())}))
    assert f"{name} is {largest}" in refused(str(folder), "text")


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


def test_the_encoder_that_ships_with_daamctl() -> None:
    found = opened("wavlm-demo")
    assert (found.facts["source"], found.facts["num_layers"], found.facts["normalize"]) == ("wavlm_demo", 12, False)
    random = opened("wavlm-demo", weights="random")
    assert random.facts["source"] == "wavlm-demo (random weights, seed 0)"
    assert random.facts["weights_sha256"] != found.facts["weights_sha256"]
    assert random.encoder.layers == found.encoder.layers
    folder = ENCODERS["wavlm-demo"].folder
    assert (folder / "model.safetensors").stat().st_size < 2_000_000
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float16}


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
    assert found.encoder.all_frames
    assert found.encoder.pad_to_s == 5.0
    assert found.facts["final_norm"] is False
    assert found.facts["storage"] == "float32"


def test_an_adapter_must_be_merged(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert refused(str(tmp_path)).startswith(f"folder {tmp_path} holds an adapter of PEFT, not a model\n  merge it: ")


def test_folder_without_config(tmp_path: Path) -> None:
    fetch = f"hf download OWNER/NAME --local-dir {tmp_path}"
    assert refused(str(tmp_path)) == (
        f"folder {tmp_path} holds no config.json, so it is not a Hugging Face model\n"
        f"  pass the folder that holds it, or, with network, put a model there: {fetch}"
    )
    for place in ("model", "snapshots/0123abcd"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").touch()
    assert refused(str(tmp_path)).endswith(
        f"  pass the folder that holds it, {tmp_path}/model, {tmp_path}/snapshots/0123abcd, or, with network, put a "
        f"model there: {fetch}"
    )


@pytest.mark.parametrize("name", ["/nowhere/a model", "./nowhere", "../nowhere", "~/nowhere"])
def test_a_path_that_is_no_folder_is_not_taken_for_a_name(name: str) -> None:
    place = shlex.quote(str(Path(name).expanduser()))
    assert refused(name) == (
        f"no folder {name}\n  correct the path, or, with network, put a model there: "
        f"hf download OWNER/NAME --local-dir {place}"
    )


def test_unknown_name_names_the_nearest() -> None:
    text = refused("wavlm-larg")
    assert text.startswith("unknown encoder 'wavlm-larg'\n  did you mean 'wavlm-large'? similar: wavlm-micro, ")
    assert sum(name in text for name in ENCODERS) == 3
    assert text.endswith("; or a Hugging Face id with its owner, e.g. google-bert/bert-base-uncased, or a local folder")


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
        f"extract.weights=random works with presets only, got '{folder}'\n  daamctl ls encoders"
    )


def test_text_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8).save_pretrained(tmp_path)
    assert refused(str(tmp_path)) == (
        f"encoder '{tmp_path}' reads text, the corpus holds speech\n"
        "  presets that fit: wavlm-micro, wavlm-demo, wavlm-base-plus, wavlm-large, hubert-large, wav2vec2-large, "
        "w2v-bert-2, ast-audioset, whisper-tiny, whisper-large-v3; daamctl ls encoders"
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
    text = refused(str(folder))
    assert text.startswith(f"encoder folder {folder} cannot be loaded: its weights contain code (")
    assert text.endswith("), which is not run")
    assert not mark.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)  # the file does carry code
    assert mark.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 7},
        {"num_attention_heads": 0},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "two"},
        {"hidden_act": "no such function"},
        {"conv_dim": [8], "conv_kernel": [3, 3]},
        {"model_type": "no-such-type"},
        {"conv_kernel": None},
    ],
    ids=str,
)
def test_a_config_that_the_library_refuses(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    text = refused(str(folder))
    assert str(folder) in text
    assert "\n" not in text.partition("\n  ")[0]


@pytest.mark.parametrize("content", ["", "[]", "null", "{", "\xff"])
def test_a_config_that_is_no_config(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content, encoding="latin-1")
    assert str(folder) in refused(str(folder))


def test_a_model_with_code_of_its_own_is_refused_without_advice_to_run_it(folder: Path) -> None:
    path = folder / "config.json"
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))
    (folder / "mine.py").write_text("raise SystemExit('it ran')")
    reason = "it needs code of its own, which daamctl does not run"
    assert refused(str(folder)) == f"encoder folder {folder} cannot be loaded: {reason}"


@pytest.mark.parametrize("size", [2, 2000])
def test_damaged_weights(folder: Path, size: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    assert refused(str(folder)).startswith(f"encoder folder {folder} cannot be loaded: ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "preprocessor_config.json",
            "it has no feature extractor\n"
            "  save that of the original model in it: AutoFeatureExtractor.from_pretrained(ID).save_pretrained(FOLDER)",
        ),
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


WHISPER = {
    "d_model": 16,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 24,
    "num_mel_bins": 80,
    "max_source_positions": 300,
}


@pytest.fixture
def whisper(tmp_path: Path) -> tuple[Any, Path]:
    """A tiny Whisper with its decoder, and the folder that holds it."""
    torch.manual_seed(4)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**WHISPER)).eval()
    path = tmp_path / "whisper"
    model.save_pretrained(path)
    transformers.WhisperFeatureExtractor().save_pretrained(path)
    return model, path


@pytest.mark.parametrize("prefix", ["model.encoder.", "encoder.", ""])
def test_a_whisper_checkpoint_may_lack_the_decoder(whisper: tuple[Any, Path], prefix: str) -> None:
    model, path = whisper
    whole = opened(str(path))
    encoder = model.get_encoder()
    state = {f"{prefix}{name}": value.contiguous() for name, value in encoder.state_dict().items()}
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    alone = opened(str(path))
    assert alone.facts == whole.facts
    assert alone.facts["weights_sha256"] == weights_hash(encoder)
    wave = [0.2 * torch.randn(4000, generator=torch.Generator().manual_seed(0))]
    pooled = alone.encoder.pool(wave)[0]
    assert torch.equal(pooled, whole.encoder.pool(wave)[0])
    with torch.no_grad():
        hidden = encoder(alone.encoder.collate(wave)[0]["input_features"], output_hidden_states=True)
    torch.testing.assert_close(pooled[0, 0], hidden.hidden_states[1][0, :13].mean(0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("prefix", ["model.encoder.", ""])
def test_a_whisper_checkpoint_must_hold_the_whole_encoder(whisper: tuple[Any, Path], prefix: str) -> None:
    model, path = whisper
    state = {f"{prefix}{name}": value.contiguous() for name, value in model.get_encoder().state_dict().items()}
    del state[f"{prefix}layers.1.fc1.weight"]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    assert refused(str(path)) == (f"encoder '{path}' lacks weights that its config.json asks for: layers.1.fc1.weight")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared Whisper encoder is not at {SHARED}")
def test_a_whisper_encoder_with_real_weights_opens() -> None:
    found = opened(str(SHARED))
    assert (found.encoder.embed_dim, found.encoder.layers) == (512, (1, 2, 3, 4, 5, 6))
    pooled, frames = found.encoder.pool([0.1 * torch.randn(16000, generator=torch.Generator().manual_seed(0))])
    assert frames.tolist() == [50]
    assert bool(pooled.isfinite().all())


SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
WORDS = {**SMALL, "vocab_size": 259, "max_position_embeddings": 40, **BYTE_TOKENS}
PICTURES = {**SMALL, "image_size": 32, "patch_size": 8}


def saved(path: Path, name: str, config: str, **settings: Any) -> str:
    """A model of transformers with random weights, and what its inputs need, as a folder."""
    torch.manual_seed(4)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    model.save_pretrained(path)
    if "image_size" in settings or "vision_config" in settings:
        plain_processor(32).save_pretrained(path)
    if "vocab_size" in settings or "text_config" in settings:
        byte_tokenizer().save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "layers", "width", "modality"),
    [
        ("llama2-13b", 40, 5120, "text"),
        ("roberta-large", 24, 1024, "text"),
        ("llama-micro", 16, 64, "text"),
        ("beit-large", 24, 1024, "image"),
        ("beit-large-pt22k", 24, 1024, "image"),
        ("vit-large", 24, 1024, "image"),
        ("dinov2-large", 24, 1024, "image"),
        ("beit-micro", 24, 64, "image"),
    ],
)
def test_presets_have_the_shape_that_they_say(name: str, layers: int, width: int, modality: Modality) -> None:
    preset = ENCODERS[name]
    config = transformers.AutoConfig.for_model(preset.model_type, **preset.shape)
    assert (config.num_hidden_layers, config.hidden_size) == (layers, width)
    assert f"{layers} layers" in ENCODERS[name].summary
    assert preset.modality == modality
    assert name in presets_of(modality)
    assert (preset.hub_id is None) == name.endswith("micro")


def test_listing_says_what_each_preset_reads() -> None:
    lines = dict(entries("encoders"))
    assert list(lines) == list(ENCODERS)
    assert lines["llama2-13b"].startswith("text | Llama 2 13B")
    assert lines["beit-large"].startswith("image | BEiT-Large")
    assert lines["wavlm-large"].startswith("speech | WavLM-Large")


@pytest.mark.parametrize(("name", "modality", "layers"), [("llama-micro", "text", 16), ("beit-micro", "image", 24)])
def test_micro_presets_repeat_by_seed_and_their_layers_differ(name: str, modality: Modality, layers: int) -> None:
    before = torch.get_rng_state()
    first, again, other = opened(name, modality), opened(name, modality), opened(name, modality, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.facts == again.facts
    assert first.facts["weights_sha256"] != other.facts["weights_sha256"]
    assert first.encoder.layers == tuple(range(1, layers + 1))
    assert first.encoder.embed_dim == 64
    encoder: Any = first.encoder
    if modality == "text":
        items = encoder.tokens([f"{i} text number {7 * i}" for i in range(8)], 99)[0]
    else:
        items = list(torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    pooled = encoder.pool(items)[0]
    centred = torch.nn.functional.normalize(pooled - pooled.mean(0), dim=2)
    assert (centred[:, 0] * centred[:, -1]).sum(1).mean() < 0.5  # the last layer says something else than the first
    assert pooled.std(0).mean(1).min() > 0.01  # and no layer says the same of all items


def test_text_folder_without_the_language_model_head(tmp_path: Path) -> None:
    path = saved(tmp_path, "LlamaForCausalLM", "LlamaConfig", **WORDS)
    found = opened(path, "text", layer_00=True)
    encoder: Any = found.encoder
    assert type(encoder.model) is transformers.LlamaModel
    assert not any("lm_head" in name for name, _ in encoder.model.named_parameters())
    assert not any(p.requires_grad for p in encoder.model.parameters())
    ids = torch.tensor([1, 50, 60, 70])
    with torch.no_grad():
        states = encoder.model(input_ids=ids[None], output_hidden_states=True).hidden_states
    expected = torch.stack([state[0, 1:].mean(0) for state in states])
    torch.testing.assert_close(encoder.pool([ids])[0][0], expected, atol=1e-5, rtol=1e-4)
    assert found.facts["modality"] == "text"
    assert found.facts["final_norm"] is True
    assert found.facts["max_tokens"] == 40
    assert found.facts["special_tokens"] == {"first": 1, "last": 0, "pooled": False}
    assert found.facts["tokenizer_sha256"] == tokenizer_hash(byte_tokenizer())
    assert opened(path, "text", pool_special_tokens=True).facts["special_tokens"]["pooled"] is True


def test_bigbird_reads_long_texts_with_full_attention_and_its_record_says_so(tmp_path: Path) -> None:
    long = {**WORDS, "max_position_embeddings": 256, "block_size": 8}
    path = saved(tmp_path, "BigBirdModel", "BigBirdConfig", **long)
    found = opened(path, "text")
    assert found.facts["attention_type"] == "original_full"
    ids = torch.randint(3, 259, (200,), generator=torch.Generator().manual_seed(0))
    full = transformers.BigBirdModel.from_pretrained(path, attention_type="original_full").eval()
    with torch.no_grad():
        states = full(input_ids=ids[None], output_hidden_states=True).hidden_states
    expected = torch.stack([state[0, 1:].mean(0) for state in states[1:]])
    torch.testing.assert_close(found.encoder.pool([ids])[0][0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "config", "modality", "settings"),
    [
        ("BertForMaskedLM", "BertConfig", "text", WORDS),
        ("RobertaForMaskedLM", "RobertaConfig", "text", WORDS),
        ("ViTForImageClassification", "ViTConfig", "image", PICTURES),
        ("BeitForMaskedImageModeling", "BeitConfig", "image", {**PICTURES, "use_mask_token": True}),
    ],
)
def test_checkpoints_without_pooling_weights_load_and_none_are_made_up(
    tmp_path: Path, name: str, config: str, modality: Modality, settings: dict[str, Any]
) -> None:
    path = saved(tmp_path, name, config, **settings)
    first, again = opened(path, modality), opened(path, modality)
    assert first.facts["weights_sha256"] == again.facts["weights_sha256"]
    assert first.encoder.layers == (1, 2)
    assert first.facts["final_norm"] is (True if name.startswith("ViT") else None)


def test_layers_that_share_their_weights(tmp_path: Path) -> None:
    sizes = {**WORDS, "embedding_size": 8, "num_hidden_layers": 4}
    encoder: Any = opened(saved(tmp_path, "AlbertForMaskedLM", "AlbertConfig", **sizes), "text", layer_00=True).encoder
    assert encoder.layers == (0, 1, 2, 3, 4)
    assert len(set(encoder.pooler.layers)) == 1
    ids = [torch.arange(10, 10 + length) for length in (4, 7)]
    for _ in range(2):  # the turns are counted anew in every pass
        pooled, _ = encoder.pool(ids)
        for row, one in enumerate(ids):
            with torch.no_grad():
                states = encoder.model(input_ids=one[None], output_hidden_states=True).hidden_states
            expected = torch.stack([state[0, 1:].mean(0) for state in states])
            torch.testing.assert_close(pooled[row], expected, atol=1e-5, rtol=1e-4)
    assert parameter_shares(encoder) == pytest.approx([0.3, 1, 1, 1, 1], abs=0.3)  # the first layer has all weights
    shares = time_shares(encoder)
    assert shares == sorted(shares)
    assert (len(shares), shares[-1]) == (5, 1.0)


def test_encoder_of_an_encoder_decoder(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "num_layers": 2, "num_heads": 2, "d_ff": 24, "d_kv": 8, "vocab_size": 259, **BYTE_TOKENS}
    path = saved(tmp_path, "T5EncoderModel", "T5Config", **sizes)  # a checkpoint without the decoder
    encoder = opened(path, "text").encoder
    assert type(encoder.model).__name__ == "T5Stack"
    assert not encoder.model.config.is_decoder
    assert encoder.layers == (1, 2)


@pytest.mark.parametrize("kind", ["CLIP", "MetaClip2", "Siglip", "ChineseCLIP", "Blip", "CLIPSeg"])
def test_towers_of_a_model_of_two_modalities(tmp_path: Path, kind: str) -> None:
    """Of some, `AutoModel` knows neither; BLIP's vision tower norms its pooled vectors with the final norm."""
    vision = {**PICTURES, "num_hidden_layers": 3}
    words = {**WORDS, "projection_size": 16} if kind == "Siglip" else WORDS
    path = saved(tmp_path, f"{kind}Model", f"{kind}Config", text_config=words, vision_config=vision)
    whole = getattr(transformers, f"{kind}Model").from_pretrained(path)
    towers: dict[Modality, Any] = {"text": whole.text_model, "image": whole.vision_model}
    for modality, tower in towers.items():
        encoder = opened(path, modality).encoder
        assert encoder.layers == tuple(range(1, tower.config.num_hidden_layers + 1))
        theirs = tower.state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in encoder.model.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "text_type"),
    [
        ("Gemma3", "gemma3_text"),
        ("Llava", "llama"),
        ("Mistral3", "mistral"),
        ("Idefics3", "llama"),
    ],
)
def test_language_model_of_a_multimodal_model(tmp_path: Path, kind: str, text_type: str) -> None:
    words = {**WORDS, "model_type": text_type, "num_key_value_heads": 1, "head_dim": 8}
    vision = {} if kind == "Idefics3" else {"model_type": "siglip_vision_model", **PICTURES}
    path = saved(tmp_path, f"{kind}ForConditionalGeneration", f"{kind}Config", text_config=words, vision_config=vision)
    encoder = opened(path, "text").encoder
    whole = transformers.AutoModel.from_pretrained(path, torch_dtype="float32").eval()
    language_model = whole.text_model if kind == "Idefics3" else whole.language_model
    (ids,), _ = encoder.tokens(["a text"], 20)
    states = language_model(input_ids=ids[None], output_hidden_states=True).hidden_states
    torch.testing.assert_close(encoder.hidden_layers({"input_ids": ids[None]})[0], states[1])


@pytest.mark.parametrize("prefix", ["vision_tower.", "vision_tower.vision_model.", "model.vision_tower.vision_model."])
@pytest.mark.parametrize(("kind", "text_type"), [("Gemma3", "gemma3_text"), ("Llava", "llama")])
def test_vision_tower_of_a_multimodal_model(tmp_path: Path, kind: str, text_type: str, prefix: str) -> None:
    words = {**WORDS, "model_type": text_type, "num_key_value_heads": 1, "head_dim": 8}
    vision = {"model_type": "siglip_vision_model", **PICTURES}
    path = saved(tmp_path, f"{kind}ForConditionalGeneration", f"{kind}Config", text_config=words, vision_config=vision)
    file = Path(path) / "model.safetensors"
    weights = load_file(file)
    own = {name.removeprefix("vision_tower."): value for name, value in weights.items() if name.startswith("vision_")}
    others = {name: value for name, value in weights.items() if not name.startswith("vision_")}
    named = {f"{prefix}{name}": value for name, value in own.items()}
    save_file(others | named, file, metadata={"format": "pt"})
    plain_processor(32).save_pretrained(path)
    tower = opened(path, "image").encoder.model
    state = tower.state_dict()
    assert {name for name in own if "head." not in name} <= state.keys()
    assert all(torch.equal(value, own[name]) for name, value in state.items())


@pytest.mark.parametrize("kind", ["tuned", "self-supervised"])
def test_published_beit_checkpoints_load_by_their_old_names(tmp_path: Path, kind: str) -> None:
    """Names as in microsoft/beit-large-patch16-224, and its -pt22k with a shared table and without a pooler."""
    tuned = kind == "tuned"
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    state = {
        "beit.embeddings.cls_token": random(1, 1, 16),
        "beit.embeddings.patch_embeddings.projection.weight": random(16, 3, 8, 8),
        "beit.embeddings.patch_embeddings.projection.bias": random(16),
    }
    for layer in ("beit.encoder.layer.0", "beit.encoder.layer.1"):
        attention = f"{layer}.attention.attention"
        state |= {f"{attention}.{name}.weight": random(16, 16) for name in ("query", "key", "value")}
        state |= {f"{attention}.{name}.bias": random(16) for name in ("query", "value")}
        shapes = {"attention.output": (16, 16), "intermediate": (24, 16), "output": (16, 24)}
        state |= {f"{layer}.{name}.dense.weight": random(*shape) for name, shape in shapes.items()}
        state |= {f"{layer}.{name}.dense.bias": random(shape[0]) for name, shape in shapes.items()}
        norms = ("layernorm_before.weight", "layernorm_before.bias", "layernorm_after.weight", "layernorm_after.bias")
        state |= {f"{layer}.{name}": random(16) for name in (*norms, "lambda_1", "lambda_2")}
        if tuned:
            state[f"{attention}.relative_position_bias.relative_position_bias_table"] = random(52, 2)
    if tuned:
        state |= {"beit.pooler.layernorm.weight": random(16), "beit.pooler.layernorm.bias": random(16)}
        config = transformers.BeitConfig(**PICTURES, use_relative_position_bias=True)
    else:
        state["beit.embeddings.mask_token"] = random(1, 1, 16)
        state["beit.encoder.relative_position_bias.relative_position_bias_table"] = random(52, 2)
        state |= {"layernorm.weight": random(16), "lm_head.weight": random(9, 16)}
        config = transformers.BeitConfig(**PICTURES, use_shared_relative_position_bias=True, use_mask_token=True)
    config.save_pretrained(tmp_path)
    plain_processor(32).save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = opened(str(tmp_path), "image")
    assert found.facts["final_norm"] is None
    assert found.facts["class_tokens"] == {"number": 1, "pooled": False}
    weights = found.encoder.model.state_dict()
    assert torch.equal(weights["layers.1.mlp.fc2.weight"], state["beit.encoder.layer.1.output.dense.weight"])
    tables = [value for name, value in weights.items() if name.endswith("relative_position_bias_table")]
    assert len(tables) == (2 if tuned else 1)
    assert all(table.abs().sum() > 0 for table in tables)  # where they are missing they would be zero

    kept = opened(str(tmp_path), "image", keep_pooler=True)
    assert kept.facts["weights_sha256"] == found.facts["weights_sha256"]
    assert found.encoder.model.pooler is None
    norm = build_finetune("lora-r4-published", kept.encoder, num_classes=3, seed=1).head.norm
    assert norm.eps == 1e-12
    if tuned:
        assert torch.equal(norm.weight, state["beit.pooler.layernorm.weight"])
        assert torch.equal(norm.bias, state["beit.pooler.layernorm.bias"])
        assert kept.facts["pooler_sha256"] == weights_hash(kept.encoder.model.pooler)
        assert not any(value.requires_grad for value in kept.encoder.model.pooler.parameters())
    else:
        assert torch.equal(norm.weight, torch.ones(16))
        assert kept.facts == found.facts


@pytest.mark.parametrize(
    ("encoder", "modality", "reads", "fits"),
    [
        ("beit-large", "speech", "images, the corpus holds speech", "wavlm-micro, wavlm-demo, wavlm-base-plus"),
        ("wavlm-large", "text", "speech, the corpus holds text", "llama-micro, llama2-13b, roberta-large"),
        ("llama2-13b", "image", "text, the corpus holds images", "beit-micro, beit-large, beit-large-pt22k, vit-large"),
    ],
)
def test_presets_of_another_modality_are_refused(encoder: str, modality: Modality, reads: str, fits: str) -> None:
    every = [name for name, preset in ENCODERS.items() if preset.modality == modality]
    told = f"encoder '{encoder}' reads {reads}\n  presets that fit: {', '.join(every)}; daamctl ls encoders"
    assert refused(encoder, modality).startswith(told)
    assert set(fits.split(", ")) <= set(every)


def test_folder_of_another_modality_is_refused(tmp_path: Path, folder: Path) -> None:
    path = saved(tmp_path / "vit", "ViTModel", "ViTConfig", **PICTURES)
    assert refused(path, "text").startswith(f"encoder '{path}' reads images, the corpus holds text\n")
    assert refused(str(folder), "image").startswith(f"encoder '{folder}' reads speech, the corpus holds images\n")


def test_a_model_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    transformers.TimesFmConfig().save_pretrained(tmp_path)
    assert refused(str(tmp_path)) == (
        f"encoder '{tmp_path}' is of type 'timesfm', which is not a speech, text or vision encoder known here\n"
        "  any model works that reads waveforms, mel features, tokens or pixels and whose hidden states are returned"
    )


def test_model_without_layers_or_states_is_refused_in_one_line(tmp_path: Path) -> None:
    transformers.EncodecModel(
        transformers.EncodecConfig(num_filters=4, hidden_size=8, codebook_size=8)
    ).save_pretrained(tmp_path)
    transformers.EncodecFeatureExtractor().save_pretrained(tmp_path)
    assert refused(str(tmp_path)) == f"encoder '{tmp_path}' is no transformer: it does not say what it reads"


@pytest.mark.parametrize(
    ("kind", "lacks", "said"),
    [
        (
            "Bert",
            "token*",
            "encoder '{}' comes with a tokenizer without a vocabulary; its files are missing\n  save those",
        ),
        ("Llama", "token*", "encoder folder {} cannot be loaded: it has no tokenizer\n  save that"),
        ("ViT", "preprocessor*", "encoder folder {} cannot be loaded: it has no image processor\n  save that"),
    ],
)
def test_folder_without_what_prepares_its_inputs(tmp_path: Path, kind: str, lacks: str, said: str) -> None:
    text = kind != "ViT"
    path = saved(tmp_path, f"{kind}Model", f"{kind}Config", **(WORDS if text else PICTURES))
    for one in tmp_path.glob(lacks):
        one.unlink()
    found = refused(path, "text" if text else "image")
    loader = "AutoTokenizer" if text else "AutoImageProcessor"
    assert (
        found
        == f"{said.format(path)} of the original model in it: {loader}.from_pretrained(ID).save_pretrained(FOLDER)"
    )


def test_remote_code_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\nclass Evil: pass\n", encoding="utf-8")
    names = {"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil", "AutoTokenizer": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}), encoding="utf-8")
    assert refused(str(tmp_path), "text").startswith(f"encoder folder {tmp_path} cannot be loaded: ")
    assert not mark.exists()


def test_weights_in_half_precision(tmp_path: Path) -> None:
    path = saved(tmp_path, "ViTModel", "ViTConfig", **PICTURES)
    whole, half = opened(path, "image"), opened(path, "image", weights_dtype="bfloat16")
    assert whole.facts["weights_dtype"] == whole.facts["precision"] == "float32"
    assert half.encoder.model.dtype == torch.bfloat16
    assert half.facts["weights_dtype"] == half.facts["precision"] == "bfloat16"  # no finer than the weights
    assert half.facts["weights_sha256"] != whole.facts["weights_sha256"]
    pixels = [torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0))]
    pooled = half.encoder.pool(pixels)[0]
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, whole.encoder.pool(pixels)[0], atol=0.15, rtol=0.1)


@pytest.mark.parametrize(
    ("modality", "device", "precision", "dtype"),
    [
        ("text", "cuda", "bfloat16", torch.bfloat16),
        ("text", "cuda:1", "float16", torch.float16),
        ("text", "cpu", "bfloat16", torch.float32),
        ("image", "cuda", "bfloat16", torch.float32),
        ("speech", "cuda", "float16", torch.float32),
    ],
)
def test_auto_holds_text_weights_on_a_gpu_as_they_are_used(
    modality: Modality, device: str, precision: str, dtype: torch.dtype
) -> None:
    held = load.weights_format(ExtractConfig(), modality, device, precision)
    assert getattr(torch, held) == dtype
    assert load.weights_format(ExtractConfig(weights_dtype="float32"), modality, device, precision) == "float32"


def test_weights_beyond_the_memory_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "free_on", lambda _: [30_000_000_000])
    assert refused("llama2-13b", "text", weights="random") == (
        "the weights of encoder 'llama2-13b' take 51.4 GB, 30.0 GB are free on cpu\n"
        "  use --set extract.weights_dtype=bfloat16, a smaller encoder, or a machine with more memory"
    )


def test_weights_are_spread_over_gpus_when_one_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = ENCODERS["llama2-13b"]
    config = transformers.AutoConfig.for_model(preset.model_type, **preset.shape)

    def plan(*free: float, device: str = "cuda") -> dict[str, Any]:
        monkeypatch.setattr(load, "free_on", lambda _: [int(room * 1e9) for room in free])
        return load._plan_memory("it", config, torch.bfloat16, device)

    assert plan(80) == plan(80, 80) == plan(29, 1) == {}  # 25.7 GB and room for the batches
    assert plan(20, 20) == {"device_map": "auto", "max_memory": {0: 18_000_000_000, 1: 18_000_000_000}}
    with pytest.raises(EncoderError, match=r"take 25.7 GB, 14.0 \+ 14.0 GB are free on cuda\n  use a smaller encoder"):
        plan(14, 14)
    with pytest.raises(EncoderError, match=r"20.0 GB are free on cuda:1"):
        plan(20, device="cuda:1")


@pytest.mark.parametrize("kind", ["speech", "text", "image"])
@pytest.mark.parametrize("format", ["safetensors", "bin"])
def test_weights_go_straight_to_a_gpu(
    tmp_path: Path, folder: Path, model: Any, monkeypatch: pytest.MonkeyPatch, kind: Modality, format: str
) -> None:
    """On a machine without one, main memory stands in for it behind transformers' own placement."""
    path = str(folder)
    if kind == "text":
        path = saved(tmp_path / "text", "LlamaModel", "LlamaConfig", **WORDS)
    elif kind == "image":
        path = saved(tmp_path / "image", "BeitModel", "BeitConfig", **PICTURES, use_relative_position_bias=True)
    if format == "bin":
        state = load_file(Path(path) / "model.safetensors")
        (Path(path) / "model.safetensors").unlink()
        torch.save(state, Path(path) / "pytorch_model.bin")
    plain = opened(path, kind)
    asked: list[Any] = []
    load_weights = transformers.AutoModel.from_pretrained

    def placed(*args: Any, **options: Any) -> Any:
        asked.append(options.pop("device_map", None))
        where = {} if asked[-1] is None else {"device_map": {"": "cpu"}}
        return load_weights(*args, **where, **options)

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", placed)
    monkeypatch.setattr(load, "free_on", lambda _: [80_000_000_000])
    options: tuple[Any, ...] = (path, None, kind, torch.float32)
    found = load._pretrained(*options, "cuda:1", False)
    assert asked == [{"": torch.device("cuda", 1)}]
    assert weights_hash(found.model) == plain.facts["weights_sha256"]
    assert not hasattr(found.model, "_hf_hook")
    load._pretrained(*options, "cpu", False)
    assert asked[1] is None
    monkeypatch.setattr(load, "_plan_memory", lambda *_: {"device_map": "auto", "max_memory": {0: 1}})
    options = (path, None, kind, torch.float32, "cuda", False)
    load_weights = lambda *_, **__: (found.model, {"missing_keys": []})  # noqa: E731
    # transformers copies weights in threads of its own, whose current GPU is the first.
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    load._pretrained(*options)
    assert asked[2] == ({"": torch.device("cuda", 3)} if kind == "speech" else "auto")


def test_want_of_memory_in_loading_is_said_as_that(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", full)
    assert refused(str(folder)).startswith(f"the weights of encoder '{folder}' do not fit in the free memory of cpu\n")


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_a_model_of_timm_needs_timm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": {}}))
    config = ExtractConfig(encoder=str(tmp_path))
    with pytest.raises(EncoderError, match=r"is a model of timm, .*\n  pip install 'daamctl\[timm\]'"):
        open_encoder(config, modality="image", max_duration_s=5.0, device="cpu", precision="float32")


def test_a_mask_vector_that_is_not_there_is_the_same_every_time(altered: Callable[..., str], folder: Path) -> None:
    path = altered({name: value for name, value in state_of(folder).items() if name != "masked_spec_embed"})
    first, second = opened(path), opened(path)
    assert first.facts["weights_sha256"] == second.facts["weights_sha256"]
    assert not first.encoder.model.masked_spec_embed.any()  # type: ignore[attr-defined]
