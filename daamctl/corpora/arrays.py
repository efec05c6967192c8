"""Images that a file holds as numbers, as the parts of a data set: they are read a few at a time.

train_images, train_labels, val_images, ... in a .npz file, as MedMNIST has them; x_train, y_train, ... as Keras does
train-images-idx3-ubyte and train-labels-idx1-ubyte in a folder, perhaps with .gz, as MNIST and EMNIST have them
emotion, pixels, Usage                      a table with the grey values of each image as text, as FER2013 has them
label, pixel1, pixel2, ... (or 1x1, 1x2)    a table with a column for each grey value, or tables of several parts
"""

from __future__ import annotations

import gzip
import io
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import polars as pl

from daamctl.corpora.conll import part_files
from daamctl.corpora.files import alike, read_table
from daamctl.corpora.hub import Part, reading
from daamctl.errors import CorpusError
from daamctl.store.tables import separator_of

if TYPE_CHECKING:
    import pyarrow as pa

NPZ = (re.compile(r"(\w+?)_(images|labels)\.npy"), re.compile(r"([xy])_(\w+)\.npy"))
"""Names of the arrays of a part: of MedMNIST, and of Keras."""
IDX = re.compile(r"(.*?)-(images|labels)[-.]idx[13]-ubyte(\.gz)?")
PIXELS, PIXEL = "pixels", re.compile(r"pixel[-_ ]?\d+|\d+x\d+")
WRITE_NPZ = "write an .npz file with the images, x_train of shape (N, height, width, 3), and their labels, y_train"
LEAST_PIXELS, LEAST_NAMED = 64, 16
"""Columns of numbers alone, and columns called pixels, that may be an image."""
PARTS = {"t10k": "test", "privatetest": "test", "publictest": "dev"}
"""Names of parts in these files only -> names of groups."""


def array_parts(source: Path) -> list[Part]:
    """The parts of a file or folder of images as numbers; none if it is another one.

    Raises:
        CorpusError: it is damaged, or images and labels do not fit together.
    """
    if source.is_dir():
        named = [(path, found) for path in sorted(source.iterdir()) if (found := IDX.fullmatch(path.name))]
        sets = {found[1].rpartition("-")[0]: path.name for path, found in named}
        if len(sets) > 1:  # as EMNIST has them
            raise CorpusError(
                f"{source} has several sets of images; one is allowed: {', '.join(one or sets[one] for one in sets)}",
                fix="move the others out of the folder",
            )
        members = {
            (found[1].rpartition("-")[2] or found[1], found[2]): partial(_open_idx, path) for path, found in named
        }
        if not named:
            tables = [(name, path) for name, path in part_files(source).items() if path.suffix.lower() == ".csv"]
            return [replace(part, name=name) for name, path in tables for part in _pixel_parts(path)]
    elif source.suffix.lower() == ".npz" and zipfile.is_zipfile(source):
        medmnist, keras = NPZ
        members = {}
        with zipfile.ZipFile(source) as archive:
            inside = archive.namelist()
        for name in inside:
            if found := keras.fullmatch(name):
                members[found[2], "images" if found[1] == "x" else "labels"] = partial(_open_npz, source, name)
            elif found := medmnist.fullmatch(name):
                members[found[1], found[2]] = partial(_open_npz, source, name)
    elif source.suffix.lower() == ".csv" and source.is_file():
        return _pixel_parts(source)
    else:
        return []
    # images without labels are no part, e.g. of a challenge
    names = [name for name, kind in members if kind == "images" and (name, "labels") in members]
    return [_part(source, name, members[name, "images"], members[name, "labels"]) for name in names]


Opened = tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]
"""An array that has not been read: a file at its first number, its shape, and the type of the numbers."""


def _open_npz(source: Path, name: str, files: ExitStack) -> Opened:
    file = files.enter_context(files.enter_context(zipfile.ZipFile(source)).open(name))
    # only the header is read, since an archive may hold more than memory does
    read_header = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(file) != (1, 0):
        read_header = np.lib.format.read_array_header_2_0
    shape, fortran, kind = read_header(file)
    if fortran or kind.hasobject:
        raise CorpusError(f"{source}: {name} is of type {kind}; numbers in C order are expected")
    return file, shape, kind


def _open_idx(path: Path, files: ExitStack) -> Opened:
    file: Any = files.enter_context(path.open("rb"))
    if path.suffix == ".gz":
        file = files.enter_context(gzip.GzipFile(fileobj=file))
    head = file.read(4)
    if len(head) < 4 or head[:3] != b"\0\0\x08":
        raise CorpusError(f"{path} is no file of bytes in the format IDX")
    sizes = np.frombuffer(file.read(4 * head[3]), ">u4")
    return file, tuple(map(int, sizes)), np.dtype(np.uint8)


def _part(
    source: Path, name: str, images: Callable[[ExitStack], Opened], labels: Callable[[ExitStack], Opened]
) -> Part:
    """A part whose items have an image and a label."""
    with reading(source), ExitStack() as files:
        _, shape, kind = images(files)
        file, number, label_kind = labels(files)
        # one number each, whatever its shape: MedMNIST has (N, 1)
        classes = np.frombuffer(file.read(), label_kind)
    if kind != np.uint8 or len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
        raise CorpusError(
            f"{source}: the images of {name} are {kind} of shape {shape}; bytes of shape (N, height, width) or (N, "
            "height, width, 3) are expected"
        )
    if len(classes) != shape[0]:
        raise CorpusError(
            f"{source}: {name} has {shape[0]} images and labels of shape {number}; one label for each is expected"
        )

    def rows(_: list[str], many: int) -> Iterator[pa.Table]:
        with reading(source), ExitStack() as files:
            file, size = images(files)[0], int(np.prod(shape[1:]))
            for start in range(0, shape[0], many):
                held = np.frombuffer(file.read(min(many, shape[0] - start) * size), np.uint8).reshape(-1, *shape[1:])
                yield _table(list(held), classes[start : start + many].tolist())

    return _with_schema(name, shape[0], rows)


def _pixel_parts(source: Path) -> list[Part]:
    with source.open("rb") as file:
        first = file.readline().decode(errors="replace")
    names = [name.strip('" \r\n') for name in first.split(separator_of(first))]
    whole = [name for name in names if name.lower() == PIXELS]  # FER2013 and its kin
    columns = whole or [name for name in names if PIXEL.fullmatch(name.lower())]
    number = len(columns) or len(names) - 1
    is_square = len(whole) == 1 or math.isqrt(number) ** 2 == number
    if number >= LEAST_PIXELS and is_square and all(name.isdecimal() for name in names):
        raise CorpusError(
            f"{source} has {len(names)} numbers in a line, as a label and pixels, and no names of columns",
            fix=f"add them: (echo label; seq -f pixel%g {number}) | paste -sd, | cat - {quote(str(source))} > NEW.csv",
        )
    label = alike("label", names)
    if label is None or not (whole or len(columns) >= LEAST_NAMED):
        return []
    if not is_square:
        raise CorpusError(f"{source}: {number} columns of pixels are no square of grey values", fix=WRITE_NPZ)
    table = read_table(source)
    usage = next((name for name in table.columns if name.lower() == "usage"), None)
    parts = []
    for (name,), items in table.group_by(usage or [], maintain_order=True) if usage else [(("all",), table)]:

        def rows(_: list[str], many: int, items: Any = items) -> Iterator[pa.Table]:
            for some in items.iter_slices(many):
                with reading(source):
                    pixels = some.select(pl.concat_str(columns, separator=" ")).to_series()
                    held = _table([_square(one or "") for one in pixels], some[label].to_list())
                yield held

        parts.append(_with_schema(str(name), len(items), rows))
    return parts


def _square(pixels: str) -> np.ndarray[Any, Any]:
    """A square image from its grey values as text; raises ValueError."""
    values = np.array(pixels.split(), np.int64)
    side = int(len(values) ** 0.5)
    if not len(values) or side**2 != len(values) or values.min() < 0 or values.max() > 255:
        raise ValueError(f"{len(values)} pixels; a square of values from 0 to 255 is expected")
    return values.astype(np.uint8).reshape(side, side)


def _with_schema(name: str, number: int, rows: Callable[[list[str], int], Iterator[pa.Table]]) -> Part:
    schema = _table([], []).schema
    return Part(PARTS.get(name.lower(), name), number, schema, {}, rows)


def _table(images: Sequence[Any], labels: list[Any]) -> pa.Table:
    import pyarrow as pa
    from PIL import Image

    held = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image).save(file, "PNG")
        # as `datasets` stores images, so that the rest reads them like any other
        held.append({"bytes": file.getvalue(), "path": None})
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.table({"image": pa.array(held, kind), "label": pa.array([str(one) for one in labels], pa.string())})
