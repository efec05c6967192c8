"""Self-attention over the layers of one sample, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.errors import MethodError
from daamctl.methods import LayerSelfAttention

LAYERS, DIM, HEADS = 5, 12, 3


def make() -> LayerSelfAttention:
    module = LayerSelfAttention(embed_dim=DIM, num_heads=HEADS)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))
    return module


def reference(module: LayerSelfAttention, x: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(d_k)) v per head (Vaswani et al., 2017), then the output projection; x (B, L, D)."""
    p = {name: value.detach().double().numpy() for name, value in module.attention.named_parameters()}
    q, k, v = np.split(x @ p["in_proj_weight"].T + p["in_proj_bias"], 3, axis=-1)
    width = DIM // HEADS
    outputs = []
    for head in range(HEADS):
        columns = slice(head * width, (head + 1) * width)
        scores = q[..., columns] @ k[..., columns].transpose(0, 2, 1) / np.sqrt(width)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        outputs.append(weights / weights.sum(-1, keepdims=True) @ v[..., columns])
    return np.concatenate(outputs, -1) @ p["out_proj.weight"].T + p["out_proj.bias"]


def test_attention_equals_numpy() -> None:
    module = make()
    x = np.random.default_rng(0).standard_normal((4, LAYERS, DIM))
    found = module(torch.from_numpy(x).float()).detach().numpy()
    assert found.shape == (4, LAYERS, DIM)
    np.testing.assert_allclose(found, reference(module, x), rtol=1e-4, atol=1e-5)


def test_samples_do_not_see_one_another() -> None:
    """The published code attends over the batch (D1); ours must not."""
    module = make()
    x = torch.randn(4, LAYERS, DIM, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[1:] += 5
    torch.testing.assert_close(module(other)[0], module(x)[0])


def test_layers_see_one_another() -> None:
    module = make()
    x = torch.randn(1, LAYERS, DIM, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[0, -1] += 5
    assert (module(other)[0, 0] - module(x)[0, 0]).abs().max() > 1e-3


def test_permuted_layers_give_permuted_output() -> None:
    module = make()
    x = torch.randn(2, LAYERS, DIM, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])


def test_start_and_number_of_parameters() -> None:
    module = LayerSelfAttention(embed_dim=DIM, num_heads=HEADS)
    assert sum(p.numel() for p in module.parameters()) == 4 * DIM**2 + 4 * DIM
    assert not module.attention.in_proj_bias.any()
    bound = np.sqrt(6 / (DIM + 3 * DIM))
    assert module.attention.in_proj_weight.abs().max() <= bound
    assert module.attention.in_proj_weight.std().item() == pytest.approx(bound / np.sqrt(3), rel=0.1)
    assert module.attention.dropout == 0


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(
        MethodError, match=r"^num_heads \(5\) must divide the layer width \(12\); possible: 1, 2, 3, 4, 6, 12$"
    ):
        LayerSelfAttention(embed_dim=12, num_heads=5)
