"""Scores of images, against scipy and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d

from daamctl.artifacts.reconstruction import METRICS
from daamctl.reconstruction.scores import SCORES, psnr, ssim


def images(side: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    first = rng.random((2, 3, side, side))
    return first, np.clip(first + 0.2 * rng.standard_normal(first.shape), 0, 1)


def test_differences_in_numpy() -> None:
    first, second = images(16)
    found = {name: one(torch.tensor(first), torch.tensor(second)).numpy() for name, one in SCORES.items()}
    gap = (first - second).reshape(2, -1)
    np.testing.assert_allclose(found["l1"], np.abs(gap).mean(1))
    np.testing.assert_allclose(found["l2"], (gap**2).mean(1))
    np.testing.assert_allclose(found["psnr"], -10 * np.log10((gap**2).mean(1)))


@pytest.mark.parametrize(("side", "size"), [(24, 11), (11, 11), (8, 7), (7, 7)])
def test_ssim_by_scipy(side: int, size: int) -> None:
    first, second = images(side)
    half = size // 2
    bell = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * 1.5**2))
    bell /= bell.sum()

    def smooth(x: np.ndarray) -> np.ndarray:
        found = correlate1d(correlate1d(x, bell, axis=-1), bell, axis=-2)
        return found[..., half : side - half, half : side - half]

    m, n = smooth(first), smooth(second)
    v, w, c = smooth(first**2) - m**2, smooth(second**2) - n**2, smooth(first * second) - m * n
    wanted = (2 * m * n + 1e-4) * (2 * c + 9e-4) / ((m**2 + n**2 + 1e-4) * (v + w + 9e-4))
    found = ssim(torch.tensor(first), torch.tensor(second)).numpy()
    np.testing.assert_allclose(found, wanted.mean((1, 2, 3)), rtol=1e-9)


def test_equal_images() -> None:
    one = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    assert float(ssim(one, one)) == pytest.approx(1.0)
    assert float(psnr(one, one)) == pytest.approx(120.0)


def test_the_better_image_scores_better() -> None:
    first, second = map(torch.tensor, images(16))
    closer = (first + second) / 2
    for name, (_, better) in METRICS.items():
        score = SCORES[name]
        assert bool((better * (score(closer, first) - score(second, first)) > 0).all())
