"""Llama architecture with 16 layers, tiny widths, one or two letters a token and random weights; needs no download."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id=None,
    model_type="llama",
    shape={
        "hidden_size": 64,
        "num_hidden_layers": 16,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 935,  # 3 added tokens, 256 bytes and 26 x 26 pairs of letters
        "max_position_embeddings": 4096,
        # With the usual 0.02, a random layer hardly changes its input, and all layers look alike.
        "initializer_range": 0.07,
    },
    modality="text",
    # As large as the norms' output to a layer. Otherwise attention, which favours the first words of a text, drowns out
    # the tokens in the first layer, and the mean over tokens after it carries no topic.
    embedding_std=1.0,
)
