"""RoBERTa-Large (Liu et al., 2019): 24 layers x 1024, bidirectional, English."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="FacebookAI/roberta-large",
    model_type="roberta",
    shape={
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "vocab_size": 50265,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    modality="text",
    licence="mit",
)
