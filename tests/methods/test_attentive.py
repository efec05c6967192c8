"""Attentive pooling over layers, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.methods import build
from daamctl.methods.attentive import AttentivePooling


def make(dim: int = 5) -> AttentivePooling:
    torch.manual_seed(0)
    module = AttentivePooling(embed_dim=dim, attention_dim=6)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def reference(module: AttentivePooling, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and output, one layer of one sample after the other; x (B, L, D)."""
    v, b, u = (p.detach().double().numpy() for p in (module.hidden.weight, module.hidden.bias, module.score.weight))
    scores = np.array([[u[0] @ np.tanh(v @ layer + b) for layer in sample] for sample in x])
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return weights, np.array([weight @ sample for weight, sample in zip(weights, x, strict=True)])


@pytest.mark.parametrize(("layers", "dim"), [(1, 5), (2, 1), (3, 7), (27, 5)])
def test_pooling_equals_numpy(layers: int, dim: int) -> None:
    module, x = make(dim), random(4, layers, dim)
    weights, output = reference(module, x)
    given = torch.from_numpy(x).float()
    np.testing.assert_allclose(module.layer_weights(given).detach().numpy(), weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module(given).detach().numpy(), output, rtol=1e-4, atol=1e-5)


def test_leading_dimensions_pass_through() -> None:
    module, x = make(), torch.from_numpy(random(2, 3, 4, 5)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_weights_follow_their_layers() -> None:
    module, x = make(), torch.from_numpy(random(2, 4, 5)).float()
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(module.layer_weights(x[:, order]), module.layer_weights(x)[:, order])


def test_weights_stay_float32_under_autocast() -> None:
    """In bfloat16 the 24 weights could not sum to 1 within 1e-6."""
    module, x = make(), torch.from_numpy(random(2, 24, 5)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = module.layer_weights(x)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2), atol=1e-6, rtol=0)


def test_number_of_parameters() -> None:
    with torch.device("meta"):
        fusion = build("attentive", num_layers=24, embed_dim=1024, num_classes=4).fusion
    assert {name: tuple(p.shape) for name, p in fusion.named_parameters()} == {
        "hidden.weight": (128, 1024),
        "hidden.bias": (128,),
        "score.weight": (1, 128),
    }
