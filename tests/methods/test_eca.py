"""Efficient channel attention over layers, against an independent NumPy form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from daamctl.methods import build
from daamctl.methods.eca import EfficientChannelAttention, kernel_size


def make(layers: int) -> EfficientChannelAttention:
    torch.manual_seed(0)
    module = EfficientChannelAttention(num_layers=layers)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape) + 0.5


def reference(module: EfficientChannelAttention, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and output; gate l sees the means of layers l - k//2 … l + k//2, zero outside; x (B, L, D)."""
    kernel = module.conv.weight.detach().double().numpy()[0, 0]
    weights, outputs = [], []
    for sample in x:
        means = sample.mean(1)
        scores = [
            sum(
                kernel[j] * means[layer + j - kernel.size // 2]
                for j in range(kernel.size)
                if 0 <= layer + j - kernel.size // 2 < len(means)
            )
            for layer in range(len(means))
        ]
        weights.append(1 / (1 + np.exp(-np.array(scores))))
        outputs.append(weights[-1] @ sample)
    return np.array(weights), np.array(outputs)


@pytest.mark.parametrize(("layers", "dim"), [(1, 5), (2, 1), (3, 7), (8, 5), (27, 5), (150, 2)])
def test_gates_and_sum_equal_numpy(layers: int, dim: int) -> None:
    module, x = make(layers), random(4, layers, dim)
    weights, output = reference(module, x)
    given = torch.from_numpy(x).float()
    np.testing.assert_allclose(module.layer_weights(given).detach().numpy(), weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module(given).detach().numpy(), output, rtol=1e-4, atol=1e-5)


def test_leading_dimensions_pass_through() -> None:
    module, x = make(8), torch.from_numpy(random(2, 3, 8, 5)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_kernel_size_follows_the_formula() -> None:
    assert [kernel_size(n) for n in (1, 2, 24, 25, 768, 1024)] == [1, 1, 3, 3, 5, 5]
    for channels in range(1, 2049):
        size = int((math.log2(channels) + 1) / 2)
        assert kernel_size(channels) == (size if size % 2 else size + 1)


@pytest.mark.parametrize("layers", [24, 25])
def test_three_parameters_for_a_large_encoder(layers: int) -> None:
    fusion = build("eca", num_layers=layers, embed_dim=16, num_classes=4).fusion
    assert [tuple(p.shape) for p in fusion.parameters()] == [(1, 1, 3)]


def test_gates_stay_float32_under_autocast() -> None:
    module, x = make(8), torch.from_numpy(random(2, 8, 5)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module.layer_weights(x), make(8).layer_weights(x), rtol=1e-6, atol=1e-7)
        assert module.layer_weights(x.bfloat16()).dtype == torch.float32
