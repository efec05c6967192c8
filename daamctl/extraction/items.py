"""Items that an encoder reads: one adapter per modality between rows of the clip table and the extraction loop.

Speech: a waveform at the encoder's rate. Text: token ids. Images: pixels, from a file or from a row of a Parquet table
in the layout of `datasets` (a struct column with the encoded bytes), whose row groups are read on first use.
"""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from daamctl.artifacts.utterances import Modality
from daamctl.config import Config
from daamctl.corpora.images import header_problem, open_image
from daamctl.data import audio
from daamctl.encoders.base import Encoder
from daamctl.encoders.tokens import OUTSIDE
from daamctl.errors import CorpusError

if TYPE_CHECKING:
    from PIL import Image

    from daamctl.encoders.image import ImageEncoder
    from daamctl.encoders.speech import SpeechEncoder
    from daamctl.encoders.text import TextEncoder
    from daamctl.encoders.tokens import TokenEncoder

SPLIT = "in parts of sentences that are longer than the encoder reads"
"""Warning about words whose context is not their whole sentence."""
CACHE_BYTES = 512_000_000  # encoded images: all of CIFAR-100, part of larger tables


class Items(Protocol):
    """Items for some rows of the clip table.

    Attributes:
        sizes: (N,) cost of each item: samples, tokens, or 1 per image.
        budget: largest cost of a batch, padding included.
        members: rows that each item gives vectors for, in their order; None: item N gives row N.
        absent: row -> reason, for rows without an item.
    """

    sizes: np.ndarray
    budget: int
    members: Sequence[Sequence[int]] | None
    absent: Mapping[int, str]

    def read(self, row: int) -> Tensor:
        """Read one item: waveform (T,), token ids (T,), pixels (3, H, W), or ids and words (2, T) of a sentence.

        Several threads may call it at once.

        Raises:
            AudioError: the recording cannot be decoded.
            CorpusError: the text is empty, or the image cannot be decoded.
        """

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """Warnings about an item returned by `read`, e.g. `silent`; they do not exclude it."""


def open_items(
    rows: pl.DataFrame,
    modality: Modality,
    root: Path,
    encoder: Encoder,
    config: Config,
    *,
    max_tokens: int | None = None,
    tables: ImageTables | None = None,
    sentences: pl.DataFrame | None = None,
) -> Items:
    """Open rows of a clip table as items for an encoder of their modality.

    Args:
        root: folder that paths are relative to; unused for text.
        max_tokens: longest text, in tokens, if lower than `extract.max_tokens`.
        tables: image tables that are already open; None: open new ones.
        sentences: all words of the sentences that the rows are of, for context; None: the rows hold them.
    """
    extract = config.extract
    if modality == "text":
        text_encoder = cast("TextEncoder", encoder)
        limit = min(text_encoder.max_tokens, max_tokens or text_encoder.max_tokens)
        return TextItems(rows, text_encoder, limit, extract.max_batch_tokens)
    if modality == "tokens":
        token_encoder = cast("TokenEncoder", encoder)
        limit = min(token_encoder.max_tokens, max_tokens or token_encoder.max_tokens)
        context = rows if sentences is None else sentences
        return TokenItems(rows, context, token_encoder, limit, extract.max_batch_tokens)
    if modality == "image":
        return ImageItems(rows, root, cast("ImageEncoder", encoder), extract.max_batch_images, tables)
    return SpeechItems(rows, root, cast("SpeechEncoder", encoder).sampling_rate, extract.max_batch_s)


class SpeechItems:
    """Clips of recordings.

    Args:
        sampling_rate: Hz of the waveforms.
        max_batch_s: longest total audio in a batch, in seconds.
    """

    members: Sequence[Sequence[int]] | None = None
    absent: Mapping[int, str] = MappingProxyType({})

    def __init__(self, rows: pl.DataFrame, root: Path, sampling_rate: int, max_batch_s: float) -> None:
        self.rows = rows.select("path", "start_s", "duration_s", "pad_to_s").to_dicts()
        self.root, self.sampling_rate = root, sampling_rate
        lengths = rows.select(pl.max_horizontal("duration_s", pl.col("pad_to_s").fill_null(0.0)))
        self.sizes = np.round(lengths.to_series().to_numpy() * sampling_rate).astype(np.int64)
        self.budget = round(max_batch_s * sampling_rate)

    def read(self, row: int) -> Tensor:
        """Cut the clip from its recording and resample it."""
        clip = self.rows[row]
        waveform = audio.load(
            self.root / clip["path"],
            start_s=clip["start_s"],
            duration_s=clip["duration_s"],
            sampling_rate=self.sampling_rate,
        )
        pad_to = round((clip["pad_to_s"] or 0.0) * self.sampling_rate)
        return torch.nn.functional.pad(waveform, (0, max(0, pad_to - len(waveform))))

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """`silent` or `clipped`, see `audio.warnings_about`."""
        return tuple(sorted(audio.warnings_about(item), reverse=True))


class TextItems:
    """Texts, tokenised when opened.

    Args:
        max_tokens: longest text, in tokens; longer ones are truncated.
        budget: most tokens in one batch, padding included.
    """

    members: Sequence[Sequence[int]] | None = None
    absent: Mapping[int, str] = MappingProxyType({})

    def __init__(self, rows: pl.DataFrame, encoder: TextEncoder, max_tokens: int, budget: int) -> None:
        self.names = rows["clip_id"].to_list()
        self.encoder, self.budget = encoder, budget
        self.ids, cut = encoder.tokens(rows["text"].to_list(), max_tokens)
        self.sizes = np.array([len(ids) for ids in self.ids], np.int64)
        self.cut = {id(ids) for ids, is_cut in zip(self.ids, cut, strict=True) if is_cut}

    def read(self, row: int) -> Tensor:
        """Return the token ids of a text."""
        ids = self.ids[row]
        if self.encoder.num_text_tokens(ids) < 1:
            raise CorpusError(f"text '{self.names[row]}' gives no token: it is empty")
        return ids

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """`truncated` if the text was cut at `max_tokens`."""
        return ("truncated",) if id(item) in self.cut else ()


class TokenItems:
    """Sentences, tokenised when opened; a sentence gives a vector for each of its words.

    Args:
        rows: rows of the clip table, which are words.
        max_tokens: longest sentence, in tokens; longer ones are cut between words.
        budget: most tokens in one batch, padding included.
    """

    def __init__(
        self, rows: pl.DataFrame, sentences: pl.DataFrame, encoder: TokenEncoder, max_tokens: int, budget: int
    ) -> None:
        self.budget = budget
        row_of = dict(zip(rows["clip_id"], range(len(rows)), strict=True))
        whole = sentences.sort("sentence", "position").group_by("sentence", maintain_order=True)
        found = whole.agg("text", "clip_id")
        self.items: list[Tensor] = []
        members: list[list[int]] = []
        self.cut: set[int] = set()
        tokenized = encoder.word_tokens(found["text"].to_list(), max_tokens)
        for clip_ids, parts in zip(found["clip_id"].to_list(), tokenized, strict=True):
            for ids, words in parts:
                given = dict.fromkeys(words.tolist())  # in order
                wanted = [word for word in given if word != OUTSIDE and clip_ids[word] in row_of]
                if not wanted:
                    continue
                slots = torch.full((len(clip_ids) + 1,), OUTSIDE)  # the last one is that of OUTSIDE
                slots[wanted] = torch.arange(len(wanted))
                self.items.append(torch.stack([ids, slots[words]]))
                members.append([row_of[clip_ids[word]] for word in wanted])
                if len(parts) > 1:
                    self.cut.add(id(self.items[-1]))
        self.sizes = np.array([item.shape[1] for item in self.items], np.int64)
        self.members: Sequence[Sequence[int]] | None = members
        present = {row for rows_of_item in members for row in rows_of_item}
        self.absent: Mapping[int, str] = {row: "gives no token" for row in range(len(rows)) if row not in present}

    def read(self, row: int) -> Tensor:
        """Return token ids and words (2, T) of a sentence."""
        return self.items[row]

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """`in parts of sentences that are longer than the encoder reads`."""
        return (SPLIT,) if id(item) in self.cut else ()


class ImageItems:
    """Images, decoded when read.

    Args:
        root: folder that paths are relative to.
    """

    members: Sequence[Sequence[int]] | None = None
    absent: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        rows: pl.DataFrame,
        root: Path,
        encoder: ImageEncoder,
        budget: int,
        tables: ImageTables | None = None,
    ) -> None:
        self.rows = rows.select("path", "index").rows()
        self.root, self.encoder, self.budget = root, encoder, budget
        self.sizes = np.ones(len(self.rows), np.int64)
        self.tables = ImageTables() if tables is None else tables

    def read(self, row: int) -> Tensor:
        """Decode, resize and normalise an image."""
        path, index = self.rows[row]
        return self.encoder.pixels(self.tables.decoded(self.root / path, index))

    def marks(self, item: Tensor) -> tuple[str, ...]:
        """`blank` if the image has a single colour."""
        flat = item.flatten(1)
        return ("blank",) if bool((flat == flat[:, :1]).all()) else ()


@dataclass(frozen=True)
class _ImageTable:
    """An open table of images.

    Args:
        starts: first row of each row group, and the number of rows.
    """

    file: pq.ParquetFile
    column: str
    starts: np.ndarray


class ImageTables:
    """Encoded images from Parquet tables; row groups are read on first use and cached up to `CACHE_BYTES`."""

    def __init__(self) -> None:
        self.tables: dict[Path, _ImageTable] = {}
        self.groups: OrderedDict[tuple[Path, int], pa.ChunkedArray] = OrderedDict()
        self.lock = Lock()

    def encoded(self, path: Path, index: int) -> bytes:
        """The PNG or JPEG bytes of one row.

        Raises:
            CorpusError: the table is missing or damaged, has no images, or lacks that row.
        """
        with self.lock:
            try:
                value = self._value(path, index)
            except (OSError, pa.ArrowInvalid) as error:
                raise CorpusError(f"{path} cannot be read as Parquet: {' '.join(str(error).split())}") from error
        if not isinstance(value, bytes) or not value:
            raise CorpusError(f"{path} row {index} holds no image bytes")
        return value

    def decoded(self, path: Path, index: int | None) -> Image.Image:
        """An image, upright and in RGB: a row of a table, or a file of its own if `index` is None.

        Raises:
            CorpusError: as for `encoded` and `decode`.
        """
        if index is None:
            return decode(path, str(path))
        return decode(self.encoded(path, index), f"{path} row {index}")

    def _value(self, path: Path, index: int) -> Any:
        """What the image column has as `bytes` in one row."""
        if path not in self.tables:
            file = pq.ParquetFile(path)
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            self.tables[path] = _ImageTable(file, _image_column(path, file.schema_arrow), np.cumsum([0, *sizes]))
        table = self.tables[path]
        if not 0 <= index < table.starts[-1]:
            raise CorpusError(f"{path} has {table.starts[-1]} rows, so no row {index}")
        group = int(np.searchsorted(table.starts, index, side="right")) - 1
        if (path, group) not in self.groups:
            self.groups[path, group] = table.file.read_row_group(group, columns=[table.column]).column(0)
            while len(self.groups) > 1 and sum(cached.nbytes for cached in self.groups.values()) > CACHE_BYTES:
                self.groups.popitem(last=False)  # the one that was used longest ago
        self.groups.move_to_end((path, group))
        image = self.groups[path, group][index - int(table.starts[group])].as_py()
        return None if image is None else image.get("bytes")


def _image_column(path: Path, schema: pa.Schema) -> str:
    """Name of the image column: `image`, or the first other one that holds encoded images."""
    fields = [field for field in schema if pa.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0]
    if not fields:
        raise CorpusError(f"{path} has no column of images (a struct with 'bytes'); columns: {', '.join(schema.names)}")
    names = [str(field.name) for field in fields]
    return "image" if "image" in names else names[0]


def decode(source: Path | bytes, name: str) -> Image.Image:
    """Decode an image, upright and in RGB.

    Args:
        source: file, or its bytes.

    Raises:
        CorpusError: it is missing, of another format than `FORMATS`, too large (`header_problem`), damaged, or has more
            than eight bits per channel.
    """
    from PIL import ImageOps

    if isinstance(source, Path) and not os.path.exists(source):  # noqa: PTH110, also False for a name with a null byte
        raise CorpusError(f"no image {name}")
    if isinstance(source, Path) and not source.is_file():  # a pipe would block
        raise CorpusError(f"{name} is not a file")
    try:
        with open_image(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if (problem := header_problem(image)) is None:
                return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # a damaged file fails in many ways
        raise CorpusError(f"{name} is not an image that can be read: {error}") from error
    raise CorpusError(f"{name} {problem}")
