"""Crops: places, pixels, and bad images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image

from daamctl.artifacts.reconstruction import Crops, read_crops, write_crops
from daamctl.artifacts.utterances import UtteranceTable
from daamctl.config.schema import CropConfig
from daamctl.corpora.image_folder import prepare_folder
from daamctl.errors import ArtifactError, CorpusError
from daamctl.reconstruction import crops as module
from daamctl.reconstruction.crops import CropPixels, place_crops
from tests.fixtures.reconstruction import write_images


def table_of(folder: Path, groups: int = 5) -> UtteranceTable:
    rows = prepare_folder(folder)
    rows = rows.with_columns(group=pl.format("group{}", pl.int_range(pl.len()) % groups + 1))
    return UtteranceTable("images:mine", ("image",), rows, {}, "image", "abc")


def placed(folder: Path, **settings: object) -> Crops:
    return place_crops(table_of(folder), folder, CropConfig.model_validate({"size": 8, "resize": None, **settings}))


def test_places_are_seeded_and_inside(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine")
    found = placed(folder, per_image=5)
    assert found.rows.equals(placed(folder, per_image=5).rows)
    assert not found.rows.equals(placed(folder, per_image=5, seed=1).rows)
    assert found.rows["left"].is_between(0, 12).all()
    assert found.rows["top"].is_between(0, 8).all()
    assert found.rows["crop_id"].is_unique().all()


def test_the_last_group_is_the_test_part_and_no_image_is_in_both(tmp_path: Path) -> None:
    found = placed(write_images(tmp_path / "mine"), per_image=3)
    train, test = (set(found.part(part)["utterance_id"]) for part in ("train", "test"))
    assert test == {"04.png", "09.png"}
    assert not train & test
    assert len(train) == 8


def test_the_last_of_ten_groups_is_the_tenth(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine")
    found = place_crops(table_of(folder, 10), folder, CropConfig(size=8, resize=None))
    assert found.part("test")["utterance_id"].to_list() == ["09.png"]


def test_official_parts_are_kept(tmp_path: Path) -> None:
    table = table_of(write_images(tmp_path / "mine"), 2)
    names = {"group1": "train", "group2": "test"}
    rows = table.rows.with_columns(pl.col("group").replace_strict(names))
    found = place_crops(
        UtteranceTable("x", ("image",), rows, {}, "image"), tmp_path / "mine", CropConfig(size=8, resize=None)
    )
    assert (found.part("train").height, found.part("test").height) == (5, 5)


def test_one_crop_is_in_the_middle_and_equal_places_count_once(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine")
    assert placed(folder).rows.select("left", "top").unique().rows() == [(6, 4)]
    assert placed(folder, size=16, per_image=9).rows.group_by("utterance_id").len()["len"].max() <= 5


@pytest.mark.parametrize("most", [None, 0])
def test_pixels_in_memory_and_batch_by_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
    if most is not None:
        monkeypatch.setattr(module, "IN_MEMORY_BYTES", most)
    folder = write_images(tmp_path / "mine")
    found = placed(folder, per_image=3)
    pixels = CropPixels(found, "train", folder)
    rows = found.part("train").rows(named=True)
    batches = list(pixels.batches([[5, 0, 6], [1], list(range(len(rows)))]))
    assert [len(batch) for batch in batches] == [3, 1, len(rows)]
    for number, row in enumerate(rows):
        image = np.asarray(Image.open(folder / row["path"]))
        wanted = image[row["top"] : row["top"] + 8, row["left"] : row["left"] + 8]
        np.testing.assert_array_equal(batches[2][number].movedim(0, -1).numpy(), wanted)
    assert torch.equal(batches[0][0], batches[2][5])


def test_pixels_in_memory_are_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, made = write_images(tmp_path / "mine"), torch.zeros(1, 3, 8, 8)
    monkeypatch.setattr(CropPixels, "_decoded", lambda *_: iter([made]))
    assert CropPixels(placed(folder), "train", folder).all is made


def test_resizing_keeps_the_aspect(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine", size=(40, 20))
    found = placed(folder, resize=10, per_image=1)
    assert found.rows.select("left", "top").unique().rows() == [(6, 1)]  # 20 x 10 pixels


def test_small_images_are_named(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine")
    with pytest.raises(CorpusError, match=r"10 of 10 images are smaller than crop.size \(32 pixels\): 00.png"):
        placed(folder, size=32)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "mine")
    damaged = folder / "03.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    with pytest.raises(CorpusError, match=r"03\.png is not an image that can be read"):
        placed(folder)


def test_the_table_is_sealed(tmp_path: Path) -> None:
    found = placed(write_images(tmp_path / "mine"))
    path = tmp_path / "crops.parquet"
    write_crops(path, found)
    assert read_crops(path).key == found.key
    with pytest.raises(ArtifactError, match="no file"):
        read_crops(tmp_path / "none.parquet")
