"""Learned weights that are the same for every sample, against an independent NumPy form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.settings import DecoderOptions, Sizes
from daamctl.methods.static_gate import static_gate

SIZES: dict[str, Any] = {"num_layers": 6, "embed_dim": 8, "num_classes": 3}
X = np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32)


@pytest.mark.parametrize(("granularity", "shape"), [("layer-feature", (6, 8)), ("feature", (8,))])
def test_gate_equals_numpy(granularity: str, shape: tuple[int, ...]) -> None:
    fusion = build("static-gate", **SIZES, granularity=granularity).fusion
    assert [tuple(p.shape) for p in fusion.parameters()] == [shape]
    weight = np.linspace(-0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    with torch.no_grad():
        next(fusion.parameters()).copy_(torch.from_numpy(weight))
    found = fusion(torch.from_numpy(X)).detach().numpy()
    expected = np.empty_like(X)
    for layer in range(6):
        expected[:, layer] = X[:, layer] * (weight[layer] if granularity == "layer-feature" else weight)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("granularity", ["layer-feature", "feature"])
def test_starts_as_no_gate_at_all(granularity: str) -> None:
    model, bare = build("static-gate", **SIZES, granularity=granularity), build("none", **SIZES)
    bare.decoder.load_state_dict(model.decoder.state_dict())
    x = torch.from_numpy(X)
    assert torch.equal(model.fusion(x), x)
    assert torch.equal(model(x), bare(x))
    assert not model.has_density


def test_unknown_granularity() -> None:
    with pytest.raises(MethodError, match=r"^granularity must be 'layer-feature' or 'feature', got 'layer'$"):
        static_gate(Sizes(**SIZES), granularity="layer", decoder=DecoderOptions())  # type: ignore[arg-type]
