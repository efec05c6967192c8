"""Parts of an unfinished shard: a kill costs little, and the finished file is that of an undisturbed run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daamctl.artifacts.embeddings import shard_path
from daamctl.compute.engine import Units
from daamctl.config import Config
from daamctl.encoders.base import Batch, PooledBatch
from daamctl.extraction import parts
from daamctl.extraction.parts import ShardParts, parts_folder
from daamctl.extraction.shards import ShardResult, ShardTask, _parts, make_shards
from daamctl.store.files import kept_path
from tests.extraction.test_shards import HEAD
from tests.extraction.test_stream import MeanEncoder, corpus, noise
from tests.fixtures.damage import damages

CLIPS = 9
CONFIG = Config.model_validate({"extract": {"max_batch_s": 0.4, "storage": "float32"}})  # three clips a batch


class Killed(BaseException):
    """Stands for SIGKILL: nothing that handles errors may see it."""


class Counting(MeanEncoder):
    """Results depend on the whole batch, as padding may make them; ends the process before some batch."""

    def __init__(self, until: int = 99, **options: Any) -> None:
        super().__init__(**options)
        self.until = until

    def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
        if len(self.sizes) == self.until:
            raise Killed
        wait = super().run_async(batch, storage)
        of_batch = sum(len(wave) for wave in batch.inputs.values())

        def together() -> PooledBatch:
            pooled = wait()
            return PooledBatch.of(pooled.values + of_batch, storage)

        return together


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_EVERY_S", 0.0)
    monkeypatch.setattr(parts, "SAVING_FRACTION", float("inf"))


@pytest.fixture
def task(tmp_path: Path) -> ShardTask:
    rows = corpus(tmp_path, noise(*range(800, 800 + 50 * CLIPS, 50)))
    return ShardTask(shard_path(tmp_path / "work", 0), rows)


def made(task: ShardTask, encoder: Any) -> Iterator[ShardResult | Units]:
    return make_shards([task], encoder, root=task.path.parents[1], head=HEAD, config=CONFIG)


def undisturbed(task: ShardTask) -> bytes:
    list(made(task, Counting()))
    content = task.path.read_bytes()
    task.path.unlink()
    assert not list(parts_folder(task.path.parent).glob("*"))
    return content


def kill(task: ShardTask, batches: int) -> list[Path]:
    """End the process before a batch; return the parts it has left."""
    with pytest.raises(Killed):
        list(made(task, Counting(batches)))
    assert not task.path.exists()
    return sorted(parts_folder(task.path.parent).glob("*.npz"))


def test_a_killed_shard_goes_on_and_has_the_same_bytes(task: ShardTask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "daamctl")
    expected = undisturbed(task)
    assert kill(task, 2)
    encoder = Counting()
    *units, done = made(task, encoder)
    assert isinstance(done, ShardResult)
    assert task.path.read_bytes() == expected
    assert 0 < done.kept < CLIPS
    assert sum(map(len, encoder.sizes)) == CLIPS - done.kept
    assert sum(one.number for one in units if isinstance(one, Units)) == CLIPS
    assert f"{done.kept} of 9 clips of an unfinished shard are kept" in caplog.text
    assert not list(parts_folder(task.path.parent).glob("*"))


def test_a_shard_may_be_killed_again_and_again(task: ShardTask) -> None:
    expected, runs = undisturbed(task), 0
    for _ in range(2):
        kill(task, 2)
        runs += 2
    encoder = Counting()
    list(made(task, encoder))
    assert task.path.read_bytes() == expected
    assert len(encoder.sizes) < 3


def _save(path: Path, key: str, **content: Any) -> None:
    with kept_path(path, key) as temporary:
        np.savez(temporary, **content)


def _other_key(path: Path) -> None:
    with np.load(path) as part:
        content = dict(part)
    _save(path, "other", **content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    place = content.find(b"vectors.npy") + 160  # within the numbers
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [_other_key, _cut, _flip, lambda path: path.write_bytes(b"")])
def test_parts_that_do_not_fit_are_dropped(task: ShardTask, damage: Callable[[Path], None]) -> None:
    expected = undisturbed(task)
    for path in kill(task, 2):
        damage(path)
    encoder = Counting()
    *_, done = made(task, encoder)
    assert (done.kept, sum(map(len, encoder.sizes))) == (0, CLIPS)
    assert task.path.read_bytes() == expected


def test_no_flip_and_no_cut_of_a_part_is_read(task: ShardTask, caplog: pytest.LogCaptureFixture) -> None:
    expected = undisturbed(task)
    first, *others = kill(task, 2)
    for path in others:
        path.unlink()
    some, rows = _parts(task, HEAD), (CLIPS, 1, 2)
    vectors, frames, marks = np.zeros(rows, np.float32), np.zeros(CLIPS, np.int32), dict[str, list[int]]()
    for damaged in damages(first.read_bytes(), flips=300, cuts=100):
        first.write_bytes(damaged)
        assert some.load(vectors, frames, marks) == set()
        assert not first.exists()
    assert len(caplog.messages) == 400
    assert (vectors.any(), frames.any(), marks) == (False, False, {})
    first.write_bytes(damaged)
    list(made(task, Counting()))
    assert task.path.read_bytes() == expected


def test_parts_of_other_clips_are_not_taken(task: ShardTask) -> None:
    kill(task, 2)
    *_, done = made(ShardTask(task.path, task.rows[::-1]), Counting())
    assert done.kept == 0


def test_a_batch_of_which_a_row_is_missing_is_computed_as_a_whole(task: ShardTask) -> None:
    """As after a change of the plan, e.g. with another budget: otherwise its rows would be padded differently."""
    expected = undisturbed(task)
    for path in kill(task, 2):
        with np.load(path) as part:
            content = dict(part)
        kept = slice(1, None)
        _save(
            path,
            _parts(task, HEAD).key,
            **{**content, **{name: content[name][kept] for name in ("rows", "vectors", "n_frames")}},
        )
    *_, done = made(task, Counting())
    assert done.kept % 3 == 0
    assert task.path.read_bytes() == expected


def test_unreadable_clips_are_tried_again_and_doubts_are_remembered(task: ShardTask) -> None:
    root = task.path.parents[1]
    corpus(root, {f"n{CLIPS - 1}": np.zeros(800 + 50 * (CLIPS - 1))})  # silent, in the first batch
    broken = root / f"n{CLIPS - 4}.wav"  # in the second
    whole = broken.read_bytes()
    expected = undisturbed(task)
    broken.write_bytes(b"")
    kill(task, 2)
    broken.write_bytes(whole)
    *_, done = made(task, Counting())
    assert (done.unreadable, done.marks) == ({}, {"silent": [f"n{CLIPS - 1}#000"]})
    assert task.path.read_bytes() == expected


def test_nothing_is_written_before_it_is_time(task: ShardTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_EVERY_S", 1000.0)
    assert kill(task, 2) == []


def test_parts_of_one_shard_are_not_those_of_another(tmp_path: Path) -> None:
    first, other = (ShardParts(shard_path(tmp_path / "work", number), "key") for number in (0, 1))
    vectors, frames = np.ones((2, 1, 1), np.float32), np.ones(2, np.int32)
    first.add([0])
    first.save_if_due(vectors, frames, {})
    assert other.load(vectors, frames, {}) == set()
    other.remove()
    assert first.load(vectors, frames, {}) == {0}
    shutil.rmtree(parts_folder(tmp_path / "work"))
