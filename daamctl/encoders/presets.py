"""The table of encoder presets. Imports no torch, so that presets can be listed and checked quickly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daamctl.artifacts.utterances import Modality


@dataclass(frozen=True)
class Preset:
    """A named encoder.

    Args:
        summary: publication, depth and width, and what it was trained on; `daamctl ls encoders` shows it.
        model_type: Hugging Face model type; for a speech encoder a name from `FAMILIES`.
        shape: configuration values that differ from the model type's defaults, for random weights; always includes
            depth and width.
        hub_id: Hugging Face id; None: not on the hub.
        licence: of the weights, as an identifier of the Hugging Face hub; None: unknown, or there are no weights.
        normalize: speech: whether its feature extractor makes the waveform zero-mean and unit-variance.
        embedding_std: standard deviation of random token embeddings; None: same as all other weights.
        folder: a model that daamctl ships: config.json and model.safetensors.
    """

    summary: str
    model_type: str
    shape: Mapping[str, Any]
    hub_id: str | None = None
    licence: str | None = None
    modality: Modality = "speech"
    normalize: bool = True
    embedding_std: float | None = None
    folder: Path | None = None

    @property
    def source(self) -> str | None:
        """What transformers loads, a folder or a hub id; None: exists only with random weights."""
        return self.hub_id if self.folder is None else str(self.folder)


_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_LARGE_SPEECH = {**_LARGE, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_MICRO = {"hidden_size": 64, "num_hidden_layers": 24, "num_attention_heads": 4, "intermediate_size": 128}
_MICRO_SPEECH = {
    **_MICRO,
    "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 4,
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    # Random layer-normed convolutions lose the loudness of a clip unless biases give it a reference.
    "conv_bias": True,
}


def _whisper(width: int, layers: int, heads: int, **more: int) -> dict[str, Any]:
    """The shape of a Whisper encoder under a decoder of one layer, which daamctl drops."""
    sides = {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": 4 * width for side in ("encoder", "decoder")}
    return {"d_model": width, "encoder_layers": layers, "decoder_layers": 1, **sides, **more}


ENCODERS = {
    "wavlm-micro": Preset(
        "WavLM architecture with 24 layers, tiny widths and seeded random weights; needs no download (demo and tests).",
        "wavlm",
        # With the usual 0.02, a random layer hardly changes its input, and all layers look alike.
        {**_MICRO_SPEECH, "conv_dim": (32,) * 7, "initializer_range": 0.2},
        normalize=False,
    ),
    "wavlm-demo": Preset(
        "WavLM architecture, 12 layers x 64, trained to recognise vowels in generated speech; ships with daamctl "
        "(demo).",
        "wavlm",
        {**_MICRO_SPEECH, "num_hidden_layers": 12, "intermediate_size": 256, "conv_dim": (48,) * 7},
        licence="apache-2.0",
        normalize=False,
        folder=Path(__file__).parent / "wavlm_demo",  # scripts/train_demo_encoder.py makes it
    ),
    "wavlm-base-plus": Preset(
        "WavLM-Base+ (Chen et al., 2022): 12 layers x 768, English, 94,000 hours.",
        "wavlm",
        {"hidden_size": 768, "num_hidden_layers": 12},
        "microsoft/wavlm-base-plus",
        "cc-by-sa-3.0",
        normalize=False,
    ),
    "wavlm-large": Preset(
        "WavLM-Large (Chen et al., 2022): 24 layers x 1024, English, 94,000 hours; the papers' speech encoder.",
        "wavlm",
        {**_LARGE_SPEECH, "conv_bias": False},
        "microsoft/wavlm-large",
        "cc-by-sa-3.0",
    ),
    "hubert-large": Preset(
        "HuBERT-Large (Hsu et al., 2021): 24 layers x 1024, Libri-Light, not fine-tuned.",
        "hubert",
        _LARGE_SPEECH,
        "facebook/hubert-large-ll60k",
        "apache-2.0",
    ),
    "wav2vec2-large": Preset(
        "wav2vec 2.0 Large (Baevski et al., 2020): 24 layers x 1024, LV-60k, not fine-tuned.",
        "wav2vec2",
        _LARGE_SPEECH,
        "facebook/wav2vec2-large-lv60",
        "apache-2.0",
    ),
    "w2v-bert-2": Preset(
        "w2v-BERT 2.0 (Seamless Communication et al., 2023): 24 layers x 1024, 143 languages, 4.5 million hours.",
        "wav2vec2-bert",
        _LARGE,
        "facebook/w2v-bert-2.0",
        "mit",
        normalize=False,
    ),
    "ast-audioset": Preset(
        "AST (Gong et al., 2021): 12 layers x 768, fine-tuned on AudioSet; clips of at most 10.24 s.",
        "audio-spectrogram-transformer",
        {"hidden_size": 768, "num_hidden_layers": 12},
        "MIT/ast-finetuned-audioset-10-10-0.4593",
        "bsd-3-clause",
        normalize=False,
    ),
    "whisper-tiny": Preset(
        "Whisper tiny (Radford et al., 2022): encoder of 4 layers x 384, multilingual.",
        "whisper",
        _whisper(384, 4, 6),
        "openai/whisper-tiny",
        "apache-2.0",
        normalize=False,
    ),
    "whisper-large-v3": Preset(
        "Whisper large-v3 (Radford et al., 2022): encoder of 32 layers x 1280, multilingual.",
        "whisper",
        _whisper(1280, 32, 20, num_mel_bins=128),
        "openai/whisper-large-v3",
        "apache-2.0",
        normalize=False,
    ),
    "llama-micro": Preset(
        "Llama architecture with 16 layers, tiny widths, one or two letters a token and random weights; needs no "
        "download.",
        "llama",
        {
            **_MICRO,
            "num_hidden_layers": 16,
            "vocab_size": 935,  # 3 added tokens, 256 bytes and 26 x 26 pairs of letters
            "max_position_embeddings": 4096,
            "initializer_range": 0.07,  # as for wavlm-micro
        },
        modality="text",
        # As large as the norms' output to a layer. Otherwise attention, which favours the first words of a text, drowns
        # out the tokens in the first layer, and the mean over tokens after it carries no topic.
        embedding_std=1.0,
    ),
    "llama2-13b": Preset(
        "Llama 2 13B (Touvron et al., 2023): 40 layers x 5120, causal; the papers' text encoder, 26 GB in float16.",
        "llama",
        {
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "intermediate_size": 13824,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        "TheBloke/Llama-2-13B-fp16",
        "llama2",
        "text",
    ),
    "roberta-large": Preset(
        "RoBERTa-Large (Liu et al., 2019): 24 layers x 1024, bidirectional, English.",
        "roberta",
        {
            **_LARGE,
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        },
        "FacebookAI/roberta-large",
        "mit",
        "text",
    ),
    "beit-micro": Preset(
        "BEiT architecture with 24 layers, tiny widths and seeded random weights; needs no download.",
        "beit",
        {
            **_MICRO,
            "image_size": 32,
            "patch_size": 8,
            "use_relative_position_bias": True,
            "initializer_range": 0.1,  # as for wavlm-micro; the usual scale of its layers is 0.1
            "layer_scale_init_value": 1.0,
        },
        modality="image",
    ),
    "beit-large": Preset(
        "BEiT-Large (Bao et al., 2021), fine-tuned on ImageNet: 24 layers x 1024; used by the papers' fine-tuning "
        "scripts.",
        "beit",
        {**_LARGE, "layer_scale_init_value": 1e-5, "use_relative_position_bias": True},
        "microsoft/beit-large-patch16-224",
        "apache-2.0",
        "image",
    ),
    "beit-large-pt22k": Preset(
        "BEiT-Large (Bao et al., 2021), only self-supervised, on ImageNet-22k: 24 layers x 1024 (D47).",
        "beit",
        {
            **_LARGE,
            "layer_scale_init_value": 1e-5,
            "use_shared_relative_position_bias": True,
            "use_mask_token": True,
        },
        "microsoft/beit-large-patch16-224-pt22k",
        "apache-2.0",
        "image",
    ),
    "vit-large": Preset(
        "ViT-Large (Dosovitskiy et al., 2020), supervised on ImageNet-21k and ImageNet: 24 layers x 1024.",
        "vit",
        _LARGE,
        "google/vit-large-patch16-224",
        "apache-2.0",
        "image",
    ),
    "dinov2-large": Preset(
        "DINOv2-Large (Oquab et al., 2023), self-supervised: 24 layers x 1024.",
        "dinov2",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 518,
            "patch_size": 14,
        },
        "facebook/dinov2-large",
        "apache-2.0",
        "image",
    ),
}
