"""Replacing layers under models whose use of the layers is known, and what is made of the curves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from daamctl.config import Config
from daamctl.evaluation import audit
from daamctl.evaluation.audit import advantage, area, replacement_curves, steps
from daamctl.evaluation.rank_tests import order_of, random_orders

WEIGHTS = np.array([0.0, 0.0, 1.0, 2.0, 0.0, 0.0])


class Planted(nn.Module):
    """Logits = weighted sum of the layers: only two of six count."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float32))
        self.sizes: list[int] = []

    def forward(self, x):
        self.sizes.append(len(x))
        return torch.einsum("bld,l->bd", x, self.weights)


@pytest.fixture
def data():
    """Clips whose class stands in layers 3 and 4, and a mean that is far from zero."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 60)
    x = rng.normal(size=(60, 6, 4)) * 0.5 + 3
    x[:, 2:4] += 2 * np.eye(4)[y][:, None]
    return x, y, x.mean(axis=0)


def test_steps():
    assert steps(24) == [0, 1, 2, 4, 8, 16, 24]
    assert steps(16) == [0, 1, 2, 4, 8, 16]
    assert [steps(number) for number in (1, 2, 3)] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


def test_curves_equal_an_independent_computation(data):
    x, y, mean = data
    orders = np.stack([np.array([3, 2, 0, 1, 4, 5]), np.array([0, 5, 1, 4, 2, 3])])
    deletion, insertion = replacement_curves(
        Planted(), torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(mean), orders
    )

    def accuracy(replaced):
        mixed = x.copy()
        mixed[:, list(replaced)] = mean[list(replaced)]
        return ((mixed * WEIGHTS[:, None]).sum(1).argmax(1) == y).mean()

    for row, order in enumerate(orders.tolist()):
        assert deletion[row] == pytest.approx([accuracy(order[:count]) for count in steps(6)])
        assert insertion[row] == pytest.approx([accuracy(order[count:]) for count in steps(6)])
    assert deletion[0, 0] == insertion[0, -1] > 0.9
    assert deletion[0, 2] == insertion[1, 0] < 0.5  # both layers that count are gone


def test_batches_are_of_the_size_asked_for(data):
    x, y, mean = data
    model = Planted()
    replacement_curves(
        model, torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(mean), np.arange(6)[None], batch_size=8
    )
    assert set(model.sizes) == {8, 4}
    assert len(model.sizes) == 8 * 8  # 8 batches for each of 4 + 4 different sets of layers: the ends are shared


def test_clips_are_copied_to_the_device_once(data, monkeypatch):
    """Not for every mask and batch."""
    x, y, mean = data
    clips, copied, to = torch.from_numpy(x), [], torch.Tensor.to

    def seen(value, *args, **options):
        copied.append(value.untyped_storage().data_ptr() == clips.untyped_storage().data_ptr() and args[:1])
        return to(value, *args, **options)

    model = Planted()
    monkeypatch.setattr(torch.Tensor, "to", seen)
    replacement_curves(model, clips, torch.from_numpy(y), torch.from_numpy(mean), np.arange(6)[None], batch_size=8)
    monkeypatch.undo()
    assert copied.count((torch.device("cpu"),)) == 1


@pytest.mark.parametrize(("device", "last"), [("cuda", False), ("cpu", True)])
def test_convolutions_are_laid_out_as_in_training(monkeypatch, device, last):
    """In full float32, those of a GPU are made for contiguous weights."""
    seen = []

    class Model(nn.Conv2d):
        def to(self, *args, **options):
            return self if args else super().to(**options)  # there is no GPU here

    def curves(model, *_, **__):
        seen.append(model.weight.is_contiguous(memory_format=torch.channels_last))
        return np.zeros((1, 2)), np.zeros((1, 2))

    monkeypatch.setattr(audit, "replacement_curves", curves)
    monkeypatch.setattr(audit, "resolve_device", lambda _: device)
    monkeypatch.setattr(audit, "choose_gpu_kernels", lambda: None)
    monkeypatch.setattr(audit, "_curve_rows", lambda *_: None)
    monkeypatch.setattr(audit, "sample_rows", lambda *_: np.arange(2))
    fold = SimpleNamespace(fold=1, seed=1, result={"run": {"eval_batches": None, "layers": [1, 2]}})
    given = SimpleNamespace(
        layers=(1, 2), x=np.zeros((2, 2)), y=np.zeros(2), rows=lambda _: SimpleNamespace(test=None), mean=lambda _: None
    )
    audit._fold_curves(Config(), "none", fold, Model(2, 4, 3), np.zeros(2), np.ones(2), given)
    assert seen == [last]


def test_half_precision_features_are_widened(data):
    x, y, mean = data
    parts = [torch.from_numpy(part) for part in (x, y, mean)]
    half, _ = replacement_curves(Planted(), parts[0].half(), parts[1], parts[2].float(), np.arange(6)[None])
    full, _ = replacement_curves(Planted(), *parts, np.arange(6)[None])
    np.testing.assert_allclose(half, full, atol=0.05)


def test_true_order_beats_random_ones_and_a_useless_one_does_not(data):
    x, y, mean = data
    worth, useless = WEIGHTS + 1e-3 * np.arange(6), -WEIGHTS
    orders = np.concatenate([[order_of(worth), order_of(useless)], random_orders(6, 39, seed=1)])
    found = replacement_curves(Planted(), torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(mean), orders)
    for curves, deletion in zip(found, (True, False), strict=True):
        true = advantage(curves[None, 0], curves[None, 2:], steps(6), deletion=deletion)
        false = advantage(curves[None, 1], curves[None, 2:], steps(6), deletion=deletion)
        assert true.per_fold.mean() > 0.1
        assert false.per_fold.mean() < 0
        assert false.verdict == "not shown"
        assert true.p < 0.2  # a random order also puts the two first now and then: 1 in 15


def test_advantage_by_hand():
    counts = [0, 1, 2]
    own = np.array([[1.0, 0.5, 0.0], [1.0, 0.3, 0.0]])
    others = np.array([[[1.0, 0.7, 0.0], [1.0, 0.9, 0.0]], [[1.0, 0.7, 0.0], [1.0, 0.9, 0.0]]])
    assert area(own[0], counts) == pytest.approx(0.5)
    found = advantage(own, others, counts, deletion=True)
    assert found.per_fold == pytest.approx([0.15, 0.25])
    assert (found.p, found.floor, found.verdict) == (1 / 3, 1 / 3, "cannot be told")
    worse = advantage(own, others, counts, deletion=False)
    assert worse.per_fold.mean() == pytest.approx(-0.2)
    assert (worse.p, worse.verdict) == (1.0, "not shown")
    equal = advantage(others[:, 0], others, counts, deletion=True)
    assert equal.p == 2 / 3  # a tie counts against it


def test_nineteen_orders_reach_the_level():
    others = np.tile(np.linspace(0.5, 0.9, 19)[:, None], (5, 1, 3))
    found = advantage(np.full((5, 3), 0.4), others, [0, 1, 2], deletion=True)
    assert (found.p, found.verdict) == (0.05, "yes")
