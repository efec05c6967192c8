"""Speech models without a family of their own: means of the hidden states of each clip alone, by their own features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from daamctl.config import ExtractConfig
from daamctl.encoders.audio import AudioEncoder
from daamctl.encoders.load import open_encoder
from daamctl.encoders.save import save_cut_encoder
from daamctl.encoders.speech import trial_clip
from daamctl.errors import EncoderError

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
MOONSHINE = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "encoder_num_hidden_layers": 3,
    "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4,
}  # fmt: skip
S2T = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "conv_channels": 32,
}  # fmt: skip
# configuration of a model, its feature extractor, name of its final norm
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "moonshine": (lambda: hf.MoonshineConfig(**MOONSHINE), lambda: hf.Wav2Vec2FeatureExtractor(), "layer_norm"),
    "speech_to_text": (lambda: hf.Speech2TextConfig(**S2T), lambda: hf.Speech2TextFeatureExtractor(), "layer_norm"),
    "glmasr_encoder": (  # its features span 30 s
        lambda: hf.AutoConfig.for_model("glmasr_encoder", **SIZES, num_mel_bins=80),
        lambda: hf.WhisperFeatureExtractor(feature_size=80),
        "norm",
    ),
}
CLIPS = (12345, 16000, 40001)


def saved(folder: Path, case: str) -> Any:
    """A random model, which is returned, with its feature extractor as a folder."""
    configuration, reader, _ = CASES[case]
    torch.manual_seed(0)
    model = hf.AutoModel.from_config(configuration()).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # random models leave norms at one and biases at zero, which hides mistakes
        for value in model.parameters():
            value.add_(0.05 * torch.randn(value.shape, generator=generator))
    model.save_pretrained(folder)
    reader().save_pretrained(folder)
    return model.get_encoder() if hasattr(model, "decoder") else model


def opened(folder: Path, **settings: Any) -> AudioEncoder:
    config = ExtractConfig.model_validate({"encoder": str(folder), **settings})
    usual: dict[str, Any] = {"max_duration_s": 5.0, "device": "cpu", "precision": "float32"}
    encoder = open_encoder(config, modality="speech", **usual).encoder
    assert isinstance(encoder, AudioEncoder)
    return encoder


@torch.inference_mode()
def reference(model: Any, reader: Any, clip: Tensor, *, padded: bool) -> Tensor:
    """(N + 1, D): the mean of every hidden state of a clip by itself."""
    found = reader([clip.numpy()], sampling_rate=16000, return_tensors="pt", return_attention_mask=True)
    output = model(found[model.main_input_name], output_hidden_states=True)
    states = [*output.hidden_states[:-1], output.last_hidden_state]
    if padded:
        frames = -(-int(found["attention_mask"].sum()) // 2)
        states = [state[:, :frames] for state in states]
    return torch.stack([state[0].mean(0) for state in states])


@pytest.mark.parametrize("case", list(CASES))
def test_pooled_layers_are_means_of_hidden_states(case: str, tmp_path: Path) -> None:
    model = saved(tmp_path, case)
    encoder = opened(tmp_path, layer_00=True)
    assert encoder.layers == (0, 1, 2, 3)
    assert encoder.has_final_norm
    for samples in CLIPS:
        clips = [trial_clip(samples), 3 * trial_clip(samples).flip(0)]
        pooled, counts = encoder.pool(clips)
        for row, clip in enumerate(clips):
            theirs = reference(model, encoder.reader, clip, padded=case == "glmasr_encoder")
            torch.testing.assert_close(pooled[row], theirs, atol=2e-5, rtol=1e-4)
        assert counts[0] == counts[1] > 0
        assert encoder.positions(samples) == (1500 if case == "glmasr_encoder" else counts[0])


def test_layers_that_the_output_is_not_made_of(tmp_path: Path) -> None:
    """SEW's layers see every second frame; its output, which is as long as the input, is none of them."""
    front = {"conv_dim": [16] * 3, "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 8}
    torch.manual_seed(0)
    model = hf.SEWModel(hf.SEWConfig(**SIZES, **front, num_conv_pos_embedding_groups=4)).eval()
    model.save_pretrained(tmp_path)
    hf.Wav2Vec2FeatureExtractor().save_pretrained(tmp_path)
    encoder = opened(tmp_path, layer_00=True)
    clip = trial_clip(16000)
    with torch.inference_mode():
        output = model(**encoder.collate([clip])[0], output_hidden_states=True)
    pooled, counts = encoder.pool([clip])
    assert int(counts[0]) == encoder.positions(16000) == output.last_hidden_state.shape[1] // 2
    means = torch.stack([state[0].mean(0) for state in output.hidden_states])
    torch.testing.assert_close(pooled[0], means, atol=2e-5, rtol=1e-4)
    assert not encoder.has_final_norm
    with pytest.raises(EncoderError, match="is not that of its last layer, so it cannot be fine-tuned"):
        encoder.hidden(encoder.collate([clip])[0])


def test_speecht5_reads_speech_through_its_prenet(tmp_path: Path) -> None:
    front = {"conv_dim": [16] * 3, "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 8}
    sizes = {name: {"layers": 2, "attention_heads": 4, "ffn_dim": 48} for name in ("encoder", "decoder")}
    settings = {f"{part}_{name}": value for part, own in sizes.items() for name, value in own.items()}
    config = hf.SpeechT5Config(
        **settings, **front, hidden_size=32, vocab_size=50, num_conv_pos_embedding_groups=4, apply_spec_augment=False
    )
    torch.manual_seed(0)
    model = hf.SpeechT5ForSpeechToText(config).eval()
    model.save_pretrained(tmp_path / "asr")
    hf.SpeechT5ForTextToSpeech(config).save_pretrained(tmp_path / "tts")
    for name in ("asr", "tts"):
        hf.SpeechT5FeatureExtractor().save_pretrained(tmp_path / name)
    encoder = opened(tmp_path / "asr", layer_00=True)
    clip = trial_clip(16000)
    with torch.inference_mode():
        output = model.speecht5.encoder(
            input_values=encoder.collate([clip])[0]["input_values"], output_hidden_states=True
        )
    means = torch.stack([state[0].mean(0) for state in output.hidden_states])
    torch.testing.assert_close(encoder.pool([clip])[0][0], means, atol=2e-5, rtol=1e-4)
    assert encoder.layers == (0, 1, 2)
    with pytest.raises(EncoderError, match=r"lacks weights that its config\.json asks for: prenet"):
        opened(tmp_path / "tts")


def test_the_hierarchical_audio_tower_of_clap(tmp_path: Path) -> None:
    tower = hf.ClapAudioConfig(
        patch_embeds_hidden_size=8, hidden_size=32, depths=[1, 1, 1], num_attention_heads=[1, 2, 2], projection_dim=8
    )
    words = {
        "vocab_size": 60,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    torch.manual_seed(0)
    config = hf.ClapConfig(text_config=words, audio_config=tower.to_dict(), projection_dim=8)
    model = hf.ClapModel(config).eval()
    model.save_pretrained(tmp_path)
    hf.ClapFeatureExtractor(truncation="rand_trunc").save_pretrained(tmp_path)
    encoder = opened(tmp_path)
    assert (encoder.layers, encoder.embed_dim, encoder.sampling_rate) == ((1, 2, 3), 32, 48000)
    assert encoder.positions(30000) == 256  # of 10 s, to which the feature extractor fills clips up
    clips = [trial_clip(30000), 3 * trial_clip(30000).flip(0)]
    pooled, _ = encoder.pool(clips)
    for row, clip in enumerate(clips):
        with torch.inference_mode():
            states = model.audio_model(**encoder.collate([clip])[0], output_hidden_states=True).hidden_states
        for layer, state in enumerate(states[1:]):
            width = state.shape[1]
            torch.testing.assert_close(pooled[row, layer, :width], state[0].flatten(1).mean(1), atol=2e-5, rtol=1e-4)
            assert not pooled[row, layer, width:].any()


def test_clap_with_fusion_gives_a_clip_one_vector_whatever_is_beside_it(tmp_path: Path) -> None:
    tower = hf.ClapAudioConfig(
        patch_embeds_hidden_size=8, hidden_size=32, depths=[1, 1, 1], num_attention_heads=[1, 2, 2], enable_fusion=True
    )
    torch.manual_seed(0)
    hf.ClapAudioModel(tower).save_pretrained(tmp_path)
    hf.ClapFeatureExtractor(truncation="fusion").save_pretrained(tmp_path)
    encoder = opened(tmp_path)
    clips = [trial_clip(30000), 3 * trial_clip(30000).flip(0)]
    alone = torch.cat([encoder.pool([clip])[0] for clip in clips])
    torch.testing.assert_close(encoder.pool(clips)[0], alone)
    with pytest.raises(EncoderError, match=r"^a clip of 11 s is longer than the 10 s that encoder '"):
        encoder.collate([trial_clip(11 * 48000)])


def test_a_feature_extractor_that_adds_noise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "moonshine")
    plain = hf.Wav2Vec2FeatureExtractor.__call__

    def noisy(self: Any, raw_speech: Any, sampling_rate: int, return_tensors: str) -> Any:
        noise = [clip + torch.rand(len(clip)).numpy() for clip in raw_speech]
        return plain(self, noise, sampling_rate=sampling_rate, return_tensors=return_tensors)

    monkeypatch.setattr(hf.Wav2Vec2FeatureExtractor, "__call__", noisy)
    with pytest.raises(EncoderError, match="reads the same clip in another way each time"):
        opened(tmp_path)


@pytest.mark.parametrize("case", list(CASES))
def test_the_shortest_clips_are_padded(case: str, tmp_path: Path) -> None:
    saved(tmp_path, case)
    encoder = opened(tmp_path)
    short = torch.nn.functional.pad(trial_clip(7), (0, encoder.shortest - 7))
    torch.testing.assert_close(encoder.pool([trial_clip(7)])[0], encoder.pool([short])[0])
    assert encoder.shortest <= 16000


@pytest.mark.parametrize("case", list(CASES))
def test_cut_encoders(case: str, tmp_path: Path) -> None:
    """The lower layers are those of the whole encoder; so are those of a folder that holds them alone."""
    saved(tmp_path / "whole", case)
    clips = [trial_clip(20000)]
    vectors = opened(tmp_path / "whole").pool(clips)[0]
    config = ExtractConfig(encoder=str(tmp_path / "whole"))
    usual: dict[str, Any] = {"max_duration_s": 5.0, "device": "cpu", "precision": "float32"}
    cut = open_encoder(config, modality="speech", highest_layer=2, **usual)
    torch.testing.assert_close(cut.encoder.pool(clips)[0], vectors[:, :2])
    save_cut_encoder(cut, tmp_path / "cut")
    torch.testing.assert_close(opened(tmp_path / "cut").pool(clips)[0], vectors[:, :2])


def test_batches_are_of_one_length_and_clips_can_be_normalised(tmp_path: Path) -> None:
    saved(tmp_path, "moonshine")
    loud = 5 + 10 * trial_clip(16000)
    vectors = {}
    for normalize in ("encoder", "always", "never"):
        encoder = opened(tmp_path, normalize=normalize)
        assert encoder.equal_length_batches
        vectors[normalize] = encoder.pool([loud])[0]
        assert encoder.facts()["normalize"] == (normalize == "always")
    torch.testing.assert_close(vectors["encoder"], vectors["always"], atol=1e-4, rtol=1e-3)  # its own does so
    assert not torch.allclose(vectors["encoder"], vectors["never"], atol=1e-2)


def test_a_clip_that_would_be_cut_off_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "glmasr_encoder")
    with pytest.raises(EncoderError, match=r"^a clip of 31 s is longer than the 30 s that encoder '"):
        opened(tmp_path).collate([trial_clip(31 * 16000)])


def test_features_of_another_model(tmp_path: Path) -> None:
    saved(tmp_path, "moonshine")
    hf.WhisperFeatureExtractor(feature_size=80).save_pretrained(tmp_path)
    with pytest.raises(
        EncoderError, match=r" reads input_values, its feature extractor gives input_features, attention"
    ):
        opened(tmp_path)


def test_a_model_whose_inputs_are_no_features(tmp_path: Path) -> None:
    """A CLAP without fusion reads one spectrogram of a clip, the feature extractor of another gives four."""
    hf.ClapAudioModel(hf.ClapAudioConfig(patch_embeds_hidden_size=8, hidden_size=64)).save_pretrained(tmp_path)
    hf.ClapFeatureExtractor(truncation="fusion").save_pretrained(tmp_path)
    with pytest.raises(EncoderError, match=r"^encoder '.*' cannot be run on a trial input: "):
        opened(tmp_path)
