"""Write Parquet tables of images, and check the headers of images in files and tables.

Tables have the layout of the datasets library: a struct column `image` with the bytes of a file, and a column of label
numbers with their names in the metadata, so that `datasets.load_dataset("parquet", …)` gives images and class names.
Only headers are read; `extract` decodes the pixels.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import polars as pl

from daamctl.compute.progress import progress
from daamctl.corpora.base import PREPARED_IMAGE
from daamctl.store.files import atomic_path
from daamctl.store.tables import read_parquet

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from PIL import Image

COLUMN = "image"
"""Name of the column of images."""
ROW_GROUP = 1000
"""Images in one row group, which is the least that can be read."""
FORMATS = {
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".bmp": "BMP",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".gif": "GIF",
    ".ppm": "PPM",
    ".pgm": "PPM",
}
"""Suffix of a file of one image -> Pillow's name of its format."""
UNREAD = (".jp2", ".heic", ".heif", ".avif", ".dcm", ".svg", ".tga", ".psd")
"""Suffixes of images whose formats are not read."""
CONVERT = "convert images, e.g. mogrify -format png *{}"
THREADS = 8
MOST_PIXELS = 50_000_000
"""Largest image that is decoded; it takes about 0.5 GB meanwhile."""
MOST_LENGTH = 100
"""Largest ratio of the sides: processors scale the short side to a fixed size, and the long one with it."""


def png(pixels: np.ndarray) -> bytes:
    """Encode uint8 pixels, shape (H, W, 3) or grey (H, W), as PNG."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_images(
    path: Path, images: Iterable[bytes], labels: Sequence[int], *, label_column: str, classes: Sequence[str]
) -> None:
    """Write a Parquet table of images atomically.

    Args:
        label_column: name of the column of class numbers.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {COLUMN: {"_type": "Image"}, label_column: {"names": list(classes), "_type": "ClassLabel"}}
    schema = pa.schema(
        [(COLUMN, pa.struct([("bytes", pa.binary()), ("path", pa.string())])), (label_column, pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    # compressed images do not get smaller
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, compression="none") as writer:
        pairs = zip(images, labels, strict=True)
        while rows := list(islice(pairs, ROW_GROUP)):
            column = [{"bytes": image, "path": None} for image, _ in rows]
            writer.write_table(pa.table([column, [int(label) for _, label in rows]], schema=schema))


def rows_of(
    path: Path, label_column: str, classes: Sequence[str], name: str, group: str | None, *, fix: str
) -> pl.DataFrame:
    """Rows of a corpus from a table that `write_images` wrote; every image is its own source.

    Args:
        name: of an item, as a format of its number, e.g. `digit-{:04d}`.

    Raises:
        ArtifactError: the file is missing or damaged; `fix` is the advice in the message.
    """
    labels: list[int] = read_parquet(path, columns=[label_column], fix=fix)[label_column].to_pylist()
    numbers = range(len(labels))
    identity = [name.format(number) for number in numbers]
    columns = [identity, [path.name] * len(labels), numbers, [classes[label] for label in labels], identity]
    return pl.DataFrame([*columns, [group] * len(labels)], schema=PREPARED_IMAGE)


def header_problems(rows: pl.DataFrame, root: Path) -> pl.Series:
    """The problem of the header of every image, or null.

    Args:
        rows: images with `path`, relative to `root`, and `index`, the row in a Parquet table or null.
    """
    from PIL import Image

    Image.init()  # load the formats now, because threads must not do so at the same time
    problems: list[str | None] = [None] * rows.height
    with ThreadPoolExecutor(THREADS) as pool, progress(rows.height, "reading image headers", "images") as bar:
        for found in pool.map(lambda task: task(), _tasks(rows, root)):
            for row, problem in found:
                problems[row] = problem
            bar.advance(len(found))
    return pl.Series(problems, dtype=pl.String)


_Found = list[tuple[int, str | None]]


def _tasks(rows: pl.DataFrame, root: Path) -> Iterator[Callable[[], _Found]]:
    """One task per image file, and one per row group of a table; each gives (row, problem) pairs."""
    rows = rows.select("path", "index").with_row_index("row")
    for row, path in rows.filter(pl.col("index").is_null()).select("row", "path").iter_rows():
        yield partial(_check_file, row, root / path)
    tables = rows.filter(pl.col("index").is_not_null())
    for (path,), members in tables.group_by("path", maintain_order=True):
        for group, wanted in members.group_by(pl.col("index") // ROW_GROUP, maintain_order=True):
            del group
            yield partial(_check_rows, root / str(path), wanted["row"].to_list(), wanted["index"].to_list())


def _check_file(row: int, path: Path) -> _Found:
    if not path.is_file():
        return [(row, f"no image {path}")]
    if path.stat().st_size == 0:
        return [(row, f"{path} is empty (0 bytes)")]
    problem = image_problem(path)
    return [(row, problem and f"{path} {problem}")]


def _check_rows(path: Path, rows: list[int], indices: list[int]) -> _Found:
    """Check some rows of a table."""
    try:
        images = _read(path, min(indices), max(indices) + 1)
    except (OSError, ValueError, KeyError) as error:  # ArrowInvalid is a ValueError
        return [(row, f"{path} is not a table of images: {error}") for row in rows]
    found: _Found = []
    for row, index in zip(rows, indices, strict=True):
        content = images.get(index)
        problem = image_problem(io.BytesIO(content)) if content else "has no image"
        found.append((row, problem and f"{path}, row {index}, {problem}"))
    return found


def _read(path: Path, start: int, stop: int) -> dict[int, bytes]:
    """Contents of the images in the row groups with rows `start` to `stop`, by row."""
    import pyarrow.parquet as pq

    images: dict[int, bytes] = {}
    with pq.ParquetFile(path) as file:
        first = 0
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).num_rows
            if first < stop and first + size > start:
                column: pa.ChunkedArray = file.read_row_group(group, columns=[COLUMN])[COLUMN]
                images |= {first + place: value["bytes"] for place, value in enumerate(column.to_pylist()) if value}
            first += size
    return images


def open_image(source: Path | IO[bytes]) -> Image.Image:
    """Read the header of an image in one of `FORMATS`; the others, e.g. EPS, reach programs that are not ours."""
    from PIL import Image

    return Image.open(source, formats=sorted(set(FORMATS.values())))


def header_problem(image: Image.Image) -> str | None:
    """Why an open image is not decoded: the number format, or the limits of its size. None if it can be."""
    width, height = image.size
    if image.mode.startswith(("I", "F")):  # integers and floats: without their range, black and white are not defined
        return f"has more than eight bits per channel (mode {image.mode})"
    if width * height > MOST_PIXELS or max(width, height) > MOST_LENGTH * min(width, height):
        return (
            f"has {width} x {height} pixels; at most {MOST_PIXELS / 1e6:g} million are decoded, and a side that is at "
            f"most {MOST_LENGTH} times the other"
        )
    return None


def image_problem(source: Path | IO[bytes]) -> str | None:
    """The problem of an image file's header, or None."""
    from PIL import UnidentifiedImageError

    try:
        with open_image(source) as image:
            return header_problem(image)
    except Exception as error:  # a damaged file fails in many ways
        known = ", ".join(sorted(set(FORMATS.values())))
        reason = f"none of {known}" if isinstance(error, UnidentifiedImageError) else str(error)
        return f"cannot be read as an image: {reason}"
