r"""Vectors and matrices in Kaldi's archives, `.ark`, and in the lists of places within them, `.scp`.

An archive has, for each item, its name, a space and an array. That is binary (`\0B`, a kind such as `FV `, the numbers
of rows and columns, each after a byte 4, and the values) or text (`[ 0.1 0.2 ]`, of a matrix with a row in each line).
Compressed matrices (`CM `, `CM2 `, `CM3 `) have their least value, range, numbers of rows and columns, and a number of
one or two bytes for each value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from daamctl.corpora.files import read_text
from daamctl.errors import CorpusError

ENDINGS = (".ark", ".scp")
KINDS: dict[bytes, tuple[str, int]] = {b"FV ": ("<f4", 1), b"DV ": ("<f8", 1), b"FM ": ("<f4", 2), b"DM ": ("<f8", 2)}
"""Kind of a binary array -> type of its values and number of its axes."""
COMPRESSED: dict[bytes, str] = {b"CM ": "<u1", b"CM2": "<u2", b"CM3": "<u1"}
"""Kind of a compressed matrix -> type of its numbers."""
LONGEST_NAME = 1000
Read = Callable[[], NDArray[np.floating]]


def read_archive(path: Path) -> dict[str, Read]:
    """Name of each item -> function that reads its array, (D,) or (T, D).

    Raises:
        CorpusError: a place cannot be read, a name stands twice, or an array is of another kind.
    """
    items: dict[str, Read] = {}
    for name, file, offset in _listed(path) if path.suffix == ".scp" else _contained(path):
        if name in items:
            raise CorpusError(f"{path}: two items are called {name}")
        items[name] = partial(_read, file, offset)
    if not items:
        raise CorpusError(f"{path} has no items")
    return items


def _listed(path: Path) -> list[tuple[str, Path, int]]:
    """Name, archive and offset of each line of a list; an archive may be beside the list, wherever it was written."""
    found = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        hit = re.fullmatch(r"(\S+)\s+([^|\[\]]+):(\d+)\s*", line)
        if hit is None:
            raise CorpusError(f"{path}:{number}: a name and FILE.ark:OFFSET are needed, got {line[:80]!r}")
        places = [Path(hit[2]), path.parent / hit[2], path.parent / Path(hit[2]).name]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            raise CorpusError(f"{path}:{number}: no file {hit[2]}", fix="put the archives beside the list")
        found.append((hit[1], file, int(hit[3])))
    return found


def _contained(path: Path) -> list[tuple[str, Path, int]]:
    """Name, archive and offset of each array of an archive."""
    found = []
    with path.open("rb") as file:
        while name := _name(file, path):
            found.append((name, path, file.tell()))
            _array(file, f"{path}: {name}", skip=True)
    return found


def _name(file: BinaryIO, path: Path) -> str:
    """The name that comes next; empty at the end."""
    name = b""
    # space before it does not count
    while (byte := file.read(1)) and not (name and byte in b" \t") and len(name) < LONGEST_NAME:
        name = (name + byte).lstrip()
    try:
        found = name.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is no archive of Kaldi: a name is not UTF-8") from error
    if found and (byte not in (b" ", b"\t") or not found.isprintable()):
        raise CorpusError(f"{path} is no archive of Kaldi: it has no name where one is expected")
    return found


def _read(path: Path, offset: int) -> NDArray[np.floating]:
    with path.open("rb") as file:
        file.seek(offset)
        return _array(file, f"{path}:{offset}")


def _array(file: BinaryIO, what: str, *, skip: bool = False) -> NDArray[np.floating]:
    """The array that comes next; with `skip` it is empty, and the file behind it."""
    start = file.tell()
    if file.read(2) != b"\0B":
        file.seek(start)
        return _text(file, what)
    kind = file.read(3)
    if kind in COMPRESSED:
        return _decompressed(file, kind, what, skip=skip)
    if kind not in KINDS:
        called = kind.decode(errors="replace").strip()
        raise CorpusError(
            f"{what}: an array of the kind {called!r} is not read", fix="write it again: copy-feats or copy-vector"
        )
    dtype, axes = KINDS[kind]
    sizes = [file.read(5) for _ in range(axes)]
    shape = tuple(int.from_bytes(size[1:], "little", signed=True) for size in sizes)
    number = int(np.prod(shape)) * np.dtype(dtype).itemsize
    left = file.seek(0, 2) - (at := start + 5 + 5 * axes)
    if any(size[:1] != b"\4" for size in sizes) or min(shape) < 0 or number > left:
        raise CorpusError(f"{what}: the array is damaged, or ends too early")
    file.seek(at)
    if skip:
        file.seek(number, 1)
        return np.empty(0)
    return np.frombuffer(file.read(number), dtype).reshape(shape)


def _decompressed(file: BinaryIO, kind: bytes, what: str, *, skip: bool) -> NDArray[np.floating]:
    """A compressed matrix (T, D), whose kind has been read; see `_array`."""
    file.read(0 if kind.endswith(b" ") else 1)  # the space behind CM2 and CM3
    head = file.read(16)
    low, extent = np.frombuffer(head[:8], "<f4") if len(head) == 16 else (0.0, 0.0)
    rows, columns = (int.from_bytes(head[at : at + 4], "little", signed=True) for at in (8, 12))
    per_column = 8 if kind == b"CM " else 0
    dtype = np.dtype(COMPRESSED[kind])
    number = columns * (per_column + rows * dtype.itemsize)
    at = file.tell()
    left = file.seek(0, 2) - at
    if len(head) < 16 or min(rows, columns) < 0 or number > left:
        raise CorpusError(f"{what}: the array is damaged, or ends too early")
    file.seek(at)
    if skip:
        file.seek(number, 1)
        return np.empty(0)
    quantiles = np.frombuffer(file.read(columns * per_column), "<u2").reshape(-1, 4)
    codes = np.frombuffer(file.read(columns * rows * dtype.itemsize), dtype)
    if not per_column:
        return low + extent / np.iinfo(dtype).max * codes.reshape(rows, columns).astype(np.float64)
    # numbers of a column are between its least value, quartiles and largest value, which are 0, 64, 192 and 255
    edges = low + extent / 65535 * quantiles.astype(np.float64)
    values = [
        np.interp(own, (0, 64, 192, 255), edge) for own, edge in zip(codes.reshape(columns, rows), edges, strict=True)
    ]
    return np.stack(values, axis=1) if columns else np.empty((rows, 0))


def _text(file: BinaryIO, what: str) -> NDArray[np.floating]:
    """Numbers in brackets, of a matrix in several lines."""
    lines = []
    while (line := file.readline()) and b"]" not in line:
        lines.append(line)
    whole = b"".join([*lines, line]).strip()
    if not (whole.startswith(b"[") and whole.endswith(b"]")):
        raise CorpusError(f"{what}: neither a binary array nor numbers in brackets, got {whole[:40]!r}")
    rows = [row.split() for row in whole[1:-1].splitlines() if row.strip()]
    if len(sizes := sorted({len(row) for row in rows})) != 1:
        raise CorpusError(f"{what}: rows have {', '.join(map(str, sizes)) or 'no'} numbers")
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise CorpusError(f"{what}: {error}") from error
    return values[0] if len(lines) == 0 else values
