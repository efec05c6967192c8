"""Tables of images in the layout of the datasets library, and header checks that never decode a pixel."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from PIL import Image

from daamctl.corpora import images
from daamctl.corpora.base import PREPARED_IMAGE
from daamctl.errors import ArtifactError


def grey(value: int) -> bytes:
    return images.png(np.full((3, 5), value, np.uint8))


def table(path: Path, count: int) -> Path:
    labels = [index % 2 for index in range(count)]
    images.write_images(path, map(grey, range(count)), labels, label_column="kind", classes=("a", "b"))
    return path


def rows(*pairs: tuple[str, int | None]) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema={"path": pl.String, "index": pl.Int64}, orient="row")


def test_png_keeps_pixels() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    with Image.open(io.BytesIO(images.png(pixels))) as image:
        assert (image.format, image.mode, image.size) == ("PNG", "RGB", (3, 2))
        assert np.array_equal(np.asarray(image), pixels)


def test_the_datasets_library_reads_the_tables(tmp_path: Path) -> None:
    from datasets import load_dataset

    table(tmp_path / "train.parquet", 5)
    dataset = load_dataset(
        "parquet", data_files=str(tmp_path / "train.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert dataset.features["kind"].names == ["a", "b"]
    assert dataset[3]["kind"] == 1
    assert np.array_equal(np.asarray(dataset[3]["image"]), np.full((3, 5), 3))


def test_row_groups_are_small_and_bytes_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "ROW_GROUP", 4)
    path = table(tmp_path / "a.parquet", 10)
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [4, 4, 2]
    assert table(tmp_path / "b.parquet", 10).read_bytes() == path.read_bytes()
    found = images.rows_of(path, "kind", ("a", "b"), "x-{:02d}", "train", fix="")
    assert dict(found.schema) == PREPARED_IMAGE
    assert found["label"].to_list() == ["a", "b"] * 5
    assert found.row(9) == ("x-09", "a.parquet", 9, "b", "x-09", "train")


def test_as_many_labels_as_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        images.write_images(tmp_path / "a.parquet", [grey(0)], [0, 1], label_column="kind", classes=("a", "b"))
    assert list(tmp_path.iterdir()) == []


def test_labels_of_no_table(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no file .*a\.parquet\n  make it"):
        images.rows_of(tmp_path / "a.parquet", "kind", ("a",), "{}", None, fix="make it")


@pytest.mark.parametrize("suffix", list(images.FORMATS))
def test_good_files_of_every_format(tmp_path: Path, suffix: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / f"a{suffix}")
    assert images.header_problems(rows((f"a{suffix}", None)), tmp_path).to_list() == [None]


def test_bad_files(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes(grey(1)[:20])
    (tmp_path / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")
    names = ("gone.png", "empty.png", "text.png", "cut.png", "script.png")
    gone, empty, text, cut, script = images.header_problems(rows(*((name, None) for name in names)), tmp_path)
    assert gone == f"no image {tmp_path}/gone.png"
    assert empty == f"{tmp_path}/empty.png is empty (0 bytes)"
    for name, problem in (("text", text), ("cut", cut), ("script", script)):
        assert problem.startswith(f"{tmp_path}/{name}.png cannot be read as an image: ")
    assert "none of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP" in text
    assert "none of" in script  # formats whose reading runs a program are not tried


def test_images_of_more_than_eight_bits(tmp_path: Path) -> None:
    modes = {
        "deep.png": "I;16",
        "real.tif": "F",
        "bits.png": "1",
        "palette.gif": "P",
        "sign.ppm": "RGB",
        "face.pgm": "L",
    }
    for name, mode in modes.items():
        Image.new(mode, (3, 3)).save(tmp_path / name)
    names = tuple(modes)
    problems = images.header_problems(rows(*((name, None) for name in names)), tmp_path).to_list()
    assert problems[:2] == [
        f"{tmp_path}/{name} has more than eight bits per channel (mode {mode})"
        for name, mode in (("deep.png", "I;16"), ("real.tif", "F"))
    ]
    assert problems[2:] == [None] * 4


def test_an_image_that_would_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(grey(1))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5)
    problem = images.header_problems(rows(("a.png", None)), tmp_path)[0]
    assert "exceeds limit of 10 pixels" in problem


def test_rows_of_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "ROW_GROUP", 3)
    contents = [grey(0), b"", grey(2), b"broken", grey(4), grey(5), grey(6)]
    images.write_images(tmp_path / "a.parquet", contents, [0] * 7, label_column="kind", classes=("a",))
    table(tmp_path / "b.parquet", 2)
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 and nothing else")
    # more rows per task than per row group, rows in no order, files in turn
    monkeypatch.setattr(images, "ROW_GROUP", 5)
    wanted = rows(("a.parquet", 6), ("b.parquet", 1), ("a.parquet", 3), ("a.parquet", 0), ("a.parquet", 1))
    wanted = wanted.vstack(rows(("a.parquet", 9), ("damaged.parquet", 0), ("gone.parquet", 0), ("b.parquet", 0)))
    problems = images.header_problems(wanted, tmp_path).to_list()
    assert [problem is None for problem in problems] == [True, True, False, True, False, False, False, False, True]
    assert problems[2].startswith(f"{tmp_path}/a.parquet, row 3, cannot be read as an image")
    assert problems[4] == f"{tmp_path}/a.parquet, row 1, has no image"
    assert problems[5] == f"{tmp_path}/a.parquet, row 9, has no image"
    assert problems[6].startswith(f"{tmp_path}/damaged.parquet is not a table of images: ")
    assert problems[7].startswith(f"{tmp_path}/gone.parquet is not a table of images: ")


def test_a_table_without_images(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1]}).write_parquet(tmp_path / "a.parquet")
    (problem,) = images.header_problems(rows(("a.parquet", 0)), tmp_path)
    assert "a.parquet is not a table of images" in problem
