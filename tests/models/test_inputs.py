"""What to predict: files, folders, globs, tables and texts."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from daamctl.artifacts.utterances import Modality
from daamctl.errors import CorpusError
from daamctl.models.inputs import SCHEMA, read_inputs, texts_as_rows


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_files_keep_their_order_and_folders_are_sorted(tmp_path: Path) -> None:
    a, b, c = tmp_path / "z.wav", tmp_path / "in" / "b.flac", tmp_path / "in" / "deep" / "a.MP3"
    touch(a, b, c, tmp_path / "in" / "notes.txt", tmp_path / "in" / ".hidden.wav")
    rows = read_inputs([str(a), str(tmp_path / "in")], "speech")
    assert rows["path"].to_list() == [str(a), str(b), str(c)]
    assert rows.schema == pl.Schema(SCHEMA)
    found = read_inputs([str(tmp_path / "**" / "*.flac")], "speech")
    assert found["path"].to_list() == [str(b)]


def test_names_with_glob_characters_are_files_first(tmp_path: Path) -> None:
    path = tmp_path / "take[1].wav"
    touch(path)
    assert read_inputs([str(path)], "speech")["item"].to_list() == [str(path)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".json"])
def test_tables(tmp_path: Path, suffix: str) -> None:
    table = pl.DataFrame(
        {"path": ["a.wav", "/else/b.wav"], "label": ["x", None], "start_s": ["0.5", None], "end_s": ["2", None]}
    )
    path = tmp_path / f"table{suffix}"
    {".csv": table.write_csv, ".parquet": table.write_parquet, ".jsonl": table.write_ndjson, ".json": table.write_json}[
        suffix
    ](path)
    rows = read_inputs([str(path)], "speech")
    assert rows["item"].to_list() == ["a.wav", "/else/b.wav"]
    assert rows["path"].to_list() == [str(tmp_path / "a.wav"), "/else/b.wav"]
    assert rows["label"].to_list() == ["x", None]
    assert rows["start_s"].to_list() == [0.5, 0.0]
    assert rows["duration_s"].to_list() == [1.5, None]


def test_a_blank_label_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,   \ntwo,\nthree, x \n")
    assert read_inputs([str(tmp_path / "a.csv")], "text")["label"].to_list() == [None, None, "x"]


def test_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    rows = read_inputs([str(tmp_path / "a.txt")], "text")
    assert rows["text"].to_list() == ["one", "", "two"]
    assert rows["item"][2] == f"{tmp_path / 'a.txt'}:3"
    for encoding in ("utf-8-sig", "utf-16"):  # form feeds and separators of paragraphs are within a line
        (tmp_path / "b.txt").write_bytes("ö\x0cne\u2029\r\ntwo".encode(encoding))
        assert read_inputs([str(tmp_path / "b.txt")], "text")["text"].to_list() == ["ö\x0cne\u2029", "two"]
    (tmp_path / "b.csv").write_text("text,utterance_id\nhello,first\n")
    assert read_inputs([str(tmp_path / "b.csv")], "text").select("item", "text").row(0) == ("first", "hello")
    assert texts_as_rows(["a", "b"])["item"].to_list() == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "modality", "message"),
    [
        ("a.csv", b"path,start_s\na.wav,soon\n", "speech", "start_s is not a number: 'soon'"),
        ("a.csv", b"text\nhello\n", "image", "no column 'path'"),
        ("a.parquet", b"no table", "speech", "cannot be read as a CSV, Parquet or JSON table"),
        ("a.txt", b"\xff\xfe\x00", "text", "cannot be read: it is not UTF-16"),
        ("a.txt", b"one\ntw\xf6\n", "text", r"it is not UTF-8 \(line 2: byte 0xf6\); save it as UTF-8"),
        ("a.wav", b"", "text", "looks like recordings, the model reads texts"),
        ("a.txt", b"hello", "speech", "looks like texts, the model reads recordings"),
    ],
)
def test_wrong_inputs_are_refused(tmp_path: Path, name: str, content: bytes, modality: Modality, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        read_inputs([str(tmp_path / name)], modality)


def test_a_template_makes_the_texts_of_a_table_that_has_its_columns(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("title,text,label\nT1,one,x\nT2,,y\n")
    rows = read_inputs([str(table)], "text", "{title}. {text}")
    assert rows.select("text", "label").rows() == [("T1. one", "x"), ("T2.", "y")]
    assert read_inputs([str(table)], "text", "{head} {body}")["text"].to_list() == ["one", None]
    table.write_text("head,label\nT1,x\n")
    with pytest.raises(CorpusError, match="no column 'text'") as error:
        read_inputs([str(table)], "text", "{head} {body}")
    assert error.value.fix == "name the columns head and body, of which texts were made in training: '{head} {body}'"


@pytest.mark.parametrize(
    ("column", "fix"),
    [
        ("file", "rename the column 'file' to path"),
        ("sound", "name the column with the file of each recording 'path'"),
    ],
)
def test_a_table_without_paths_says_which_column_to_name(tmp_path: Path, column: str, fix: str) -> None:
    (tmp_path / "a.csv").write_text(f"{column},label\na.wav,x\n")
    with pytest.raises(CorpusError, match="no column 'path'") as error:
        read_inputs([str(tmp_path / "a.csv")], "speech")
    assert error.value.fix == fix
