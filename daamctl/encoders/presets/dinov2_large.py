"""DINOv2-Large (Oquab et al., 2023), self-supervised: 24 layers x 1024."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="facebook/dinov2-large",
    model_type="dinov2",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 518,
        "patch_size": 14,
    },
    modality="image",
    licence="apache-2.0",
)
