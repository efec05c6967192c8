"""Whisper large-v3 (Radford et al., 2022): encoder of 32 layers x 1280, multilingual."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="openai/whisper-large-v3",
    model_type="whisper",
    shape={
        "d_model": 1280,
        "encoder_layers": 32,
        "encoder_attention_heads": 20,
        "encoder_ffn_dim": 5120,
        "num_mel_bins": 128,
        "decoder_layers": 1,
        "decoder_attention_heads": 20,
        "decoder_ffn_dim": 5120,
    },
    normalize=False,
    licence="apache-2.0",
)
