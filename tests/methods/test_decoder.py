"""Decoders against an independent NumPy form, their shapes and parameter counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.methods import ConvDecoder, MLPDecoder, feature_grid


@pytest.mark.parametrize(
    ("dim", "grid"),
    [
        (1024, (32, 32)),
        (5120, (64, 80)),
        (768, (24, 32)),
        (1280, (32, 40)),
        (512, (16, 32)),
        (13, (1, 13)),
        (1, (1, 1)),
    ],
)
def test_feature_grid(dim: int, grid: tuple[int, int]) -> None:
    assert feature_grid(dim) == grid


def test_feature_grid_is_the_squarest_factorisation() -> None:
    for dim in range(1, 200):
        pairs = [(h, dim // h) for h in range(1, dim + 1) if dim % h == 0 and h <= dim // h]
        assert feature_grid(dim) == min(pairs, key=lambda pair: pair[1] - pair[0])


def convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """3x3 correlation, stride 1, padding 1, by loops: x (B, I, H, W), weight (O, I, 3, 3)."""
    batch, _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.empty((batch, weight.shape[0], height, width))
    for i in range(height):
        for j in range(width):
            out[:, :, i, j] = np.einsum("bihw,oihw->bo", padded[:, :, i : i + 3, j : j + 3], weight) + bias
    return out


@pytest.mark.parametrize("dim", [12, 7])
def test_conv_decoder_equals_numpy(dim: int) -> None:
    decoder = ramp(ConvDecoder(num_layers=3, embed_dim=dim, num_classes=4, hidden_channels=5))
    x = np.random.default_rng(1).standard_normal((2, 3, dim))
    p = {name: value.detach().double().numpy() for name, value in decoder.named_parameters()}
    image = x.reshape(2, 3, *{12: (3, 4), 7: (1, 7)}[dim])  # row by row, in the stored order of the features
    image = np.maximum(convolve(image, p["conv1.weight"], p["conv1.bias"]), 0)
    image = np.maximum(convolve(image, p["conv2.weight"], p["conv2.bias"]), 0)
    expected = image.reshape(2, -1) @ p["fc.weight"].T + p["fc.bias"]
    found = decoder(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_mlp_decoder_equals_numpy() -> None:
    decoder = ramp(MLPDecoder(embed_dim=6, num_classes=3, hidden_dim=4))
    x = np.random.default_rng(1).standard_normal((5, 6))
    p = {name: value.detach().double().numpy() for name, value in decoder.named_parameters()}
    hidden = np.maximum(x @ p["projector.weight"].T + p["projector.bias"], 0)
    expected = hidden @ p["classifier.weight"].T + p["classifier.bias"]
    np.testing.assert_allclose(decoder(torch.from_numpy(x).float()).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "convolutions", "linear"),
    [((24, 1024, 4), 221_720, 98_308), ((24, 1024, 100), 221_720, 2_457_700), ((40, 5120, 4), 369_192, 819_204)],
)
def test_published_sizes(sizes: tuple[int, int, int], convolutions: int, linear: int) -> None:
    """FACTS 7: convolution pair and fc."""
    with torch.device("meta"):
        decoder = ConvDecoder(num_layers=sizes[0], embed_dim=sizes[1], num_classes=sizes[2])
    count = {name: sum(p.numel() for p in part.parameters()) for name, part in decoder.named_children()}
    assert count == {"conv1": count["conv1"], "conv2": convolutions - count["conv1"], "fc": linear}
    assert tuple(decoder.conv1.weight.shape) == (512, sizes[0], 3, 3)


def test_weights_start_xavier_uniform() -> None:
    torch.manual_seed(0)
    decoder = ConvDecoder(num_layers=6, embed_dim=64, num_classes=4, hidden_channels=32)
    for layer, fans in ((decoder.conv1, (6 * 9, 32 * 9)), (decoder.conv2, (32 * 9, 6 * 9)), (decoder.fc, (384, 4))):
        bound = math.sqrt(6 / sum(fans))  # Glorot and Bengio, 2010
        assert layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def ramp(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    return module
