"""Learned keys and values in every layer."""

from __future__ import annotations

import pytest
import torch

from daamctl.adapters import build_finetune
from daamctl.adapters.prefix import LENGTH
from daamctl.errors import MethodError
from tests.adapters.test_base import make
from tests.fixtures.tiny_models import MAIN, batch, tiny


@pytest.mark.parametrize("architecture", MAIN)
def test_prefix_of_no_length_leaves_the_encoder_as_it_is(architecture: str) -> None:
    """The way that the prefix takes must leave the rest of the attention untouched, masks too."""
    encoder, plain = tiny(architecture), tiny(architecture)
    model = build_finetune("prefix-tuning", encoder, num_classes=3, seed=1)
    inputs, mask = batch(plain)
    real = mask.bool()
    expected = plain.hidden(inputs)
    assert not torch.allclose(encoder.hidden(inputs)[real], expected[real], atol=1e-4)
    for name in model.adapted:
        attention = encoder.model.get_submodule(name)
        assert attention.prefix_key.shape == attention.prefix_value.shape
        assert len(attention.prefix_key) == LENGTH
        attention.prefix_key = torch.nn.Parameter(attention.prefix_key[:0])
        attention.prefix_value = torch.nn.Parameter(attention.prefix_value[:0])
    assert torch.allclose(encoder.hidden(inputs)[real], expected[real], atol=1e-5)


def test_a_prefix_starts_with_twenty_small_vectors() -> None:
    model = build_finetune("prefix-tuning", tiny("bert"), num_classes=3, seed=1)
    starts = [getattr(model.encoder.model.get_submodule(name), part) for name in model.adapted
              for part in ("prefix_key", "prefix_value")]  # fmt: skip
    assert {len(start) for start in starts} == {20}
    assert torch.cat([start.flatten() for start in starts]).std().item() == pytest.approx(0.02, rel=0.1)


def test_later_tokens_stay_hidden() -> None:
    model, inputs, _ = make("prefix-tuning", "llama")
    ids = inputs["input_ids"][1:2]
    changed = ids.clone()
    changed[0, -1] = 3 + (changed[0, -1] - 2) % 40
    first, second = (model.model(input_ids=value).last_hidden_state for value in (ids, changed))
    assert torch.allclose(first[:, :-1], second[:, :-1], atol=1e-6)
    assert not torch.allclose(first[:, -1], second[:, -1], atol=1e-3)


def test_attention_outside_the_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tiny("bert")
    monkeypatch.setattr(type(encoder.model), "set_attn_implementation", lambda self, name: None)
    with pytest.raises(MethodError, match="prefix-tuning: the attention of BertModel takes no prefix"):
        build_finetune("prefix-tuning", encoder, num_classes=3, seed=1)
