"""The linear map of concatenated layers, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.methods import build
from daamctl.methods.concat import ConcatLinear


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


@pytest.mark.parametrize(("layers", "dim"), [(1, 5), (2, 1), (3, 7), (27, 5)])
def test_sum_of_maps_equals_numpy(layers: int, dim: int) -> None:
    """Block l of the one map is W_l."""
    torch.manual_seed(0)
    module, x = ConcatLinear(num_layers=layers, embed_dim=dim), random(4, layers, dim)
    weight, bias = (p.detach().double().numpy() for p in module.parameters())
    expected = bias + sum(x[:, n] @ weight[:, n * dim : (n + 1) * dim].T for n in range(layers))
    found = module(torch.from_numpy(x).float()).detach().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_leading_dimensions_pass_through() -> None:
    torch.manual_seed(0)
    module, x = ConcatLinear(num_layers=4, embed_dim=5), torch.from_numpy(random(2, 3, 4, 5)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_number_of_parameters() -> None:
    with torch.device("meta"):
        fusion = build("concat", num_layers=24, embed_dim=1024, num_classes=4).fusion
    assert sum(p.numel() for p in fusion.parameters()) == 25_166_848


def test_start() -> None:
    """Uniform within 1 / sqrt(L D), the bound of one linear layer with L * D inputs."""
    torch.manual_seed(0)
    module = ConcatLinear(num_layers=4, embed_dim=50)
    assert module.linear.weight.abs().max().item() == pytest.approx(200**-0.5, rel=0.01)
    assert module.linear.weight.std().item() == pytest.approx((3 * 200) ** -0.5, rel=0.05)
