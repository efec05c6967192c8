"""Hierarchical convolution over layers, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.methods import build
from daamctl.methods.hconv import HierarchicalConv, num_convolutions


def make(layers: int, dim: int) -> HierarchicalConv:
    torch.manual_seed(0)
    module = HierarchicalConv(num_layers=layers, embed_dim=dim)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.3 * torch.randn(p.shape))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def reference(module: HierarchicalConv, x: np.ndarray) -> np.ndarray:
    """Output i of a convolution sees layers 3i - 2 … 3i + 2, zero outside; ReLU after each; x (B, L, D)."""
    p = [value.detach().double().numpy() for value in module.parameters()]
    outputs = []
    for sample in x:
        for weight, bias in zip(p[::2], p[1::2], strict=True):  # weight (out, in, 5)
            padded = np.pad(sample, ((2, 2), (0, 0)))
            starts = range(0, len(sample), 3)
            sample = np.array([np.einsum("oij,ji->o", weight, padded[i : i + 5]) + bias for i in starts])
            sample = np.maximum(sample, 0)
        outputs.append(sample.T.ravel())  # channel by channel
    return np.array(outputs)


@pytest.mark.parametrize(("layers", "dim"), [(1, 5), (2, 1), (3, 7), (5, 7), (8, 1), (24, 8), (26, 7), (27, 7)])
def test_fusion_equals_numpy(layers: int, dim: int) -> None:
    module, x = make(layers, dim), random(3, layers, dim)
    found = module(torch.from_numpy(x).float()).detach().numpy()
    assert found.shape == (3, module.output_dim)
    np.testing.assert_allclose(found, reference(module, x), rtol=1e-4, atol=1e-5)


def test_leading_dimensions_pass_through() -> None:
    module, x = make(8, 5), torch.from_numpy(random(2, 3, 8, 5)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


@pytest.mark.parametrize("layers", [24, 25])
def test_size_on_a_large_encoder(layers: int) -> None:
    with torch.device("meta"):
        model = build("hconv", num_layers=layers, embed_dim=1024, num_classes=4)
    assert model.fusion.output_dim == 341 * 3 == model.decoder.projector.in_features
    assert sum(p.numel() for p in model.fusion.parameters()) == 6_990_165


@pytest.mark.parametrize(
    ("layers", "dim", "width"),
    [
        (1, 7, 7),  # one layer left
        (4, 7, 6),  # two layers left, three channels
        (8, 7, 6),  # three layers left, two channels
        (8, 3, 3),
        (8, 2, 3),  # narrower than the layers left: one channel
        (8, 1, 3),
    ],
)
def test_output_width(layers: int, dim: int, width: int) -> None:
    assert HierarchicalConv(num_layers=layers, embed_dim=dim).output_dim == width


def test_number_of_convolutions() -> None:
    assert [num_convolutions(n) for n in (1, 2, 3, 8, 9, 24, 25, 26)] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [num_convolutions(3**n) for n in range(1, 20)] == list(range(1, 20))
    assert [num_convolutions(3**n - 1) for n in range(2, 20)] == list(range(1, 19))
