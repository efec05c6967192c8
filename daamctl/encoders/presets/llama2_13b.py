"""Llama 2 13B (Touvron et al., 2023): 40 layers x 5120, causal; the papers' text encoder, 26 GB in float16."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="TheBloke/Llama-2-13B-fp16",
    model_type="llama",
    shape={
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "intermediate_size": 13824,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    modality="text",
    licence="llama2",
)
