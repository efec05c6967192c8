"""Training: it learns, it resumes exactly, and it says when something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.errors import DivergedError, TrainingError
from daamctl.reconstruction import training
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.training import Trained, train_arm, warn_if_collapsed
from daamctl.fit.checkpoint import FILE, SaveTimer
from tests.fixtures.reconstruction import SETTINGS, write_images
from tests.reconstruction.test_crops import placed

Train = Callable[..., Trained]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    folder = write_images(tmp_path / "mine")
    crops = placed(folder, per_image=4)
    parts = [CropPixels(crops, part, folder) for part in ("train", "test")]

    def run(arm: str = "daam", *, work: Path | None = None, key: str = "k", seed: int = 1, **changes: Any) -> Trained:
        settings = SETTINGS.model_copy(update=changes)
        place = work or tmp_path / "work"
        return train_arm(arm, *parts, [0, 2], settings, seed=seed, device="cpu", work=place, key=key)

    return run


def same(one: Trained, other: Trained) -> bool:
    states = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in states) and one.history == other.history


def test_the_loss_falls_and_the_scores_are_those_of_the_model(train: Train) -> None:
    found = train("identity", epochs=10, lr=5e-3)
    losses = [entry["reconstruction"] for entry in found.history]
    assert losses[-1] < 0.6 * losses[0]
    assert found.steps == 10 * 4  # four crops of each of eight images, in batches of 8
    assert found.scores["psnr"].mean() == pytest.approx(-10 * np.log10(found.scores["l2"]).mean(), rel=1e-4)
    assert found.uses.sum() == len(found.scores["psnr"]) * 2 * 2
    assert found.reconstructions.shape == (2, 3, 8, 8)


def test_only_daam_has_densities_and_identity_changes_nothing(train: Train) -> None:
    found, control = train(), train("identity")
    assert set(found.densities) == {f"{place}.{when}" for place in found.change for when in ("before", "after")}
    assert all(0 < values.sum() <= 4.001 for values in found.densities.values())  # at most 1 in every head
    assert not control.densities
    assert set(control.change.values()) == {(0.0, 0.0)}


class Stopped(Exception):
    """The process ends here."""


def test_training_resumes_where_it_was_interrupted(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train()
    saved = 0

    def save_at_once(timer: SaveTimer, save: Callable[[], None]) -> None:
        nonlocal saved
        save()
        saved += 1
        if saved == 3:
            raise Stopped

    monkeypatch.setattr(SaveTimer, "save_if_due", save_at_once)
    with pytest.raises(Stopped):
        train(work=tmp_path / "cut")
    assert (tmp_path / "cut" / FILE).is_file()
    monkeypatch.undo()
    assert same(train(work=tmp_path / "cut"), whole)
    assert not same(train(seed=2), whole)


def test_a_loss_that_is_not_finite_is_refused(train: Train) -> None:
    with pytest.raises(DivergedError, match=r"daam, seed 1: the loss is (nan|inf) in epoch"):
        train(lr=1e30)


def test_fewer_crops_than_a_batch(train: Train) -> None:
    with pytest.raises(TrainingError, match=r"training crops are fewer than reconstruct.batch_size \(500\)"):
        train(batch_size=500)


def test_a_collapsed_codebook_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    uses = np.zeros(100, np.int64)
    uses[:3] = 5
    with caplog.at_level(logging.WARNING):
        warn_if_collapsed(uses, "daam", 1)
        warn_if_collapsed(np.ones(100, np.int64), "daam", 2)
    assert caplog.messages == [
        "daam, seed 1: the codebook has collapsed: test crops use 3 of 100 codes (perplexity 3.0)"
    ]


def test_the_order_covers_every_epoch_and_continues_anywhere() -> None:
    settings = SETTINGS.model_copy(update={"batch_size": 3})
    whole = list(training._order(10, settings, 5, start=0, stop=6))
    assert [len(batch) for batch in whole] == [3] * 6
    assert len({row for batch in whole[:3] for row in batch}) == 9
    assert whole[:3] != whole[3:]
    for start in range(6):
        assert list(training._order(10, settings, 5, start=start, stop=6)) == whole[start:]


class Optimised(Exception):
    """Ends a training where its optimiser is made."""


@pytest.mark.parametrize(("device", "precision", "last"), [("cuda", "bfloat16", True), ("cuda", "float32", False)])
def test_a_gpu_gets_its_layout_and_its_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, precision: str, last: bool
) -> None:
    """Half precision is computed channels-last, and one kernel updates all weights."""
    folder = write_images(tmp_path / "mine")
    crops = placed(folder, per_image=4)
    parts = [CropPixels(crops, part, folder) for part in ("train", "test")]
    move = torch.nn.Module.to

    def made(weights: Any, lr: float, fused: bool) -> None:
        raise Optimised(fused, any(one.ndim == 4 and is_last(one) for one in weights))

    def is_last(weight: torch.Tensor) -> bool:
        return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()

    monkeypatch.setattr(
        torch.nn.Module, "to", lambda self, *place, **options: move(self, **options) if options else self
    )
    monkeypatch.setattr(training, "seed_everything", lambda *_: None)
    monkeypatch.setattr(training, "sent", lambda value, _: value)
    monkeypatch.setattr(torch.optim, "Adam", made)
    settings = SETTINGS.model_copy(update={"precision": precision})
    with pytest.raises(Optimised) as caught:
        train_arm("daam", *parts, [0, 2], settings, seed=1, device=device, work=tmp_path / "w", key="k")
    assert caught.value.args == (True, last)
