"""What every encoder family must do, on tiny models of Hugging Face's own classes with random weights.

The reference is the model itself, asked for `output_hidden_states` on one unpadded clip, averaged over its frames.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from daamctl.config import ExtractConfig
from daamctl.encoders import FAMILIES, SPEECH_TYPES
from daamctl.errors import EncoderError

TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": (8,) * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}
STABLE = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
POST = {"feat_extract_norm": "layer", "do_stable_layer_norm": False}
GROUP = {"feat_extract_norm": "group", "do_stable_layer_norm": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "wavlm-stable": ("wavlm", STABLE),
    "wavlm-group": ("wavlm", GROUP),
    "hubert-stable": ("hubert", STABLE),
    "hubert-group": ("hubert", GROUP),
    "hubert-batch-norm": ("hubert", {**POST, "conv_pos_batch_norm": True}),
    "wav2vec2-stable": ("wav2vec2", STABLE),
    "wav2vec2-post": ("wav2vec2", POST),
    "wav2vec2-stable-adapter": ("wav2vec2", {**STABLE, "add_adapter": True, "output_hidden_size": 12}),
    "conformer-stable": ("wav2vec2-conformer", STABLE),
    "unispeech-stable": ("unispeech", STABLE),
    "unispeech-sat-stable": ("unispeech-sat", STABLE),
    "data2vec-audio": ("data2vec-audio", {"conv_pos_kernel_size": 7, "num_conv_pos_embeddings": 5}),
    "whisper": (
        "whisper",
        {
            "d_model": 16,
            "encoder_layers": 3,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "num_mel_bins": 8,
            "max_source_positions": 300,
            "decoder_layers": 1,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 24,
            "vocab_size": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
}
EQUAL_LENGTHS = {"wavlm-group", "hubert-group", "hubert-batch-norm", "data2vec-audio", "conformer-stable"}
NAMES = list(CASES)
LENGTHS = (9000, 5000, 7000)
TOLERANCE = {"atol": 2e-5, "rtol": 1e-4}


@cache
def model_of(case: str) -> Any:
    from transformers import AutoConfig, AutoModel

    kind, shape = CASES[case]
    torch.manual_seed(0)
    sizes = shape if kind == "whisper" else {**TINY, **shape}
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # random models leave norms at one and biases at zero, which hides mistakes
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model


def encoder_of(
    case: str,
    *,
    normalize: bool = False,
    precision: str = "float32",
    model: Any = None,
    pad_to_s: float = 5.0,
    **options: Any,
) -> Any:
    reader = SimpleNamespace(sampling_rate=16000, do_normalize=normalize)
    family = FAMILIES.load(CASES[case][0])
    usual = {"device": "cpu", "precision": precision, "options": ExtractConfig(**options), "pad_to_s": pad_to_s}
    return family(case, model_of(case) if model is None else model, reader, **usual)


def waves(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [0.3 * torch.randn(length, generator=generator) + 0.1 for length in lengths]


@torch.inference_mode()
def reference(case: str, wave: Tensor, *, final_norm: bool = True, frames: int | None = None) -> Tensor:
    """(N + 1, D): the mean over time of every hidden state of one clip by itself.

    Whether the last hidden state comes before or after the final norm differs between families and between versions of
    transformers, so the last layer's output is caught here, and must lead to `last_hidden_state` through that norm.
    """
    model = model_of(case)
    encoder = model.get_encoder() if case == "whisper" else model.encoder
    caught: list[Any] = []
    handle = encoder.layers[-1].register_forward_hook(lambda _m, _i, out: caught.append(out))
    if case == "whisper":
        from transformers import WhisperFeatureExtractor

        extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=6)
        mel = extractor(wave.numpy(), sampling_rate=16000, return_tensors="pt").input_features
        output = encoder(mel, output_hidden_states=True)
        frames = frames or -(-len(wave) // 320)  # 50 frames per second, the last one begun counts
    else:
        output = model(wave[None], output_hidden_states=True)
    handle.remove()
    raw = caught[0][0] if isinstance(caught[0], tuple) else caught[0]
    normed = encoder.layer_norm(raw) if case == "whisper" or "stable" in case else raw
    torch.testing.assert_close(normed, output.last_hidden_state)
    states = [*output.hidden_states[:-1], normed if final_norm else raw]
    return torch.stack([state[0, :frames].mean(0) for state in states])


def test_every_family_is_met() -> None:
    assert len(NAMES) == 13
    of_mels = {"wav2vec2-bert", "parakeet_encoder", "audio-spectrogram-transformer"}  # test_filterbank, -_spectrogram
    towers = {"qwen2_audio_encoder", "audioflamingo3_encoder", "voxtral_encoder"}  # tests/encoders: test_whisper
    assert {kind for kind, _ in CASES.values()} | of_mels | towers | {"speecht5"} == set(SPEECH_TYPES)  # test_audio


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("case", NAMES)
def test_pooled_layers_are_means_of_hidden_states(case: str, final_norm: bool) -> None:
    encoder = encoder_of(case, layer_00=True, final_norm=final_norm)
    wave = waves(9000)[0]
    pooled, n_frames = encoder.pool([wave])
    expected = reference(case, wave, final_norm=final_norm)
    torch.testing.assert_close(pooled[0], expected, **TOLERANCE)
    assert pooled.dtype == torch.float32
    assert encoder.layers == (0, 1, 2, 3)
    assert encoder.embed_dim == pooled.shape[2] == 16
    assert encoder.sampling_rate == 16000
    assert n_frames.tolist() == ([29] if case == "whisper" else [27])  # 9000 / 320 begun; (9000 - 400) / 320 + 1


@pytest.mark.parametrize("case", NAMES)
def test_final_norm_matters_exactly_where_there_is_one(case: str) -> None:
    wave = waves(9000)
    with_norm, without = (encoder_of(case, final_norm=flag) for flag in (True, False))
    assert with_norm.layers == (1, 2, 3)
    assert with_norm.has_final_norm == (case == "whisper" or "stable" in case)
    first, second = with_norm.pool(wave)[0], without.pool(wave)[0]
    assert torch.equal(first[:, :-1], second[:, :-1])
    assert torch.equal(first[:, -1], second[:, -1]) == (not with_norm.has_final_norm)


@pytest.mark.parametrize("case", NAMES)
def test_batch_equals_one_by_one(case: str) -> None:
    encoder = encoder_of(case, layer_00=True)
    assert encoder.equal_length_batches == (case in EQUAL_LENGTHS)
    clips = waves(*((9000,) * 3 if encoder.equal_length_batches else LENGTHS))
    pooled, n_frames = encoder.pool(clips)
    for row, clip in enumerate(clips):
        torch.testing.assert_close(pooled[row], reference(case, clip), **TOLERANCE)
        assert n_frames[row] == encoder.pool([clip])[1][0]


@pytest.mark.parametrize("case", NAMES)
def test_normalisation_is_per_clip(case: str) -> None:
    encoder = encoder_of(case, normalize=True, layer_00=True)
    clips = waves(*((9000,) * 2 if encoder.equal_length_batches else LENGTHS[:2]))
    pooled, _ = encoder.pool(clips)
    for row, clip in enumerate(clips):
        normal = (clip - clip.mean()) / torch.sqrt(clip.var(correction=0) + 1e-7)  # Wav2Vec2FeatureExtractor
        torch.testing.assert_close(pooled[row], reference(case, normal), **TOLERANCE)


@pytest.mark.parametrize("samples", [1, 399, 400])
@pytest.mark.parametrize("case", NAMES)
def test_shorter_than_one_frame_is_padded(case: str, samples: int) -> None:
    wave = waves(samples)[0]
    pooled, n_frames = encoder_of(case, layer_00=True).pool([wave])
    padded = wave if case == "whisper" else nn.functional.pad(wave, (0, 400 - samples))
    torch.testing.assert_close(pooled[0], reference(case, padded), **TOLERANCE)
    assert n_frames.tolist() == ([-(-samples // 320)] if case == "whisper" else [1])


@pytest.mark.parametrize("case", NAMES)
def test_short_clip_beside_long_ones(case: str) -> None:
    encoder = encoder_of(case)
    if encoder.equal_length_batches:
        pytest.skip("such models get clips of one length")
    clips = waves(5000, 1, 300)
    pooled, _ = encoder.pool(clips)
    assert pooled.isfinite().all()
    for row, clip in enumerate(clips):
        torch.testing.assert_close(pooled[row], encoder.pool([clip])[0][0], **TOLERANCE)


@pytest.mark.parametrize("case", NAMES)
def test_all_frames_pads_to_five_seconds(case: str) -> None:
    """docs/sources.md#feature-extraction: padded to 80,000 samples, no mask, mean over 249 frames (Whisper: 250)."""
    encoder = encoder_of(case, layer_00=True, pooling="all-frames", pad_to_s=5.0)
    assert not encoder.equal_length_batches
    clips = waves(*LENGTHS[:2])
    pooled, n_frames = encoder.pool(clips)
    assert n_frames.tolist() == [250 if case == "whisper" else 249] * 2
    for row, clip in enumerate(clips):
        padded = nn.functional.pad(clip, (0, 80000 - len(clip)))
        torch.testing.assert_close(pooled[row], reference(case, padded), **TOLERANCE)


@pytest.mark.parametrize("case", ["wavlm-stable", "whisper"])
def test_all_frames_of_a_longer_clip_are_refused(case: str) -> None:
    encoder = encoder_of(case, layer_00=True, pooling="all-frames", pad_to_s=0.5)
    with pytest.raises(EncoderError, match=r"pads to 0.5 s, but a clip has 0.75 s\n  use extract.pooling=valid-frames"):
        encoder.pool(waves(6000, 12000))


@pytest.mark.parametrize("case", NAMES)
def test_no_hook_is_left(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, model = encoder_of(case, layer_00=True), model_of(case)

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = hooks()
    encoder.pool(waves(5000))
    assert hooks() == before

    def fail(*_: Any, **__: Any) -> None:
        assert hooks() > before
        raise RuntimeError("broken layer")

    last = (model.get_encoder() if case == "whisper" else model.encoder).layers[-1]
    monkeypatch.setattr(last, "forward", fail)
    with pytest.raises(RuntimeError, match="broken layer"):
        encoder.pool(waves(5000))
    assert hooks() == before


@pytest.mark.parametrize("case", NAMES)
def test_bfloat16_is_near_and_pooled_in_float32(case: str) -> None:
    clips = waves(9000)
    plain = encoder_of(case).pool(clips)[0]
    encoder = encoder_of(case, precision="bfloat16", model=model_of.__wrapped__(case))
    encoder.prepare_for_inference()  # as extraction does; groups this small stay float32
    half = encoder.pool(clips)[0]
    assert half.dtype == torch.float32
    assert half.isfinite().all()
    assert not torch.equal(half, plain)
    torch.testing.assert_close(half, plain, atol=0.15, rtol=0.1)


def test_whisper_refuses_what_it_cannot_take() -> None:
    from daamctl.errors import EncoderError

    with pytest.raises(EncoderError) as caught:
        encoder_of("whisper").pool(waves(96001))
    assert str(caught.value) == (
        "a clip of 6.00006 s is longer than the 6 s that encoder 'whisper' can take\n  lower segment.max_duration_s"
    )


def test_model_without_a_waveform_front_end() -> None:
    reader = SimpleNamespace(sampling_rate=16000)
    with pytest.raises(EncoderError, match=r"^encoder 'x' \(WhisperModel\) has no waveform front end$"):
        FAMILIES.load("wavlm")(
            "x", model_of("whisper"), reader, device="cpu", precision="float32", options=ExtractConfig()
        )


def test_normalisation_follows_the_feature_extractor_or_the_setting() -> None:
    for own in (True, False):
        assert encoder_of("wavlm-stable", normalize=own).normalize is own
        for wanted in (True, False):
            reader = SimpleNamespace(sampling_rate=16000, do_normalize=own)
            options = ExtractConfig(normalize="always" if wanted else "never")
            encoder = FAMILIES.load("wavlm")(
                "x", model_of("wavlm-stable"), reader, device="cpu", precision="float32", options=options
            )
            assert encoder.normalize is wanted
            assert encoder.facts() == {"pooling": "valid-frames", "normalize": wanted, "sampling_rate": 16000}
