"""The softmax-weighted sum of SUPERB, against an independent NumPy form."""

from __future__ import annotations

import numpy as np
import torch

from daamctl.methods import WeightedSum, build


def test_sum_equals_numpy() -> None:
    module = WeightedSum(num_layers=4)
    scores = np.array([-0.5, 0.3, 1.7, 0.0])
    with torch.no_grad():
        module.scores.copy_(torch.from_numpy(scores))
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 5))
    weights = np.exp(scores) / np.exp(scores).sum()
    expected = sum(weight * x[..., layer, :] for layer, weight in enumerate(weights))
    found = module(torch.from_numpy(x).float())
    assert found.shape == (2, 3, 5)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_starts_as_the_plain_mean() -> None:
    x = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(WeightedSum(num_layers=6)(x), x.mean(1))


def test_shift_of_all_scores_changes_nothing() -> None:
    module = WeightedSum(num_layers=3)
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        module.scores.copy_(torch.tensor([0.1, -0.4, 0.9]))
        before = module(x)
        module.scores.add_(3.0)
        torch.testing.assert_close(module(x), before)


def test_builder_puts_the_mlp_behind() -> None:
    model = build("weighted-sum", num_layers=3, embed_dim=5, num_classes=2, hidden_dim=7)
    assert sum(p.numel() for p in model.parameters()) == 3 + (5 * 7 + 7) + (7 * 2 + 2)
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x), model.decoder(x.mean(1)))
