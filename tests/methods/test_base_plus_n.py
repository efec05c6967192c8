"""Transformer layers over the layer axis, against an independent NumPy form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.base_plus_n import ExtraLayers, TokenLayers, TransformerLayer


def make(dim: int, heads: int, count: int = 2) -> ExtraLayers:
    torch.manual_seed(0)
    module = ExtraLayers(embed_dim=dim, num_extra_layers=count, num_heads=heads)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    return module


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


def normalised(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift


def reference(module: ExtraLayers | TokenLayers, x: np.ndarray, heads: int) -> np.ndarray:
    """Post-norm encoder layers (Vaswani et al., 2017) with GELU, one sample after the other; x (B, L, D)."""
    width = x.shape[-1] // heads
    outputs = []
    for rows in x:
        for layer in module.layers:
            p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
            q, k, v = np.split(rows @ p["in_proj.weight"].T + p["in_proj.bias"], 3, axis=1)
            mixed = []
            for columns in (slice(head * width, (head + 1) * width) for head in range(heads)):
                scores = np.exp(q[:, columns] @ k[:, columns].T / math.sqrt(width))
                mixed.append(scores / scores.sum(1, keepdims=True) @ v[:, columns])
            attended = np.concatenate(mixed, 1) @ p["out_proj.weight"].T + p["out_proj.bias"]
            rows = normalised(rows + attended, p["norm1.weight"], p["norm1.bias"])
            hidden = rows @ p["linear1.weight"].T + p["linear1.bias"]
            hidden = hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2))) / 2
            moved = hidden @ p["linear2.weight"].T + p["linear2.bias"]
            rows = normalised(rows + moved, p["norm2.weight"], p["norm2.bias"])
        outputs.append(rows)
    return np.array(outputs)


def test_tokens_equal_numpy_and_padding_is_not_seen() -> None:
    torch.manual_seed(0)
    module, x = TokenLayers(embed_dim=12, num_extra_layers=2, num_heads=3).double(), random(3, 5, 12)
    expected = reference(module, x, 3)
    found = module(torch.tensor(x), None).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)
    padded = np.concatenate([x, 9 * random(3, 2, 12)], axis=1)
    visible = torch.arange(7).expand(3, 7) < 5
    np.testing.assert_allclose(module(torch.tensor(padded), visible).detach().numpy()[:, :5], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "dim", "heads", "count"), [(1, 8, 8, 2), (2, 1, 1, 1), (3, 7, 1, 2), (5, 12, 3, 3), (27, 8, 2, 2)]
)
def test_fusion_equals_numpy(layers: int, dim: int, heads: int, count: int) -> None:
    module, x = make(dim, heads, count).double(), random(4, layers, dim)
    found = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(found, reference(module, x, heads)[:, -1], rtol=1e-9, atol=1e-11)


def test_leading_dimensions_pass_through() -> None:
    module, x = make(6, 2), torch.from_numpy(random(2, 3, 4, 6)).float()
    torch.testing.assert_close(module(x).flatten(0, 1), module(x.flatten(0, 1)))
    torch.testing.assert_close(module(x[0, 0]), module(x)[0, 0])


def test_start_is_that_of_torch() -> None:
    """Same tensors, same bounds and same output as torch's own layer, given its weights."""
    torch.manual_seed(0)
    ours = TransformerLayer(embed_dim=48, num_heads=8)
    theirs = nn.TransformerEncoderLayer(48, 8, 4 * 48, dropout=0.0, activation="gelu", batch_first=True)
    for (name, p), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert p.shape == other.shape, name
        assert p.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.1), name
        assert p.std().item() == pytest.approx(other.std().item(), rel=0.15), name
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.from_numpy(random(2, 5, 48)).float()
    torch.testing.assert_close(ours(x), theirs(x))


def test_order_of_the_layers_before_the_last_does_not_matter() -> None:
    module, x = make(6, 2), torch.from_numpy(random(2, 5, 6)).float()
    torch.testing.assert_close(module(x[:, [2, 0, 3, 1, 4]]), module(x))
    assert (module(x[:, [4, 1, 2, 3, 0]]) - module(x)).abs().max() > 1e-2


def test_evaluation_equals_training_and_compiles() -> None:
    """Torch's own layer takes another path when no gradient is asked for, which cannot be compiled."""
    module, x = make(16, 8), torch.from_numpy(random(4, 5, 16)).float()
    expected = module.train()(x)
    module.eval()
    torch.compiler.reset()
    with torch.no_grad():
        torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=1e-5)
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected, atol=1e-5, rtol=1e-5)
    torch.compiler.reset()


def test_number_of_parameters() -> None:
    for settings, layers in (({}, 2), ({"num_extra_layers": 1}, 1)):
        with torch.device("meta"):
            fusion = build("base-plus-n", num_layers=24, embed_dim=1024, num_classes=4, **settings).fusion
        assert sum(p.numel() for p in fusion.parameters()) == layers * 25_192_448 // 2


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(
        MethodError, match=r"^num_heads \(8\) must divide the layer width \(12\); possible: 1, 2, 3, 4, 6, 12$"
    ):
        build("base-plus-n", num_layers=24, embed_dim=12, num_classes=4)
