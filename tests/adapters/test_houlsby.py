"""The bottleneck adapter's formula and place."""

from __future__ import annotations

import torch
from torch import nn

from daamctl.adapters import build_finetune
from tests.fixtures.tiny_models import batch, tiny


def test_adapter_stands_behind_the_feed_forward_part() -> None:
    encoder, plain = tiny("wav2vec2"), tiny("wav2vec2")
    model = build_finetune("houlsby", encoder, num_classes=3, seed=1)
    assert model.adapted == tuple(f"encoder.layers.{n}.feed_forward.output_dense" for n in (0, 1))
    linear, before = encoder.model.get_submodule(model.adapted[0]), plain.model.get_submodule(model.adapted[0])
    adapter, x = linear.bottleneck, torch.randn(2, 48)
    assert adapter.down.weight.shape == (64, 32)
    with torch.no_grad():
        adapter.up.weight.normal_()
        adapter.up.bias.normal_()
        h = before(x)
        inside = nn.functional.gelu(h @ adapter.down.weight.T + adapter.down.bias)
        assert torch.allclose(linear(x), h + inside @ adapter.up.weight.T + adapter.up.bias, atol=1e-4)
    inputs, _ = batch(encoder)
    assert not torch.allclose(encoder.hidden(inputs), plain.hidden(inputs), atol=1e-3)
