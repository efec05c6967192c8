"""Frozen encoders: presets, one line each, and the families that know how to feed and pool a kind of model.

`--encoder` takes a preset of `ENCODERS`, any Hugging Face id of a family in `FAMILIES`, or a local folder with such a
model. Nothing here imports torch or transformers before an encoder is opened.
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
    },
)

# Hugging Face `model_type` -> class that opens and pools it
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
