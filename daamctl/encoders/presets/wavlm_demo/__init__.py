"""WavLM architecture, 12 layers x 64, trained to recognise vowels in generated speech; ships with daamctl (demo)."""

from pathlib import Path

from daamctl.encoders.preset import Preset

# The weights come from scripts/train_demo_encoder.py.
PRESET = Preset(
    hub_id=None,
    folder=Path(__file__).parent,
    model_type="wavlm",
    shape={
        "hidden_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "conv_dim": (48,) * 7,
        "num_conv_pos_embeddings": 32,
        "num_conv_pos_embedding_groups": 4,
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        "conv_bias": True,
    },
    normalize=False,
    licence="apache-2.0",
)
