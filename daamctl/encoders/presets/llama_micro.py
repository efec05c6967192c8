"""Llama's real architecture with 16 layers, tiny widths, byte tokens and seeded random weights: no download."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id=None,
    model_type="llama",
    shape={
        "hidden_size": 64,
        "num_hidden_layers": 16,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 259,  # the byte tokenizer's
        "max_position_embeddings": 4096,
        # At the usual 0.02 a random layer hardly changes its input, and all layers look alike.
        "initializer_range": 0.1,
    },
    modality="text",
)
