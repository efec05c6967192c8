"""ViT-Large (Dosovitskiy et al., 2020), supervised on ImageNet-21k and ImageNet: 24 layers x 1024."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="google/vit-large-patch16-224",
    model_type="vit",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    modality="image",
    licence="apache-2.0",
)
