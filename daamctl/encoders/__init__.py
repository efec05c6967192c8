"""Frozen encoders: named presets, and the families of speech models with their input and pooling classes.

`--encoder` takes a preset from `ENCODERS`, a Hugging Face id or a local folder. Speech models must be of a family in
`FAMILIES`; any text or vision model works whose layers have equal width. Importing this package imports neither torch
nor transformers; opening an encoder does.
"""

import re

from daamctl.registry import Registry

HUB_ID = re.compile(r"^\w[\w.-]*/\w[\w.-]*$")
"""Pattern of a Hugging Face id: owner/name."""

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

# Hugging Face `model_type` of speech models -> class that prepares inputs and pools layers
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
    """Names of the presets of a modality: `speech`, `text` or `image`."""
    return [name for name in ENCODERS if ENCODERS.load(name).modality == modality]
