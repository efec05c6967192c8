"""Embedding clips: order, doubts, failures, and memory that runs out; then the stage around it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import soundfile
import torch
from torch import Tensor
from transformers import WavLMConfig, WavLMModel, WhisperConfig, WhisperModel

from daamctl.artifacts.clips import SCHEMAS, ClipTable, read_clips, write_clips
from daamctl.artifacts.embeddings import read_embeddings, read_head
from daamctl.artifacts.layout import Layout
from daamctl.config import Config, ExtractConfig
from daamctl.config.keys import embedding_settings
from daamctl.corpora.sources import register
from daamctl.encoders import encoder_cache
from daamctl.encoders.base import Batch, PooledBatch
from daamctl.encoders.waveform import WaveformEncoder
from daamctl.encoders.whisper import HOP_SAMPLES, WhisperEncoder
from daamctl.errors import AudioError, EncoderError
from daamctl.extraction.items import SpeechItems
from daamctl.extraction.shards import ShardResult, make_shards
from daamctl.extraction.stream import EmbeddedClips, embed_clips, planned
from daamctl.fit.features import load_features
from daamctl.stages import extract
from tests.fixtures.tiny_models import SPEECH, WHISPER

RATE = 8000


class MeanEncoder:
    """Three features per layer: mean, mean square and length of the waveform, times the layer number."""

    modality = "speech"
    layers = (1, 2)
    embed_dim = 3
    sampling_rate = RATE
    has_final_norm = False

    def __init__(
        self, *, equal: bool = False, gain: float = 1.0, at_most: int = 99, error: Exception | None = None
    ) -> None:
        self.equal_length_batches, self.gain, self.at_most = equal, gain, at_most
        self.error = error or torch.OutOfMemoryError("too much")
        self.staged: list[int] = []
        self.sizes: list[list[int]] = []
        self.settled, self.refused = False, 0

    def max_useful_batch(self, size: int) -> int:
        return 99

    def prepare_for_inference(self) -> None:
        self.settled = True

    def to_batch(self, waveforms: Sequence[Tensor]) -> Batch:
        self.staged.append(len(waveforms))
        inputs = {str(number): wave for number, wave in enumerate(waveforms)}
        return Batch(inputs, torch.zeros(len(waveforms), 1), torch.tensor([len(wave) // 100 for wave in waveforms]))

    def padded(self, size: int) -> int:
        return size

    def run_async(self, batch: Batch, storage: torch.dtype = torch.float32) -> Callable[[], PooledBatch]:
        waveforms = list(batch.inputs.values())
        assert self.settled
        if len(waveforms) > self.at_most:
            self.refused += 1
            raise self.error
        self.sizes.append([len(wave) for wave in waveforms])
        rows = [torch.stack([w.mean(), w.square().mean(), torch.tensor(float(len(w)))]) for w in waveforms]
        first = torch.stack(rows)
        second = 2 * self.gain * first
        return lambda: PooledBatch.of(torch.stack([first, second], 1), storage)


def corpus(folder: Path, waves: dict[str, np.ndarray], **columns: Any) -> pl.DataFrame:
    """WAV files and one clip of each, whole."""
    for name, wave in waves.items():
        soundfile.write(folder / f"{name}.wav", wave.astype(np.float32), RATE, subtype="FLOAT")
    number = len(waves)
    return pl.DataFrame(
        {
            "clip_id": [f"{name}#000" for name in waves],
            "utterance_id": list(waves),
            "path": [f"{name}.wav" for name in waves],
            "label": [("a", "b")[i % 2] for i in range(number)],
            "speaker": ["s"] * number,
            "group": [f"g{i * 3 // number}" for i in range(number)],
            "start_s": [0.0] * number,
            "duration_s": [len(wave) / RATE for wave in waves.values()],
            "pad_to_s": [None] * number,
            "sampling_rate": [RATE] * number,
            **columns,
        },
        schema=SCHEMAS["speech"],
    )


def embed(
    encoder: Any, clips: pl.DataFrame, root: Path, *, storage: str, max_batch_s: float = 9, **options: Any
) -> EmbeddedClips:
    items = SpeechItems(clips, root, RATE, max_batch_s)
    return embed_clips(encoder, items, clips["clip_id"].to_list(), storage=storage, **options)


def noise(*lengths: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"n{i}": 0.2 * rng.standard_normal(length).clip(-3, 3) for i, length in enumerate(lengths)}


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("storage", ["float16", "float32"])
def test_vectors_stand_in_the_order_of_the_clips(tmp_path: Path, equal: bool, storage: str) -> None:
    waves = noise(800, 4000, 800, 1600, 2400, 800)
    clips, encoder = corpus(tmp_path, waves), MeanEncoder(equal=equal)
    done = embed(encoder, clips, tmp_path, storage=storage, max_batch_s=0.4)
    expected = np.array([[w.mean(), (w**2).mean(), len(w)] for w in waves.values()])
    assert done.vectors.dtype == np.dtype(storage)
    np.testing.assert_allclose(done.vectors[:, 0], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(done.vectors[:, 1], 2 * expected, rtol=1e-3, atol=1e-4)
    assert done.n_frames.tolist() == [8, 40, 8, 16, 24, 8]
    assert all(len(sizes) * max(sizes) <= 3200 or len(sizes) == 1 for sizes in encoder.sizes)
    assert not equal or all(len(set(sizes)) == 1 for sizes in encoder.sizes)
    assert (done.unreadable, done.marks) == ({}, {})


def test_pieces_and_padding_are_exact(tmp_path: Path) -> None:
    waves = {"ramp": np.arange(2000) / 4000}
    clips = corpus(tmp_path, waves, start_s=[0.05], duration_s=[0.1], pad_to_s=[0.2])
    done = embed(MeanEncoder(), clips, tmp_path, storage="float32")
    piece = waves["ramp"][400:1200]
    np.testing.assert_allclose(done.vectors[0, 0], [piece.sum() / 1600, (piece**2).sum() / 1600, 1600], rtol=1e-5)


def test_unreadable_clips_are_reported_and_the_rest_embedded(tmp_path: Path) -> None:
    clips = corpus(tmp_path, noise(800, 800, 800))
    (tmp_path / "n1.wav").write_bytes(b"RIFF nothing")
    (tmp_path / "n2.wav").unlink()
    done = embed(MeanEncoder(), clips, tmp_path, storage="float16")
    assert set(done.unreadable) == {1, 2}
    assert done.unreadable[1].startswith(f"{tmp_path / 'n1.wav'} is not audio that can be read")
    assert done.unreadable[2].startswith(f"no recording {tmp_path / 'n2.wav'}")
    assert done.vectors[0, 0, 2] == 800
    assert not done.vectors[1:].any()
    assert done.n_frames.tolist() == [8, 0, 0]


def test_all_unreadable(tmp_path: Path) -> None:
    clips = corpus(tmp_path, noise(800))
    (tmp_path / "n0.wav").unlink()
    encoder = MeanEncoder()
    assert set(embed(encoder, clips, tmp_path, storage="float16").unreadable) == {0}
    assert encoder.sizes == []


def test_silent_and_clipped_clips_are_marked(tmp_path: Path) -> None:
    waves = {**noise(800), "quiet": np.zeros(400), "loud": np.sign(noise(900)["n0"])}
    done = embed(MeanEncoder(), corpus(tmp_path, waves), tmp_path, storage="float32")
    assert (done.marks, done.unreadable) == ({"silent": [1], "clipped": [2]}, {})


@pytest.mark.parametrize(("gain", "storage"), [(1000.0, "float16"), (float("nan"), "float32"), (3e38, "float32")])
def test_values_beyond_the_storage_stop_with_layer_and_clip(tmp_path: Path, gain: float, storage: str) -> None:
    clips = corpus(tmp_path, noise(800))
    with pytest.raises(EncoderError) as caught:
        embed(MeanEncoder(gain=gain), clips, tmp_path, storage=storage)
    assert str(caught.value) == (
        f"the encoder gives values that are not finite, or beyond {storage}, in layer 2 of clip 'n0#000'\n"
        "  use --set extract.precision=float32 --set extract.storage=float32"
    )


def test_the_same_values_pass_in_float32(tmp_path: Path) -> None:
    clips = corpus(tmp_path, noise(800))
    done = embed(MeanEncoder(gain=1000.0), clips, tmp_path, storage="float32")
    assert done.vectors[0, 1, 2] == 2 * 1000 * 800


def test_memory_that_runs_out_is_met_with_halves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clips = corpus(tmp_path, noise(800, 700, 600, 500, 400))
    whole = embed(MeanEncoder(), clips, tmp_path, storage="float32")
    encoder = MeanEncoder(at_most=2)
    halves = embed(encoder, clips, tmp_path, storage="float32")
    np.testing.assert_array_equal(halves.vectors, whole.vectors)
    assert halves.n_frames.tolist() == whole.n_frames.tolist()
    assert encoder.sizes == [[800, 700], [600, 500], [400]]
    assert "out of memory with 5 clips in a batch; trying halves (lower extract.max_batch_s)" in caplog.messages


def test_the_size_that_memory_can_hold_is_remembered(tmp_path: Path) -> None:
    clips, encoder = corpus(tmp_path, noise(*[800] * 16)), MeanEncoder(at_most=2)
    done = embed(encoder, clips, tmp_path, storage="float32", max_batch_s=0.4)  # four batches of 4
    assert encoder.refused == 1
    assert [len(sizes) for sizes in encoder.sizes] == [2] * 8
    assert done.vectors[:, 0, 2].tolist() == [800] * 16


def test_readers_keep_to_the_size_that_memory_can_hold(tmp_path: Path) -> None:
    clips, encoder = corpus(tmp_path, noise(*[800] * 64)), MeanEncoder(at_most=2)
    embed(encoder, clips, tmp_path, storage="float32", max_batch_s=0.4)  # sixteen batches of 4
    assert encoder.refused == 1
    assert encoder.staged.count(4) <= 5  # those that were read ahead; no later one was made in vain


def test_the_budget_of_a_batch_counts_the_encoders_own_padding(tmp_path: Path) -> None:
    options = ExtractConfig(pooling="all-frames")
    usual: dict[str, Any] = {"device": "cpu", "precision": "float32"}
    model = WavLMModel(WavLMConfig(**SPEECH)).eval()
    wavlm = WaveformEncoder("wavlm", model, SimpleNamespace(sampling_rate=RATE), **usual, options=options, pad_to_s=0.5)
    second = WhisperModel(WhisperConfig(**{**WHISPER, "max_source_positions": 50})).eval()
    reader = SimpleNamespace(sampling_rate=16000)
    whisper = WhisperEncoder("whisper", second, reader, **usual, options=ExtractConfig())
    items = SpeechItems(corpus(tmp_path, noise(*[800] * 12)), tmp_path, RATE, 4.5)  # a budget of 36000 samples
    assert wavlm.collate([items.read(0)])[0]["input_values"].shape == (1, wavlm.padded(800)) == (1, 4000)
    assert [len(batch) for batch in planned(wavlm, items)] == [9, 3]
    mels = whisper.collate([items.read(0)])[0]["input_features"]
    assert HOP_SAMPLES * mels.shape[2] == whisper.padded(800) == 16000
    assert [len(batch) for batch in planned(whisper, items)] == [2] * 6


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 9 bytes. Error code 12 (Cannot allocate memory)",
    ],
)
def test_memory_runs_out_in_several_words(tmp_path: Path, message: str) -> None:
    clips, encoder = corpus(tmp_path, noise(*[800] * 4)), MeanEncoder(at_most=2, error=RuntimeError(message))
    embed(encoder, clips, tmp_path, storage="float32")
    assert encoder.sizes == [[800] * 2] * 2


def test_other_errors_of_the_encoder_are_not_met_with_halves(tmp_path: Path) -> None:
    clips = corpus(tmp_path, noise(*[800] * 4))
    encoder = MeanEncoder(at_most=2, error=RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        embed(encoder, clips, tmp_path, storage="float32")
    assert encoder.refused == 1


def test_batches_that_find_no_room_in_main_memory_are_made_smaller(tmp_path: Path) -> None:
    class Pinned(MeanEncoder):
        def to_batch(self, waveforms: Sequence[Tensor]) -> Batch:
            if len(waveforms) > 2:
                raise RuntimeError("CUDA error: out of memory")
            return super().to_batch(waveforms)

    clips, encoder = corpus(tmp_path, noise(800, 700, 600, 500)), Pinned()
    done = embed(encoder, clips, tmp_path, storage="float32")
    assert encoder.sizes == [[800, 700], [600, 500]]
    assert done.vectors[:, 0, 2].tolist() == [800, 700, 600, 500]


@pytest.mark.parametrize("storage", ["float16", "float32"])
def test_values_are_checked_and_cast_as_numpy_does(storage: str) -> None:
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-10, 6, (4, 3, 5000), generator=generator)
    values = torch.randn(4, 3, 5000, generator=generator) * 10.0**exponents
    values[0] = values[0].clamp(-65504, 65504)
    values[1, 1, 7], values[1, 2, 8], values[2, 0, 9] = float("nan"), float("inf"), -float("inf")
    pooled = PooledBatch.of(values, getattr(torch, storage))
    limit = np.finfo(storage).max
    assert np.array_equal(pooled.is_representable.numpy(), (np.abs(values.numpy()) <= limit).all(axis=2))
    assert pooled.is_representable.any()
    assert not pooled.is_representable.all()
    with np.errstate(over="ignore"):
        expected = values.numpy().astype(storage)
    assert np.array_equal(pooled.values.numpy(), expected, equal_nan=True)


def test_one_clip_too_large_for_the_memory(tmp_path: Path) -> None:
    clips = corpus(tmp_path, noise(800))
    with pytest.raises(
        EncoderError, match=r"^one clip of 800 samples does not fit in the device's memory\n  use --device"
    ):
        embed(MeanEncoder(at_most=0), clips, tmp_path, storage="float32")


def setting(**sections: Any) -> Config:
    quick = {"device": "cpu", "precision": "float32", "shard_clips": 3, **sections.pop("extract", {})}
    return Config.model_validate({"extract": quick, **sections})


@pytest.fixture
def layout(project: Path) -> Layout:
    """A project with seven clips."""
    audio = project / "audio"
    audio.mkdir()
    table = ClipTable(
        "demo", ("a", "b"), corpus(audio, noise(*range(500, 1200, 100))), embedding_settings(setting(), "speech")
    )
    layout = Layout(project, "p", "p", "p")
    write_clips(layout.clips, table)
    register(project, "demo", audio)
    return layout


def test_stage_writes_whole_shards_and_keeps_them(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    extract.run(layout, setting())
    clips, vectors, layers = read_embeddings(layout.embeddings)
    assert vectors.shape == (7, 24, 64)
    assert layers == tuple(range(1, 25))
    assert clips["utterance_id"].to_list() == [f"n{i}" for i in range(7)]
    assert len(list(layout.embeddings.glob("embeddings-*.parquet"))) == 3

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("embedded again")

    monkeypatch.setattr(extract, "make_shards", never)
    extract.run(layout, setting())
    other = Layout(layout.root, "q", "p", "q")
    extract.run(other, setting())  # another pipeline with the same inputs shares the files
    one, two = (min(where.embeddings.glob("embeddings-*.parquet")) for where in (layout, other))
    assert one.samefile(two)
    with pytest.raises(AssertionError, match="embedded again"):
        extract.run(layout, setting(), force=True)
    with pytest.raises(AssertionError, match="embedded again"):
        extract.run(layout, setting(extract={"seed": 1}))


def test_leftovers_of_a_killed_command_are_no_finished_set(layout: Layout) -> None:
    extract.run(layout, setting())
    folder = layout.embeddings
    old = folder.with_name(".p-old-0123abcd")
    others = [folder.with_name(".pq-old-0123abcd"), folder.with_name(".p-old-mine")]
    folder.rename(old)
    for other in others:
        shutil.copytree(old, other)
    target = Layout(layout.root, "q", "p", "q")
    extract.run(target, setting())  # made, not linked
    assert not min(target.embeddings.glob("embeddings-*.parquet")).samefile(min(old.glob("embeddings-*.parquet")))
    assert old.exists()
    extract.run(layout, setting())
    assert not old.exists()
    assert all(other.exists() for other in others)
    assert len(read_embeddings(layout.embeddings)[0]) == 7


def test_links_of_a_killed_command_are_no_part_of_the_set(layout: Layout) -> None:
    extract.run(layout, setting())
    names = {path.name for path in layout.embeddings.iterdir()}
    key = f"{read_head(layout.embeddings).vectors_key}-{setting().extract.shard_clips}"
    work = layout.work / "extract" / key
    work.mkdir()
    layout.embeddings.rename(work / "finished")
    extract.run(layout, setting())
    assert {path.name for path in layout.embeddings.iterdir()} == names


@pytest.mark.parametrize("damage", ["gone", "cut", "shorter"])
def test_a_set_without_all_its_clips_is_made_again(layout: Layout, damage: str) -> None:
    extract.run(layout, setting())
    before = read_embeddings(layout.embeddings)[1]
    first, *_, last = sorted(layout.embeddings.glob("embeddings-*.parquet"))
    if damage == "gone":
        last.unlink()
    elif damage == "cut":
        last.write_bytes(last.read_bytes()[:100])
    else:
        shutil.copyfile(last, first)
    extract.run(Layout(layout.root, "q", "p", "q"), setting())  # nor is it linked
    extract.run(layout, setting())
    np.testing.assert_array_equal(read_embeddings(layout.embeddings)[1], before)


def test_a_finished_stage_opens_no_encoder(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    extract.run(layout, setting())
    key = read_head(layout.embeddings).key
    monkeypatch.setattr(encoder_cache, "open_encoder", None)
    extract.run(layout, setting())
    extract.run(Layout(layout.root, "q", "p", "q"), setting())
    assert read_head(layout.data / "extract/q").key == key
    shutil.rmtree(layout.work / "encoders")
    with pytest.raises(TypeError, match="not callable"):
        extract.run(layout, setting())


def test_interrupted_stage_redoes_one_shard_at_most(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    extract.run(Layout(layout.root, "whole", "p", "whole"), setting(extract={"storage": "float32"}))
    expected = read_embeddings(layout.data / "extract/whole")[1]
    made: list[int] = []

    def dying(*arguments: Any, **options: Any) -> Iterator[ShardResult]:
        for shard in make_shards(*arguments, **options):
            if isinstance(shard, ShardResult):
                made.append(shard.num_clips)
            yield shard
            if len(made) == 1 and isinstance(shard, ShardResult):
                raise KeyboardInterrupt

    monkeypatch.setattr(extract, "make_shards", dying)
    monkeypatch.setattr(extract, "_find_finished", lambda *_: None)  # else the set above is linked
    with pytest.raises(KeyboardInterrupt):
        extract.run(layout, setting(extract={"storage": "float32"}))
    assert not layout.embeddings.exists()
    extract.run(layout, setting(extract={"storage": "float32"}))
    assert made in ([3, 3, 1], [3, 1])  # the second may have been written before the first was told
    np.testing.assert_allclose(read_embeddings(layout.embeddings)[1], expected, atol=1e-6)


def test_unreadable_clips_above_the_tolerance_stop_the_stage(layout: Layout) -> None:
    (layout.root / "audio/n4.wav").write_bytes(b"")
    with pytest.raises(AudioError, match=r"^1 of 7 clips cannot be read \(tolerated: 0.0%\): n4#000: .*is empty"):
        extract.run(layout, setting())
    extract.run(layout, setting(extract={"max_unreadable_fraction": 0.2}))
    clips, vectors, _ = read_embeddings(layout.embeddings)
    assert len(clips) == len(vectors) == 6
    assert list(read_head(layout.embeddings).unreadable) == ["n4#000"]


def test_settings_that_leave_the_clips_as_they_were_do_not_lead_in_circles(layout: Layout) -> None:
    extract.run(layout, setting())
    changed = setting(download={"num_groups": 3})
    rows = corpus(layout.root / "audio", noise(*range(500, 1200, 100)))
    write_clips(layout.clips, ClipTable("demo", ("a", "b"), rows, embedding_settings(changed, "speech")))
    extract.run(layout, changed)
    assert load_features(layout, changed).head.settings == embedding_settings(changed, "speech")


def relabelled(layout: Layout, **columns: list[str]) -> ClipTable:
    table = read_clips(layout.clips)
    found = replace(table, rows=table.rows.with_columns(**{name: pl.Series(part) for name, part in columns.items()}))
    write_clips(layout.clips, found)
    return found


def test_other_labels_and_folds_share_the_vectors(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    extract.run(layout, setting())
    before, (_, vectors, _) = read_head(layout.embeddings), read_embeddings(layout.embeddings)
    monkeypatch.setattr(extract, "make_shards", None)  # nothing is embedded again
    relabelled(layout, label=["b"] * 3 + ["a"] * 4, group=["h"] * 2 + ["g"] * 5)
    other = Layout(layout.root, "q", "p", "q")
    extract.run(other, setting())
    one, two = (min(where.embeddings.glob("embeddings-*.parquet")) for where in (layout, other))
    assert one.samefile(two)
    for where in (other, layout):  # linked from another pipeline, and kept by its own
        extract.run(where, setting())
        found, values, _ = read_embeddings(where.embeddings)
        assert found["label"].to_list() == ["b"] * 3 + ["a"] * 4
        assert found["group"].to_list() == ["h"] * 2 + ["g"] * 5
        np.testing.assert_array_equal(values, vectors)
        after = read_head(where.embeddings)
        assert after.key != before.key  # folds depend on the labels
        assert after.vectors_key == before.vectors_key


def test_lost_labels_are_written_again(layout: Layout) -> None:
    extract.run(layout, setting())
    expected = read_embeddings(layout.embeddings)[0]
    labels = layout.embeddings / "labels.parquet"
    for damage in (b"", None):
        labels.unlink() if damage is None else labels.write_bytes(damage)
        extract.run(layout, setting())
        assert read_embeddings(layout.embeddings)[0].equals(expected)


def test_padding_length_is_part_of_the_key(layout: Layout) -> None:
    def run(seconds: float) -> np.ndarray:
        config = setting(extract={"pooling": "all-frames"}, segment={"max_duration_s": seconds, "tail": "keep"})
        rows = corpus(layout.root / "audio", noise(*range(500, 1200, 100)))
        write_clips(layout.clips, ClipTable("demo", ("a", "b"), rows, embedding_settings(config, "speech")))
        extract.run(layout, config)
        return read_embeddings(layout.embeddings)[0]["n_frames"].to_numpy()

    assert run(0.2).tolist() != run(0.4).tolist()


def test_readers_compute_alone_and_leave_the_caller_its_threads(tmp_path: Path) -> None:
    seen: list[int] = []

    class Counting(MeanEncoder):
        def to_batch(self, items: Sequence[Tensor]) -> Batch:
            seen.append(torch.get_num_threads())
            return super().to_batch(items)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        embed(Counting(), corpus(tmp_path, noise(800, 900, 1000)), tmp_path, storage="float16")
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
