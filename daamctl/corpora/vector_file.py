"""Embeddings that other software made, in one file: Parquet, NumPy's npz, or safetensors.

A file holds N items, each with an id, a label and a vector of D features per layer. docs/embeddings.md says how each
format holds them. Nothing is unpickled. Parquet and safetensors are read in parts; an npz is read into memory.
"""

from __future__ import annotations

import json
import math
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from daamctl.compute.devices import free_memory
from daamctl.errors import CorpusError, first_few
from daamctl.store.files import sha256_file

VECTORS = "embeddings"
"""Name of the array."""
REQUIRED = ("id", "label")
COLUMNS = (*REQUIRED, "speaker", "group", "utterance", "sentence")
"""Columns of text, one value per item."""
FORMATS = {"float16": "float16", "float32": "float32", "float64": "float32"}
"""Number format in the file -> format in which it is stored."""
BLOCK_BYTES = 64_000_000
"""Approximate size of the vectors that are read at once."""
# RuntimeError: a member of an npz is encrypted, or packed in a way that Python does not know
UNREADABLE = (OSError, ValueError, RuntimeError, pa.ArrowException, SafetensorError, zipfile.BadZipFile)
DESCRIPTION = (
    f"give an array '{VECTORS}' of items x layers x features, and the columns id and label, optionally speaker, group, "
    "utterance and sentence; arrays in other forms: daamctl import-vectors"
)


class VectorFile(ABC):
    """An open file of embeddings.

    Attributes:
        shape: N, L, D.
        dtype: name of the number format of the vectors.
        names: of the columns.

    Raises:
        CorpusError: the file cannot be read, or has no array of three axes.
    """

    shape: tuple[int, int, int]
    dtype: str
    names: Sequence[str]
    _metadata: Mapping[str, str]
    """Texts about the whole file: name, licence, and the layers as a JSON list."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            shape, self.dtype = self._open()
        except (*UNREADABLE, KeyError) as error:
            raise self.unreadable(error) from error
        # one layer may stand for all only if the user says so
        if len(shape) != 3:
            found = f"shape {tuple(shape)}" + (", so the axis of the layers is missing" if len(shape) == 2 else "")
            one = "; for a single layer give embeddings[:, None, :]" if len(shape) == 2 else ""
            raise CorpusError(
                f"{path}: '{VECTORS}' must have the axes items, layers and features, got {found}",
                fix=f"{DESCRIPTION}{one}",
            )
        if 0 in shape:
            raise CorpusError(f"{path}: '{VECTORS}' is empty, its shape is {tuple(shape)}", fix=DESCRIPTION)
        if self.dtype not in FORMATS:
            raise CorpusError(
                f"{path}: '{VECTORS}' holds {self.dtype}, not {', '.join(FORMATS)}",
                fix="convert it, e.g. with embeddings.astype('float32')",
            )
        self.shape = (int(shape[0]), int(shape[1]), int(shape[2]))

    @property
    def storage(self) -> str:
        """Number format in which the vectors are stored."""
        return FORMATS[self.dtype]

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of the L layers: those of the file, else 1 to L.

        Raises:
            CorpusError: they are not L different whole numbers from 0, ascending.
        """
        text = self._metadata.get("layers")
        if text is None:
            return tuple(range(1, self.shape[1] + 1))
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, list):
            raise CorpusError(f"{self.path}: 'layers' in the metadata is not a JSON list of numbers: {text[:80]}")
        numbers = [one for one in given if isinstance(one, int) and one >= 0]
        if len(numbers) != len(given) or len(numbers) != self.shape[1] or numbers != sorted(set(numbers)):
            raise CorpusError(
                f"{self.path}: 'layers' must be {self.shape[1]} ascending whole numbers, one for each layer of "
                f"'{VECTORS}', got {first_few([str(one) for one in given], 8)}",
                fix="correct it, or leave it out: the layers are then numbered from 1",
            )
        return tuple(numbers)

    def facts(self) -> dict[str, Any]:
        """What the metadata of the embeddings say about their origin: name, source, sha256, and numbers of the file."""
        names = {"made_by": "name", "licence": "licence"}
        return {
            "name": f"embeddings from {self.path.name}",
            "source": self.path.name,
            "sha256": sha256_file(self.path),
            **{fact: text for fact, name in names.items() if (text := self._metadata.get(name))},
            "storage": self.storage,
            "layers": list(self.layers),
            "embed_dim": self.shape[2],
        }

    def columns(self, *, required: Sequence[str] = REQUIRED) -> pl.DataFrame:
        """The columns of text, as far as the file has them; values are stripped, and empty ones are null.

        Raises:
            CorpusError: a required column is missing, or a column has another length or is no text.
        """
        found: dict[str, Sequence[Any]] = {}
        problems = []
        for name in COLUMNS:
            try:
                values = self._column(name)
            except ValueError as error:
                told = ""
                if name == "label" and str(error).startswith(("float", "double", "halffloat")):
                    told = "; numbers to predict become classes, e.g. low, middle and high"
                problems.append(f"{name}: {error}{told}")
                continue
            if values is not None and len(values) != self.shape[0]:
                problems.append(f"{name} has {len(values)} values, '{VECTORS}' has {self.shape[0]} items")
            elif values is not None:
                found[name] = values
            elif name in required:
                problems.append(f"{name} is missing")
        if problems:
            raise CorpusError(f"{self.path}: {'; '.join(problems)}", fix=DESCRIPTION)
        table = pl.DataFrame({name: pl.Series(values, dtype=pl.String) for name, values in found.items()})
        return table.with_columns(pl.col(pl.String).str.strip_chars().replace("", None))

    def blocks(self) -> Iterator[NDArray[Any]]:
        """The vectors in the order of the file, (n, L, D) at a time, in the format in which they are stored.

        Raises:
            CorpusError: the file is damaged, or its items differ in their numbers of layers or features.
        """
        # at least one item, however large
        size = max(1, BLOCK_BYTES // (self.shape[1] * self.shape[2] * np.dtype(self.dtype).itemsize))
        try:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, which is noticed
                for block in self._blocks(size):
                    yield block.astype(self.storage, copy=False)
        except UNREADABLE as error:
            raise self.unreadable(error) from error

    def unreadable(self, error: Exception) -> CorpusError:
        """The error for a file that cannot be read."""
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return CorpusError(f"{self.path} cannot be read: {reason}", fix=DESCRIPTION)

    @abstractmethod
    def _open(self) -> tuple[Sequence[int], str]:
        """Read the metadata, and give shape and number format of the array; a ValueError if there is none."""

    @abstractmethod
    def _column(self, name: str) -> Sequence[Any] | None:
        """The values of a column; None if there is none. A ValueError if they are no text."""

    @abstractmethod
    def _blocks(self, size: int) -> Iterator[NDArray[Any]]: ...


class ParquetVectors(VectorFile):
    """Parquet: a column of lists of lists, and columns of text; the metadata hold `layers`, `name` and `licence`."""

    def _open(self) -> tuple[Sequence[int], str]:
        with pq.ParquetFile(self.path) as file:
            schema, shape, told = file.schema_arrow, [file.metadata.num_rows], file.metadata.metadata or {}
            # the type of a list does not say how long it is, so the first item is measured
            first = next(file.iter_batches(1, columns=[_present(VECTORS, schema.names)]), None)
        self.names = schema.names
        self._metadata = {key.decode(): text.decode() for key, text in told.items()}
        kind, values = schema.field(VECTORS).type, None if first is None else first.column(0)
        while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            kind, values = kind.value_type, None if values is None else values.flatten()
            # `flatten` gives all inner items at once, so the outer axes are divided out
            shape.append(0 if values is None else len(values) // max(1, math.prod(shape[1:])))
        return shape, {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))

    def _column(self, name: str) -> Sequence[Any] | None:
        if name not in self.names:
            return None
        with pq.ParquetFile(self.path) as file:
            values = file.read([name]).column(0)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if not (pa.types.is_integer(values.type) or "string" in str(values.type)):
            raise ValueError(f"{values.type}, not text")
        texts: list[str | None] = values.cast(pa.large_string()).to_pylist()
        return texts

    def _blocks(self, size: int) -> Iterator[NDArray[Any]]:
        start = 0
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(size, columns=[VECTORS]):
                yield self._array(batch.column(0), start)
                start += len(batch)

    def _array(self, items: pa.Array, start: int) -> NDArray[Any]:
        """The vectors of items, of which the first has the number `start`."""
        values = items
        for axis, what in ((1, "layers"), (2, "features")):
            if pa.types.is_fixed_size_list(values.type):  # flattening leaves out missing ones
                lengths = np.where(values.is_null(), 0, values.type.list_size)
            else:
                lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(lengths != self.shape[axis])
            if len(wrong):
                # counted in layers on the second axis, in items on the first
                row = start + int(wrong[0]) // math.prod(self.shape[1:axis])
                raise ValueError(f"item {row} (from 0) has {lengths[wrong[0]]} {what}, not {self.shape[axis]}")
            values = values.flatten()
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(items), *self.shape[1:])


class NumpyVectors(VectorFile):
    """npz: one array per column, of text or whole numbers; `layers` too; `name` and `licence` are single texts."""

    _metadata: dict[str, str]

    def _open(self) -> tuple[Sequence[int], str]:
        with zipfile.ZipFile(self.path) as archive:  # it may expand to any size
            need, free = sum(one.file_size for one in archive.infolist()), free_memory()
        if need > free:
            raise CorpusError(
                f"{self.path} needs {need / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free",
                fix="write the embeddings as Parquet or safetensors, which are read in parts",
            )
        with np.load(self.path, allow_pickle=False) as file:
            self.names = list(file.files)
            # read once and kept: npz has no way to read a part of an array
            vectors = file[_present(VECTORS, self.names)]
        self._vectors: NDArray[Any] = vectors
        layers, told = self._read("layers"), {name: self._read(name) for name in ("name", "licence")}
        self._metadata = {name: str(one.item()) for name, one in told.items() if one is not None and one.size == 1}
        if layers is not None:
            self._metadata["layers"] = json.dumps(layers.reshape(-1).tolist(), default=str)
        return vectors.shape, str(vectors.dtype)

    def _column(self, name: str) -> Sequence[Any] | None:
        values = self._read(name)
        if values is None:
            return None
        if values.ndim != 1:
            raise ValueError(f"shape {values.shape}, not one value per item")
        if values.dtype.kind not in "USiu":
            raise ValueError(f"{values.dtype}, not text")
        return list(np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values.astype(str))

    def _blocks(self, size: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self.shape[0], size):
            yield self._vectors[start : start + size]

    def _read(self, name: str) -> NDArray[Any] | None:
        if name not in self.names:
            return None
        try:
            with np.load(self.path, allow_pickle=False) as file:
                found: NDArray[Any] = file[name]
        except ValueError as error:
            if "pickle" in str(error):
                raise ValueError("Python objects, not text; convert it with np.asarray(values, dtype=str)") from error
            raise
        return found


class SafetensorsVectors(VectorFile):
    """safetensors: the array is a tensor; the columns and `layers` are JSON lists in the metadata of the file."""

    def _open(self) -> tuple[Sequence[int], str]:
        with safe_open(self.path, framework="np") as file:
            self._metadata = file.metadata() or {}
            self.names = list(self._metadata)
            part = file.get_slice(_present(VECTORS, list(file.keys())))
            kind = part.get_dtype()
            return part.get_shape(), {"F16": "float16", "F32": "float32", "F64": "float64"}.get(kind, kind)

    def _column(self, name: str) -> Sequence[Any] | None:
        if name not in self._metadata:
            return None
        try:
            values = json.loads(self._metadata[name])
        except (ValueError, RecursionError) as error:
            raise ValueError("the entry of the metadata is not JSON") from error
        if not isinstance(values, list) or not all(isinstance(one, str | int | None) for one in values):
            raise ValueError("the entry of the metadata is not a JSON list of texts")
        return [None if one is None else str(one) for one in values]

    def _blocks(self, size: int) -> Iterator[NDArray[Any]]:
        with safe_open(self.path, framework="np") as file:
            part = file.get_slice(VECTORS)
            for start in range(0, self.shape[0], size):
                yield part[start : min(start + size, self.shape[0])]


READERS: dict[str, type[VectorFile]] = {
    ".parquet": ParquetVectors,
    ".npz": NumpyVectors,
    ".safetensors": SafetensorsVectors,
}
"""Suffix of a file -> its reader."""


def open_vectors(path: Path) -> VectorFile:
    """Open a file of embeddings.

    Raises:
        CorpusError: there is no such file, it is of an unknown kind, or it cannot be read.
    """
    if not path.is_file():
        raise CorpusError(f"no file {path}", fix=DESCRIPTION)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise CorpusError(f"{path} is of an unknown kind (allowed: {', '.join(READERS)})", fix=DESCRIPTION)
    return reader(path)


def _present(name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ValueError(f"it has no array '{name}', only {first_few(list(names))}")
    return name
