"""Codes: nearest neighbours, moving averages and straight-through gradients, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from daamctl.reconstruction.codes import SMOOTHING, Codebook, perplexity


def test_a_training_step_in_numpy() -> None:
    torch.manual_seed(0)
    codes = Codebook(5, 3, decay=0.9)
    codes(torch.randn(2, 3, 4, 4))  # draws the start
    before, counts, sums = (value.numpy().copy() for value in (codes.codes, codes.counts, codes.sums))
    latents = torch.randn(2, 3, 4, 4, requires_grad=True)
    found = codes(latents)

    flat = latents.detach().numpy().transpose(0, 2, 3, 1).reshape(-1, 3)
    nearest = ((flat[:, None] - before) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(found.nearest.numpy().ravel(), nearest)
    quantised = before[nearest].reshape(2, 4, 4, 3).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found.latents.detach().numpy(), quantised, atol=1e-6)
    assert found.distance.item() == pytest.approx(((latents.detach().numpy() - quantised) ** 2).mean(), rel=1e-5)

    chosen = np.eye(5)[nearest]
    counts = 0.9 * counts + 0.1 * chosen.sum(0)
    sums = 0.9 * sums + 0.1 * chosen.T @ flat
    smooth = (counts + SMOOTHING) / (counts.sum() + 5 * SMOOTHING) * counts.sum()
    np.testing.assert_allclose(codes.codes.numpy(), sums / smooth[:, None], rtol=1e-4, atol=1e-6)

    found.latents.sum().backward()
    np.testing.assert_array_equal(latents.grad.numpy(), np.ones((2, 3, 4, 4)))


def test_codes_out_of_use_become_latents_of_the_batch() -> None:
    torch.manual_seed(1)
    codes = Codebook(8, 2, decay=0.5, restart_below=0.6)
    codes(torch.randn(1, 2, 2, 2))
    codes.codes[4:] = 100.0
    codes.sums[4:] = 100.0
    latents = torch.randn(1, 2, 4, 4)
    codes(latents)  # nothing chooses the last four: their counts fall to half
    rows = {tuple(row) for row in latents.movedim(1, -1).flatten(0, -2).tolist()}
    assert all(tuple(row) in rows for row in codes.codes[4:].tolist())
    assert codes.counts[4:].tolist() == [1.0] * 4
    assert not any(tuple(row) in rows for row in codes.codes[codes.counts > 1.0].tolist())


def test_codes_that_are_used_more_often_than_a_limit_above_one_stay() -> None:
    codes = Codebook(4, 2, decay=0.9, restart_below=3.0)
    corners = torch.tensor([[0.0, 0.0], [0.0, 9.0], [9.0, 0.0], [9.0, 9.0]])
    codes._start(corners)
    torch.testing.assert_close(codes.sums / codes.counts[:, None], codes.codes)
    torch.manual_seed(2)
    for _ in range(40):
        # every step has ten latents of each
        codes((corners.repeat(10, 1) + torch.randn(40, 2)).T.reshape(1, 2, 5, 8))
    torch.testing.assert_close(
        codes.codes[codes.codes.sum(1).argsort()].sum(1), torch.tensor([0.0, 9.0, 9.0, 18.0]), atol=0.5, rtol=0
    )
    assert all(9.5 < count < 10.0 for count in codes.counts.tolist())  # 3 rises to 10


def test_evaluation_moves_nothing() -> None:
    codes = Codebook(4, 2, decay=0.9)
    codes(torch.randn(3, 2, 2, 2))
    before = {name: value.clone() for name, value in codes.state_dict().items()}
    codes.eval()(torch.randn(3, 2, 2, 2))
    assert all(torch.equal(value, before[name]) for name, value in codes.state_dict().items())


def test_codes_start_as_latents() -> None:
    codes, latents = Codebook(6, 2, decay=0.5), torch.randn(1, 2, 2, 2)
    codes.eval()(latents)
    assert not codes.ready
    codes.train()._start(latents.movedim(1, -1).flatten(0, -2))
    rows = {tuple(row) for row in latents.movedim(1, -1).flatten(0, -2).tolist()}
    assert {tuple(row) for row in codes.codes.tolist()} == rows  # four latents, six codes


@pytest.mark.parametrize(("uses", "wanted"), [([3, 3, 3, 3], 4.0), ([0, 7, 0], 1.0), ([1, 1, 0], 2.0)])
def test_perplexity(uses: list[int], wanted: float) -> None:
    assert perplexity(np.array(uses)) == pytest.approx(wanted)


def test_a_gpu_is_asked_once_whether_the_codes_have_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer waits for all that was launched before."""
    asked: list[bool] = []
    real = torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda self: (asked.append(True), real(self))[1])
    codes = Codebook(4, 2, decay=0.9)
    for _ in range(3):
        codes(torch.randn(3, 2, 2, 2))
    assert len(asked) == 1
    resumed = Codebook(4, 2, decay=0.9)
    resumed.load_state_dict(codes.state_dict())
    latents = torch.randn(3, 2, 2, 2)
    assert torch.equal(resumed(latents).nearest, codes(latents).nearest)  # not started again
