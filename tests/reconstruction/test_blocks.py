"""Blocks: number of weights, formulas in NumPy, and what they do at the start."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.errors import MethodError, UnknownNameError
from daamctl.reconstruction import BLOCKS
from daamctl.reconstruction.blocks import make_block


def number_of(name: str, channels: int) -> int:
    return sum(one.numel() for one in make_block(name, channels, heads=4, gaussians=3).parameters())


@pytest.mark.parametrize("channels", [128, 256, 512])
def test_numbers_of_weights(channels: int) -> None:
    counts = {name: number_of(name, channels) for name in BLOCKS}
    assert counts == {"identity": 0, "daam": 24, "squeeze-excite": 24, "static-gate": channels}


@pytest.mark.parametrize("name", list(BLOCKS))
def test_every_block_keeps_the_shape_and_passes_gradients(name: str) -> None:
    torch.manual_seed(0)
    block, x = make_block(name, 8, heads=4, gaussians=3), torch.randn(2, 8, 3, 5, requires_grad=True)
    found = block(x)
    assert found.shape == x.shape
    found.square().sum().backward()
    assert x.grad is not None
    assert all(one.grad is not None and bool(one.grad.abs().sum()) for one in block.parameters())


def test_squeeze_excite_in_numpy() -> None:
    torch.manual_seed(1)
    block, x = make_block("squeeze-excite", 6, heads=3, gaussians=2), torch.randn(2, 6, 4, 4)
    first, second = (one.detach().numpy() for one in block.parameters())
    means = x.numpy().reshape(2, 3, 2, 4, 4).mean((2, 3, 4))
    gates = 1 / (1 + np.exp(-np.maximum(means @ first.T, 0) @ second.T))
    wanted = x.numpy() * (1 + np.repeat(gates, 2, axis=1)[..., None, None])
    np.testing.assert_allclose(block(x).detach().numpy(), wanted, atol=1e-6)


def test_static_gate_starts_at_the_mean_weight_of_daam() -> None:
    torch.manual_seed(2)
    x = torch.randn(4, 32, 6, 6)
    _, (density,) = make_block("daam", 32, heads=4, gaussians=3)(x, return_density=True)
    gain = make_block("static-gate", 32, heads=4, gaussians=3)(x) / x - 1
    torch.testing.assert_close(gain.mean(), density.mean())


def test_wrong_names_and_heads() -> None:
    with pytest.raises(UnknownNameError, match="unknown block 'dam'"):
        make_block("dam", 8, heads=4, gaussians=3)
    with pytest.raises(MethodError, match=r"num_heads.*4.*10"):
        make_block("daam", 10, heads=4, gaussians=3)
