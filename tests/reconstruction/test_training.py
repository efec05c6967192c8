"""Training: it learns, it resumes exactly, and it says when something is wrong."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.config import Config
from daamctl.errors import DivergedError, TrainingError
from daamctl.fit.loop import Finished, Member, Progress, Trained, fit
from daamctl.fit.runner import FILE, fit_and_save, load_state
from daamctl.reconstruction import training
from daamctl.reconstruction.crops import CropPixels
from daamctl.reconstruction.training import ArmTrial, ArmWorker, warn_if_collapsed
from daamctl.reconstruction.vqvae import VQVAE
from daamctl.store.files import SaveTimer
from tests.fixtures.reconstruction import SETTINGS, write_images
from tests.reconstruction.test_crops import placed

Train = Callable[..., Trained]


@pytest.fixture
def trial(tmp_path: Path) -> Callable[..., ArmTrial]:
    folder = write_images(tmp_path / "mine")
    crops = placed(folder, per_image=4)
    parts = [CropPixels(crops, part, folder) for part in ("train", "test")]

    def make(arm: str = "daam", seed: int = 1, device: str = "cpu", **changes: Any) -> ArmTrial:
        settings = SETTINGS.model_copy(update={"examples": 2, **changes})
        return ArmTrial(arm, crops, Config(reconstruct=settings), device, *parts, seed)

    return make


@pytest.fixture
def train(trial: Callable[..., ArmTrial], tmp_path: Path) -> Train:
    def run(*given: Any, work: Path | None = None, key: str = "k", **changes: Any) -> Trained:
        place = work or tmp_path / "work"
        events = fit_and_save([trial(*given, **changes)], place, key, load_state(place, key))
        (found,) = [event.trained for event in events if isinstance(event, Finished)]
        return found

    return run


def same(one: Trained, other: Trained) -> bool:
    states = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in states) and one.history == other.history


def test_the_loss_falls_and_the_scores_are_those_of_the_model(train: Train) -> None:
    found = train("identity", epochs=10, lr=5e-3)
    losses = [float(entry["reconstruction"] or 0.0) for entry in found.history]
    assert losses[-1] < 0.6 * losses[0]
    scores = found.facts["scores"]
    assert scores["psnr"].mean() == pytest.approx(-10 * np.log10(scores["l2"]).mean(), rel=1e-4)
    assert found.facts["uses"].sum() == len(scores["psnr"]) * 2 * 2
    assert found.facts["reconstructions"].shape == (2, 3, 8, 8)
    assert not found.model.training


def test_steps_leave_an_incomplete_batch_out(trial: Callable[..., ArmTrial]) -> None:
    assert trial(epochs=10).units_of_training == 10 * 4  # four crops of each of eight images, in batches of 8
    assert trial(epochs=10, batch_size=9).units_of_training == 10 * 3


def test_only_daam_has_densities_and_identity_changes_nothing(train: Train) -> None:
    found, control = train().facts, train("identity").facts
    assert set(found["densities"]) == {f"{place}.{when}" for place in found["change"] for when in ("before", "after")}
    assert all(0 < values.sum() <= 4.001 for values in found["densities"].values())  # at most 1 in every head
    assert all(before != after for before, after in found["change"].values())
    assert not control["densities"]
    assert set(control["change"].values()) == {(0.0, 0.0)}


class Stopped(Exception):
    """The process ends here."""


@pytest.mark.parametrize("last", [1, 3, 4, 5, 7, 10])
def test_training_resumes_where_it_was_interrupted(
    train: Train, trial: Callable[..., ArmTrial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Within an epoch of 4 steps, after its last step, after its record, and at the end."""
    whole = train()
    saved = 0

    def save_at_once(timer: SaveTimer, save: Callable[[], None]) -> None:
        nonlocal saved
        save()
        saved += 1
        if saved == last:
            raise Stopped

    monkeypatch.setattr(SaveTimer, "save_if_due", save_at_once)
    with pytest.raises(Stopped):
        train(work=tmp_path / "cut")
    assert (tmp_path / "cut" / FILE).is_file()
    monkeypatch.undo()
    state = load_state(tmp_path / "cut", "k")
    steps = [event.units for event in fit([trial()], state) if isinstance(event, Progress)]
    assert steps[0] == last - (last >= 5) - (last >= 10)  # the states after records are not steps
    assert sum(steps) == 8
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
        warn_if_collapsed(uses, "daam, seed 1")
        warn_if_collapsed(np.ones(100, np.int64), "daam, seed 2")
    assert caplog.messages == [
        "daam, seed 1: the codebook has collapsed: test crops use 3 of 100 codes (perplexity 3.0)"
    ]


def test_a_collapse_is_warned_of_after_training(
    train: Train, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "COLLAPSED", 1.01)
    train(codes=16)
    assert len([one for one in caplog.messages if "daam, seed 1: the codebook has collapsed" in one]) == 1


def test_the_order_covers_every_epoch_and_continues_anywhere(
    trial: Callable[..., ArmTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    real = CropPixels.batches

    def batches(pixels: CropPixels, rows: Any) -> Iterator[torch.Tensor]:
        seen.extend(rows)
        return real(pixels, rows)

    one = trial(batch_size=5)
    member = Member(one, 0, {})
    fitting = one.start([member])
    monkeypatch.setattr(CropPixels, "batches", batches)
    for _ in range(2):
        list(fitting.run())
        fitting.record()
    assert [len(batch) for batch in seen] == [5] * 12  # 6 batches of 32 crops
    assert len({row for batch in seen[:6] for row in batch}) == 30
    assert seen[:6] != seen[6:]
    whole = list(seen)
    for start in range(6):
        again = one.start([member])
        for _ in zip(range(start), again.run(), strict=False):
            pass
        other = one.start([member])
        other.restore(again.state())
        seen.clear()
        list(other.run())
        assert seen == whole[start:6]


class Optimised(Exception):
    """Ends a training where its optimiser is made."""


@pytest.mark.parametrize(("precision", "last"), [("bfloat16", True), ("float32", False)])
def test_a_gpu_gets_its_layout_and_its_kernels(
    trial: Callable[..., ArmTrial], monkeypatch: pytest.MonkeyPatch, precision: str, last: bool
) -> None:
    """Half precision is computed channels-last, and one kernel updates all weights."""
    move = torch.nn.Module.to

    def made(groups: Any, device: str, *, decoupled: bool, fused: bool) -> None:
        raise Optimised(fused, decoupled, any(one.ndim == 4 and is_last(one) for one in groups[0]["params"]))

    def is_last(weight: torch.Tensor) -> bool:
        return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()

    monkeypatch.setattr(
        torch.nn.Module, "to", lambda self, *place, **options: move(self, **options) if options else self
    )
    monkeypatch.setattr(training, "seed_everything", lambda *_: None)
    monkeypatch.setattr(training, "sent", lambda value, _: value)
    monkeypatch.setattr(training, "adam", made)
    one = trial(device="cuda", precision=precision)
    with pytest.raises(Optimised) as caught:
        one.start([Member(one, 0, {})])
    assert caught.value.args == (True, False, last)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError("no room")]
)
def test_out_of_memory_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    folder = write_images(tmp_path / "mine")
    given = {"folder": tmp_path / "made", "work": tmp_path / "work", "images": folder}
    worker = ArmWorker("daam", placed(folder, per_image=4), Config(reconstruct=SETTINGS), "cpu", **given)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(VQVAE, "forward", fail)
    with pytest.raises(TrainingError, match=r"^daam, seed 1: out of memory with 8 crops in a step\n  lower reconstr"):
        list(worker.work([1]))
    error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        list(worker.work([1]))
