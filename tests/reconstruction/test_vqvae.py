"""The model: sizes, blocks, equal starts."""

from __future__ import annotations

import pytest
import torch

from daamctl.config.schema import ReconstructConfig
from daamctl.reconstruction import BLOCKS
from daamctl.reconstruction.vqvae import VQVAE
from tests.fixtures.reconstruction import SETTINGS


@pytest.mark.parametrize("name", list(BLOCKS))
def test_shapes(name: str) -> None:
    torch.manual_seed(0)
    model, images = VQVAE(name, SETTINGS), torch.rand(2, 3, 16, 16) * 2 - 1
    found = model(images)
    assert found.images.shape == images.shape
    assert found.quantised.nearest.shape == (2, 4, 4)
    assert found.quantised.latents.shape == (2, 8, 4, 4)


def test_arms_differ_in_their_blocks_alone() -> None:
    states = {}
    for name in BLOCKS:
        torch.manual_seed(3)
        model = VQVAE(name, SETTINGS)
        own = {id(one) for block in model.blocks.values() for one in block.parameters()}
        states[name] = [one for one in model.parameters() if id(one) not in own]
    for other in states.values():
        assert all(torch.equal(one, two) for one, two in zip(other, states["identity"], strict=True))


def test_published_sizes() -> None:
    """Three halvings of 256 pixels, a block after each change of size, 24 weights in each."""
    with torch.device("meta"):
        model = VQVAE("daam", ReconstructConfig())
    assert sum(getattr(layer, "stride", 0) == (2, 2) for layer in model.encoder) == 3
    assert model.codes.codes.shape == (1024, 256)
    assert list(model.blocks) == [f"{part}-{number}" for part in ("encoder", "decoder") for number in (1, 2, 3)]
    assert [sum(one.numel() for one in block.parameters()) for block in model.blocks.values()] == [24] * 6


def test_decoder_mirrors_the_encoder() -> None:
    model = VQVAE("identity", SETTINGS)
    down = [(layer.in_channels, layer.out_channels) for layer in model.encoder if getattr(layer, "stride", 0) == (2, 2)]
    up = [(layer.in_channels, layer.out_channels) for layer in model.decoder if getattr(layer, "stride", 0) == (2, 2)]
    assert up == [(wide, narrow) for narrow, wide in reversed(down)]
