"""HuBERT-Large (Hsu et al., 2021): 24 layers x 1024, Libri-Light, not fine-tuned."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="facebook/hubert-large-ll60k",
    model_type="hubert",
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
