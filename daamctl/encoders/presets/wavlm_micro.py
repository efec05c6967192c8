"""WavLM architecture with 24 layers, tiny widths and seeded random weights; needs no download (demo and tests)."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id=None,
    model_type="wavlm",
    shape={
        "hidden_size": 64,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "conv_dim": (32,) * 7,
        "num_conv_pos_embeddings": 32,
        "num_conv_pos_embedding_groups": 4,
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        # With the usual 0.02, a random layer hardly changes its input, and all layers look alike.
        "initializer_range": 0.2,
        # Random layer-normed convolutions lose the loudness of a clip unless biases give it a reference.
        "conv_bias": True,
    },
    normalize=False,
)
