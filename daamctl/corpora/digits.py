"""Handwritten digits: 1,797 grey images of 8x8 pixels that come with scikit-learn, so real images without a download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998; this
is its test part. 13 people wrote them, but the copy does not say who wrote which, so groups may share writers, and
results are too good. Pixels count ink from 0 to 16; they are scaled to 0 to 255 and stored as PNG.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from daamctl.corpora import images
from daamctl.corpora.base import Corpus, Fingerprint, counts
from daamctl.corpora.fetch import is_whole, made_whole
from daamctl.corpora.groups import assign_groups

FILE = "digits.parquet"
LABEL = "label"
CLASSES = tuple("0123456789")
MOST_INK = 16
NUM_GROUPS = 5
GET_IT = "daamctl download digits makes it"


def obtain(folder: Path) -> Path:
    """Write the images into `folder`, atomically."""
    if is_whole(folder):
        return folder
    from sklearn.datasets import load_digits

    ink, labels = load_digits(return_X_y=True)
    grey = np.rint(ink.reshape(-1, 8, 8) * 255 / MOST_INK).astype(np.uint8)
    with made_whole(folder, "digits of scikit-learn\n") as new:
        images.write_images(new / FILE, map(images.png, grey), labels.tolist(), label_column=LABEL, classes=CLASSES)
    return folder


def prepare(root: Path) -> pl.DataFrame:
    """Read the images that `obtain` wrote; the five groups are always the same."""
    again = "make it again: daamctl download digits --force"
    rows = images.rows_of(root / FILE, LABEL, CLASSES, "digit-{:04d}", None, fix=again)
    return assign_groups(rows, NUM_GROUPS, stratify=True)


CORPUS = Corpus(
    name="digits",
    title="handwritten digits: 1,797 small grey images that come with scikit-learn, ten classes",
    licence="CC BY 4.0; https://archive.ics.uci.edu/dataset/80",
    classes=CLASSES,
    prepare=prepare,
    fingerprint=Fingerprint(
        per_class=counts(CLASSES, 178, 182, 177, 183, 181, 182, 181, 179, 174, 180),
        per_group={"group1": 360, "group2": 360, "group3": 359, "group4": 359, "group5": 359},
    ),
    how_to_get=GET_IT,
    obtain=obtain,
    modality="image",
)
