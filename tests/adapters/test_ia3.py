"""IA3's factors: where they stand and what they scale."""

from __future__ import annotations

import pytest
import torch

from daamctl.adapters import build_finetune
from tests.adapters.test_base import make
from tests.fixtures.tiny_models import tiny


@pytest.mark.parametrize("architecture", ["wavlm", "bert", "llama"])
def test_factors_scale_keys_values_and_the_inside_of_the_feed_forward_part(architecture: str) -> None:
    encoder = tiny(architecture)
    model = build_finetune("ia3", encoder, num_classes=3, seed=1)
    assert len(model.adapted) == 6
    for name in model.adapted:
        layer = encoder.model.get_submodule(name)
        factors = layer.ia3_l["default"]
        assert (factors == 1).all()
        x = torch.randn(2, layer.base_layer.in_features)
        with torch.no_grad():
            factors.uniform_(0.5, 2)
            inside = layer.is_feedforward
            scaled = layer.base_layer(x * factors.flatten()) if inside else layer.base_layer(x) * factors.flatten()
            assert torch.allclose(layer(x), scaled, atol=1e-5)
    assert sum(encoder.model.get_submodule(name).is_feedforward for name in model.adapted) == 2


def test_one_map_for_all_three_is_said() -> None:
    assert "one map" in make("ia3", "gpt2")[0].notes[0]
