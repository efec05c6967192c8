"""Embeddings on disk: exact round trip, only the layers asked for, and damage that is named."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daamctl.artifacts import embeddings
from daamctl.artifacts.embeddings import (
    EmbeddingsMetadata,
    check_settings,
    layer_column,
    open_embeddings,
    read_embeddings,
    read_head,
    shard_is_whole,
    shard_path,
    write_head,
    write_shard,
)
from daamctl.config import Config
from daamctl.config.keys import embedding_settings
from daamctl.errors import ArtifactError
from daamctl.store.files import content_key, read_json
from daamctl.store.records import LARGE, write_record
from tests.fixtures.embeddings import config, rehash, write_embeddings

LAYERS = (0, 1, 2, 7, 24)
DIM = 6


def write(folder: Path, dtype: str = "float16", sizes: tuple[int, ...] = (3, 1, 2)) -> tuple[pl.DataFrame, np.ndarray]:
    """Shards of the sizes given, with random values; returns all clips and vectors."""
    number = sum(sizes)
    vectors = np.random.default_rng(0).standard_normal((number, len(LAYERS), DIM)).astype(dtype)
    clips = clips_of(number)
    start = 0
    for index, size in enumerate(sizes):
        rows = slice(start, start + size)
        write_shard(shard_path(folder, index), clips[rows], np.arange(start, start + size), vectors[rows], LAYERS, {})
        start += size
    write_head(folder, head(num_clips=number), clips)
    return clips, vectors


def clips_of(number: int) -> pl.DataFrame:
    names = {name: [f"{name}{i}" for i in range(number)] for name in embeddings.CLIP_COLUMNS}
    return pl.DataFrame({**names, "duration_s": pl.Series([0.5 * (1 + i) for i in range(number)], dtype=pl.Float64)})


def head(**changes: Any) -> EmbeddingsMetadata:
    facts: dict[str, Any] = {
        "key": "k",
        "corpus": "demo",
        "classes": ("a", "b"),
        "layers": LAYERS,
        "embed_dim": DIM,
        "encoder": {"id": "x", "revision": None},
        "settings": {"extract": {"seed": 0}},
        "num_clips": 6,
        "unreadable": {"c": "broken"},
    }
    return EmbeddingsMetadata(**{**facts, **changes})


def test_settings_of_a_feature_extractor_are_in_the_key_where_vectors_depend_on_them() -> None:
    names = ("weights_sha256", "normalize", "precision", "final_norm", "pooling", "sampling_rate")
    encoder: dict[str, Any] = dict.fromkeys(names)
    plain, *of_features = (
        embeddings._key(head(encoder={**encoder, **more}), clips="c")
        for more in ({}, {"features": "a"}, {"features": "b"}, {"equal_lengths": True})
    )
    assert plain == content_key({"format": 1, "clips": "c", "encoder": encoder, "settings": {"seed": 0}})
    assert len({plain, *of_features}) == 4


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("sizes", [(6,), (3, 1, 2), (2, 0, 4)])
def test_round_trip_is_exact(tmp_path: Path, dtype: str, sizes: tuple[int, ...]) -> None:
    clips, vectors = write(tmp_path, dtype, sizes)
    found, values, layers = read_embeddings(tmp_path, LAYERS)
    assert layers == LAYERS
    assert values.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(values, vectors)
    assert found.drop("n_frames").equals(clips)
    assert found["n_frames"].to_list() == list(range(6))


def test_all_layers_are_all_but_the_embedding_output(tmp_path: Path) -> None:
    _, vectors = write(tmp_path)
    _, values, layers = read_embeddings(tmp_path)
    assert layers == LAYERS[1:]
    np.testing.assert_array_equal(values, vectors[:, 1:])


def test_only_the_layers_asked_for_are_read_in_the_order_asked(tmp_path: Path, monkeypatch: Any) -> None:
    _, vectors = write(tmp_path)
    columns: list[list[str]] = []
    real = pq.ParquetFile.read

    def recording(file: pq.ParquetFile, names: list[str]) -> pa.Table:
        columns.append(names)
        return real(file, names)

    monkeypatch.setattr(pq.ParquetFile, "read", recording)
    _, values, layers = read_embeddings(tmp_path, (7, 1))
    assert layers == (7, 1)
    np.testing.assert_array_equal(values, vectors[:, [3, 1]])
    assert columns[-6:] == [["clip_id", "n_frames"]] * 3 + [["layer_07", "layer_01"]] * 3


def test_layer_that_is_not_stored(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ArtifactError) as caught:
        read_embeddings(tmp_path, (1, 3, 9))
    assert str(caught.value) == f"layers [3, 9] are not stored in {tmp_path}; stored: 0, 1, 2, 7, 24"
    with pytest.raises(ArtifactError, match="layers none are not stored"):
        read_embeddings(tmp_path, ())


def test_missing_set_and_damaged_head(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=f"^no embeddings in {tmp_path}$"):
        read_embeddings(tmp_path)
    write(tmp_path)
    for text, reason in (
        ("{", "is not valid JSON"),
        ('{"key": "k"}', "has no seal"),
        ("[]", "has no seal"),
    ):
        (tmp_path / "embeddings.json").write_text(text)
        with pytest.raises(ArtifactError, match=rf"embeddings\.json {reason}"):
            read_embeddings(tmp_path)


def test_shard_that_is_not_the_recorded_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    first, second = (shard_path(tmp_path, index) for index in (0, 1))
    whole = second.read_bytes()
    for content in (b"", whole[:-20], bytes([*whole[:30], whole[30] ^ 1, *whole[31:]]), first.read_bytes()):
        second.write_bytes(content)
        with pytest.raises(ArtifactError, match=rf"^{second} is damaged or from elsewhere: .*$"):
            open_embeddings(tmp_path)
    second.write_bytes(whole)
    expected = open_embeddings(tmp_path)[0]
    shard_path(tmp_path, 3).write_bytes(whole)  # no part of the set, so it is not read
    assert open_embeddings(tmp_path)[0].equals(expected)
    second.unlink()
    with pytest.raises(ArtifactError, match=rf"^no file {second}$"):
        open_embeddings(tmp_path)


def test_bits_that_rot_in_a_large_shard_are_seen_when_they_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "extract" / "toy"
    clips, _ = write(folder, sizes=(30_000,))
    path = shard_path(folder, 0)
    assert path.stat().st_size > LARGE
    os.utime(path, ns=(10**18, 10**18))
    expected_clips, expected, _ = read_embeddings(folder)  # the hash of the shard is remembered now
    assert len(expected) == len(clips)
    draw, whole, refused = random.Random(0), path.read_bytes(), 0
    places = [draw.randrange(len(whole)) for _ in range(30)]  # most in pages
    places += [len(whole) - 1 - draw.randrange(3_000) for _ in range(30)]  # in the footer
    for place in places:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << draw.randrange(8)
        path.write_bytes(flipped)
        os.utime(path, ns=(10**18, 10**18))
        try:
            found_clips, found, _ = read_embeddings(folder)
        except ArtifactError:
            refused += 1
        else:
            assert np.array_equal(found, expected)
            assert found_clips.equals(expected_clips)
    assert refused > 30
    assert list((tmp_path / "data" / ".work" / "hashes").iterdir())


@pytest.mark.parametrize(
    ("before", "after"), [('"a"', '"b"'), ('"num_clips": 6', '"num_clips": 5'), ('"seed": 0', '"seed": 1')]
)
def test_metadata_that_were_changed_are_refused(tmp_path: Path, before: str, after: str) -> None:
    write(tmp_path)
    path = tmp_path / embeddings.METADATA_FILE
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(ArtifactError, match=rf"^{path} was changed after it was written: .*$"):
        read_head(tmp_path)


def test_flipped_bits_are_noticed_without_hashes(tmp_path: Path) -> None:
    """Page checksums protect a shard of an unfinished extraction, whose hash is not recorded yet."""
    write(tmp_path, sizes=(6,))
    path, rng = shard_path(tmp_path, 0), np.random.default_rng(0)
    whole, noticed = path.read_bytes(), 0
    _, before = open_embeddings(tmp_path, LAYERS)
    values = before.load()
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        rehash(tmp_path)
        try:
            np.testing.assert_array_equal(open_embeddings(tmp_path, LAYERS)[1].load(), values)
        except ArtifactError:
            noticed += 1
    assert noticed > 50  # the others hit metadata that nobody reads


def test_shards_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name)
    assert read_head(tmp_path / "one").files == read_head(tmp_path / "two").files


def test_missing_shard_is_noticed_without_hashes(tmp_path: Path) -> None:
    write(tmp_path)
    shard_path(tmp_path, 1).unlink()
    rehash(tmp_path)
    with pytest.raises(ArtifactError, match=r"labels\.parquet is not of the clips of the shards$"):
        read_embeddings(tmp_path)
    for index in (0, 2):
        shard_path(tmp_path, index).unlink()
    rehash(tmp_path)
    with pytest.raises(ArtifactError, match=f"^embeddings in {tmp_path} cannot be read: "):
        read_embeddings(tmp_path)


@pytest.mark.parametrize("keep", [0, 40, -20])
def test_damaged_shard_is_noticed_without_hashes(tmp_path: Path, keep: int) -> None:
    write(tmp_path)
    path = shard_path(tmp_path, 1)
    path.write_bytes(path.read_bytes()[:keep])
    rehash(tmp_path)
    with pytest.raises(ArtifactError, match=rf"^embeddings in {tmp_path} cannot be read: .*(?s:.*)$"):
        read_embeddings(tmp_path)
    assert not shard_is_whole(path, 1)


def test_shard_without_a_layer_is_noticed(tmp_path: Path) -> None:
    clips, vectors = write(tmp_path)
    write_shard(shard_path(tmp_path, 1), clips[3:4], np.ones(1), vectors[3:4, 1:], LAYERS[1:], {})
    rehash(tmp_path)
    read_embeddings(tmp_path, (1,))
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_embeddings(tmp_path, (0,))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("sizes", [(6,), (3, 1, 2), (2, 0, 4), (0, 5, 1)])
def test_vectors_on_disk_are_indexed_as_an_array(tmp_path: Path, dtype: str, sizes: tuple[int, ...]) -> None:
    clips, vectors = write(tmp_path, dtype, sizes)
    found, stored = open_embeddings(tmp_path, (7, 0))
    expected = vectors[:, [3, 0]]
    assert found.drop("n_frames").equals(clips)
    assert (stored.shape, len(stored), stored.dtype) == (expected.shape, 6, np.dtype(dtype))
    assert stored.nbytes == expected.nbytes
    for rows in ([0, 1, 2, 3, 4, 5], [5, 0, 3], [2], [], [1, 1]):
        np.testing.assert_array_equal(stored[np.array(rows, np.int64)], expected[rows])
        np.testing.assert_array_equal(stored[np.array(rows, np.int64), 1], expected[rows, 1])
    np.testing.assert_array_equal(list(stored), expected)
    np.testing.assert_array_equal(stored.load(), expected)
    np.testing.assert_array_equal(stored.subset((24,))[np.array([4])], vectors[[4]][:, [4]])


def test_blocks_are_shards_in_order_or_drawn(tmp_path: Path) -> None:
    _, vectors = write(tmp_path, sizes=(3, 1, 2))
    _, stored = open_embeddings(tmp_path, LAYERS)
    rows = np.array([5, 0, 3, 2])
    blocks = list(stored.blocks(rows))
    assert [places.tolist() for places, _ in blocks] == [[1, 3], [2], [0]]
    for places, block in blocks:
        np.testing.assert_array_equal(block, vectors[rows[places]])
    orders = {tuple(places[0] for places, _ in stored.blocks(rows, np.random.default_rng(seed))) for seed in range(40)}
    assert len(orders) == 6


def test_shard_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    clips, vectors = write(tmp_path)
    _, stored = open_embeddings(tmp_path, (1,))
    write_shard(shard_path(tmp_path, 1), clips[:2], np.ones(2), vectors[:2], LAYERS, {})
    with pytest.raises(ArtifactError, match=r"embeddings-00001.parquet: 2 clips instead of 1$"):
        stored.load()
    write_shard(shard_path(tmp_path, 1), clips[:1], np.ones(1), vectors[:1].astype("float32"), LAYERS, {})
    with pytest.raises(ArtifactError, match=r"embeddings-00001.parquet: layer_01 is missing or no fixed_size_list"):
        stored[np.array([3])]
    assert stored[np.array([0, 5])].shape == (2, 1, DIM)  # other shards are not looked at


def test_shard_is_whole(tmp_path: Path) -> None:
    clips = write_embeddings(tmp_path, config())
    assert shard_is_whole(shard_path(tmp_path, 0), 60)
    assert not shard_is_whole(shard_path(tmp_path, 0), 59)
    assert not shard_is_whole(shard_path(tmp_path, 9), 0)
    left_out = {"unreadable": 1}  # made again, as the audio may be repaired by now
    write_shard(shard_path(tmp_path, 3), clips[:2], np.ones(2), np.zeros((2, 1, 4), np.float16), (1,), left_out)
    assert not shard_is_whole(shard_path(tmp_path, 3), 2)


def test_head_round_trip(tmp_path: Path) -> None:
    write_head(tmp_path, head(), clips_of(6))
    found = read_head(tmp_path)
    assert found == head(files=found.files)
    assert list(found.files) == ["labels.parquet"]


def test_labels_of_other_embeddings_or_clips_are_refused(tmp_path: Path) -> None:
    clips, _ = write(tmp_path)
    write_head(tmp_path, head(), clips.reverse())
    labels = (tmp_path / "labels.parquet").read_bytes()
    write_head(tmp_path, head(), clips)
    (tmp_path / "labels.parquet").write_bytes(labels)
    with pytest.raises(ArtifactError, match=r"labels\.parquet is damaged or from elsewhere.*"):
        open_embeddings(tmp_path)
    rehash(tmp_path)
    with pytest.raises(ArtifactError, match=r"labels\.parquet is not of the clips of the shards"):
        open_embeddings(tmp_path)
    (tmp_path / "labels.parquet").unlink()
    with pytest.raises(ArtifactError, match=r"no file .*labels\.parquet"):
        open_embeddings(tmp_path)


def test_labels_of_recordings_have_durations(tmp_path: Path) -> None:
    clips, _ = write(tmp_path)
    write_head(tmp_path, head(modality="text"), clips)
    assert open_embeddings(tmp_path)[0].columns == [*embeddings.CLIP_COLUMNS, "n_frames"]
    write_head(tmp_path, head(), clips)
    assert open_embeddings(tmp_path)[0].columns == [*embeddings.CLIP_COLUMNS, "duration_s", "n_frames"]


def test_embeddings_without_hashes_are_refused(tmp_path: Path) -> None:
    """Their shards could be anyone's."""
    write(tmp_path)
    path = tmp_path / embeddings.METADATA_FILE
    write_record(path, {name: value for name, value in read_json(path).items() if name not in ("files", "sha256")})
    with pytest.raises(ArtifactError, match=r"its record names no shards$"):
        open_embeddings(tmp_path)


def test_fixture_reads_back(tmp_path: Path) -> None:
    clips = write_embeddings(tmp_path, config())
    found, values, layers = read_embeddings(tmp_path)
    assert found.drop("n_frames").equals(clips)
    assert values.shape == (120, 24, 16)
    assert layers == tuple(range(1, 25))


def test_layer_columns_sort_by_number() -> None:
    assert [layer_column(layer) for layer in (0, 9, 10, 32)] == ["layer_00", "layer_09", "layer_10", "layer_32"]


def test_settings_that_cannot_change_a_value_are_free() -> None:
    made = Config.model_validate({"extract": {"device": "cpu", "max_batch_s": 10, "shard_clips": 7}})
    assert embedding_settings(made) == embedding_settings(Config())
    assert embedding_settings(Config.model_validate({"extract": {"storage": "float32"}})) != embedding_settings(
        Config()
    )


@pytest.mark.parametrize("name", ["window_s", "pad_frames_to"])
def test_check_settings_knows_what_is_recorded_only_where_it_is_set(name: str) -> None:
    usual, other = Config(), Config.model_validate({"extract": {name: 8}})
    for one in (usual, other):
        check_settings(embedding_settings(one), one, "speech", what="embeddings", path=Path("x"))
    for made, asked, values in ((usual, other, "None, asked for 8"), (other, usual, "8, asked for None")):
        with pytest.raises(ArtifactError, match=f"extract.{name}: made with {values}$"):
            check_settings(embedding_settings(made), asked, "speech", what="embeddings", path=Path("x"))


def test_check_settings_names_all_that_differ() -> None:
    made = Config.model_validate({"extract": {"pooling": "all-frames"}, "segment": {"tail": "drop"}})
    facts = embedding_settings(made)
    check_settings(facts, made, "speech", what="embeddings", path=Path("x"))
    with pytest.raises(ArtifactError) as caught:
        check_settings(facts, Config(), "speech", what="embeddings", path=Path("x"))
    assert str(caught.value) == (
        "the embeddings were made with other settings: segment.tail: made with 'drop', asked for 'merge'; "
        "extract.pooling: made with 'all-frames', asked for 'valid-frames'"
    )
