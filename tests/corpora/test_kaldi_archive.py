"""Archives of Kaldi, as Kaldi, WeSpeaker and kaldiio write them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from daamctl.corpora.dumps import import_vectors
from daamctl.corpora.kaldi_archive import read_archive
from daamctl.errors import CorpusError

VECTOR = np.array([0.5, -1.25, 3.0])
MATRIX = np.array([[0.5, -1.25, 3.0], [1.5, 2.0, -7.0]])


def size(number: int) -> bytes:
    return b"\x04" + struct.pack("<i", number)


def compressed(kind: bytes, low: float, extent: float, shape: tuple[int, int], content: bytes) -> bytes:
    return kind + b" " + struct.pack("<ffii", low, extent, *shape) + content


CODES = np.array([[0, 32, 64], [128, 192, 255]])
WRITTEN = {
    "float vector": (b"FV " + size(3) + VECTOR.astype("<f4").tobytes(), VECTOR),
    "double vector": (b"DV " + size(3) + VECTOR.astype("<f8").tobytes(), VECTOR),
    "float matrix": (b"FM " + size(2) + size(3) + MATRIX.astype("<f4").tobytes(), MATRIX),
    "double matrix": (b"DM " + size(2) + size(3) + MATRIX.astype("<f8").tobytes(), MATRIX),
    "numbers of two bytes": (compressed(b"CM2", -1, 65535, (2, 3), CODES.astype("<u2").tobytes()), CODES - 1.0),
    "numbers of a byte": (compressed(b"CM3", -1, 127.5, (2, 3), CODES.astype("<u1").tobytes()), CODES / 2 - 1),
    # each column has its least value, quartiles and largest value, then its numbers
    "numbers between quartiles": (
        compressed(b"CM", -1, 65535, (2, 3), struct.pack("<4H", 0, 10, 20, 90) * 3 + CODES.T.astype("<u1").tobytes()),
        np.array([[-1.0, 4, 9], [14, 19, 89]]),
    ),
    "no numbers": (compressed(b"CM", 0, 0, (0, 0), b""), np.empty((0, 0))),
}
"""What follows the mark of binary data -> what it is."""
TEXTS = {
    "vector": (b" [ 0.5 -1.25 3 ]\n", VECTOR),
    "matrix": (b" [\n  0.5 -1.25 3 \n  1.5 2 -7 ]\n", MATRIX),
    "matrix of one row": (b" [\n  0.5 -1.25 3 ]\n", MATRIX[:1]),
}


@pytest.mark.parametrize("kind", [*WRITTEN, *TEXTS])
def test_arrays_of_an_archive(kind: str, tmp_path: Path) -> None:
    content, array = (WRITTEN | TEXTS)[kind]
    content = content if kind in TEXTS else b"\0B" + content
    (tmp_path / "x.ark").write_bytes(b"a " + content + b"b-\xc3\xa4 " + content)
    items = read_archive(tmp_path / "x.ark")
    assert list(items) == ["a", "b-ä"]
    for read in items.values():
        np.testing.assert_array_equal(read(), array)


def test_space_before_a_name_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "x.ark").write_bytes(b" a  [ 1 2 ]\n \tb  [ 3 4 ]\n\nc [ 5 6 ]\n ")
    assert {name: read().tolist() for name, read in read_archive(tmp_path / "x.ark").items()} == {
        "a": [1, 2], "b": [3, 4], "c": [5, 6],
    }  # fmt: skip


@pytest.mark.parametrize("place", ["x.ark", "/elsewhere/exp/x.ark"])
def test_a_list_of_places(place: str, tmp_path: Path) -> None:
    """Kaldi writes where the archive was made."""
    content = b"\0B" + WRITTEN["float vector"][0]
    (tmp_path / "x.ark").write_bytes(b"a " + content + b"b " + content)
    (tmp_path / "x.scp").write_text(f"b {place}:{len(content) + 4}\na {place}:2\n")
    items = read_archive(tmp_path / "x.scp")
    assert list(items) == ["b", "a"]
    np.testing.assert_array_equal(items["b"](), VECTOR)


def test_vectors_of_speakers_become_embeddings(tmp_path: Path) -> None:
    content = b"\0B" + WRITTEN["float matrix"][0]
    (tmp_path / "x.ark").write_bytes(b"".join(name + b" " + content for name in (b"a", b"b", b"c")))
    (tmp_path / "items.csv").write_text("id,label\na,joy\nb,fear\n")
    found = import_vectors(tmp_path / "x.ark", tmp_path / "o.parquet", table=tmp_path / "items.csv", axes="TD")
    assert (found.shape, found.unlisted) == ((2, 1, 3), 1)


def test_a_data_folder_tells_labels_and_speakers(tmp_path: Path) -> None:
    content = b"\0B" + WRITTEN["float vector"][0]
    (tmp_path / "x.ark").write_bytes(b"".join(name + b" " + content for name in (b"u1", b"u2", b"u3")))
    (tmp_path / "data").mkdir()
    (tmp_path / "data/utt2emo").write_text("u1 joy\nu2 fear\n")
    (tmp_path / "data/utt2spk").write_text("u1 ann\nu2 bob\nu3 ann\n")
    found = import_vectors(tmp_path / "x.ark", tmp_path / "o.parquet", table=tmp_path / "data")
    assert (found.shape, found.unlisted) == ((2, 1, 3), 1)
    rows = pl.read_parquet(tmp_path / "o.parquet").select("id", "label", "speaker").rows()
    assert rows == [("u1", "joy", "ann"), ("u2", "fear", "bob")]
    (tmp_path / "data/utt2emo").unlink()
    with pytest.raises(CorpusError, match="data has no labels, such as utt2emo"):
        import_vectors(tmp_path / "x.ark", tmp_path / "o.parquet", table=tmp_path / "data")


WRONG = {
    "sparse": (b"a \0BSM " + size(2), "x.ark: a: an array of the kind 'SM' is not read"),
    "no head": (b"a \0BCM2 " + b"\0" * 15, "x.ark: a: the array is damaged, or ends too early"),
    "cut numbers": (b"a \0B" + compressed(b"CM3", 0, 1, (2, 2), b"\0" * 3), "x.ark: a: the array is damaged"),
    "negative size": (b"a \0B" + compressed(b"CM", 0, 1, (-2, 2), b"\0" * 30), "x.ark: a: the array is damaged"),
    "cut": (b"a \0BFV " + size(3) + b"\0" * 11, "x.ark: a: the array is damaged, or ends too early"),
    "negative": (b"a \0BFV " + size(-3) + b"\0" * 11, "x.ark: a: the array is damaged"),
    "no size": (b"a \0BFV \0\0\0\0\3" + b"\0" * 12, "x.ark: a: the array is damaged"),
    "numbers of utterances": (b"a 12\n", "x.ark: a: neither a binary array nor numbers in brackets, got b'12'"),
    "words": (b"a [ 0.5 x ]\n", "x.ark: a: could not convert string to float"),
    "uneven": (b"a [\n 1 2\n 3 ]\n", "x.ark: a: rows have 1, 2 numbers"),
    "no numbers": (b"a [ ]\n", "x.ark: a: rows have no numbers"),
    "no name": (b"PAR1" * 500, "x.ark is no archive of Kaldi: it has no name where one is expected"),
    "broken name": (b"a\nb [ 1 ]\n", "x.ark is no archive of Kaldi: it has no name where one is expected"),
    "name": (b"\xff\xfe [ 1 ]\n", "x.ark is no archive of Kaldi: a name is not UTF-8"),
    "twice": (b"a [ 1 ]\na [ 1 ]\n", "x.ark: two items are called a"),
    "empty": (b"", "x.ark has no items"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_archive_is_one_line(kind: str, tmp_path: Path) -> None:
    content, message = WRONG[kind]
    (tmp_path / "x.ark").write_bytes(content)
    with pytest.raises(CorpusError) as error:
        read_archive(tmp_path / "x.ark")
    assert message in error.value.message
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a copy-vector x.ark ark:- |", "x.scp:1: a name and FILE.ark:OFFSET are needed, got 'a copy-vector"),
        ("a x.ark:2[0:5]", "x.scp:1: a name and FILE.ark:OFFSET are needed"),
        ("a x.ark", "x.scp:1: a name and FILE.ark:OFFSET are needed"),
        ("a other.ark:2", "x.scp:1: no file other.ark"),
    ],
)
def test_a_wrong_list_is_one_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.ark").write_bytes(b"a [ 1 ]\n")
    (tmp_path / "x.scp").write_text(f"{line}\n")
    with pytest.raises(CorpusError) as error:
        read_archive(tmp_path / "x.scp")
    assert message in error.value.message
