"""BEiT-Large (Bao et al., 2021), fine-tuned on ImageNet: 24 layers x 1024; used by the papers' fine-tuning scripts."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="microsoft/beit-large-patch16-224",
    model_type="beit",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "layer_scale_init_value": 1e-5,
        "use_relative_position_bias": True,
    },
    modality="image",
    licence="apache-2.0",
)
