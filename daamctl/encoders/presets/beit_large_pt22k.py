"""BEiT-Large (Bao et al., 2021), only self-supervised, on ImageNet-22k: 24 layers x 1024 (D47)."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="microsoft/beit-large-patch16-224-pt22k",
    model_type="beit",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "layer_scale_init_value": 1e-5,
        "use_shared_relative_position_bias": True,
        "use_mask_token": True,
    },
    modality="image",
    licence="apache-2.0",
)
