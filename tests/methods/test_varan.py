"""VARAN: its loss is the lower bound, or what the released code computes, against independent NumPy forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import ncx2

from daamctl.errors import MethodError
from daamctl.methods import build
from daamctl.methods.varan import layer_prior


def make(name: str = "varan", **settings: Any) -> Any:
    """All trainable tensors away from their start, so that layers and samples differ."""
    torch.manual_seed(0)
    model = build(name, num_layers=4, embed_dim=6, num_classes=3, num_heads=2, hidden_dim=5, **settings)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.7 * torch.randn(p.shape))
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(7, 4, 6), torch.arange(7) % 3


def posterior(model: Any, x: np.ndarray) -> np.ndarray:
    """Attention of two heads over the layers of one sample (L, D), written out."""
    p = {name: value.detach().double().numpy() for name, value in model.fusion.named_parameters()}
    q, k, v = np.split(x @ p["qkv.weight"].T, 3, axis=1)
    weights, biases = np.split(p["attention.in_proj_weight"], 3), np.split(p["attention.in_proj_bias"], 3)
    q, k, v = (one @ w.T + b for one, w, b in zip((q, k, v), weights, biases, strict=True))
    heads = [softmax(q[:, h] @ k[:, h].T / np.sqrt(3), axis=1) @ v[:, h] for h in (slice(0, 3), slice(3, 6))]
    mixed = np.concatenate(heads, axis=1) @ p["attention.out_proj.weight"].T + p["attention.out_proj.bias"]
    return softmax(mixed @ p["score.weight"][0] + p["score.bias"])


def log_probabilities(model: Any, x: np.ndarray) -> np.ndarray:
    """(L, C): the heads are two linear maps with nothing between them."""
    p = {name: value.detach().double().numpy() for name, value in model.decoder.named_parameters()}
    hidden = np.einsum("khd,kd->kh", p["projector_weight"], x) + p["projector_bias"]
    return log_softmax(np.einsum("kch,kh->kc", p["classifier_weight"], hidden) + p["classifier_bias"], axis=1)


@pytest.mark.parametrize("name", ["varan", "varan-published"])
def test_predictions_are_expected_log_probabilities(name: str) -> None:
    model, (x, _) = make(name), batch()
    weights = np.array([posterior(model, one) for one in x.double().numpy()])
    np.testing.assert_allclose(model.layer_weights(x).detach(), weights, rtol=1e-4)
    assert weights.std(0).min() > 0.01  # they depend on the sample
    expected = [q @ log_probabilities(model, one) for q, one in zip(weights, x.double().numpy(), strict=True)]
    np.testing.assert_allclose(model(x).detach(), expected, rtol=1e-4, atol=1e-5)


def test_the_loss_is_the_lower_bound_or_that_of_the_released_code() -> None:
    x, y = batch()
    prior = np.array(layer_prior(4, 35.0))
    for beta in (0.0, 0.3):
        model, released = make(beta=beta), make("varan-published", beta=beta)
        q = np.array([posterior(model, one) for one in x.double().numpy()])
        logp = np.array([log_probabilities(model, one) for one in x.double().numpy()])
        losses = -np.take_along_axis(logp, y.numpy()[:, None, None], axis=2)[..., 0]  # (B, L)
        bound = (q * losses).sum(1).mean() + beta * (q * np.log(q / prior)).sum(1).mean()
        found, logits = model.training_loss(x, y, torch.nn.functional.cross_entropy)
        assert found.item() == pytest.approx(bound, rel=1e-5)
        torch.testing.assert_close(logits, model(x))
        theirs = q.mean(0) @ losses.mean(0) + beta * (prior * np.log(prior / q)).sum(1).mean()
        found, _ = released.training_loss(x, y, torch.nn.functional.cross_entropy)
        assert found.item() == pytest.approx(theirs, rel=1e-5)
    likelihood = np.log((prior * np.exp(-losses)).sum(1)).mean()
    full = (q * losses).sum(1).mean() + (q * np.log(q / prior)).sum(1).mean()
    assert -full < likelihood  # with beta = 1 it is a lower bound


def test_the_released_loss_does_not_know_whose_weights_they_are() -> None:
    """Weights exchanged between samples give the same loss."""
    x, y = batch()
    for name, same in (("varan", False), ("varan-published", True)):
        model = make(name, beta=0.0)
        weights, losses = model.fusion.log_weights(x), []
        for order in (slice(None), [1, 2, 3, 4, 5, 6, 0]):
            model.fusion.log_weights = lambda _, order=order, weights=weights: weights[order]
            losses.append(model.training_loss(x, y, torch.nn.functional.cross_entropy)[0].item())
        assert (losses[0] == pytest.approx(losses[1], rel=1e-6)) == same


def test_the_prior_is_a_bell_over_the_layers() -> None:
    prior = layer_prior(24, 35.0)
    assert sum(prior) == pytest.approx(1)
    assert 8 < int(np.argmax(prior)) < 16
    for df in (1.0, 35.0, 400.0):
        density = ncx2.pdf(np.linspace(*ncx2.ppf([0.99, 0.01], df, 10), 24), df, 10)
        assert layer_prior(24, df) == pytest.approx(density / density.sum(), rel=1e-6)
    assert layer_prior(1, 35.0) == [1.0]
    for name, allowed, values in (
        ("prior_df", "above 0", (0, -1, math.inf, math.nan)),
        ("beta", "at least 0", (-1, math.inf, math.nan)),
    ):
        for value in values:
            with pytest.raises(MethodError, match=f"{name} must be {allowed} and finite, got {value:g}"):
                build("varan", num_layers=3, embed_dim=16, num_classes=2, **{name: value})
    with pytest.raises(MethodError, match=r"num_heads \(16\) must divide the layer width \(6\)"):
        build("varan", num_layers=3, embed_dim=6, num_classes=2)
