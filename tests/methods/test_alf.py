"""Attentive layer fusion on pooled layers, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.alf import AttentiveLayerFusion

MEAN, VARIANCE = 0.3, 2.0


def make(dim: int = 6, heads: int = 2) -> AttentiveLayerFusion:
    """All tensors away from their start, running statistics too."""
    torch.manual_seed(0)
    module = AttentiveLayerFusion(embed_dim=dim, num_heads=heads)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape))
    running(module)[0].fill_(MEAN)
    running(module)[1].fill_(VARIANCE)
    return module


def running(module: AttentiveLayerFusion) -> tuple[Tensor, Tensor]:
    assert module.norm.running_mean is not None
    assert module.norm.running_var is not None
    return module.norm.running_mean, module.norm.running_var


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def attended(module: AttentiveLayerFusion, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (B, H, L) and the mixed values (B, D) before the batch norm; one sample and one head at a time."""
    p = {name: value.detach().double().numpy() for name, value in module.named_parameters()}

    def norm(row: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return (row - row.mean()) / np.sqrt(row.var() + 1e-5) * scale

    heads, width = module.num_heads, 2 * x.shape[-1] // module.num_heads
    query = p["query.weight"] @ (norm(p["token"], p["query_norm.weight"]) + p["query_norm.bias"])
    weights, mixed = [], []
    for sample in x:
        keys = np.array([p["key.weight"] @ norm(layer, p["key_norm.weight"]) for layer in sample])
        values = np.array([p["value.weight"] @ norm(layer, p["value_norm.weight"]) for layer in sample])
        parts = []
        for head in range(heads):
            place = slice(head * width, (head + 1) * width)
            scores = np.exp(keys[:, place] @ query[place] / np.sqrt(width))
            parts.append((scores / scores.sum(), scores / scores.sum() @ values[:, place]))
        weights.append([weight for weight, _ in parts])
        mixed.append(p["project.weight"] @ np.concatenate([part for _, part in parts]))
    return np.array(weights), np.array(mixed)


def normed(module: AttentiveLayerFusion, rows: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    scale, shift = (p.detach().double().numpy() for p in (module.norm.weight, module.norm.bias))
    return (rows - mean) / np.sqrt(variance + 1e-5) * scale + shift


@pytest.mark.parametrize(("batch", "layers", "dim", "heads"), [(4, 3, 6, 2), (3, 1, 5, 1), (2, 27, 8, 8), (5, 2, 9, 3)])
def test_training_equals_numpy(batch: int, layers: int, dim: int, heads: int) -> None:
    """Mean and variance of each feature are over the samples; the running ones move a tenth of the way."""
    module, x = make(dim, heads).train(), random(batch, layers, dim)
    weights, mixed = attended(module, x)
    given = torch.from_numpy(x).float()
    np.testing.assert_allclose(module.layer_weights(given).detach().numpy(), weights.mean(1), rtol=1e-4, atol=1e-6)
    expected = normed(module, mixed, mixed.mean(0), mixed.var(0))
    np.testing.assert_allclose(module(given).detach().numpy(), expected, rtol=1e-3, atol=1e-3)
    mean, variance = running(module)
    np.testing.assert_allclose(mean.numpy(), 0.9 * MEAN + 0.1 * mixed.mean(0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(variance.numpy(), 0.9 * VARIANCE + 0.1 * mixed.var(0, ddof=1), rtol=1e-3)


def test_evaluation_equals_numpy() -> None:
    module, x = make().eval(), random(4, 3, 6)
    expected = normed(module, attended(module, x)[1], np.full(6, MEAN), np.full(6, VARIANCE))
    np.testing.assert_allclose(module(torch.from_numpy(x).float()).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_one_sample_in_training_uses_and_keeps_the_running_statistics() -> None:
    module, x = make().train(), torch.from_numpy(random(1, 3, 6)).float()
    torch.testing.assert_close(module(x), module.eval()(x))
    assert [value.unique().tolist() for value in running(module)] == [[pytest.approx(MEAN)], [VARIANCE]]


def test_leading_dimensions_pass_through() -> None:
    module, x = make(), torch.from_numpy(random(2, 3, 4, 6)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module.eval()(x[0, 0]), module(x)[0, 0])


def test_weights_stay_float32_under_autocast() -> None:
    module, x = make(8, 2), torch.from_numpy(random(2, 24, 8)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = module.layer_weights(x.bfloat16())
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2), atol=1e-6, rtol=0)


def test_layers_weigh_about_the_same_at_the_start() -> None:
    torch.manual_seed(0)
    module = AttentiveLayerFusion(embed_dim=1024)
    weights = module.layer_weights(torch.randn(4, 24, 1024))
    assert (weights * 24).min() > 0.5
    assert (weights * 24).max() < 2


def test_a_bias_that_the_source_has_would_change_nothing() -> None:
    """A shift of all keys cancels in the softmax; one of all values, or of the projection, in the batch norm."""
    module, x = make(), torch.from_numpy(random(5, 3, 6)).float()
    before = module(x)
    with torch.no_grad():
        for part in (module.key, module.value, module.project):
            part.bias = torch.nn.Parameter(torch.randn(part.out_features))
            torch.testing.assert_close(module(x), before, rtol=1e-4, atol=1e-4)


def test_heads_divide_the_width() -> None:
    with pytest.raises(MethodError, match=r"num_heads \(4\) must divide the layer width \(6\)"):
        build("alf", num_layers=3, embed_dim=6, num_classes=2, num_heads=4)
