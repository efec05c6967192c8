"""From rows of a clip table to what encoders read: texts, images in files and in tables, and what is unreadable."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from PIL import Image

from daamctl.artifacts.clips import SCHEMAS
from daamctl.compute.engine import Units
from daamctl.config import Config, ExtractConfig
from daamctl.corpora.images import header_problems
from daamctl.encoders.load import open_encoder
from daamctl.errors import AudioError, CorpusError
from daamctl.extraction import items as module
from daamctl.extraction.items import ImageItems, ImageTables, SpeechItems, TextItems, decode, open_items
from daamctl.extraction.parts import ShardParts
from daamctl.extraction.stream import embed_clips, embed_sets


@pytest.fixture(scope="module")
def text_encoder() -> Any:
    config = ExtractConfig(encoder="llama-micro")
    return open_encoder(config, modality="text", max_duration_s=5.0, device="cpu", precision="float32").encoder


@pytest.fixture(scope="module")
def image_encoder() -> Any:
    config = ExtractConfig(encoder="beit-micro")
    return open_encoder(config, modality="image", max_duration_s=5.0, device="cpu", precision="float32").encoder


def rows_of(modality: str, **columns: list[Any]) -> pl.DataFrame:
    number = len(next(iter(columns.values())))
    names = [f"i{i}" for i in range(number)]
    usual = {"utterance_id": names, "clip_id": [f"{name}#000" for name in names], "speaker": names}
    usual |= {"label": ["a"] * number, "group": ["train"] * number}
    schema = SCHEMAS[modality]
    return pl.DataFrame({**usual, **columns}, schema_overrides=schema).select(list(schema))


@pytest.fixture(scope="module")
def token_encoder() -> Any:
    config = ExtractConfig(encoder="llama-micro")
    return open_encoder(config, modality="tokens", max_duration_s=5.0, device="cpu", precision="float32").encoder


def words_of(*sentences: str) -> pl.DataFrame:
    words = [(number, at, word) for number, text in enumerate(sentences) for at, word in enumerate(text.split())]
    number, at, text = (list(column) for column in zip(*words, strict=True))
    rows = rows_of("tokens", sentence=[f"s{one}" for one in number], position=at, text=text)
    return rows.with_columns(clip_id=pl.format("{}-{}", "sentence", "position"))


def test_words_come_from_their_whole_sentence(token_encoder: Any) -> None:
    """A set of words that ends within a sentence, or begins there, gives the vectors of the whole set."""
    rows = words_of("Ada met Bo in Rome", "yes", "we saw a comet")
    whole = embed_clips(
        token_encoder, open_items(rows, "tokens", Path(), token_encoder, Config()), range(10), storage="float32"
    )
    assert not whole.unreadable
    assert (whole.n_frames == 1).all()
    parts = []
    for part in (rows[:3], rows[3:7], rows[7:]):
        sentences = rows.filter(pl.col("sentence").is_in(part["sentence"].to_list()))
        items = open_items(part, "tokens", Path(), token_encoder, Config(), sentences=sentences)
        parts.append(embed_clips(token_encoder, items, range(len(part)), storage="float32").vectors)
    np.testing.assert_allclose(np.concatenate(parts), whole.vectors, atol=1e-5)
    without = open_items(rows[3:5], "tokens", Path(), token_encoder, Config())  # the encoder reads from left to right
    assert not np.allclose(embed_clips(token_encoder, without, range(2), storage="float32").vectors, whole.vectors[3:5])


def test_an_interrupted_set_of_words_goes_on_with_what_is_finished(
    token_encoder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daamctl.extraction.parts.PART_EVERY_S", 0.0)
    monkeypatch.setattr("daamctl.extraction.parts.SAVING_FRACTION", 1.0)
    rows = words_of("Ada met Bo in Rome", "yes", "we saw a comet", "no", "they left")
    config = Config(extract=ExtractConfig(max_batch_tokens=8))  # about one sentence a batch
    done: list[int] = []

    def embedded(parts: ShardParts | None, interrupted: bool = False) -> Any:
        items = open_items(rows, "tokens", Path(), token_encoder, config)
        opener = lambda: (items, rows["clip_id"].to_list(), parts)  # noqa: E731
        for event in embed_sets(token_encoder, [opener], storage="float32"):
            if not isinstance(event, Units):
                return event
            done.append(event.number)
            if interrupted and sum(done) >= 6:
                raise KeyboardInterrupt
        return None

    whole = embedded(None)
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        embedded(ShardParts(tmp_path / "work" / "embeddings-00000.parquet", "key"), interrupted=True)
    done.clear()
    again = embedded(ShardParts(tmp_path / "work" / "embeddings-00000.parquet", "key"))
    assert again.kept > 0
    assert sum(done) == len(rows)
    assert np.array_equal(again.vectors, whole.vectors)
    assert np.array_equal(again.n_frames, whole.n_frames)


def test_words_without_a_token_are_named(token_encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_encoder, "_tokenized", lambda words: ([5, 6], [0, 2]))
    items = open_items(words_of("a b c"), "tokens", Path(), token_encoder, Config())
    found = embed_clips(token_encoder, items, range(3), storage="float32")
    assert found.unreadable == {1: "gives no token"}
    assert found.n_frames.tolist() == [1, 0, 1]


def picture(seed: int, *, size: tuple[int, int] = (9, 7)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def write_table(path: Path, images: list[bytes | None], *, column: str = "image", group: int = 2) -> None:
    """In the layout of `datasets`, some rows per row group."""
    values = [None if one is None else {"bytes": one, "path": None} for one in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"fine_label": list(range(len(images))), column: pa.array(values, kind)})
    pq.write_table(table, path, row_group_size=group)


def test_texts(text_encoder: Any) -> None:
    rows = rows_of("text", text=["ABC", "abcdefgh", ""])
    found = open_items(rows, "text", Path("/nowhere"), text_encoder, Config())
    assert found.sizes.tolist() == [4, 5, 1]  # begin of sequence included; small letters in pairs
    assert found.budget == 16384
    assert found.read(0).tolist() == text_encoder.tokens(["ABC"], 99)[0][0].tolist()
    assert found.marks(found.read(1)) == ()
    with pytest.raises(CorpusError, match=r"^text 'i2#000' gives no token: it is empty$"):
        found.read(2)


@pytest.mark.parametrize(("given", "limit"), [(5, 5), (10**6, 4096), (None, 4096)])
def test_long_texts_are_cut_and_marked(text_encoder: Any, given: int | None, limit: int) -> None:
    rows = rows_of("text", text=["X" * 5000, "X" * (limit - 1), "X"])
    found = open_items(rows, "text", Path(), text_encoder, Config(), max_tokens=given)
    assert found.sizes.tolist() == [limit, limit, 2]
    assert [found.marks(found.read(row)) for row in range(3)] == [("truncated",), (), ()]
    assert torch.equal(found.read(0), found.read(1))


def test_images_in_files(image_encoder: Any, tmp_path: Path) -> None:
    picture(0).save(tmp_path / "a.png")
    picture(1).convert("L").save(tmp_path / "grey.jpg")
    Image.new("RGBA", (5, 5), (200, 100, 50, 255)).save(tmp_path / "one.png")
    rows = rows_of("image", path=["a.png", "grey.jpg", "one.png"], index=[None] * 3)
    found = open_items(rows, "image", tmp_path, image_encoder, Config())
    assert found.sizes.tolist() == [1, 1, 1]
    assert found.budget == 64
    pixels = [found.read(row) for row in range(3)]
    assert torch.equal(pixels[0], image_encoder.pixels(picture(0)))
    assert all(one.shape == (3, 32, 32) for one in pixels)
    assert torch.equal(pixels[1][0], pixels[1][2])
    assert [found.marks(one) for one in pixels] == [(), (), ("blank",)]
    expected = (torch.tensor([200.0, 100.0, 50.0]) / 255 - 0.5) / 0.5
    torch.testing.assert_close(pixels[2][:, 3, 3], expected)


@pytest.mark.parametrize("column", ["image", "img"])
def test_images_in_a_table(image_encoder: Any, tmp_path: Path, column: str) -> None:
    write_table(tmp_path / "t.parquet", [encoded(picture(seed)) for seed in range(5)], column=column)
    rows = rows_of("image", path=["t.parquet"] * 5, index=[4, 0, 1, 3, 2])
    found = ImageItems(rows, tmp_path, image_encoder, 8)
    for row, index in enumerate(rows["index"]):
        assert torch.equal(found.read(row), image_encoder.pixels(picture(index)))


def test_row_groups_are_read_once_and_only_when_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    write_table(path, [encoded(picture(seed)) for seed in range(6)])
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def counting(self: Any, group: int, columns: list[str]) -> Any:
        assert columns == ["image"]
        read.append(group)
        return real(self, group, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counting)
    tables = ImageTables()
    for index in (4, 5, 0, 4, 1):
        assert tables.encoded(path, index) == encoded(picture(index))
    assert read == [2, 0]
    monkeypatch.setattr(module, "CACHE_BYTES", 1)  # then only the group in use is kept
    for index in (2, 3, 0, 1, 2):
        tables.encoded(path, index)
    assert read == [2, 0, 1, 0, 1]


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"

    def refused(index: int) -> str:
        with pytest.raises(CorpusError) as caught:
            ImageTables().encoded(path, index)
        return str(caught.value)

    assert refused(0).startswith(f"{path} cannot be read as Parquet: ")
    path.write_bytes(b"PAR1 nothing")
    assert refused(0).startswith(f"{path} cannot be read as Parquet: ")
    write_table(path, [encoded(picture(0)), None, b""])
    assert refused(1) == f"{path} row 1 holds no image bytes"
    assert refused(2) == f"{path} row 2 holds no image bytes"
    assert refused(3) == f"{path} has 3 rows, so no row 3"
    pq.write_table(pa.table({"label": [1], "x": [2]}), path)
    assert refused(0) == f"{path} has no column of images (a struct with 'bytes'); columns: label, x"


def test_images_that_cannot_be_read(tmp_path: Path) -> None:
    def refused(source: Path | bytes) -> str:
        with pytest.raises(CorpusError) as caught:
            decode(source, "it")
        return str(caught.value)

    whole = encoded(picture(0, size=(40, 40)))
    assert refused(tmp_path / "none.png") == "no image it"
    assert refused(b"no image at all").startswith("it is not an image that can be read: cannot identify")
    assert refused(whole[: len(whole) // 2]).startswith("it is not an image that can be read: ")
    deep = Image.fromarray(np.full((4, 4), 40000, np.uint16))
    assert refused(encoded(deep)) == "it has more than eight bits per channel (mode I;16)"
    assert decode(whole, "it").mode == "RGB"


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims a size."""
    whole = bytearray(encoded(picture(0)))
    whole[16:24] = struct.pack(">II", width, height)
    whole[29:33] = struct.pack(">I", zlib.crc32(whole[12:29]))
    return bytes(whole)


@pytest.mark.parametrize(("width", "height"), [(18_000, 9_900), (1, 101), (2**31 - 1, 1), (50_000_001, 1)])
def test_the_size_of_an_image_is_bounded_before_it_is_decoded(
    width: int, height: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(claiming(width, height))
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(CorpusError, match=r"million are decoded|exceeds limit"):
        decode(tmp_path / "a.png", "it")
    rows = pl.DataFrame({"path": ["a.png"], "index": [None]}, schema={"path": pl.String, "index": pl.Int64})
    assert header_problems(rows, tmp_path)[0] is not None


def test_only_named_formats_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPS runs Ghostscript."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **more: pytest.fail("Ghostscript"))
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(CorpusError, match="it is not an image that can be read"):
        decode(script, "it")
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(CorpusError, match="it is not a file"):
        decode(tmp_path / "pipe.png", "it")


def test_photographs_are_turned_upright() -> None:
    image, exif = Image.new("RGB", (8, 4)), Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    stream = io.BytesIO()
    image.save(stream, "JPEG", exif=exif)
    assert decode(stream.getvalue(), "it").size == (4, 8)


def test_recordings(tmp_path: Path) -> None:
    wave = np.linspace(-0.5, 0.5, 2000, dtype=np.float32)
    soundfile.write(tmp_path / "a.wav", wave, 8000, subtype="FLOAT")
    columns = {"path": ["a.wav", "none.wav"], "start_s": [0.05, 0.0], "duration_s": [0.1, 0.1]}
    rows = rows_of("speech", **columns, pad_to_s=[0.2, None], sampling_rate=[8000, 8000])

    class Encoder:
        sampling_rate = 8000

    encoder: Any = Encoder()
    found = open_items(rows, "speech", tmp_path, encoder, Config.model_validate({"extract": {"max_batch_s": 2}}))
    assert isinstance(found, SpeechItems)
    assert found.sizes.tolist() == [1600, 800]
    assert found.budget == 16000
    item = found.read(0)
    np.testing.assert_array_equal(item[:800].numpy(), wave[400:1200])
    assert not item[800:].any()
    assert found.marks(item) == ()
    assert found.marks(torch.zeros(10)) == ("silent",)
    with pytest.raises(AudioError, match="no recording"):
        found.read(1)


def test_every_modality_has_its_adapter(text_encoder: Any, image_encoder: Any) -> None:
    assert isinstance(open_items(rows_of("text", text=["a"]), "text", Path(), text_encoder, Config()), TextItems)
    rows = rows_of("image", path=["a.png"], index=[None])
    assert isinstance(open_items(rows, "image", Path(), image_encoder, Config()), ImageItems)
