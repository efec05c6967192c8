"""BEiT architecture with 24 layers, tiny widths and seeded random weights; needs no download."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id=None,
    model_type="beit",
    shape={
        "hidden_size": 64,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "image_size": 32,
        "patch_size": 8,
        "use_relative_position_bias": True,
        # With the usual 0.02 and 0.1, a random layer hardly changes its input, and all layers look alike.
        "initializer_range": 0.1,
        "layer_scale_init_value": 1.0,
    },
    modality="image",
)
