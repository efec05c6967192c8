"""Fine-tuning on a GPU: repeatable, loss scaling, resume within an epoch, memory that runs out, several GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from daamctl.artifacts.results import read_folds
from daamctl.compute.local_engine import LocalEngine
from daamctl.fit.adapter import EncoderAndItems
from daamctl.stages import finetune
from tests.fit.test_adapter import Encoder, Made, logits_of, make, values
from tests.fixtures import gpu
from tests.fixtures.resume import Killed, kill_when, under_way
from tests.stages.test_finetune import clips, settings, shallow  # noqa: F401

pytestmark = [*gpu.GPU, pytest.mark.filterwarnings("ignore::UserWarning")]


class OnGpu(Encoder):
    """The tiny encoder on the GPU, which has room for so many items at once."""

    room = 1000

    def collate(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        if len(items) > self.room:
            gpu.ask_for_memory(len(items), self.room)
        inputs, mask = super().collate(items)
        return {name: value.to(gpu.DEVICE) for name, value in inputs.items()}, mask.to(gpu.DEVICE)


class Source(Made):
    """Opens that encoder."""

    def __init__(self, room: int = 1000) -> None:
        super().__init__()
        self.room = room

    def open(self) -> EncoderAndItems:
        opened = super().open()
        encoder: Any = opened.encoder
        encoder.__class__ = OnGpu
        encoder.room = self.room
        encoder.model.to(gpu.DEVICE)
        return opened


def tuned(folder: Path, name: str, source: Source | None = None, **settings: Any) -> Any:
    return make(folder, name, source or Source(), device=gpu.DEVICE, **settings)


def test_steps_with_an_overflow_are_skipped_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scalers: list[torch.amp.grad_scaler.GradScaler] = []

    class High(torch.amp.grad_scaler.GradScaler):
        def __init__(self, device: str, **options: Any) -> None:
            super().__init__(device, init_scale=2.0**30, **options)
            scalers.append(self)

    monkeypatch.setattr(torch.amp.grad_scaler, "GradScaler", High)
    fold = tuned(tmp_path, "a", precision="float16", epochs=24)
    assert 1 < scalers[0].get_scale() < 2.0**30
    losses = fold.history()["train_loss"]
    assert losses.is_finite().all()
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_training_that_resumes_within_an_epoch_repeats_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    settings = {"precision": precision, "epochs": 2, "batch_size": 2}
    whole = values(tuned(tmp_path, "whole", **settings))
    with monkeypatch.context() as context:
        kill_when(context, lambda state: under_way(state)["steps"] == 9)  # 6 in a pass
        with pytest.raises(Killed):
            tuned(tmp_path, "cut", **settings)
    assert values(tuned(tmp_path, "cut", **settings)) == whole


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_long_items_repeat_bit_by_bit(tmp_path: Path, precision: str) -> None:
    """With 150 keys and few heads, the backward pass of attention adds three parts, in any order unless told not to."""
    found = []
    for name in ("a", "b"):
        source = Source()
        source.items = [ids.repeat(-(-150 // len(ids)))[:150] for ids in source.items]
        fold = tuned(tmp_path, name, source, precision=precision)
        assert not any("rounding" in note for note in fold.result["run"]["notes"])
        found.append(values(fold))
    assert found[0] == found[1]


def test_memory_that_runs_out_is_met_with_halves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The allocator itself refuses more than two items."""
    given = {"batch_size": 8}
    fold, split = tuned(tmp_path, "a", Source(room=2), **given), tuned(tmp_path, "b", accumulate=4, **given)
    assert fold.result["run"]["micro_batch"] == split.result["run"]["micro_batch"] == 2
    assert "out of memory: from now on 2 items at once" in caplog.text
    torch.testing.assert_close(logits_of(fold), logits_of(split), atol=1e-3, rtol=1e-3)


@gpu.TWO_GPUS
def test_two_workers_take_a_gpu_each_with_a_saved_encoder(clips: Path) -> None:  # noqa: F811
    """Threads of the library copy its weights; each must know which GPU is that of its worker."""
    layout, config = settings(clips, finetune__device=gpu.DEVICE)
    with LocalEngine(workers=2) as engine:
        folder = finetune.run(layout, config, method="lora-r4", track=False, engine=engine)
    folds = read_folds(folder)
    assert len(folds) == 3
    assert {fold.result["meta"]["device"].split(" ")[0] for fold in folds} == {"cuda:0", "cuda:1"}
