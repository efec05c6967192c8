"""Cut images into squares: places as a table, pixels on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from torch import Tensor

from daamctl.artifacts.reconstruction import COLUMNS, Crops
from daamctl.artifacts.splits import fold_groups
from daamctl.artifacts.utterances import UtteranceTable
from daamctl.compute.progress import progress
from daamctl.config.schema import CropConfig
from daamctl.errors import CorpusError, first_few
from daamctl.extraction.items import ImageTables

if TYPE_CHECKING:
    from PIL import Image

THREADS = 8
IN_MEMORY_BYTES = 2_000_000_000
"""Crops of a part up to this size are kept in memory; larger parts are decoded batch by batch."""
MAX_NAMED = 5


def place_crops(table: UtteranceTable, root: Path, settings: CropConfig) -> Crops:
    """Choose the places of crops. The test part is the official one, or else the last group of images.

    Args:
        root: folder that their paths are relative to.

    Raises:
        CorpusError: an image cannot be decoded or is smaller than a crop, or a part is empty.
    """
    source = _Images(root, settings.resize)
    images = table.rows.select("utterance_id", "path", "index", "group").rows()
    with ThreadPoolExecutor(THREADS) as pool, progress(len(images), "measuring images", "images") as bar:
        sizes = []
        for size in pool.map(lambda row: source.size(row[1], row[2]), images):
            sizes.append(size)
            bar.advance()
    small = [row[0] for row, size in zip(images, sizes, strict=True) if min(size) < settings.size]
    if small:
        least = min(min(size) for size in sizes)
        raise CorpusError(
            f"{len(small)} of {len(images)} images are smaller than crop.size ({settings.size} pixels): "
            f"{first_few(small, MAX_NAMED)}",
            fix=f"set crop.size to {least} or less, or crop.resize to {settings.size} or more",
        )
    groups = table.rows["group"]
    test = fold_groups(groups)[-1]
    rows = []
    for number, ((name, path, index, group), size) in enumerate(zip(images, sizes, strict=True)):
        part = "test" if group == test else "train"
        for place, (left, top) in enumerate(_places(size, settings, number)):
            rows.append((f"{name}-{place:03d}", name, path, index, left, top, part))
    crops = Crops(
        table.corpus, pl.DataFrame(rows, schema=COLUMNS, orient="row"), settings.model_dump(mode="json"), table.content
    )
    for part in ("train", "test"):
        if crops.part(part).is_empty():
            raise CorpusError(f"corpus '{table.corpus}' has no image in its {part} part", fix="give more images")
    return crops


def _places(size: tuple[int, int], settings: CropConfig, number: int) -> list[tuple[int, int]]:
    """Left and top of the crops of an image; the draws depend on its number in the table alone."""
    free = [side - settings.size for side in size]
    if settings.per_image == 1:
        return [(free[0] // 2, free[1] // 2)]
    rng = np.random.default_rng([settings.seed, number])
    drawn = [(int(rng.integers(free[0] + 1)), int(rng.integers(free[1] + 1))) for _ in range(settings.per_image)]
    return list(dict.fromkeys(drawn))


class _Images:
    """Decoded images, scaled to a shorter side."""

    def __init__(self, root: Path, resize: int | None) -> None:
        self.root, self.resize, self.tables = root, resize, ImageTables()

    def open(self, path: str, index: int | None) -> Image.Image:
        """Decode an image, upright, in RGB and scaled.

        Raises:
            CorpusError: it cannot be decoded.
        """
        from PIL import Image

        image = self.tables.decoded(self.root / path, index)
        scaled = _scaled(image.size, self.resize)
        return image if image.size == scaled else image.resize(scaled, Image.Resampling.BICUBIC)

    def size(self, path: str, index: int | None) -> tuple[int, int]:
        """Width and height after scaling; the image is decoded, because only that shows damage."""
        return self.open(path, index).size


def _scaled(size: tuple[int, int], shorter: int | None) -> tuple[int, int]:
    if shorter is None:
        return size
    least = min(size)
    return tuple(shorter if side == least else round(side * shorter / least) for side in size)  # type: ignore[return-value]


class CropPixels:
    """Pixels of crops, as uint8 (3, S, S). A part that fits is decoded once; otherwise each batch is decoded anew.

    Args:
        part: train or test.
    """

    def __init__(self, crops: Crops, part: str, root: Path) -> None:
        self.rows = crops.part(part).select("path", "index", "left", "top").rows()
        self.side = int(crops.settings["size"])
        self.images = _Images(root, crops.settings["resize"])
        self.all: Tensor | None = None
        if len(self.rows) * 3 * self.side**2 <= IN_MEMORY_BYTES:
            [self.all] = self._decoded([range(len(self.rows))])

    def __len__(self) -> int:
        """Number of crops."""
        return len(self.rows)

    def batches(self, batches: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        """Pixels (B, 3, S, S) of batches of rows, in order; the next batch is decoded while one is used.

        Raises:
            CorpusError: an image can no longer be decoded.
        """
        if self.all is not None:
            return (self.all[list(batch)] for batch in batches)
        return self._decoded(batches)

    def _decoded(self, batches: Iterable[Sequence[int]]) -> Iterator[Tensor]:
        with ThreadPoolExecutor(THREADS) as pool:
            begun = ((len(batch), pool.map(self._crops, _by_image(self.rows, batch))) for batch in batches)
            current = next(begun, None)
            while current is not None:
                upcoming = next(begun, None)  # begins to decode it
                size, found = current
                pixels = torch.empty(size, 3, self.side, self.side, dtype=torch.uint8)
                for places, crops in found:
                    pixels[places] = crops
                yield pixels
                current = upcoming

    def _crops(self, work: tuple[list[int], list[tuple[str, int | None, int, int]]]) -> tuple[list[int], Tensor]:
        """Crops of one image, with their places in the batch."""
        places, rows = work
        image = np.asarray(self.images.open(rows[0][0], rows[0][1]))  # (H, W, 3)
        cut = [image[top : top + self.side, left : left + self.side] for _, _, left, top in rows]
        return places, torch.from_numpy(np.stack(cut)).movedim(-1, 1)


def _by_image(
    rows: Sequence[tuple[str, int | None, int, int]], batch: Sequence[int]
) -> list[tuple[list[int], list[tuple[str, int | None, int, int]]]]:
    """The rows of a batch by image, so that each image is decoded once: places in the batch, and rows."""
    found: dict[tuple[str, int | None], tuple[list[int], list[tuple[str, int | None, int, int]]]] = {}
    for place, row in enumerate(batch):
        places, own = found.setdefault(rows[row][:2], ([], []))
        places.append(place)
        own.append(rows[row])
    return list(found.values())
