"""The extract stage on texts and images: the same shards, keys, resume and tolerance as with speech.

What it does with speech is in tests/encoders/test_extraction.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from daamctl.artifacts.clips import SCHEMAS, ClipTable, write_clips
from daamctl.artifacts.embeddings import EmbeddingsMetadata, read_embeddings, read_head, shard_path
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.utterances import Modality
from daamctl.compute import devices
from daamctl.compute.cpu_formats import CpuFormats
from daamctl.config import Config
from daamctl.config.keys import embedding_settings
from daamctl.corpora.sources import register
from daamctl.encoders import encoder_cache
from daamctl.encoders.load import open_encoder
from daamctl.encoders.text import TextEncoder
from daamctl.errors import CorpusError, EncoderError
from daamctl.extraction.shards import ShardResult, make_shards
from daamctl.stages import extract

TEXTS = [f"TEXT NUMBER {i}, " + "WORD " * (i % 4) for i in range(7)]  # of capitals every byte is a token


def setting(encoder: str, **settings: Any) -> Config:
    quick = {"encoder": encoder, "device": "cpu", "precision": "float32", "storage": "float32", "shard_clips": 3}
    return Config.model_validate({"methods": ["none"], "extract": {**quick, **settings}})


def table(modality: Modality, config: Config, **columns: list[Any]) -> ClipTable:
    number = len(next(iter(columns.values())))
    names = [f"i{i}" for i in range(number)]
    usual = {"utterance_id": names, "clip_id": [f"{name}#000" for name in names], "speaker": names}
    usual |= {"label": [("a", "b")[i % 2] for i in range(number)], "group": ["train"] * 5 + ["test"] * (number - 5)}
    rows = pl.DataFrame({**usual, **columns}, schema_overrides=SCHEMAS[modality])
    return ClipTable("demo", ("a", "b"), rows, embedding_settings(config, modality), modality)


def text_layout(root: Path, config: Config, texts: list[str] = TEXTS, name: str = "p") -> Layout:
    layout = Layout(root, name, name, name)
    write_clips(layout.clips, table("text", config, text=texts))
    return layout


def image_layout(root: Path, config: Config) -> Layout:
    """Four images in a table of two row groups, three in files."""
    rng, folder = np.random.default_rng(0), root / "pictures"
    folder.mkdir(exist_ok=True)
    images = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(7)]
    encoded = []
    for image in images[:4]:
        stream = io.BytesIO()
        image.save(stream, "PNG")
        encoded.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"image": encoded}), folder / "t.parquet", row_group_size=2)
    for number, image in enumerate(images[4:]):
        image.save(folder / f"{number}.png")
    register(root, "demo", folder)
    layout = Layout(root, "p", "p", "p")
    paths = ["t.parquet"] * 4 + [f"{number}.png" for number in range(3)]
    write_clips(layout.clips, table("image", config, path=paths, index=[0, 1, 2, 3, None, None, None]))
    return layout


def alone(config: Config, modality: Modality) -> Any:
    return open_encoder(
        config.extract, modality=modality, max_duration_s=5.0, device="cpu", precision="float32"
    ).encoder


def test_texts_are_embedded_in_order(project: Path) -> None:
    config = setting("llama-micro", max_batch_tokens=60)
    layout = text_layout(project, config)  # no corpus folder is registered: texts stand in the table
    extract.run(layout, config)
    clips, vectors, layers = read_embeddings(layout.embeddings)
    assert vectors.shape == (7, 16, 64)
    assert layers == tuple(range(1, 17))
    assert clips["n_frames"].to_list() == [len(text) for text in TEXTS]
    assert clips["group"].to_list() == ["train"] * 5 + ["test"] * 2
    assert len(list(layout.embeddings.glob("embeddings-*.parquet"))) == 3
    encoder = alone(config, "text")
    for row, text in enumerate(TEXTS):
        one = encoder.pool(encoder.tokens([text], 999)[0])[0][0]
        np.testing.assert_allclose(vectors[row], one.numpy(), atol=2e-5, rtol=1e-4)
    head = read_head(layout.embeddings)
    assert head.modality == "text"
    assert head.encoder["special_tokens"] == {"first": 1, "last": 0, "pooled": False}


def test_images_of_tables_and_files_are_embedded_in_order(project: Path) -> None:
    config = setting("beit-micro", max_batch_images=2)
    layout = image_layout(project, config)
    extract.run(layout, config)
    clips, vectors, _ = read_embeddings(layout.embeddings)
    assert vectors.shape == (7, 24, 64)
    assert clips["n_frames"].to_list() == [16] * 7
    encoder, rng = alone(config, "image"), np.random.default_rng(0)
    for row in range(7):
        pixels = encoder.pixels(Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)))
        np.testing.assert_allclose(vectors[row], encoder.pool([pixels])[0][0].numpy(), atol=2e-5, rtol=1e-4)
    assert read_head(layout.embeddings).encoder["processor"]["image_mean"] == [0.5] * 3


def test_a_worker_knows_that_a_speech_encoder_takes_one_device_without_opening_it(project: Path) -> None:
    config, layout = setting("wavlm-micro"), Layout(project, "p", "p", "p")
    register(project, "demo", project)
    times: dict[str, list[Any]] = {"start_s": [0.0] * 7, "duration_s": [1.0] * 7, "pad_to_s": [None] * 7}
    write_clips(layout.clips, table("speech", config, path=["a.wav"] * 7, sampling_rate=[16000] * 7, **times))
    extract.Extractor(layout, config, "cpu")  # opens the encoder and keeps its facts
    again = extract.Extractor(layout, config, "cpu")
    assert again.num_devices == 1
    assert again.lazy._opened is None


def test_a_clip_that_is_too_long_is_refused_before_the_first_shard(project: Path) -> None:
    config, layout = setting("whisper-tiny", weights="random", window_s=2), Layout(project, "p", "p", "p")
    register(project, "demo", project)
    times: dict[str, list[Any]] = {"start_s": [0.0] * 7, "duration_s": [1.0] * 6 + [2.5], "pad_to_s": [None] * 7}
    write_clips(layout.clips, table("speech", config, path=["a.wav"] * 7, sampling_rate=[16000] * 7, **times))
    with pytest.raises(
        EncoderError, match=r"a clip of 2\.5 s is longer than the 2 s that encoder 'whisper-tiny'"
    ) as caught:
        extract.run(layout, config)
    assert caught.value.fix == "lower segment.max_duration_s, or raise extract.window_s"


@pytest.mark.parametrize(("window_s", "longest"), [(None, 1.5), (2, 1.5), (None, 12.0)])
def test_a_window_much_longer_than_every_clip_is_told(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    window_s: int | None,
    longest: float,
) -> None:
    config = setting("whisper-tiny", weights="random", window_s=window_s)
    layout = Layout(project, "p", "p", "p")
    register(project, "demo", project)
    times: dict[str, list[Any]] = {"start_s": [0.0] * 7, "duration_s": [1.0] * 6 + [longest], "pad_to_s": [None] * 7}
    write_clips(layout.clips, table("speech", config, path=["a.wav"] * 7, sampling_rate=[16000] * 7, **times))
    monkeypatch.setattr(extract, "make_shards", lambda *_, **__: iter(()))
    worker = extract.Extractor(layout, config, "cpu")
    shard = extract.Shard(worker.description, layout.embeddings, 0)
    with caplog.at_level("INFO", "daamctl.stages.extract"):
        list(worker.work([shard]))
    told = "reads 30 s of every clip, the longest has 1.5 s. --set extract.window_s=2 is several times as fast"
    assert (told in caplog.text) == (window_s is None and longest < 10)


def test_a_row_group_that_shards_share_is_read_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = setting("beit-micro", shard_clips=1)
    layout = image_layout(project, config)
    worker = extract.Extractor(layout, config, "cpu")
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def counting(self: Any, group: int, columns: list[str]) -> Any:
        read.append(group)
        return real(self, group, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    for portion in ([0], [1, 2], [3]):  # two row groups of two images each
        tasks = [extract.Shard(worker.description, project, number) for number in portion]
        assert sum(isinstance(one, ShardResult) for one in worker.work(tasks)) == len(portion)
    assert read == [0, 1]


def test_batches_keep_to_the_budget_of_tokens(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = setting("llama-micro", max_batch_tokens=70, shard_clips=9)
    shapes: list[tuple[int, ...]] = []
    real = TextEncoder.collate_cpu

    def watching(self: TextEncoder, items: Any) -> Any:
        inputs, mask = real(self, items)
        shapes.append(tuple(mask.shape))
        return inputs, mask

    monkeypatch.setattr(TextEncoder, "collate_cpu", watching)
    extract.run(text_layout(project, config), config)
    own = [shape for shape in shapes if shape[1] in {len(text) + 1 for text in TEXTS}]  # the others are the trial's
    assert sum(rows for rows, _ in own) == 7
    assert all(rows * width <= 70 for rows, width in own)
    assert max(rows for rows, _ in own) > 1


@pytest.mark.parametrize("modality", ["text", "image"])
def test_finished_sets_are_kept_and_interrupted_ones_resumed(
    project: Path, modality: Modality, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = setting("llama-micro" if modality == "text" else "beit-micro")
    layout = text_layout(project, config) if modality == "text" else image_layout(project, config)
    made: list[int] = []

    def dying(*arguments: Any, **options: Any) -> Iterator[ShardResult]:
        with closing(make_shards(*arguments, **options)) as shards:
            for shard in shards:
                if isinstance(shard, ShardResult):
                    made.append(shard.num_clips)
                yield shard
                if len(made) == 1 and isinstance(shard, ShardResult):
                    raise KeyboardInterrupt

    monkeypatch.setattr(extract, "make_shards", dying)
    with pytest.raises(KeyboardInterrupt):
        extract.run(layout, config)
    assert not layout.embeddings.exists()
    kept = len(list((layout.work / "extract").glob("*/embeddings-*.parquet")))  # the next may have been in writing
    assert kept in (1, 2)
    extract.run(layout, config)
    assert made == [3, *[3, 3, 1][kept:]]
    before = read_embeddings(layout.embeddings)[1]
    extract.run(layout, config)
    assert len(made) == 4 - kept
    extract.run(layout, config, force=True)
    np.testing.assert_array_equal(read_embeddings(layout.embeddings)[1], before)


@pytest.mark.parametrize(
    ("encoder", "changed", "stays"),
    [
        ("llama-micro", {"pool_special_tokens": True}, False),
        ("llama-micro", {"pooling": "last-token"}, False),
        ("llama-micro", {"max_tokens": 10}, False),
        ("llama-micro", {"seed": 1}, False),
        ("llama-micro", {"layer_00": True}, False),
        ("llama-micro", {"weights_dtype": "bfloat16"}, False),
        ("llama-micro", {"max_batch_tokens": 50}, True),
        ("llama-micro", {"pool_class_token": True}, True),
        ("llama-micro", {"normalize": "never"}, True),
        ("beit-micro", {"pool_class_token": True}, False),
        ("beit-micro", {"pool_class_token": "only"}, False),
        ("beit-micro", {"final_norm": False}, False),
        ("beit-micro", {"pool_special_tokens": True}, True),
        ("beit-micro", {"max_batch_images": 1}, True),
    ],
)
def test_the_key_covers_what_determines_the_values(
    project: Path, encoder: str, changed: dict[str, Any], stays: bool
) -> None:
    def key(**settings: Any) -> str:
        config = setting(encoder, **settings)
        layout = text_layout(project, config) if encoder.startswith("llama") else image_layout(project, config)
        extract.run(layout, config)
        return read_head(layout.embeddings).key

    assert (key() == key(**changed)) == stays


def _extracted(layout: Layout, config: Config, precision: str, monkeypatch: pytest.MonkeyPatch) -> EmbeddingsMetadata:
    """Extract on a machine where `auto` means this format."""
    monkeypatch.setattr(devices, "cpu_formats", lambda: CpuFormats(encoder=precision))
    extract.run(layout, config)
    return read_head(layout.embeddings)


def test_embeddings_that_auto_made_in_another_format_are_taken_as_they_are(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "daamctl")
    config = setting("llama-micro", precision="auto")
    layout = text_layout(project, config)
    first = _extracted(layout, config, "bfloat16", monkeypatch)
    shard = shard_path(layout.embeddings, 0)
    written = shard.stat().st_ino
    assert _extracted(layout, config, "float32", monkeypatch) == first
    assert first.encoder["precision"] == "bfloat16"
    assert "was embedded in bfloat16; 'auto' means float32 here" in caplog.text
    linked = text_layout(project, config, name="other")
    assert _extracted(linked, config, "float32", monkeypatch) == first
    assert shard.stat().st_ino == shard_path(linked.embeddings, 0).stat().st_ino == written


def test_a_format_that_the_settings_name_is_made(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auto, named = setting("llama-micro", precision="auto"), setting("llama-micro", precision="float32")
    layout = text_layout(project, auto)
    first = _extracted(layout, auto, "bfloat16", monkeypatch)
    exact = _extracted(layout, named, "bfloat16", monkeypatch)
    assert (exact.encoder["precision"], exact.key == first.key) == ("float32", False)


def test_another_tokenizer_gives_another_key(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = setting("llama-micro")
    layout = text_layout(project, config)
    extract.run(layout, config)
    before = read_head(layout.embeddings).key
    monkeypatch.setattr("daamctl.encoders.text.tokenizer_hash", lambda _: "other")
    monkeypatch.setattr(encoder_cache, "_code", lambda: "other")  # as if a file of the package had changed
    extract.run(layout, config)
    assert read_head(layout.embeddings).key != before


def test_truncated_texts_are_counted_and_named(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = setting("llama-micro", max_tokens=25)
    layout = text_layout(project, config)
    extract.run(layout, config)
    assert "3 of 7 texts are truncated: i2#000, i3#000, i6#000" in caplog.messages
    assert max(read_embeddings(layout.embeddings)[0]["n_frames"]) == 24


def test_unreadable_items_above_the_tolerance_stop_the_stage(project: Path) -> None:
    config = setting("llama-micro")
    layout = text_layout(project, config, [*TEXTS[:6], ""])
    with pytest.raises(CorpusError) as caught:
        extract.run(layout, config)
    assert str(caught.value) == (
        "1 of 7 texts cannot be read (tolerated: 0.0%): i6#000: text 'i6#000' gives no token: it is empty\n"
        "  repair the files, or accept it: daamctl extract p --set extract.max_unreadable_fraction=0.143; for run and "
        "DVC, write it into pipelines/p.yaml"
    )
    extract.run(layout, setting("llama-micro", max_unreadable_fraction=0.143))
    assert len(read_embeddings(layout.embeddings)[0]) == 6
    assert list(read_head(layout.embeddings).unreadable) == ["i6#000"]


def test_damaged_images_are_named(project: Path) -> None:
    config = setting("beit-micro")
    layout = image_layout(project, config)
    (project / "pictures/1.png").write_bytes(b"PNG?")
    with pytest.raises(
        CorpusError, match=r"^1 of 7 images cannot be read .*: i5#000: .*1.png is not an image that can"
    ):
        extract.run(layout, config)


def test_encoder_of_another_modality_is_refused(project: Path) -> None:
    config = setting("beit-micro")
    layout = text_layout(project, config)
    with pytest.raises(
        EncoderError, match=r"^encoder 'beit-micro' reads images, the corpus holds text\n  presets that"
    ):
        extract.run(layout, config)


def test_memory_that_runs_out_is_told_in_the_words_of_the_modality(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = setting("llama-micro")
    layout = text_layout(project, config)
    encoder = alone(config, "text")

    def scarce(batch: Any, storage: Any) -> Any:
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(encoder, "run_async", scarce)
    opened = open_encoder(config.extract, modality="text", max_duration_s=5.0, device="cpu", precision="float32")
    monkeypatch.setattr(encoder_cache, "open_encoder", lambda *_, **__: type(opened)(encoder, opened.facts))
    with pytest.raises(
        EncoderError, match=r"^one text of \d+ tokens does not fit .*\n.* or a lower extract.max_tokens$"
    ):
        extract.run(layout, config)
    assert "out of memory with 3 clips in a batch; trying halves (lower extract.max_batch_tokens)" in caplog.messages
