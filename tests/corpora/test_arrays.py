"""Images as numbers become files and a table of them, a few at a time."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from PIL import Image

from daamctl.corpora.arrays import array_parts
from daamctl.corpora.dataset import is_dataset, unpack
from daamctl.corpora.groups import PARTS
from daamctl.errors import CorpusError

IMAGES: NDArray[np.uint8] = np.random.default_rng(0).integers(0, 255, (6, 4, 4), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2], np.uint8)


def medmnist(folder: Path) -> Path:
    arrays: dict[str, Any] = {}
    for part, some in (("train", slice(0, 3)), ("val", slice(3, 4)), ("test", slice(4, 6))):
        arrays |= {f"{part}_images": IMAGES[some], f"{part}_labels": LABELS[some, None]}
    np.savez_compressed(folder / "mine.npz", **arrays)
    return folder / "mine.npz"


def keras(folder: Path) -> Path:
    arrays: dict[str, Any] = {"x_train": IMAGES[:4, ..., None], "y_train": LABELS[:4].astype(np.int64)}
    np.savez(folder / "mine.npz", x_test=IMAGES[4:, ..., None], y_test=LABELS[4:], **arrays)
    return folder / "mine.npz"


def idx(folder: Path) -> Path:
    (folder / "idx").mkdir()
    for part, some in (("train", slice(0, 4)), ("t10k", slice(4, 6))):
        images = struct.pack(">IIII", 2051, len(LABELS[some]), 4, 4) + IMAGES[some].tobytes()
        (folder / "idx" / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        labels = struct.pack(">II", 2049, len(LABELS[some])) + LABELS[some].tobytes()
        (folder / "idx" / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return folder / "idx"


def fer2013(folder: Path) -> Path:
    usage = ["Training"] * 4 + ["PrivateTest"] * 2
    rows = zip(LABELS, IMAGES, usage, strict=True)
    lines = [f"{label},{' '.join(map(str, image.ravel()))},{part}" for label, image, part in rows]
    (folder / "mine.csv").write_text("\n".join(["emotion,pixels,Usage", *lines]))
    return folder / "mine.csv"


def grey_columns(folder: Path) -> Path:
    """As Kaggle has MNIST and Fashion-MNIST."""
    (folder / "mine").mkdir()
    for part, some in (("train", slice(0, 4)), ("test", slice(4, 6))):
        rows = np.column_stack([LABELS[some], IMAGES[some].reshape(-1, 16)])
        head = ["label", *(f"{row}x{column}" if part == "train" else f"pixel{4 * row + column}"
                           for row in range(4) for column in range(4))]  # fmt: skip
        np.savetxt(folder / "mine" / f"my_{part}.csv", rows, "%d", ",", header=",".join(head), comments="")
    return folder / "mine"


def test_columns_of_pixels_without_names_or_with_colours(tmp_path: Path) -> None:
    numbers = ",".join(map(str, range(65)))
    (tmp_path / "bare.csv").write_text(f"{numbers}\n{numbers}\n")
    with pytest.raises(CorpusError, match="65 numbers in a line, as a label and pixels, and no names") as told:
        array_parts(tmp_path / "bare.csv")
    assert f"seq -f pixel%g 64) | paste -sd, | cat - {tmp_path}/bare.csv > NEW.csv" in (told.value.fix or "")
    names = ",".join(f"pixel{at}" for at in range(48))
    (tmp_path / "colours.csv").write_text(f"{names},label\n{','.join(['7'] * 48)},a\n")
    with pytest.raises(CorpusError, match=r"48 columns of pixels are no square of grey values\n  write an \.npz file"):
        array_parts(tmp_path / "colours.csv")


def test_several_sets_in_one_folder_are_refused(tmp_path: Path) -> None:
    source = idx(tmp_path)
    for path in list(source.iterdir()):
        for name in ("letters", "digits"):
            (source / f"emnist-{name}-{path.name}").write_bytes(path.read_bytes())
        path.unlink()
    with pytest.raises(CorpusError, match="several sets of images; one is allowed: emnist-digits, emnist-letters"):
        array_parts(source)


@pytest.mark.parametrize("write", [medmnist, keras, idx, fer2013, grey_columns])
def test_images_become_files_and_a_table(tmp_path: Path, write: Any) -> None:
    source = write(tmp_path)
    assert is_dataset(source)
    table, taken, doubts = unpack(source, tmp_path / "out", {})
    rows = pl.read_csv(table, infer_schema=False).sort(pl.col("group") == "test", maintain_order=True)
    assert rows["label"].to_list() == [str(label) for label in LABELS]
    read = [np.asarray(Image.open(table.parent / path)) for path in rows["path"]]
    assert np.array_equal(np.stack(read), IMAGES)
    assert {PARTS[group.lower()] for group in rows["group"]} == {
        "train",
        "test",
        *(["dev"] if write is medmnist else []),
    }
    assert (taken, doubts) == ({"path": "image", "label": "label"}, [])


def test_colours(tmp_path: Path) -> None:
    colours = np.random.default_rng(1).integers(0, 255, (4, 5, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", train_images=colours, train_labels=LABELS[:4])
    (part,) = array_parts(tmp_path / "mine.npz")
    assert [len(table) for table in part.batches([], 3)] == [3, 1]
    table, _, _ = unpack(tmp_path / "mine.npz", tmp_path / "out", {})
    assert np.array_equal(np.asarray(Image.open(table.parent / "train-000004.png")), colours[3])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"train_images": IMAGES, "train_labels": np.zeros((6, 3))},
            r"train has 6 images and labels of shape \(6, 3\)",
        ),
        ({"train_images": IMAGES.astype(float), "train_labels": LABELS}, r"float64 of shape \(6, 4, 4\); bytes of"),
        ({"train_images": IMAGES[:, :, 0], "train_labels": LABELS}, r"uint8 of shape \(6, 4\); bytes of shape"),
        ({"train_images": np.asfortranarray(IMAGES), "train_labels": LABELS}, "numbers in C order are expected"),
        ({"train_images": IMAGES.astype(object), "train_labels": LABELS}, "numbers in C order are expected"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(CorpusError, match=message):
        array_parts(tmp_path / "mine.npz")


def test_damaged_files(tmp_path: Path) -> None:
    source = idx(tmp_path)
    images = source / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:40])
    with pytest.raises(CorpusError, match="is not a complete copy"):
        unpack(source, tmp_path / "out", {})
    assert not (tmp_path / "out").exists()
    pixels = fer2013(tmp_path)
    whole = pixels.read_text()
    for wrong in ("1 2 3 x", "1 2 3", "1 2 3 300", ""):
        pixels.write_text(f"{whole}\n1,{wrong},Training")
        with pytest.raises(CorpusError, match="is not a complete copy"):
            unpack(pixels, tmp_path / "out", {})
    images.write_bytes(b"x")
    (source / "train-images-idx3-ubyte").write_bytes(b"\0\0")
    images.unlink()
    with pytest.raises(CorpusError, match="is no file of bytes in the format IDX"):
        array_parts(source)
    np.savez(tmp_path / "mine.npz", train_images=IMAGES, train_labels=LABELS)
    content = bytearray((tmp_path / "mine.npz").read_bytes())
    content[200] ^= 1  # a pixel: zip files have a checksum
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(CorpusError, match="is not a complete copy"):
        unpack(tmp_path / "mine.npz", tmp_path / "out", {})


def test_other_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", embeddings=np.zeros((2, 3, 4)), label=np.array(["a", "b"]))
    (tmp_path / "table.csv").write_text("path,label\na.png,x\n")
    (tmp_path / "texts.csv").write_text("text,label,pixel1\nIt rains,x,7\n")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    for name in ("vectors.npz", "table.csv", "texts.csv", "broken.npz", "absent.npz"):
        assert array_parts(tmp_path / name) == []
