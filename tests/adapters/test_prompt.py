"""Learned vectors in front of texts and patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    OpenAIGPTConfig,
    OpenAIGPTModel,
    OPTConfig,
    OPTModel,
)

from daamctl.adapters import build_finetune
from daamctl.adapters.prompt import NUM_VECTORS
from daamctl.errors import MethodError
from tests.fixtures.tiny_models import TEXT, Tiny, batch, tiny


def prompted(architecture: str) -> tuple[Tiny, Tiny]:
    """An encoder with vectors, and one without."""
    encoder = tiny(architecture)
    build_finetune("prompt-tuning", encoder, num_classes=3, seed=1)
    return encoder, tiny(architecture)


@pytest.mark.parametrize("architecture", ["bert", "llama", "gpt2"])
def test_text_sees_the_vectors_before_it(architecture: str) -> None:
    encoder, plain = prompted(architecture)
    inputs, mask = batch(plain)
    vectors = encoder.model.prompt.vectors
    table = plain.model.get_input_embeddings().weight
    assert vectors.shape == (NUM_VECTORS, 32)
    assert all((table == row).all(1).any() for row in vectors)  # a start from the table
    embedded = torch.cat([vectors.expand(3, -1, -1), plain.model.get_input_embeddings()(inputs["input_ids"])], 1)
    attention = nn.functional.pad(inputs["attention_mask"], (NUM_VECTORS, 0), value=1)
    expected = plain.model(inputs_embeds=embedded, attention_mask=attention).last_hidden_state[:, NUM_VECTORS:]
    real = mask.bool()
    assert torch.allclose(encoder.hidden(inputs)[real], expected[real], atol=1e-6)
    alone = encoder.hidden({"input_ids": inputs["input_ids"][:1, : int(mask[0].sum())]})
    assert torch.allclose(alone[0], expected[0][real[0]], atol=1e-5)  # padding changes nothing


def test_segment_ids_grow_with_the_text() -> None:
    encoder, _ = prompted("bert")
    inputs, _ = batch(encoder)
    inputs["token_type_ids"] = torch.ones_like(inputs["input_ids"])
    assert encoder.hidden(inputs).shape == (3, inputs["input_ids"].shape[1], 32)


def test_an_encoder_with_as_many_positions_as_vectors_is_refused() -> None:
    encoder = tiny("bert")
    encoder.model = BertModel(BertConfig(**TEXT, max_position_embeddings=NUM_VECTORS))
    with pytest.raises(MethodError, match=f"BertModel has no position left for a text beside {NUM_VECTORS} vectors"):
        build_finetune("prompt-tuning", encoder, num_classes=3, seed=0)


def test_text_that_leaves_no_room_is_refused() -> None:
    encoder, _ = prompted("bert")
    room = 160 - NUM_VECTORS
    assert encoder.hidden({"input_ids": torch.ones(1, room, dtype=torch.long)}).shape == (1, room, 32)
    with pytest.raises(MethodError, match="exceed the 160 positions of BertModel") as refused:
        encoder.hidden({"input_ids": torch.ones(1, room + 1, dtype=torch.long)})
    assert f"max_tokens={room}" in str(refused.value)


LAYERS = {"ffn_dim": 24, "num_attention_heads": 2, "num_hidden_layers": 1}
HALF = {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")}
SMALL = {"vocab_size": 50, "max_position_embeddings": 40}


@pytest.mark.parametrize(
    "model",
    [
        lambda: OPTModel(OPTConfig(**SMALL, **LAYERS, hidden_size=32, word_embed_proj_dim=32)),
        lambda: BartModel(BartConfig(**SMALL, **HALF, d_model=32)).get_encoder(),
        lambda: OpenAIGPTModel(OpenAIGPTConfig(vocab_size=50, n_embd=32, n_layer=1, n_head=2, n_positions=40)),
    ],
)
def test_positions_are_counted_whatever_their_table_is_called(model: Any) -> None:
    encoder = tiny("bert")
    encoder.model = model()
    build_finetune("prompt-tuning", encoder, num_classes=3, seed=1)
    room = 40 - NUM_VECTORS
    assert encoder.hidden({"input_ids": torch.full((1, room), 5)}).shape == (1, room, 32)
    with pytest.raises(MethodError, match=f"a text of {room + 1} tokens and 20 vectors exceed the 40 positions of"):
        encoder.hidden({"input_ids": torch.full((1, room + 1), 5)})


@pytest.mark.parametrize(("architecture", "longest"), [("bert", 160 - NUM_VECTORS), ("llama", 512)])
def test_texts_are_cut_where_positions_end(architecture: str, longest: int) -> None:
    encoder: Any = tiny(architecture)
    encoder.max_tokens = 512
    build_finetune("prompt-tuning", encoder, num_classes=3, seed=1)
    assert encoder.max_tokens == longest


@pytest.mark.parametrize("architecture", ["vit", "dinov2", "beit"])
def test_patches_see_the_vectors_before_them(architecture: str) -> None:
    encoder, plain = prompted(architecture)
    inputs, _ = batch(plain)
    vectors = encoder.model.embeddings.prompt.vectors
    bound = (6 / (3 * 8 * 8 + 32)) ** 0.5
    assert 0.9 * bound < vectors.abs().max() <= bound
    hidden = torch.cat([vectors.expand(3, -1, -1), plain.model.embeddings(inputs["pixel_values"])], 1)
    model = plain.model
    if architecture == "dinov2":
        for layer in model.encoder.layer:
            hidden = layer(hidden)
    for layer in model.layers if architecture != "dinov2" else ():
        if architecture == "beit":  # no bias to or from the vectors
            bias = layer.relative_position_bias((4, 4))
            full = torch.zeros(1, 4, NUM_VECTORS + 17, NUM_VECTORS + 17)
            full[..., NUM_VECTORS:, NUM_VECTORS:] = bias
            layer.relative_position_bias = None
            hidden = layer(hidden, attention_mask=full)
        else:
            hidden = layer(hidden)
    expected = model.layernorm(hidden)[:, NUM_VECTORS:]
    assert torch.allclose(encoder.hidden(inputs), expected, atol=1e-5)


def test_encoders_without_a_sequence_of_patches_are_refused() -> None:
    encoder, plain = prompted("swin")
    inputs, _ = batch(plain)
    with pytest.raises(MethodError, match="SwinEmbeddings gives no sequence of patches"):
        encoder.hidden(inputs)
    other = tiny("vit")
    other.model.embeddings = nn.Identity()
    with pytest.raises(MethodError, match="ViTModel has no embeddings of patches"):
        build_finetune("prompt-tuning", other, num_classes=3, seed=1)
