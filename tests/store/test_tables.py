"""Files round-trip; keys are equal for equal values; a lock holds across processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from daamctl.errors import ArtifactError
from daamctl.store.files import content_key, link_or_copy, locked, put, read_json, sha256_file, write_json
from daamctl.store.tables import (
    parsed_json,
    parsed_json_lines,
    read_any_parquet,
    read_parquet,
    read_separated,
    table_of_rows,
    to_polars,
    write_parquet,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_json_round_trip_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"b": [1, 2.5, None], "a": "ä"}
    write_json(path, value)
    assert path.read_text(encoding="utf-8") == '{\n  "b": [\n    1,\n    2.5,\n    null\n  ],\n  "a": "ä"\n}\n'
    assert read_json(path) == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, float("nan"))
    assert read_json(path) == value
    with pytest.raises(ArtifactError, match=rf"^no file {tmp_path / 'b.json'}\n  make it$"):
        read_json(tmp_path / "b.json", fix="make it")
    path.write_text('{"a":')
    with pytest.raises(ArtifactError, match=r"a\.json is not valid JSON: Expecting value"):
        read_json(path)


def test_parquet_round_trip_repeats_byte_for_byte(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"]}).replace_schema_metadata({b"k": b"v"})
    for name in ("one", "two"):
        write_parquet(tmp_path / f"{name}.parquet", table)
    assert read_parquet(tmp_path / "one.parquet").equals(table)
    assert read_parquet(tmp_path / "one.parquet", columns=["b"]).column_names == ["b"]
    assert sha256_file(tmp_path / "one.parquet") == sha256_file(tmp_path / "two.parquet")


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1" + b"\0" * 40])
def test_damaged_parquet_names_file_and_fix(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    with pytest.raises(ArtifactError, match=f"^no file {path}$"):
        read_parquet(path)
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"a\.parquet cannot be read as Parquet: .*\n  make it$"):
        read_parquet(path, fix="make it")


def test_put_moves_the_new_folder_in_place(tmp_path: Path) -> None:
    for name in ("new", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    put(tmp_path / "new", tmp_path / "target")
    assert names(tmp_path) == ["target"]
    assert names(tmp_path / "target") == ["new"]
    put(tmp_path / "target", tmp_path / "deep/er/target")
    assert names(tmp_path / "deep/er/target") == ["new"]


def test_link_shares_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    link_or_copy(tmp_path / "a", tmp_path / "sub/b")
    assert (tmp_path / "sub/b").samefile(tmp_path / "a")
    (tmp_path / "c").write_text("other")
    link_or_copy(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "c").samefile(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    link_or_copy(tmp_path / "link", tmp_path / "d")
    assert not (tmp_path / "d").is_symlink()
    assert (tmp_path / "d").samefile(tmp_path / "a")


def test_copy_where_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "other device")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("old")
    link_or_copy(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_text() == "one"
    assert not (tmp_path / "b").samefile(tmp_path / "a")
    assert names(tmp_path) == ["a", "b"]


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")  # the example of FIPS 180-2
    assert sha256_file(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_content_key_is_of_the_value() -> None:
    key = content_key({"a": 1, "b": [1.5, None, "ä"]})
    assert key == content_key({"b": [1.5, None, "ä"], "a": 1})
    assert key == content_key({"b": (1.5, None, "ä"), "a": 1})
    assert len(key) == 16
    assert int(key, 16) >= 0
    others = [{"a": 1, "b": [1.5, None, "a"]}, {"a": 2, "b": [1.5, None, "ä"]}, {"a": 1, "b": [None, 1.5, "ä"]}]
    assert len({content_key(other) for other in others} | {key}) == 4
    with pytest.raises(ValueError, match="not JSON compliant"):
        content_key(float("inf"))
    with pytest.raises(TypeError):
        content_key(np.int64(1))


def test_content_key_does_not_change_between_versions() -> None:
    """Finished work is found by its key, so its making is a format. Expected: first 16 digits of `sha256sum`."""
    assert content_key({"b": 1, "a": ["x"]}) == "c9dd71e8999044f3"


CHILD = """
import sys
from pathlib import Path
import logging
from daamctl.store.files import locked
logging.basicConfig(format="%(message)s")
with locked(Path(sys.argv[1]), what="the thing"):
    Path(sys.argv[2]).write_text("inside")
"""


def test_lock_holds_across_processes(tmp_path: Path) -> None:
    lock, mark = tmp_path / "sub/a.lock", tmp_path / "mark"
    with locked(lock, what="the thing"):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(lock), str(mark)], stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        assert child.stderr.readline() == "another process is making the thing; waiting for it\n"
        assert not mark.exists()
    assert child.wait(30) == 0
    child.stderr.close()
    assert mark.read_text() == "inside"


def test_lock_is_given_back_after_a_failure(tmp_path: Path) -> None:
    lock, mark = tmp_path / "a.lock", tmp_path / "mark"
    with pytest.raises(KeyError), locked(lock, what="it"):
        raise KeyError
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(lock), str(mark)], check=True, capture_output=True, text=True
    )
    assert mark.read_text() == "inside"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ('a\tb\nx\t"y\nz\tw"\n', [("x", '"y'), ("z", 'w"')]),  # as in GLUE: each belongs to its text
        ('a\tb\r\nx\t"y\r\n"z\tw\r\n', [("x", '"y'), ('"z', "w")]),
        ('a\tb\nx\t"y"\n', [("x", "y")]),
        ('a\tb\nx\tthe 5" y\nz\tw\n', [("x", 'the 5" y'), ("z", "w")]),
        ('a\tb\nx\t"y\nz"\nv\tw\n', [("x", "y\nz"), ("v", "w")]),  # a cell of two lines
        ('a,b\nx,"y\nz"\n', [("x", "y\nz")]),
        ('a,b\nthe 5" y,x\nz,\n', [('the 5" y', "x"), ("z", None)]),
    ],
)
def test_quotes_of_texts_are_not_those_of_cells(text: str, cells: list[tuple[str | None, ...]]) -> None:
    assert read_separated(text).rows() == cells


def test_tabs_separate_columns_if_the_first_lines_have_as_many() -> None:
    assert read_separated("id\ta|b|c\n1\tx|y|z|v\n").rows() == [("1", "x|y|z|v")]
    assert read_separated("id,a,b\n1,x\ty,z\n").rows() == [("1", "x\ty", "z")]


def test_a_row_with_too_many_cells_is_named() -> None:
    with pytest.raises(pl.exceptions.PolarsError, match="line 4 has 3 cells, the first line 2; a cell with ',' needs"):
        read_separated('a,b\nx,"y\nz"\nv,w,u\n')


def test_half_of_an_emoji_is_read_as_a_replacement() -> None:
    assert parsed_json('["a\\ud83d", "\\ud83d\\ude00", "\\\\ud800"]') == ["a\ufffd", "\U0001f600", "\\ud800"]
    assert parsed_json_lines('{"\\ud83d": 1}\n\n2') == [{"\ufffd": 1}, 2]
    with pytest.raises(ValueError, match="line 3 is not JSON: Expecting property name"):
        parsed_json_lines("1\n\n{]\n")


def test_a_column_of_several_kinds_is_one_of_lists() -> None:
    table = table_of_rows([{"a": 1, "b": "x"}, {"a": 2.5, "b": ["y", 3]}, {"b": None}, {"a": 4, "b": {"c": 1}}])
    assert table.schema == {"a": pl.Float64, "b": pl.List(pl.String)}
    assert table["a"].to_list() == [1.0, 2.5, None, 4.0]
    assert table["b"].to_list() == [["x"], ['["y", 3]'], None, ['{"c": 1}']]


def test_nan_in_rows_is_a_missing_value() -> None:
    rows = parsed_json('[{"a": NaN, "b": "x", "c": {"d": 1.5}}, {"a": "y", "b": NaN, "c": {"d": NaN}}]')
    assert table_of_rows(rows, flat=True).rows() == [(None, "x", 1.5), ("y", None, None)]


def test_objects_in_rows_may_become_columns() -> None:
    table = table_of_rows([{"b": {"x": 1, "y": {"z": 2}}, "a": [1]}, {"a": "t", "b": {"x": 3}}], flat=True)
    assert table.rows(named=True) == [
        {"a": ["[1]"], "b_x": 1, "b_y": '{"z": 2}'},
        {"a": ["t"], "b_x": 3, "b_y": None},
    ]


def test_damage_to_a_parquet_file_is_an_error_of_its_reader(tmp_path: Path) -> None:
    """At some bytes, Polars' reader panics, or ends the process."""
    path = tmp_path / "a.parquet"
    pl.DataFrame({"item": [f"i{number}" for number in range(40)], "label": ["x", "y"] * 20}).write_parquet(path)
    content, reasons = path.read_bytes(), set()
    for place in range(len(content)):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        try:
            read_any_parquet(path)
        except (OSError, ValueError) as error:
            reasons.add(str(error))
    assert len(reasons) > 1


def test_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    offsets, content = (pa.py_buffer(bytes_) for bytes_ in (np.int32([0, 1, 3]).tobytes(), b"a\xff\xfe"))
    table = pa.table({"item": pa.StringArray.from_buffers(2, offsets, content)})
    with pytest.raises(ValueError, match="Invalid UTF8"):
        to_polars(table, validate=True)
