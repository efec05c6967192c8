"""The digits of scikit-learn: pixels survive, groups are always the same, and nothing is made twice."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from PIL import Image

from daamctl.corpora import digits, images
from daamctl.corpora.fingerprint import validate
from daamctl.errors import ArtifactError


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits.obtain(tmp_path_factory.mktemp("corpora") / "digits")


@pytest.fixture(scope="module")
def rows(root: Path) -> pl.DataFrame:
    return digits.prepare(root)


def test_fingerprint_holds(rows: pl.DataFrame) -> None:
    assert validate(digits.CORPUS, rows) == []
    assert rows.columns == ["utterance_id", "path", "index", "label", "speaker", "group"]
    assert rows.row(1796)[:4] == ("digit-1796", "digits.parquet", 1796, "8")


def test_every_class_is_spread_over_the_groups(rows: pl.DataFrame) -> None:
    counts = rows.group_by("label", "group").len()
    spread = counts.group_by("label").agg(pl.col("len").max() - pl.col("len").min(), n=pl.len())
    assert spread["n"].to_list() == [5] * 10
    assert max(spread["len"]) <= 1


def test_pixels_are_the_ink(root: Path) -> None:
    from sklearn.datasets import load_digits

    ink = load_digits().images
    column = pq.read_table(root / "digits.parquet")["image"]
    for row in (0, 17, 1796):
        with Image.open(io.BytesIO(column[row]["bytes"].as_py())) as image:
            assert (image.mode, image.size) == ("L", (8, 8))
            assert np.array_equal(np.rint(np.asarray(image) / 255 * 16), ink[row])


def test_made_only_once(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(images, "write_images", fail)
    assert digits.obtain(root) == root
    with pytest.raises(AssertionError, match="made again"):
        digits.obtain(tmp_path / "digits")
    assert list(tmp_path.iterdir()) == []


def test_damaged_table(tmp_path: Path) -> None:
    (tmp_path / "digits.parquet").write_bytes(b"")
    with pytest.raises(ArtifactError, match="daamctl download digits --force"):
        digits.prepare(tmp_path)
