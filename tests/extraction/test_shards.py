"""Making shards one after another: read ahead over their borders, written beside the computation, in order."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from daamctl.artifacts.embeddings import EmbeddingsMetadata, shard_is_whole, shard_path
from daamctl.compute.engine import Units
from daamctl.config import Config
from daamctl.encoders.base import Batch, PooledBatch
from daamctl.errors import ArtifactError
from daamctl.extraction import shards
from daamctl.extraction.shards import ShardResult, ShardTask, make_shards
from tests.extraction.test_stream import RATE, MeanEncoder, corpus, noise

CONFIG = Config.model_validate({"extract": {"max_batch_s": 0.2, "storage": "float32"}})
HEAD = EmbeddingsMetadata("k", "c", ("a", "b"), (1, 2), 3, {}, {}, 7)


def tasks(folder: Path, *, size: int = 3) -> list[ShardTask]:
    """Seven clips of 0.1 s and a little in three shards."""
    rows = corpus(folder, noise(*range(800, 1500, 100)))
    starts = range(0, len(rows), size)
    return [ShardTask(shard_path(folder, i), rows[start : start + size]) for i, start in enumerate(starts)]


def made(
    todo: list[ShardTask], encoder: Any, root: Path, *, config: Config = CONFIG, head: EmbeddingsMetadata = HEAD
) -> Iterator[ShardResult]:
    events = make_shards(todo, encoder, head=head, root=root, config=config)
    return (event for event in events if isinstance(event, ShardResult))


def test_shards_come_in_order_with_their_files_in_place(tmp_path: Path) -> None:
    todo, clips = tasks(tmp_path), 0
    found = []
    for event in make_shards(todo, MeanEncoder(), head=HEAD, root=tmp_path, config=CONFIG):
        if isinstance(event, Units):
            clips += event.number
        else:
            assert shard_is_whole(event.path, event.num_clips)
            found.append(event)
    assert [(one.path, one.num_clips) for one in found] == [(todo[i].path, n) for i, n in enumerate((3, 3, 1))]
    assert clips == 7
    lengths = [pq.read_table(one.path)["layer_01"].combine_chunks().flatten().to_numpy()[2::3] for one in found]
    assert np.concatenate(lengths).tolist() == list(range(800, 1500, 100))


def test_what_is_unreadable_or_doubtful_is_told_by_name(tmp_path: Path) -> None:
    todo = tasks(tmp_path)
    (tmp_path / "n4.wav").write_bytes(b"")
    corpus(tmp_path, {"n6": np.zeros(1400)})
    first, second, third = made(todo, MeanEncoder(), tmp_path)
    assert (first.unreadable, first.marks, third.marks) == ({}, {}, {"silent": ["n6#000"]})
    assert list(second.unreadable) == ["n4#000"]
    assert (second.num_clips, shard_is_whole(second.path, 2)) == (2, False)


def test_reading_goes_on_over_the_border_of_a_shard(tmp_path: Path) -> None:
    """The second shard's first batch is ready before the first shard's last one is run."""
    staged, ready = list[int](), threading.Event()

    class Watching(MeanEncoder):
        def to_batch(self, waveforms: Any) -> Batch:
            staged.extend(len(wave) for wave in waveforms)
            if len(waveforms[0]) >= 1100:
                ready.set()
            return super().to_batch(waveforms)

        def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
            if any(len(wave) == 800 for wave in batch.inputs.values()):  # the last of the first shard
                assert ready.wait(20)
            return super().run_async(batch, storage)

    assert len(list(made(tasks(tmp_path), Watching(), tmp_path))) == 3
    assert sorted(staged) == list(range(800, 1500, 100))


def test_a_shard_is_written_beside_the_computation_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, real = threading.Event(), shards.write_shard

    class Signalling(MeanEncoder):
        def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
            if any(len(wave) == 1100 for wave in batch.inputs.values()):  # of the second shard
                launched.set()
            return super().run_async(batch, storage)

    def waiting(path: Path, *arguments: Any) -> None:
        assert launched.wait(20)
        real(path, *arguments)

    monkeypatch.setattr(shards, "write_shard", waiting)
    assert len(list(made(tasks(tmp_path), Signalling(), tmp_path))) == 3


def test_two_threads_write_if_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, real, todo = threading.Barrier(2, timeout=20), shards.write_shard, tasks(tmp_path)

    def waiting(path: Path, *arguments: Any) -> None:
        if path != todo[2].path:
            both.wait()
        real(path, *arguments)

    monkeypatch.setattr(shards, "write_shard", waiting)
    config = Config.model_validate({"extract": {**CONFIG.section("extract"), "writers": 2}})
    assert [shard.path for shard in made(todo, MeanEncoder(), tmp_path, config=config)] == [task.path for task in todo]


def test_an_error_of_writing_surfaces_and_what_was_whole_stays(tmp_path: Path) -> None:
    todo = tasks(tmp_path)
    todo[1].path.mkdir()
    making = made(todo, MeanEncoder(), tmp_path)
    assert next(making).path == todo[0].path
    with pytest.raises(ArtifactError, match="cannot write"):
        list(making)
    assert shard_is_whole(todo[0].path, 3)


def test_an_interruption_keeps_the_finished_shards(tmp_path: Path) -> None:
    class Dying(MeanEncoder):
        def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
            if any(len(wave) == 1200 for wave in batch.inputs.values()):
                raise KeyboardInterrupt
            return super().run_async(batch, storage)

    todo = tasks(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list(made(todo, Dying(), tmp_path))
    assert [task.path.exists() for task in todo] == [True, False, False]


def test_no_tasks_and_no_rows(tmp_path: Path) -> None:
    assert list(made([], MeanEncoder(), tmp_path)) == []
    todo = tasks(tmp_path)
    empty = ShardTask(tmp_path / "empty.parquet", todo[0].rows[:0])
    assert [one.num_clips for one in made([empty, todo[2]], MeanEncoder(), tmp_path)] == [0, 1]


def test_tasks_and_results_can_be_sent_elsewhere(tmp_path: Path) -> None:
    task = tasks(tmp_path)[0]
    sent = pickle.loads(pickle.dumps(task))
    assert (sent.path, sent.rows.equals(task.rows)) == (task.path, True)
    (result,) = made([sent], MeanEncoder(), tmp_path)
    assert pickle.loads(pickle.dumps(result)) == result


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_the_cpu_gives(tmp_path: Path) -> None:
    from daamctl.encoders.load import open_encoder

    rows = corpus(tmp_path, noise(*range(8000, 24000, 1000))).with_columns(pl.lit(RATE).alias("sampling_rate"))
    found = {}
    for device in ("cpu", "cuda"):
        encoder = open_encoder(
            CONFIG.extract, modality="speech", max_duration_s=5.0, device=device, precision="float32"
        ).encoder
        head = EmbeddingsMetadata("k", "c", ("a", "b"), encoder.layers, encoder.embed_dim, {}, {}, len(rows))
        todo = [ShardTask(tmp_path / f"{device}-{i}.parquet", rows[i : i + 4]) for i in range(0, len(rows), 4)]
        config = Config.model_validate({"extract": {"max_batch_s": 6, "storage": "float32"}})
        done = [one.path for one in made(todo, encoder, tmp_path, head=head, config=config)]
        tables = [pq.read_table(path)["layer_24"].combine_chunks().flatten().to_numpy() for path in done]
        found[device] = np.concatenate(tables)
    np.testing.assert_allclose(found["cuda"], found["cpu"], atol=2e-3, rtol=1e-2)
