"""Weighted sums with weights of their own, against independent NumPy forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.methods import WeightedSum, build
from daamctl.methods.weighted_sum import weigh_layers

SCORES = np.array([-0.5, 0.3, 1.7, 0.0])
WEIGHTS = np.exp(SCORES) / np.exp(SCORES).sum()


def make(**options: bool) -> WeightedSum:
    module = WeightedSum(num_layers=4, **options)
    with torch.no_grad():
        module.scores.copy_(torch.from_numpy(SCORES))
        if module.gamma is not None:
            module.gamma.fill_(-1.5)
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def run(module: WeightedSum, x: np.ndarray) -> np.ndarray:
    found: np.ndarray = module(torch.from_numpy(x).float()).detach().numpy()
    return found


def test_sum_equals_numpy() -> None:
    x = random(2, 3, 4, 5)
    expected = sum(weight * x[..., layer, :] for layer, weight in enumerate(WEIGHTS))
    found = run(make(), x)
    assert found.shape == (2, 3, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_normalised_sum_equals_numpy() -> None:
    """Every layer has mean 0 and variance 1 over its features; small layers show the 1e-5 under the root."""
    x = random(2, 4, 5) * np.array([100.0, 1.0, 0.01, 1e-3])[:, None] + 3
    z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = np.einsum("bld,l->bd", z, WEIGHTS)
    found = make(layer_norm=True).double()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_scaled_sum_equals_numpy() -> None:
    x = random(2, 4, 5)
    expected = -1.5 * np.einsum("bld,l->bd", x, WEIGHTS)
    np.testing.assert_allclose(run(make(learned_scale=True), x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["weighted-sum", "scalar-mix", "mean"])
@pytest.mark.parametrize(("layers", "dim"), [(1, 1), (2, 7), (3, 5), (27, 4)])
def test_starts_as_the_plain_mean(method: str, layers: int, dim: int) -> None:
    x = random(2, layers, dim)
    fusion = build(method, num_layers=layers, embed_dim=dim, num_classes=2).fusion
    np.testing.assert_allclose(run(fusion, x), x.mean(1), rtol=1e-5, atol=1e-6)


def test_normalised_layers_of_one_feature_are_zero() -> None:
    fusion = build("weighted-sum-ln", num_layers=3, embed_dim=1, num_classes=2).fusion
    assert not run(fusion, random(2, 3, 1)).any()


@pytest.mark.parametrize(
    ("method", "trainable"),
    [
        ("weighted-sum", {"scores": (24,)}),
        ("weighted-sum-ln", {"scores": (24,)}),
        ("scalar-mix", {"scores": (24,), "gamma": ()}),
        ("mean", {}),
    ],
)
def test_what_each_method_trains_and_saves(method: str, trainable: dict[str, tuple[int, ...]]) -> None:
    fusion = build(method, num_layers=24, embed_dim=5, num_classes=2).fusion
    assert {name: tuple(p.shape) for name, p in fusion.named_parameters()} == trainable
    assert fusion.state_dict().keys() == trainable.keys()


@pytest.mark.parametrize("options", [{}, {"learned_scale": True}, {"learned": False}])
def test_layer_weights_multiply_the_layers(options: dict[str, bool]) -> None:
    module = make(**options)
    x = torch.from_numpy(random(2, 3, 4, 5)).float()
    weights = module.layer_weights(x)
    scale = -1.5 if module.gamma is not None else 1.0
    np.testing.assert_allclose(weights.detach().numpy(), np.broadcast_to(scale * WEIGHTS, (2, 3, 4)), rtol=1e-6)
    torch.testing.assert_close(module(x), torch.einsum("...ld,...l->...d", x, weights))


def test_shift_of_all_scores_changes_nothing() -> None:
    module = make()
    x = torch.from_numpy(random(2, 4, 5)).float()
    before = module(x)
    with torch.no_grad():
        module.scores.add_(3.0)
    torch.testing.assert_close(module(x), before)


def test_half_precision_is_rounded_once_at_the_end() -> None:
    x = torch.from_numpy(random(40, 24, 5)).bfloat16()
    weights = torch.from_numpy(np.abs(random(40, 24))).float()
    exact = (x.double() * weights.double().unsqueeze(-1)).sum(1)
    assert torch.equal(weigh_layers(x, weights), exact.bfloat16())


def test_builder_puts_the_mlp_behind() -> None:
    model = build("weighted-sum", num_layers=3, embed_dim=5, num_classes=2, hidden_dim=7)
    assert sum(p.numel() for p in model.parameters()) == 3 + (5 * 7 + 7) + (7 * 2 + 2)
    x = torch.from_numpy(random(2, 3, 5)).float()
    torch.testing.assert_close(model(x), model.decoder(x.mean(1)))
