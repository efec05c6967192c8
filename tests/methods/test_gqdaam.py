"""GQDAAM: the order of its parts, its sizes, its density."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.errors import MethodError
from daamctl.methods import FusionClassifier, GroupedQueryAttention, SummedQueryAttention, build

NAMES = pytest.mark.parametrize("name", ["gqdaam", "gqdaam-published"])
SMALL = {"width": 16, "query_heads": 4, "kv_heads": 2, "hidden_channels": 4}


def make(name: str, **settings: object) -> FusionClassifier:
    """A small model with every tensor off its start."""
    model = build(name, num_layers=8, embed_dim=6, num_classes=3, **SMALL, **settings)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return model.eval()


def sample() -> torch.Tensor:
    return torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(0))


@NAMES
def test_density_then_projection_then_attention(name: str) -> None:
    model, x = make(name, num_heads=4), sample()
    offset, xi = (p.detach().double().numpy() for p in (model.fusion.daam.offset, model.fusion.daam.scaled_variance))
    heads = x.double().numpy().reshape(3, 4, 2, 6)  # docs/sources.md#density-attention, heads of two layers
    mean, v = heads.mean(2, keepdims=True), heads.var(2, keepdims=True) + 1e-8
    weights = np.exp(-((heads - mean - offset[:, None]) ** 2) / (v + 1e-5) / (2 * xi[:, None])).reshape(3, 8, 6)
    logits, density = model(x, return_density=True)
    np.testing.assert_allclose(density.detach().numpy(), weights, atol=1e-5)
    projection = model.fusion.projection
    projected = torch.from_numpy(x.numpy() * weights).float() @ projection.weight.T + projection.bias
    expected = model.decoder(model.fusion.attention(projected))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(x), logits, rtol=0, atol=0)


@NAMES
def test_without_density_it_is_gqa(name: str) -> None:
    """A scaled variance without bound gives every entry the weight 1."""
    model, x = make(name), sample()
    plain = build(name.replace("gqdaam", "gqa"), num_layers=8, embed_dim=6, num_classes=3, **SMALL).eval()
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if ".daam." not in key})
    assert (model(x) - plain(x)).abs().max() > 1e-3
    with torch.no_grad():
        model.fusion.daam.scaled_variance.fill_(1e30)
    torch.testing.assert_close(model(x), plain(x))


def test_cores() -> None:
    assert type(make("gqdaam").fusion.attention) is GroupedQueryAttention
    assert type(make("gqdaam-published").fusion.attention) is SummedQueryAttention


@NAMES
def test_settings_reach_the_daam(name: str) -> None:
    settings = {"variance": "moments", "eps": "single", "kernel": "2c2", "scaled_variance": "softplus"}
    daam = make(name, num_heads=2, **settings).fusion.daam
    assert (daam.num_heads, daam.variance, daam.eps, daam.kernel, daam.softplus) == (
        2,
        "moments",
        "single",
        "2c2",
        True,
    )
    daam = make(name).fusion.daam
    assert (daam.num_heads, daam.variance, daam.eps, daam.kernel, daam.softplus) == (
        2,
        "two-pass",
        "double",
        "2xi",
        False,
    )


@NAMES
@pytest.mark.parametrize(
    ("layers", "dim", "classes", "published", "grid"),
    [
        (24, 1024, 4, 1_272_348, (8, 64)),
        (24, 1024, 100, 2_452_092, (8, 64)),
        (40, 5120, 4, 3_615_276, (64, 8)),
    ],
)
def test_parameters_and_grid(
    name: str, layers: int, dim: int, classes: int, published: int, grid: tuple[int, int]
) -> None:
    """docs/sources.md#parameter-counts; the standard core has 512 inner features instead of 128."""
    model = build(name, num_layers=layers, embed_dim=dim, num_classes=classes)
    standard = 2 * (512 - 128) + (512 - 128) * 512 if name == "gqdaam" else 0
    assert sum(p.numel() for p in model.parameters()) == published + standard
    assert sum(p.numel() for p in model.fusion.daam.parameters()) == 2 * 8 * dim
    assert model.decoder.grid == grid


@NAMES
def test_heads_must_divide_the_layers(name: str) -> None:
    with pytest.raises(MethodError, match=r"^num_heads \(8\) must divide the number of layers \(12\); possible: 1, 2,"):
        build(name, num_layers=12, embed_dim=6, num_classes=3, num_heads=8)
