"""Squeeze-and-excitation over layers, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.methods import build
from daamctl.methods.se import SqueezeExcitation


def make(layers: int) -> SqueezeExcitation:
    torch.manual_seed(0)
    module = SqueezeExcitation(num_layers=layers)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape) + 0.5


def reference(module: SqueezeExcitation, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and output; x (B, L, D)."""
    p = {name: value.detach().double().numpy() for name, value in module.named_parameters()}
    weights, outputs = [], []
    for sample in x:
        u = np.array([layer.sum() / layer.size for layer in sample])
        hidden = np.maximum(p["squeeze.weight"] @ u + p["squeeze.bias"], 0)
        gate = 1 / (1 + np.exp(-(p["excite.weight"] @ hidden + p["excite.bias"])))
        weights.append(gate)
        outputs.append(gate @ sample)
    return np.array(weights), np.array(outputs)


@pytest.mark.parametrize(("layers", "dim"), [(1, 5), (2, 1), (3, 7), (8, 5), (27, 5)])
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


@pytest.mark.parametrize(
    ("layers", "settings", "width", "parameters"),
    [(24, {}, 6, 318), (25, {}, 6, 331), (24, {"reduction": 24}, 1, 73), (3, {}, 1, 10), (1, {}, 1, 4)],
)
def test_hidden_width(layers: int, settings: dict[str, int], width: int, parameters: int) -> None:
    fusion = build("se", num_layers=layers, embed_dim=16, num_classes=4, **settings).fusion
    assert fusion.squeeze.out_features == width
    assert sum(p.numel() for p in fusion.parameters()) == parameters


def test_gates_stay_float32_under_autocast() -> None:
    module, x = make(8), torch.from_numpy(random(2, 8, 5)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(module.layer_weights(x), make(8).layer_weights(x), rtol=1e-6, atol=1e-7)
        assert module.layer_weights(x.bfloat16()).dtype == torch.float32
