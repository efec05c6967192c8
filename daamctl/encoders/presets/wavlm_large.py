"""WavLM-Large (Chen et al., 2022): 24 layers x 1024, English, 94,000 hours; the papers' speech encoder."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="microsoft/wavlm-large",
    model_type="wavlm",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        "conv_bias": False,
    },
    licence="cc-by-sa-3.0",
)
