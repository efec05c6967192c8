"""The ridge engine against scikit-learn and against leaving clips out one by one."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from daamctl.methods.ridge import PENALTIES, KernelPath, RidgePath, fit_kernel_ridge, fit_ridge, loo_scores, scaling_of
from tests.fixtures.ridge import NUM_CLASSES, SHAPES, alpha, left_out, make_data, one_hot


def classes(y):
    return torch.from_numpy(y)


@pytest.mark.parametrize("shape", SHAPES)
def test_leave_one_out_equals_leaving_out(shape):
    x, y = make_data(*shape)
    z = StandardScaler().fit_transform(x)
    tensor = torch.from_numpy(z)
    for penalty in (1e-2, 1.0, 1e2):
        expected = left_out(z, y, alpha(z, penalty))
        np.testing.assert_allclose(
            fit_ridge(tensor, classes(y), NUM_CLASSES, penalties=(penalty,)).loo, expected, atol=1e-9
        )
        kernel = fit_kernel_ridge(tensor @ tensor.mT, classes(y), NUM_CLASSES, penalties=(penalty,))
        np.testing.assert_allclose(kernel.loo, expected, atol=1e-9)


@pytest.mark.parametrize("skill", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_penalty_has_the_smallest_leave_one_out_error(shape, skill):
    x, y = make_data(*shape, skill=skill)
    z = StandardScaler().fit_transform(x)
    errors = [((left_out(z, y, alpha(z, penalty)) - one_hot(y)) ** 2).mean() for penalty in PENALTIES]
    tensor = torch.from_numpy(z)
    assert fit_ridge(tensor, classes(y), NUM_CLASSES).penalty == PENALTIES[int(np.argmin(errors))]
    assert fit_kernel_ridge(tensor @ tensor.mT, classes(y), NUM_CLASSES).penalty == PENALTIES[int(np.argmin(errors))]


@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_equals_features_and_reads_the_lower_triangle(shape):
    x, y = make_data(*shape)
    z = torch.from_numpy(StandardScaler().fit_transform(x))
    other = torch.from_numpy(make_data(9, shape[1], seed=1)[0])
    kernel = torch.where(torch.ones(len(z), len(z)).triu(1).bool(), torch.nan, z @ z.mT)
    expected = fit_ridge(z, classes(y), NUM_CLASSES, penalties=(0.1,))
    fit = fit_kernel_ridge(kernel, classes(y), NUM_CLASSES, penalties=(0.1,))
    np.testing.assert_allclose(fit.scores(other @ z.mT), expected.scores(other), atol=1e-9)


def test_what_cannot_be_solved():
    with pytest.raises(ValueError, match="not positive semidefinite"):
        fit_kernel_ridge(
            torch.diag(torch.tensor([5.0, -20.0, 5.0])), torch.tensor([0, 1, 2]), NUM_CLASSES, penalties=(1.0,)
        )
    with pytest.raises(ValueError, match="at least one penalty"):
        fit_ridge(torch.zeros(3, 2), torch.tensor([0, 1, 2]), NUM_CLASSES, penalties=())


@pytest.mark.parametrize("shape", SHAPES)
def test_one_decomposition_serves_every_penalty(shape):
    x, y = make_data(*shape)
    z = torch.from_numpy(StandardScaler().fit_transform(x))
    path, kernel = RidgePath(z, classes(y), NUM_CLASSES), KernelPath(z @ z.mT, classes(y), NUM_CLASSES)
    for penalty in (1e-2, 1.0, 1e2):
        expected = fit_ridge(z, classes(y), NUM_CLASSES, penalties=(penalty,))
        for one, features in ((path, z), (kernel, z @ z.mT)):
            scores = features @ one.weights(penalty) + one.intercept
            np.testing.assert_allclose(scores, expected.scores(z), atol=1e-9)
            np.testing.assert_allclose(loo_scores(one, one.left_out(penalty)), expected.loo, atol=1e-9)


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
