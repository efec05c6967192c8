"""Frozen encoders: named presets, and one class per family of models.

`--encoder` takes a preset from `ENCODERS`, a Hugging Face id or a local folder. The layers of every model are found by
running it once (`discovery`), or its hidden states are taken as transformers returns them. Speech models differ in
their inputs; those whose model type is not in `FAMILIES` are read clip by clip, or several of equal length at once
(`audio`).
Importing this package imports neither torch nor transformers; opening an encoder does.
"""

import re

from daamctl.data.registry import Registry
from daamctl.encoders.presets import ENCODERS as ENCODERS

HUB_ID = re.compile(r"^(?!.*(--|\.\.))\w[\w.-]*/\w([\w.-]{0,94}\w)?$")
"""Pattern of a Hugging Face id: owner/name."""

FAMILIES = Registry(
    "encoder family",
    {
        "wavlm": "daamctl.encoders.waveform:WaveformEncoder",
        "hubert": "daamctl.encoders.waveform:WaveformEncoder",
        "wav2vec2": "daamctl.encoders.waveform:WaveformEncoder",
        "wav2vec2-conformer": "daamctl.encoders.waveform:WaveformEncoder",
        "unispeech": "daamctl.encoders.waveform:WaveformEncoder",
        "unispeech-sat": "daamctl.encoders.waveform:WaveformEncoder",
        "data2vec-audio": "daamctl.encoders.waveform:WaveformEncoder",
        "wav2vec2-bert": "daamctl.encoders.filterbank:FilterbankEncoder",
        "parakeet_encoder": "daamctl.encoders.filterbank:ParakeetEncoder",
        "audio-spectrogram-transformer": "daamctl.encoders.spectrogram:SpectrogramEncoder",
        "whisper": "daamctl.encoders.whisper:WhisperEncoder",
        "qwen2_audio_encoder": "daamctl.encoders.whisper:AudioTowerEncoder",
        "audioflamingo3_encoder": "daamctl.encoders.whisper:AudioTowerEncoder",
        "voxtral_encoder": "daamctl.encoders.whisper:AudioTowerEncoder",
        "speecht5": "daamctl.encoders.audio:SpeechT5Encoder",
        "speech": "daamctl.encoders.audio:AudioEncoder",
        "text": "daamctl.encoders.text:TextEncoder",
        "image": "daamctl.encoders.image:ImageEncoder",
        "tokens": "daamctl.encoders.tokens:TokenEncoder",
    },
)
"""Hugging Face `model_type` of a speech model, or the modality of all others -> subclass of `Encoder`."""

SPEECH_TYPES = tuple(name for name in FAMILIES if name not in ("speech", "text", "image", "tokens"))
"""Model types of the speech models that have a class of their own."""


def presets_of(modality: str) -> list[str]:
    """Names of the presets of a modality: `speech`, `text` or `image`."""
    return [name for name in ENCODERS if ENCODERS[name].modality == modality]
