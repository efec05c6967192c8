"""Sensitive layer selection on pooled layers, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.methods import build
from daamctl.methods.sls import SensitiveLayerSelection

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al., 2017


def make(dim: int = 5) -> SensitiveLayerSelection:
    torch.manual_seed(0)
    module = SensitiveLayerSelection(embed_dim=dim)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape))
        assert module.norm.running_mean is not None
        assert module.norm.running_var is not None
        module.norm.running_mean.fill_(0.3)
        module.norm.running_var.fill_(2.0)
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def gated(module: SensitiveLayerSelection, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and their sum, before the batch norm; x (B, L, D)."""
    w, b = (p.detach().double().numpy() for p in (module.gate.weight, module.gate.bias))
    weights = np.array([[1 / (1 + np.exp(-(w[0] @ layer + b[0]))) for layer in sample] for sample in x])
    return weights, np.array([weight @ sample for weight, sample in zip(weights, x, strict=True)])


def finish(module: SensitiveLayerSelection, fused: np.ndarray, mean: float, variance: float) -> np.ndarray:
    y = (fused - mean) / np.sqrt(variance + 1e-5) * module.norm.weight.item() + module.norm.bias.item()
    return SELU_SCALE * np.where(y > 0, y, SELU_ALPHA * (np.exp(y) - 1))


@pytest.mark.parametrize(("batch", "layers", "dim"), [(4, 3, 5), (1, 2, 7), (3, 1, 1), (2, 27, 5)])
def test_training_equals_numpy(batch: int, layers: int, dim: int) -> None:
    """One mean and one variance over samples and features; the running ones move a tenth of the way."""
    module, x = make(dim).train(), random(batch, layers, dim)
    weights, fused = gated(module, x)
    given = torch.from_numpy(x).float()
    np.testing.assert_allclose(module.layer_weights(given).detach().numpy(), weights, rtol=1e-4, atol=1e-6)
    expected = finish(module, fused, fused.mean(), fused.var())
    np.testing.assert_allclose(module(given).detach().numpy(), expected, rtol=1e-3, atol=1e-4)
    assert module.norm.running_mean is not None
    assert module.norm.running_var is not None
    assert module.norm.running_mean.item() == pytest.approx(0.9 * 0.3 + 0.1 * fused.mean(), rel=1e-4)
    assert module.norm.running_var.item() == pytest.approx(0.9 * 2.0 + 0.1 * fused.var(ddof=1), rel=1e-4)


def test_evaluation_equals_numpy() -> None:
    module, x = make().eval(), random(4, 3, 5)
    _, fused = gated(module, x)
    found = module(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(found, finish(module, fused, 0.3, 2.0), rtol=1e-4, atol=1e-5)


def test_single_value_takes_the_running_statistics() -> None:
    module, x = make(1).train(), random(1, 3, 1)
    _, fused = gated(module, x)
    found = module(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(found, finish(module, fused, 0.3, 2.0), rtol=1e-4, atol=1e-5)
    assert module.norm.running_mean is not None
    assert module.norm.running_mean.item() == pytest.approx(0.3)


def test_leading_dimensions_pass_through() -> None:
    module, x = make().eval(), torch.from_numpy(random(2, 3, 4, 5)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_gates_and_statistics_stay_float32_under_autocast() -> None:
    x = torch.from_numpy(random(4, 3, 5)).float()
    weights, output = make().layer_weights(x), make()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(make().layer_weights(x), weights, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(make()(x), output)
        assert make()(x.bfloat16()).dtype == torch.bfloat16


def test_half_precision_is_widened_before_the_statistics() -> None:
    """Far from zero, the spread of the fused values would be lost in bfloat16."""
    x = torch.from_numpy(random(4, 3, 5) * 0.5 + 100).bfloat16()
    exact = make().double()(x.double())
    torch.testing.assert_close(make()(x).double(), exact, rtol=2**-8, atol=1e-3)


def test_trainable_tensors_and_start() -> None:
    fusion = build("sls", num_layers=24, embed_dim=1024, num_classes=4).fusion
    assert {name: tuple(p.shape) for name, p in fusion.named_parameters()} == {
        "gate.weight": (1, 1024),
        "gate.bias": (1,),
        "norm.weight": (1,),
        "norm.bias": (1,),
    }
    assert (fusion.norm.weight.item(), fusion.norm.bias.item()) == (1, 0)
    assert (fusion.norm.running_mean.item(), fusion.norm.running_var.item()) == (0, 1)
