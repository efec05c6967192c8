"""CIFAR-100: 60,000 colour images of 32x32 pixels, 100 classes, with an official train and test part.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. This module reads the binary
version (`train.bin` and `test.bin`; a record has one byte of coarse class, one of fine class, and 1,024 bytes each of
red, green and blue by rows) or a copy of the hub's data set; the Python version is a pickle and is not read. It writes
one Parquet table of PNG images per part. The photographers are not known, so every image counts as its own source.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from daamctl.compute.progress import progress
from daamctl.corpora import hub, images
from daamctl.corpora.base import Corpus, Fingerprint
from daamctl.corpora.fetch import fetch, is_whole, made_whole, unpack
from daamctl.errors import CorpusError

if TYPE_CHECKING:
    import pyarrow as pa

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"  # from the same page, which gives no other checksum
INNER = "cifar-100-binary"
NAMES = "fine_label_names.txt"
LABEL = "fine_label"
SIDE = 32
RECORD = 2 + 3 * SIDE * SIDE
_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
wolf woman worm
"""
CLASSES = tuple(_NAMES.split())
"""Names in the order of the release's fine_label_names.txt."""

OFFLINE = f"unpack {INNER}.tar.gz on this machine and register it: daamctl download cifar100 --from DIR"
GET_IT = "daamctl download cifar100 fetches it (160 MB); a copy of your own: daamctl download cifar100 --from DIR"
AGAIN = "make it again: daamctl download cifar100 --force, with --from DIR if you have a copy"
RESTORE = "restore the folder from the release"


@dataclass(frozen=True)
class _Part:
    """One part of a copy."""

    digest: str  # of its images and labels
    labels: Sequence[int]
    images: Iterator[bytes]  # contents of PNG files


def obtain(folder: Path) -> Path:
    """Download the binary version and convert it to tables in `folder`."""
    if is_whole(folder):
        return folder
    archive = fetch(URL, folder.with_name(f"{INNER}.tar.gz"), md5=MD5, fix=OFFLINE)
    unpacked = unpack(archive, folder.with_name(f"{INNER}.unpacked"))
    adopt(unpacked, folder)
    shutil.rmtree(unpacked)
    archive.unlink()
    return folder


def adopt(given: Path, own: Path, new: Path | None = None) -> Path:
    """Convert a copy to tables in the folder `own`, atomically, unless they were made from an equal copy.

    Args:
        given: the folder of train.bin and test.bin, its parent, or a copy of the hub's data set.
        new: where to write the tables instead.

    Returns:
        The folder of the tables.

    Raises:
        CorpusError: `given` is none of these, or is damaged.
    """
    if given.resolve() == own.resolve():
        return own
    binary = given / INNER if (given / INNER).is_dir() else given
    if files := {part: path for part in hub.PARTS if (path := binary / f"{part}.bin").is_file()}:
        names = binary / NAMES
        if names.is_file() and tuple(names.read_text(encoding="utf-8").split()) != CLASSES:
            raise CorpusError(f"{names} does not list the 100 classes of CIFAR-100 in their order", fix=RESTORE)
        parts = {part: _records(path) for part, path in files.items()}
    else:
        tables = hub.read_parts(given, (images.COLUMN, "img"), (LABEL,))
        parts = {part: _table(table, given) for part, table in tables.items()}
    if not parts:
        raise CorpusError(
            f"{given} does not look like CIFAR-100: no train.bin or test.bin (the binary version), no Parquet files",
            fix=GET_IT,
        )
    marker = "".join(f"{part} {parts[part].digest}\n" for part in parts)
    if is_whole(own, marker):
        return own
    new = new or own
    with made_whole(new, marker) as folder:
        for name, part in parts.items():
            images.write_images(
                folder / f"{name}.parquet", _counted(part, name), part.labels, label_column=LABEL, classes=CLASSES
            )
    return new


def prepare(root: Path) -> pl.DataFrame:
    """Read the labels of the parts that `adopt` wrote."""
    parts = [part for part in hub.PARTS if (root / f"{part}.parquet").is_file()]
    if not parts:
        raise CorpusError(f"{root} has no train.parquet or test.parquet", fix=GET_IT)
    return pl.concat(
        images.rows_of(root / f"{part}.parquet", LABEL, CLASSES, f"{part}-{{:05d}}", part, fix=AGAIN) for part in parts
    )


def _records(path: Path) -> _Part:
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % RECORD:
        size = f"{len(content)} bytes, which is not a multiple of {RECORD}, the size of a record"
        raise CorpusError(f"{path} has {size}", fix=RESTORE)
    records = content.reshape(-1, RECORD)
    labels = _checked(records[:, 1].tolist(), path)
    # planes of red, green and blue -> one triple per pixel
    pixels = records[:, 2:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return _Part(
        hashlib.sha256(content.tobytes()).hexdigest(), labels, map(images.png, map(np.ascontiguousarray, pixels))
    )


def _table(table: pa.Table, folder: Path) -> _Part:
    labels = _checked(table[LABEL].to_pylist(), folder)
    contents: list[bytes] = [(image or {}).get("bytes") or b"" for image in table[images.COLUMN].to_pylist()]
    if b"" in contents:
        raise CorpusError(f"{folder}: row {contents.index(b'')} has no image", fix="copy the data set again")
    digest = hashlib.sha256(bytes(labels))
    for content in contents:
        digest.update(content)
    return _Part(digest.hexdigest(), labels, iter(contents))


def _checked(labels: list[int], place: Path) -> list[int]:
    wrong = next((label for label in labels if label is None or not 0 <= label < len(CLASSES)), 0)
    if wrong != 0:
        raise CorpusError(f"{place}: fine class {wrong} found, 0 to {len(CLASSES) - 1} allowed", fix=RESTORE)
    return labels


def _counted(part: _Part, name: str) -> Iterator[bytes]:
    with progress(len(part.labels), f"writing {name} images", "images") as bar:
        for image in part.images:
            yield image
            bar.advance()


CORPUS = Corpus(
    name="cifar100",
    title="CIFAR-100: 50,000 and 10,000 images of 32x32 pixels (official train and test part), 100 classes",
    licence="for research; https://www.cs.toronto.edu/~kriz/cifar.html",
    classes=CLASSES,
    prepare=prepare,
    fingerprint=Fingerprint(
        per_class=dict.fromkeys(CLASSES, 600), per_group={"train": 50_000, "test": 10_000}, balanced=True
    ),
    how_to_get=GET_IT,
    obtain=obtain,
    url=URL,
    adopt=adopt,
    modality="image",
)
