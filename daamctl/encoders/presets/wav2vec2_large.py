"""wav2vec 2.0 Large (Baevski et al., 2020): 24 layers x 1024, LV-60k, not fine-tuned."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="facebook/wav2vec2-large-lv60",
    model_type="wav2vec2",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        "conv_bias": True,
    },
    licence="apache-2.0",
)
