"""The ridge engine against scikit-learn and against leaving clips out one by one."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from daamctl.methods import ridge
from daamctl.methods.ridge import PENALTIES, GramPath, KernelPath, RidgePath, loo_scores, scaling_of
from tests.fixtures.ridge import NUM_CLASSES, SHAPES, alpha, left_out, make_data, one_hot


def classes(y):
    return torch.from_numpy(y)


def paths(z, y):
    """The engine on features, on parts of them, and on their kernel, of which it reads the lower triangle."""
    z = torch.from_numpy(z)
    number = next(number for number in (3, 2, 5, 7, 1) if z.shape[1] % number == 0)
    parts = z.chunk(number, dim=1)
    kernel = torch.where(torch.ones(len(z), len(z)).triu(1).bool(), torch.nan, z @ z.mT)
    return (
        RidgePath(z, classes(y), NUM_CLASSES),
        GramPath(number, parts.__getitem__, classes(y), NUM_CLASSES),
        KernelPath(kernel, classes(y), NUM_CLASSES),
    )


@pytest.mark.parametrize("values", [ridge.BLOCK_VALUES, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_leave_one_out_equals_leaving_out(shape, values, monkeypatch):
    """Also with the clips in blocks."""
    monkeypatch.setattr(ridge, "BLOCK_VALUES", values)
    x, y = make_data(*shape)
    z = StandardScaler().fit_transform(x)
    for path in paths(z, y):
        for penalty in (1e-2, 1.0, 1e2):
            expected = left_out(z, y, alpha(z, penalty))
            np.testing.assert_allclose(loo_scores(path, path.left_out(penalty)), expected, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_decomposition_gives_the_weights_of_every_penalty(shape):
    x, y = make_data(*shape)
    z = StandardScaler().fit_transform(x)
    other = make_data(9, shape[1], seed=1)[0]
    features, parts, kernel = paths(z, y)
    for penalty in PENALTIES[1:]:
        expected = Ridge(alpha(z, penalty)).fit(z, one_hot(y)).predict(other)
        scores = torch.from_numpy(other) @ features.weights(penalty) + features.intercept
        np.testing.assert_allclose(scores, expected, atol=1e-7)
        scores = torch.from_numpy(other) @ parts.weights(penalty) + parts.intercept
        np.testing.assert_allclose(scores, expected, atol=1e-7)
        scores = torch.from_numpy(other @ z.T) @ kernel.weights(penalty) + kernel.intercept
        np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_what_cannot_be_solved():
    path = KernelPath(torch.diag(torch.tensor([5.0, -20.0, 5.0])), torch.tensor([0, 1, 2]), NUM_CLASSES)
    assert not path.solvable(1.0)
    with pytest.raises(ValueError, match="not positive semidefinite"):
        path.weights(1.0)


def test_scaling_is_that_of_the_training_clips():
    x, _ = make_data(40, 7)
    other, _ = make_data(9, 7, seed=1)
    scaler = StandardScaler().fit(x)
    found = scaling_of(torch.from_numpy(x))(torch.from_numpy(other))
    np.testing.assert_allclose(found, scaler.transform(other), atol=1e-12)


def test_large_means_are_taken_off_in_full():
    """Deviations of 2e-3 around 1e4, where float32 has steps of 1e-3: the mean itself is rounded."""
    x = 1e4 + torch.tensor([0.0, 0.001, 0.002, 0.004])[:, None].double()
    z = scaling_of(x.float())(x.float())
    assert abs(z.mean()) < 1e-6
    assert z.square().mean() == pytest.approx(1.0)


@pytest.mark.parametrize("unit", [1e-30, 1e-22, 1e20, 1e36])
def test_very_large_and_small_features_are_scaled_as_others(unit):
    """Their squares are beyond float32."""
    x = torch.from_numpy(make_data(40, 7)[0]).float()
    z = scaling_of(unit * x)(unit * x)
    torch.testing.assert_close(z, scaling_of(x)(x), atol=1e-5, rtol=1e-5)
    assert scaling_of(1e-40 * x).scale.isfinite().all()  # one over the deviation is beyond float32, too
