"""Finding the parts of encoders that no table lists."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import T5Config, T5EncoderModel, Wav2Vec2BertConfig, Wav2Vec2BertModel

from daamctl.adapters import module_lookup
from daamctl.errors import MethodError
from tests.fixtures.tiny_models import ARCHITECTURES, SMALL, tiny

# Attention, and the map out of the feed-forward part, of the first layer.
PARTS = {
    "wavlm": ("encoder.layers.0.attention.{q,k,v}_proj", "encoder.layers.0.feed_forward.output_dense"),
    "wavlm-base": ("encoder.layers.0.attention.{q,k,v}_proj", "encoder.layers.0.feed_forward.output_dense"),
    "wav2vec2": ("encoder.layers.0.attention.{q,k,v}_proj", "encoder.layers.0.feed_forward.output_dense"),
    "hubert": ("encoder.layers.0.attention.{q,k,v}_proj", "encoder.layers.0.feed_forward.output_dense"),
    "whisper": ("layers.0.self_attn.{q,k,v}_proj", "layers.0.fc2"),
    "bert": ("encoder.layer.0.attention.self.{query,key,value}", "encoder.layer.0.output.dense"),
    "llama": ("layers.0.self_attn.{q,k,v}_proj", "layers.0.mlp.down_proj"),
    "gpt2": ("h.0.attn.c_attn", "h.0.mlp.c_proj"),
    "beit": ("layers.0.attention.{q,k,v}_proj", "layers.0.mlp.fc2"),
    "vit": ("layers.0.attention.{q,k,v}_proj", "layers.0.mlp.fc2"),
    "dinov2": ("encoder.layer.0.attention.{q,k,v}_proj", "encoder.layer.0.mlp.fc2"),
    "swin": ("encoder.layers.0.blocks.0.attention.{q,k,v}_proj", "encoder.layers.0.blocks.0.mlp.fc2"),
}


def expand(pattern: str) -> list[str]:
    head, brace, rest = pattern.partition("{")
    choices, _, tail = rest.partition("}")
    return [f"{head}{choice}{tail}" for choice in choices.split(",")] if brace else [pattern]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_parts_are_found_by_structure(architecture: str) -> None:
    model = tiny(architecture).model
    attention, feed_forward = PARTS[architecture]
    found = [module_lookup.projections(model, (role,)) for role in module_lookup.ROLES]
    assert all(len(names) == 2 for names in found)  # one per layer
    assert [names[0] for names in found] == (expand(attention) * 3)[:3]
    assert module_lookup.are_fused(found[0]) == (architecture == "gpt2")
    together = module_lookup.projections(model, ("query", "value"))
    assert set(together) == {*found[0], *found[2]}
    assert module_lookup.feed_forward_outputs(model)[0] == feed_forward
    assert len(module_lookup.feed_forward_outputs(model)) == 2
    inside = model.get_submodule(feed_forward)
    assert (
        module_lookup.linear_sizes(inside)[1]
        == model.get_submodule(found[0][0]).weight.shape[-1 if "gpt2" not in architecture else 0]
    )
    norms = module_lookup.layer_norms(model)
    assert len(norms) >= 4
    assert not any("pooler" in name for name in norms)


def test_norms_of_t5_are_found() -> None:
    model = T5EncoderModel(T5Config(d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=48, vocab_size=50))
    assert len(module_lookup.layer_norms(model)) == 5  # two in each layer, and the final one


def test_what_lies_beside_the_way_to_the_output_is_left_out() -> None:
    reached = module_lookup.reached_parameters(tiny("bert").model)
    assert "encoder.layer.0.attention.self.query.weight" in reached
    assert not any("pooler" in name for name in reached)
    assert "masked_spec_embed" not in module_lookup.reached_parameters(tiny("wavlm").model)
    assert "embeddings.mask_token" not in module_lookup.reached_parameters(tiny("dinov2").model)


def test_encoders_without_attention_are_refused() -> None:
    with pytest.raises(MethodError, match="no maps to query, value found in Sequential"):
        module_lookup.projections(nn.Sequential(nn.Linear(4, 4)), ("query", "value"))


def test_encoders_whose_layers_cannot_be_told_are_refused() -> None:
    attention = nn.ModuleDict({role: nn.Linear(4, 4) for role in ("query", "key", "value")})
    with pytest.raises(MethodError, match="no feed-forward part found in the layers of Sequential"):
        module_lookup.feed_forward_outputs(nn.Sequential(attention))


def test_parts_of_a_conformer_are_found() -> None:
    model = Wav2Vec2BertModel(Wav2Vec2BertConfig(**SMALL))
    layers = [f"encoder.layers.{number}" for number in range(2)]
    expected = {f"{layer}.self_attn.linear_{role}" for layer in layers for role in "qv"}
    assert set(module_lookup.projections(model, ("query", "value"))) == expected
    outputs = tuple(f"{layer}.ffn2.output_dense" for layer in layers)  # of two feed-forward parts the last
    assert module_lookup.feed_forward_outputs(model) == outputs
