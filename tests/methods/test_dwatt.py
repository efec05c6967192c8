"""Depth-wise attention, against an independent NumPy form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.methods import build
from daamctl.methods.dwatt import DepthWiseAttention

EXACT_LAYERS, EXACT_DIM = 24, 1024


def make(layers: int, dim: int, *, scaled: bool = False) -> DepthWiseAttention:
    torch.manual_seed(0)
    module = DepthWiseAttention(num_layers=layers, embed_dim=dim, scaled=scaled)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def normalised(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * scale + shift


def reference(module: DepthWiseAttention, x: np.ndarray, *, scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Weights and output, one layer of one sample after the other; x (B, L, D)."""
    p = {name: value.detach().double().numpy() for name, value in module.state_dict().items()}

    def mlp(kind: str, layer: int, z: np.ndarray) -> np.ndarray:
        hidden = p[f"{kind}.0.weight"][layer] @ z + p[f"{kind}.0.bias"][layer]
        hidden = np.array([h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden])
        hidden = normalised(hidden, p[f"{kind}.2.weight"][layer], p[f"{kind}.2.bias"][layer])
        output: np.ndarray = p[f"{kind}.3.weight"][layer] @ hidden + p[f"{kind}.3.bias"][layer]
        return output

    all_weights, outputs = [], []
    for sample in x:
        last = sample[-1]
        moved = last + mlp("query", 0, last)
        query = 1 + np.where(moved > 0, moved, np.exp(moved) - 1)
        keys = [p["key.weight"] @ position + p["key.bias"] for position in p["position"]]
        scores = np.array([query @ key for key in keys]) / (math.sqrt(len(last)) if scaled else 1)
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        output = last.copy()
        for n, z in enumerate(sample):
            output += weights[n] * normalised(mlp("value", n, z), p["value_norm.weight"][n], p["value_norm.bias"][n])
        all_weights.append(weights)
        outputs.append(output)
    return np.array(all_weights), np.array(outputs)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("layers", "dim"), [(1, 8), (2, 1), (3, 7), (27, 6)])
def test_attention_equals_numpy(layers: int, dim: int, scaled: bool) -> None:
    module, x = make(layers, dim, scaled=scaled).double(), random(4, layers, dim)
    weights, output = reference(module, x, scaled=scaled)
    given = torch.from_numpy(x)
    np.testing.assert_allclose(module.layer_weights(given).detach().numpy(), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(module(given).detach().numpy(), output, rtol=1e-9, atol=1e-12)


def test_leading_dimensions_pass_through() -> None:
    module, x = make(4, 6), torch.from_numpy(random(2, 3, 4, 6)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_scores_stay_float32_under_autocast() -> None:
    """Unscaled scores of wide, large layers pass 65,504, the largest float16."""
    module = make(3, 64)
    with torch.no_grad():
        module.key.weight.mul_(10)
    x = 3000 * torch.from_numpy(random(2, 3, 64)).float()
    with torch.autocast("cpu", dtype=torch.float16):
        weights, output = module.layer_weights(x), module(x)
    with torch.no_grad():
        query = 1 + nn.functional.elu(x[:, -1:] + module.query(x[:, -1:]))
        assert (query @ module.key(module.position).T).abs().max() > 65_504
    assert weights.dtype == output.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2), atol=1e-6, rtol=0)
    assert output.isfinite().all()


def test_key_bias_is_inert() -> None:
    model = build("dwatt", num_layers=5, embed_dim=6, num_classes=3)
    assert model.traits.inert == ("fusion.key.bias",)
    x = torch.from_numpy(random(2, 5, 6)).float()
    before = model(x)
    with torch.no_grad():
        model.fusion.key.bias.add_(torch.linspace(-1, 1, 6))
        torch.testing.assert_close(model(x), before)


def test_positions_are_drawn_from_zero_to_one_saved_and_not_trained() -> None:
    torch.manual_seed(0)
    module = DepthWiseAttention(num_layers=40, embed_dim=4)
    position = module.state_dict()["position"]
    assert position.shape == (40, 24)
    assert 0 <= position.min() < 0.01
    assert 0.99 < position.max() < 1
    assert position.mean().item() == pytest.approx(0.5, abs=0.03)
    assert "position" not in dict(module.named_parameters())


@pytest.mark.parametrize("method", ["dwatt", "dwatt-scaled"])
def test_number_of_parameters(method: str) -> None:
    with torch.device("meta"):
        fusion = build(method, num_layers=EXACT_LAYERS, embed_dim=EXACT_DIM, num_classes=4).fusion
    assert sum(p.numel() for p in fusion.parameters()) == 26_353_152


def test_layers_start_like_separate_linear_layers() -> None:
    """Uniform within 1 / sqrt(inputs), weights and biases, another draw for each layer."""
    torch.manual_seed(0)
    module = DepthWiseAttention(num_layers=30, embed_dim=64)
    for linear, inputs in ((module.value[0], 64), (module.value[3], 32)):
        for p in (linear.weight, linear.bias):
            assert p.abs().max().item() == pytest.approx(inputs**-0.5, rel=0.02)
            assert p.std().item() == pytest.approx((3 * inputs) ** -0.5, rel=0.05)
            assert len({layer.flatten()[0].item() for layer in p}) == 30
    for norm in (module.query[2], module.value[2], module.value_norm):
        assert (norm.weight == 1).all()
        assert not norm.bias.any()


def test_unscaled_scores_start_nearly_one_hot_and_scaled_ones_nearly_uniform() -> None:
    """Mean over 64 samples and 3 starts.

    docs/sources.md#depth-wise-attention has .73-.77 and .56-.68 unscaled, .06 and 3.15 scaled.

    The unscaled figures depend on the draw: over 60 starts, we saw .74-.99 and .05-.71, .82 and .47 on average.
    """
    seen: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for seed in range(3):
        torch.manual_seed(seed)
        module = DepthWiseAttention(num_layers=EXACT_LAYERS, embed_dim=EXACT_DIM)
        x = torch.randn(64, EXACT_LAYERS, EXACT_DIM)
        for scaled, figures in seen.items():
            module.scale = EXACT_DIM**-0.5 if scaled else 1.0
            with torch.no_grad():
                weights = module.layer_weights(x).double()
            entropy = -torch.special.xlogy(weights, weights).sum(-1)
            figures.append((weights.max(-1).values.mean().item(), entropy.mean().item()))
    largest, entropy = np.mean(seen[False], 0)
    assert 0.70 < largest < 0.92
    assert 0.25 < entropy < 0.75
    largest, entropy = np.mean(seen[True], 0)
    assert 0.055 < largest < 0.08
    assert 3.12 < entropy < math.log(24)


def test_only_the_scaled_method_scales() -> None:
    sizes = {"num_layers": 3, "embed_dim": 16, "num_classes": 2}
    assert build("dwatt", **sizes).fusion.scale == 1
    assert build("dwatt-scaled", **sizes).fusion.scale == 0.25
