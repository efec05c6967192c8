"""Whisper tiny (Radford et al., 2022): encoder of 4 layers x 384, multilingual."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="openai/whisper-tiny",
    model_type="whisper",
    shape={
        "d_model": 384,
        "encoder_layers": 4,
        "encoder_attention_heads": 6,
        "encoder_ffn_dim": 1536,
        "decoder_layers": 1,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
    },
    normalize=False,
    licence="apache-2.0",
)
