"""Frozen encoders: presets, one line each, and the families that know how to feed and pool a kind of speech model.

`--encoder` takes a preset of `ENCODERS`, a Hugging Face id or a local folder: of a speech model of a family in
`FAMILIES`, or of any text or vision model whose layers have one width. Nothing here imports torch or transformers
before an encoder is opened.
"""

import re

from daamctl.registry import Registry

HUB_ID = re.compile(r"^\w[\w.-]*/\w[\w.-]*$")
"""What a Hugging Face id looks like: owner/name."""

ENCODERS = Registry(
    "encoder",
    {
        "wavlm-micro": "daamctl.encoders.presets.wavlm_micro:PRESET",
        "wavlm-base-plus": "daamctl.encoders.presets.wavlm_base_plus:PRESET",
        "wavlm-large": "daamctl.encoders.presets.wavlm_large:PRESET",
        "hubert-large": "daamctl.encoders.presets.hubert_large:PRESET",
        "wav2vec2-large": "daamctl.encoders.presets.wav2vec2_large:PRESET",
        "whisper-tiny": "daamctl.encoders.presets.whisper_tiny:PRESET",
        "whisper-large-v3": "daamctl.encoders.presets.whisper_large_v3:PRESET",
        "llama-micro": "daamctl.encoders.presets.llama_micro:PRESET",
        "llama2-13b": "daamctl.encoders.presets.llama2_13b:PRESET",
        "roberta-large": "daamctl.encoders.presets.roberta_large:PRESET",
        "beit-micro": "daamctl.encoders.presets.beit_micro:PRESET",
        "beit-large": "daamctl.encoders.presets.beit_large:PRESET",
        "beit-large-pt22k": "daamctl.encoders.presets.beit_large_pt22k:PRESET",
        "vit-large": "daamctl.encoders.presets.vit_large:PRESET",
        "dinov2-large": "daamctl.encoders.presets.dinov2_large:PRESET",
    },
)

# Hugging Face `model_type` of speech models -> class that feeds and pools it
FAMILIES = Registry(
    "encoder family",
    {
        "wavlm": "daamctl.encoders.waveform:WaveformEncoder",
        "hubert": "daamctl.encoders.waveform:WaveformEncoder",
        "wav2vec2": "daamctl.encoders.waveform:WaveformEncoder",
        "unispeech": "daamctl.encoders.waveform:WaveformEncoder",
        "unispeech-sat": "daamctl.encoders.waveform:WaveformEncoder",
        "data2vec-audio": "daamctl.encoders.waveform:WaveformEncoder",
        "whisper": "daamctl.encoders.whisper:WhisperEncoder",
    },
)


def presets_of(modality: str) -> list[str]:
    """Names of the presets that read `speech`, `text` or `image`."""
    return [name for name in ENCODERS if ENCODERS.load(name).modality == modality]
