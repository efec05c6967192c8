"""Parts of a split: every clip once, orders that repeat, few shards at once, and batches equal to those in memory."""

from __future__ import annotations

import gc
import threading
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from daamctl.artifacts.embeddings import (
    EmbeddingsMetadata,
    StoredVectors,
    open_embeddings,
    shard_path,
    write_head,
    write_shard,
)
from daamctl.errors import ArtifactError
from daamctl.fit import features, steps
from daamctl.fit.features import (
    BatchedPart,
    InMemorySplit,
    StreamedSplit,
    cut,
    fit_standardize,
    is_collinear,
    on_device,
    pass_seed,
)
from daamctl.fit.steps import maps_of, predict
from daamctl.methods import build
from tests.fixtures.gpu import needs_gpu

LAYERS, DIM = (1, 2, 3), 4
SIZES = (10, 10, 0, 10, 10, 10, 3)
"""Clips per shard: an empty one, and a short last one."""


def write(folder: Path, dtype: str = "float16", sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    """A set of which the first value of every clip is its row number."""
    number = sum(sizes)
    vectors = np.random.default_rng(0).standard_normal((number, len(LAYERS), DIM)).astype(dtype)
    vectors[:, 0, 0] = np.arange(number)
    clips = pl.DataFrame(
        {name: [f"{i}" for i in range(number)] for name in ("clip_id", "utterance_id", "label", "speaker", "group")}
    ).with_columns(duration_s=pl.lit(5.0))
    start = 0
    for index, size in enumerate(sizes):
        rows = slice(start, start + size)
        write_shard(shard_path(folder, index), clips[rows], np.ones(size), vectors[rows], LAYERS, {})
        start += size
    write_head(folder, EmbeddingsMetadata("k", "demo", ("a", "b"), LAYERS, DIM, {}, {}, number), clips)
    return vectors


@pytest.fixture
def stored(tmp_path: Path) -> StoredVectors:
    write(tmp_path)
    return open_embeddings(tmp_path)[1]


def pair(stored: StoredVectors, rows: np.ndarray | None = None) -> tuple[StreamedSplit, InMemorySplit]:
    """The same part on disk and in memory; class ids are row numbers."""
    rows = np.arange(len(stored)) if rows is None else rows
    y = torch.from_numpy(rows)
    return StreamedSplit(stored, rows, y), InMemorySplit(torch.from_numpy(stored.load()[rows]), y)


def order(part: Any, batch_size: int, seed: int) -> list[int]:
    """Rows in the order given; checks that x and y belong together."""
    seen: list[int] = []
    for x, y in part.batches(batch_size, seed):
        assert x[:, 0, 0].tolist() == y.tolist()
        seen += y.tolist()
    return seen


SOME = np.array([0, 3, 4, 5, 9, 10, 19, 25, 31, 32, 33, 50, 52])


@pytest.mark.parametrize("rows", [None, SOME, np.array([52]), np.arange(20, 30)], ids=["all", "some", "one", "a shard"])
@pytest.mark.parametrize("batch_size", [1, 4, 10, 25, 100])
def test_in_order_batches_are_those_in_memory(stored: StoredVectors, rows: Any, batch_size: int) -> None:
    streamed, held = pair(stored, rows)
    for (x, y), (expected, labels) in zip(streamed.batches(batch_size), held.batches(batch_size), strict=True):
        assert torch.equal(x, expected)
        assert torch.equal(y, labels)
        assert x.dtype == torch.float16


@pytest.mark.parametrize("pool", [4, 12, 4096])
@pytest.mark.parametrize("rows", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("batch_size", [1, 4, 25])
def test_shuffled_every_clip_comes_once_in_whole_batches(
    stored: StoredVectors, monkeypatch: pytest.MonkeyPatch, pool: int, rows: Any, batch_size: int
) -> None:
    monkeypatch.setattr(features, "POOL_CLIPS", pool)
    streamed, held = pair(stored, rows)
    found = order(streamed, batch_size, 7)
    assert sorted(found) == held.y.tolist()
    assert found != held.y.tolist()
    sizes = [len(y) for _, y in streamed.batches(batch_size, 7)]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    assert sizes == [len(y) for _, y in held.batches(batch_size, 7)]


def test_the_order_is_that_of_the_seed(stored: StoredVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "POOL_CLIPS", 12)
    streamed, held = pair(stored)
    assert order(streamed, 4, 1) == order(streamed, 4, 1) == order(pair(stored)[0], 4, 1)
    assert order(streamed, 4, 1) != order(streamed, 4, 2)
    assert order(held, 4, 1) == order(held, 4, 1) != order(held, 4, 2)


def test_free_memory_has_no_say(stored: StoredVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    streamed, _ = pair(stored)
    before = order(streamed, 4, 1)
    monkeypatch.setattr("psutil.virtual_memory", lambda: pytest.fail("asked for the free memory"))
    assert order(streamed, 4, 1) == before


def test_the_shuffle_mixes_shards_and_carries_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty shards of ten: batches hold clips of many shards, and none waits for the end of a block."""
    monkeypatch.setattr(features, "POOL_CLIPS", 100)
    write(tmp_path, "float32", (10,) * 40)
    streamed, _ = pair(open_embeddings(tmp_path)[1])
    found = np.array(order(streamed, 20, 3)).reshape(-1, 20)
    shards = [len(set(batch // 10)) for batch in found]
    assert np.mean(shards) > 6  # of eleven to twelve in the pool
    places = np.argsort(found.ravel())  # where each row came
    assert abs(np.corrcoef(places, np.arange(400))[0, 1]) < 0.3  # the order of the set is gone
    assert len(set(found[:3].ravel() // 10)) <= 16  # twelve fill the pool, and two more come for every batch


def test_a_pool_that_holds_all_gives_every_order_alike(tmp_path: Path) -> None:
    """Three clips in two shards: each of the six orders about a sixth of the time."""
    write(tmp_path, sizes=(2, 1))
    streamed, _ = pair(open_embeddings(tmp_path)[1])
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(300):
        key = tuple(order(streamed, 1, seed))
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 6
    assert min(counts.values()) > 25


def test_few_shards_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twenty shards, the one in use and the one read ahead; a pool of its own size beside them."""
    monkeypatch.setattr(features, "POOL_CLIPS", 8)
    write(tmp_path, sizes=(5,) * 20)
    stored = open_embeddings(tmp_path)[1]
    alive: list[int] = []
    most, pools, lock = [0], [], threading.Lock()
    real, empty = StoredVectors.read, StreamedSplit._empty

    def reading(self: StoredVectors, shard: int) -> np.ndarray:
        vectors = real(self, shard)
        with lock:
            alive.append(shard)
            most[0] = max(most[0], len(alive))
        weakref.finalize(vectors, alive.remove, shard)
        return vectors

    def sizing(self: StreamedSplit, number: int, device: str = "cpu") -> torch.Tensor:
        pools.append(number)
        return empty(self, number, device)

    monkeypatch.setattr(StoredVectors, "read", reading)
    monkeypatch.setattr(StreamedSplit, "_empty", sizing)
    streamed = StreamedSplit(stored, np.arange(100), torch.arange(100))
    for seed in (None, 1):
        gc.collect()
        assert alive == []
        most[0] = 0
        assert sum(len(y) for _, y in streamed.batches(2, seed)) == 100
        assert 1 <= most[0] <= 3  # in use, read ahead, and the next one where the thread is quick
    assert max(pools) == 8 + 2 + 5


def test_a_pass_that_is_given_up_leaves_no_thread(stored: StoredVectors) -> None:
    before = threading.active_count()
    for seed in (None, 1):
        batches = pair(stored)[0].batches(4, seed)
        next(batches)
        batches.close()
    assert threading.active_count() == before


def test_only_shards_that_hold_a_row_and_the_layers_asked_for_are_read(
    stored: StoredVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[tuple[int, tuple[int, ...]]] = []
    real = StoredVectors.read
    monkeypatch.setattr(
        StoredVectors, "read", lambda self, shard: (met.append((shard, self.layers)), real(self, shard))[1]
    )
    rows = np.array([3, 12, 13, 52])
    streamed = StreamedSplit(stored.subset((3, 1)), rows, torch.from_numpy(rows))
    ((x, _),) = streamed.batches(10)
    assert sorted(met) == [(0, (3, 1)), (1, (3, 1)), (6, (3, 1))]
    assert x[:, 1, 0].tolist() == rows.tolist()
    assert len(list(streamed.batches(1, 5))) == 4


def test_rows_must_ascend(stored: StoredVectors) -> None:
    with pytest.raises(ValueError, match="rows must ascend"):
        StreamedSplit(stored, np.array([3, 1]), torch.zeros(2))


def test_a_shard_that_goes_missing_is_named(stored: StoredVectors) -> None:
    streamed, _ = pair(stored)
    stored.paths[4].unlink()
    for seed in (None, 1):
        with pytest.raises(ArtifactError, match="cannot be read"):
            list(streamed.batches(4, seed))


def streamed_order(part: Any, batch_size: int, number: int, seed: int = 3, start: int = 0) -> list[list[int]]:
    """Rows of so many batches; checks that x and y belong together."""
    found = []
    for x, y in islice(part.stream(batch_size, seed, start), number):
        assert x[:, 0, 0].tolist() == y.tolist()
        found.append(y.tolist())
    return found


@pytest.mark.parametrize("rows", [None, SOME, np.array([52])], ids=["all", "some", "one"])
@pytest.mark.parametrize("batch_size", [1, 4, 25, 60])
@pytest.mark.parametrize("where", [0, 1], ids=["disk", "memory"])
def test_a_stream_gives_every_clip_once_a_pass_in_batches_of_one_size(
    stored: StoredVectors, monkeypatch: pytest.MonkeyPatch, rows: Any, batch_size: int, where: int
) -> None:
    """Also where the part is smaller than a batch; each pass has the order of its own seed."""
    monkeypatch.setattr(features, "POOL_CLIPS", 12)
    part = pair(stored, rows)[where]
    number = -(-3 * len(part) // batch_size)
    batches = streamed_order(part, batch_size, number)
    assert {len(batch) for batch in batches} == {batch_size}
    flat = [row for batch in batches for row in batch]
    passes = [flat[first * len(part) : (first + 1) * len(part)] for first in range(3)]
    for index, one in enumerate(passes):
        assert one == order(part, batch_size, pass_seed(3, index))
        assert sorted(one) == part.y.tolist()
    if len(part) > 1:
        assert passes[0] != passes[1]
        assert streamed_order(part, batch_size, number, seed=4) != batches


@pytest.mark.parametrize("where", [0, 1], ids=["disk", "memory"])
@pytest.mark.parametrize("batch_size", [4, 25, 60])
def test_a_stream_that_starts_later_goes_on_exactly(stored: StoredVectors, where: int, batch_size: int) -> None:
    part = pair(stored)[where]
    whole = streamed_order(part, batch_size, 30)
    for start in (0, 1, 7, 13, 29):
        assert streamed_order(part, batch_size, 30 - start, start=start) == whole[start:]


def test_rows_of_a_stream_are_its_clips(stored: StoredVectors) -> None:
    held = pair(stored)[1]
    some = InMemorySplit(held.x, held.y[torch.from_numpy(SOME)], torch.from_numpy(SOME))
    rows, clips = some.stream_rows(4, 3, 2), some.stream(4, 3, 2)
    for (found, y), (x, labels) in islice(zip(rows, clips, strict=True), 9):
        assert torch.equal(held.x[found], x)
        assert torch.equal(y, labels)


def test_pieces_are_cut_in_their_order() -> None:
    pieces = [(torch.arange(first, last), torch.arange(first, last)) for first, last in ((0, 3), (3, 4), (4, 11))]
    assert [x.tolist() for x, _ in cut(pieces, 4, 0)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [y.tolist() for _, y in cut(pieces, 3, 5)] == [[5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("method", ["daam-v2", "weighted-sum", "attentive"])
def test_the_same_weights_predict_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, method: str
) -> None:
    write(tmp_path, dtype, (7, 50, 1, 60))
    streamed, held = pair(open_embeddings(tmp_path)[1])
    torch.manual_seed(0)
    model = build(method, num_layers=3, embed_dim=DIM, num_classes=2)
    for size in (5, 16, 256):
        monkeypatch.setattr(steps, "EVAL_BATCH", size)
        assert torch.equal(predict(model, streamed, "cpu", 4), predict(model, held, "cpu", 4))
    ours, theirs = (maps_of(model, part, "cpu") for part in (streamed, held))
    assert list(ours) == ["density" if method == "daam-v2" else "layer_weights"]
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_held_from_disk_is_what_was_in_memory(stored: StoredVectors) -> None:
    streamed, held = pair(stored, SOME)
    found = streamed.hold()
    assert torch.equal(found.x, held.x)
    assert torch.equal(found.y, held.y)
    assert streamed.nbytes == held.x.nbytes
    assert order(found, 4, 1) == order(held, 4, 1)


def test_a_choice_on_a_streamed_part_is_that_in_memory(stored: StoredVectors) -> None:
    """`choose` of best-layer takes its clips in batches; both forms count the same."""
    streamed, held = pair(stored)
    y = torch.arange(len(stored)) % 3
    torch.manual_seed(0)
    model = build("best-layer", num_layers=3, embed_dim=DIM, num_classes=3)
    with torch.no_grad():
        model.decoder.classifier_bias[1] += 100 * nn.functional.one_hot(torch.tensor(0), 3)  # layer 2 says class 0
    for targets, expected in ((y, None), (torch.zeros_like(y), 1)):
        chosen = []
        for x in (BatchedPart(streamed, "cpu"), BatchedPart(held, "cpu"), held.x.float()):
            model.fusion.chosen.fill_(2)
            model.eval().choose(x, targets)
            chosen.append(model.fusion.chosen.item())
        assert len(set(chosen)) == 1
        assert expected is None or chosen[0] == expected
    assert len(BatchedPart(streamed, "cpu")) == len(stored)


def test_batches_are_widened() -> None:
    x = torch.ones(2, 1, 1, dtype=torch.float16)
    assert on_device(x, "cpu").dtype == torch.float32
    wide = x.float()
    assert on_device(wide, "cpu") is wide


def test_what_is_in_main_memory_is_pinned_for_a_gpu(stored: StoredVectors, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: (pinned.append(len(self)), self)[1])
    streamed, plain = pair(stored)
    held = StreamedSplit(stored, streamed.rows, streamed.y, pin=True).hold()
    for part in (held, InMemorySplit(held.x, held.y, torch.arange(len(held)), pin=True)):
        for seed in (None, 1):
            pinned.clear()
            for found, expected in zip(part.batches(20, seed), plain.batches(20, seed), strict=True):
                assert all(map(torch.equal, found, expected))
            assert pinned == [20, 20, 20, 20, 13, 13]
    pinned.clear()
    list(plain.batches(20))
    assert pinned == []


@needs_gpu
def test_pinned_batches_reach_the_gpu_unchanged(stored: StoredVectors) -> None:
    streamed, held = pair(stored)
    pinned = StreamedSplit(stored, streamed.rows, streamed.y, pin=True)
    for seed in (None, 1):
        for (x, y), (expected, labels) in zip(pinned.batches(4, seed), streamed.batches(4, seed), strict=True):
            assert x.is_pinned()
            assert y.is_pinned()
            assert torch.equal(on_device(x, "cuda").cpu(), expected.float())
            assert torch.equal(y, labels)
    assert torch.equal(streamed.hold("cuda").x.cpu(), held.x)


# Standardisation


@pytest.mark.parametrize(
    ("clips", "dim"), [(200, 48), (60, 12), (40, 48), (20, 48), (2, 6)], ids=lambda size: str(size)
)
def test_whitening_shrinks_the_first_principal_components(clips: int, dim: int) -> None:
    """Against its definition, of a singular value decomposition of all features, also with fewer clips than these."""
    draw = torch.Generator().manual_seed(clips)
    mixed = torch.randn(dim, dim, generator=draw) * torch.linspace(3, 0.05, dim)[:, None]
    x = torch.randn(clips, 2, dim, generator=draw) @ mixed + 2
    x[:, :, 1] = 5  # a constant
    fitted = fit_standardize(InMemorySplit(x, torch.zeros(clips)), "whiten", "cpu")
    assert fitted.kind == "whiten"
    assert fitted.directions is not None
    assert fitted.directions.shape == (2, dim, min(dim, 32))
    found = fitted(x)
    for layer in range(2):
        z = x[:, layer].double().numpy()
        z = z - z.mean(0)
        z = np.divide(z, z.std(0), out=np.zeros_like(z), where=z.std(0) > 1e-6)
        _, lengths, components = np.linalg.svd(z, full_matrices=True)
        variances = np.zeros(dim)
        variances[: len(lengths)] = lengths**2 / clips
        shrunk = np.maximum(variances, variances[min(32, dim - 1)]) + 0.1  # the others as the first of them
        expected = z @ components.T @ np.diag(shrunk**-0.5) @ components
        np.testing.assert_allclose(found[:, layer].numpy(), expected, atol=2e-4)
        assert (found[:, layer, 1].abs() < 1e-5).all()


def test_whitening_of_a_large_part_uses_some_of_its_clips(
    stored: StoredVectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean and deviation are those of all clips; a part on disk gives the same as one in memory."""
    streamed, held = pair(stored)
    monkeypatch.setattr(features, "WHITEN_CLIPS", 20)
    monkeypatch.setattr(features, "STANDARDIZE_BATCH", 7)
    seen = list[torch.Tensor]()
    whiten = features._whiten
    monkeypatch.setattr(features, "_whiten", lambda *given: (seen.append(given[-1]), whiten(*given))[1])
    tables = [fit_standardize(part, "whiten", "cpu").state_dict() for part in (streamed, held)]
    assert all(torch.equal(tables[0][name], tables[1][name]) for name in tables[0])
    assert torch.equal(seen[0], held.x[::3])
    plain = fit_standardize(held, "feature", "cpu")
    assert torch.equal(tables[0]["mean"], plain.mean)


@pytest.mark.parametrize("clips", [3, 40, 256])
def test_features_are_collinear_if_few_components_hold_nearly_all_variance(clips: int) -> None:
    """However few the clips are, and with constant features, which have no variance."""
    draw = torch.Generator().manual_seed(1)
    few = torch.randn(clips, 2, 5, generator=draw) @ torch.randn(5, 48, generator=draw)
    noise = torch.randn(clips, 2, 48, generator=draw)
    y = torch.zeros(clips)
    assert not is_collinear(InMemorySplit(noise, y))
    assert is_collinear(InMemorySplit(few + 0.1 * noise, y)) == (clips > 3)
    assert not is_collinear(InMemorySplit(torch.full_like(noise, 0.1), y))
    noise[..., 10:] = 0.1
    assert not is_collinear(InMemorySplit(noise, y))
