"""Fusions that are one short formula, against independent NumPy forms; the contract counts their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.attentive import AttentivePooling
from daamctl.methods.concat import ConcatLinear
from daamctl.methods.eca import EfficientChannelAttention, kernel_size
from daamctl.methods.hconv import HierarchicalConv, num_convolutions
from daamctl.methods.laya import LayerAggregator
from daamctl.methods.se import SqueezeExcitation

Parameters = dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def attentive(p: Parameters, x: np.ndarray) -> np.ndarray:
    scores = np.array([p["score.weight"][0] @ np.tanh(p["hidden.weight"] @ layer + p["hidden.bias"]) for layer in x])
    weights: np.ndarray = np.exp(scores) / np.exp(scores).sum()
    return weights


def eca(p: Parameters, x: np.ndarray) -> np.ndarray:
    """Gate l sees the means of layers l - k//2 … l + k//2, zero outside."""
    kernel, means = p["conv.weight"][0, 0], x.mean(1)
    half = kernel.size // 2
    seen = [[(j, n + j - half) for j in range(kernel.size) if 0 <= n + j - half < len(x)] for n in range(len(x))]
    return sigmoid(np.array([sum(kernel[j] * means[layer] for j, layer in pairs) for pairs in seen]))


def se(p: Parameters, x: np.ndarray) -> np.ndarray:
    hidden = np.maximum(p["squeeze.weight"] @ x.mean(1) + p["squeeze.bias"], 0)
    return sigmoid(p["excite.weight"] @ hidden + p["excite.bias"])


def concat(p: Parameters, x: np.ndarray) -> np.ndarray:
    """Block l of the one map is W_l."""
    blocks = np.split(p["linear.weight"], len(x), axis=1)
    total: np.ndarray = p["linear.bias"] + sum(block @ layer for block, layer in zip(blocks, x, strict=True))
    return total


def hconv(p: Parameters, x: np.ndarray) -> np.ndarray:
    """Output i of a convolution sees layers 3i - 2 … 3i + 2, zero outside; ReLU after each; channel by channel."""
    values = list(p.values())
    for weight, bias in zip(values[::2], values[1::2], strict=True):  # weight (out, in, 5)
        padded = np.pad(x, ((2, 2), (0, 0)))
        x = np.array([np.einsum("oij,ji->o", weight, padded[i : i + 5]) + bias for i in range(0, len(x), 3)])
        x = np.maximum(x, 0)
    return x.T.ravel()


def laya(p: Parameters, x: np.ndarray) -> np.ndarray:
    adapted = np.array([p["adapter.weight"][i] @ layer + p["adapter.bias"][i] for i, layer in enumerate(x)])
    hidden = p["hidden.weight"] @ adapted.ravel() + p["hidden.bias"]
    hidden = np.array([h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden])
    scores = np.exp((p["score.weight"] @ hidden + p["score.bias"]) / 1.5)
    fused: np.ndarray = scores / scores.sum() @ adapted
    return fused


class Formula(NamedTuple):
    """A fusion and its NumPy form for one sample (L, D): the weights of the layers, else the output."""

    make: Callable[..., Any]
    reference: Callable[[Parameters, np.ndarray], np.ndarray]
    sizes: tuple[tuple[int, int], ...]
    weighs: bool = True


SIZES = ((1, 5), (2, 1), (3, 7), (27, 5))
FORMULAS = {
    "attentive": Formula(lambda num_layers, **size: AttentivePooling(**size, attention_dim=6), attentive, SIZES),
    "eca": Formula(lambda embed_dim, **size: EfficientChannelAttention(**size), eca, (*SIZES, (8, 5), (150, 2))),
    "se": Formula(lambda embed_dim, **size: SqueezeExcitation(**size), se, (*SIZES, (8, 5))),
    "concat": Formula(ConcatLinear, concat, SIZES, weighs=False),
    "laya": Formula(lambda **size: LayerAggregator(**size, adapter_dim=4, score_dim=6), laya, SIZES, weighs=False),
    "hconv": Formula(HierarchicalConv, hconv, (*SIZES, (5, 7), (8, 1), (24, 8), (26, 7), (27, 7)), weighs=False),
}
WEIGHING = [name for name, formula in FORMULAS.items() if formula.weighs]


def make(name: str, layers: int, dim: int) -> nn.Module:
    """All trainable tensors away from their start."""
    torch.manual_seed(0)
    module: nn.Module = FORMULAS[name].make(num_layers=layers, embed_dim=dim)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape) * (1 if name in WEIGHING else 0.3))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape) + 0.5


@pytest.mark.parametrize(
    ("name", "layers", "dim"), [(name, *sizes) for name, formula in FORMULAS.items() for sizes in formula.sizes]
)
def test_fusion_equals_numpy(name: str, layers: int, dim: int) -> None:
    module: Any = make(name, layers, dim)
    x = random(4, layers, dim)
    p = {key: value.detach().double().numpy() for key, value in module.named_parameters()}
    given = torch.from_numpy(x).float()
    expected = np.array([FORMULAS[name].reference(p, sample) for sample in x])
    if name in WEIGHING:
        np.testing.assert_allclose(module.layer_weights(given).detach().numpy(), expected, rtol=1e-4, atol=1e-6)
        expected = np.einsum("bl,bld->bd", expected, x)
    found = module(given).detach().numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", FORMULAS)
def test_leading_dimensions_pass_through(name: str) -> None:
    module, x = make(name, 8, 5), torch.from_numpy(random(2, 3, 8, 5)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


@pytest.mark.parametrize("name", WEIGHING)
def test_weights_stay_float32_under_autocast(name: str) -> None:
    """In bfloat16 the 24 weights of a softmax could not sum to 1 within 1e-6."""
    module: Any = make(name, 24, 5)
    x = torch.from_numpy(random(2, 24, 5)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = module.layer_weights(x)
        assert module.layer_weights(x.bfloat16()).dtype == weights.dtype == torch.float32
    if name == "attentive":
        torch.testing.assert_close(weights.sum(-1), torch.ones(2), atol=1e-6, rtol=0)
    else:
        torch.testing.assert_close(weights, module.layer_weights(x), rtol=1e-6, atol=1e-7)


def test_weights_of_laya() -> None:
    """A higher temperature levels them; they stay float32 under autocast and sum to 1."""
    x = torch.from_numpy(random(2, 24, 5)).float()
    torch.manual_seed(0)
    cold, warm = (LayerAggregator(num_layers=24, embed_dim=5, temperature=t) for t in (1e-4, 1e4))
    warm.load_state_dict(cold.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = cold.layer_weights(x.bfloat16())
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones(2), atol=1e-6, rtol=0)
    assert cold.layer_weights(x).amax(-1).min() > 0.9
    torch.testing.assert_close(warm.layer_weights(x), torch.full((2, 24), 1 / 24), atol=1e-3, rtol=0)
    with pytest.raises(MethodError, match="temperature must be above 0, got 0"):
        build("laya", num_layers=3, embed_dim=6, num_classes=2, temperature=0)


def test_kernel_size_of_eca_follows_the_formula() -> None:
    assert [kernel_size(n) for n in (1, 2, 24, 25, 768, 1024)] == [1, 1, 3, 3, 5, 5]
    for channels in range(1, 2049):
        size = int((math.log2(channels) + 1) / 2)
        assert kernel_size(channels) == (size if size % 2 else size + 1)


@pytest.mark.parametrize(
    ("layers", "settings", "width", "parameters"),
    [(24, {}, 6, 318), (25, {}, 6, 331), (24, {"reduction": 24}, 1, 73), (3, {}, 1, 10), (1, {}, 1, 4)],
)
def test_hidden_width_of_se(layers: int, settings: dict[str, int], width: int, parameters: int) -> None:
    fusion = build("se", num_layers=layers, embed_dim=16, num_classes=4, **settings).fusion
    assert fusion.squeeze.out_features == width
    assert sum(p.numel() for p in fusion.parameters()) == parameters


def test_start_of_concat() -> None:
    """Uniform within 1 / sqrt(L D), the bound of one linear layer with L * D inputs."""
    torch.manual_seed(0)
    module = ConcatLinear(num_layers=4, embed_dim=50)
    assert module.linear.weight.abs().max().item() == pytest.approx(200**-0.5, rel=0.01)
    assert module.linear.weight.std().item() == pytest.approx((3 * 200) ** -0.5, rel=0.05)


@pytest.mark.parametrize(
    ("layers", "dim", "width"),
    [
        (1, 7, 7),  # one layer left
        (4, 7, 6),  # two layers left, three channels
        (8, 7, 6),  # three layers left, two channels
        (8, 3, 3),
        (8, 2, 3),  # narrower than the layers left: one channel
        (8, 1, 3),
        (25, 1024, 341 * 3),
    ],
)
def test_output_width_of_hconv(layers: int, dim: int, width: int) -> None:
    with torch.device("meta"):
        model = build("hconv", num_layers=layers, embed_dim=dim, num_classes=4)
    assert model.fusion.output_dim == model.decoder.projector.in_features == width


def test_number_of_convolutions_of_hconv() -> None:
    assert [num_convolutions(n) for n in (1, 2, 3, 8, 9, 24, 25, 26)] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert [num_convolutions(3**n) for n in range(1, 20)] == list(range(1, 20))
    assert [num_convolutions(3**n - 1) for n in range(2, 20)] == list(range(1, 19))
