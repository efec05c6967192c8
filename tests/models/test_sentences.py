"""Sentences to tag: plain text, columns, tables, and what is refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from daamctl.errors import CorpusError
from daamctl.models.sentences import lines_as_sentences, read_sentences


def test_a_text_file_has_a_sentence_per_line(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("Ada  Lovelace wrote\n\nin London .\n", encoding="utf-8")
    rows = read_sentences([str(path)])
    assert rows["item"].to_list() == [f"{path}:1", f"{path}:3"]
    assert rows["words"].to_list() == [["Ada", "Lovelace", "wrote"], ["in", "London", "."]]
    assert rows["tags"].null_count() == 2
    assert lines_as_sentences(["", "two words"])["item"].to_list() == ["2"]


def test_files_of_columns_and_tables_may_have_tags_of_any_scheme(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Ada NNP S-PER\nin IN O\n\nRio NNP B-LOC\nGrande NNP E-LOC\n", encoding="utf-8")
    tokens = {"tokens": [["Ada", "ran"]], "id": ["one"]}
    pl.DataFrame(tokens).write_parquet(tmp_path / "b.parquet")
    rows = read_sentences([str(tmp_path / "a.conll"), str(tmp_path / "b.parquet")])
    assert rows["tags"].to_list() == [["B-PER", "O"], ["B-LOC", "I-LOC"], None]
    assert rows["item"].to_list() == [f"{tmp_path / 'a.conll'}:1", f"{tmp_path / 'a.conll'}:4", "one"]
    assert read_sentences([str(tmp_path)])["item"].len() == 2  # of a folder, tables are left out


def test_tags_of_a_table_may_have_another_name(tmp_path: Path) -> None:
    pl.DataFrame({"tokens": [["Ada", "ran"]], "ner_tags": [["B-PER", "O"]]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"tokens": [["Ada", "ran"]], "ner_tags": [[1, 0]]}).write_parquet(tmp_path / "b.parquet")
    rows = read_sentences([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])
    assert rows["tags"].to_list() == [["B-PER", "O"], None]  # numbers have no names


def test_annotated_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ada ran.", encoding="utf-8")
    (tmp_path / "a.ann").write_text("T1\tPER 0 3\tAda\n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"text": "Ada ran.", "label": [[0, 3, "PER"]]}', encoding="utf-8")
    for source in (tmp_path, tmp_path / "b.jsonl"):
        rows = read_sentences([str(source)])
        assert rows["words"].to_list() == [["Ada", "ran", "."]]
        assert rows["tags"].to_list() == [["B-PER", "O", "O"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "Ada\tB-PER\nran\tO\n", "rename it to a.conll"),
        ("a.txt", "\n\n", "no sentence to tag"),
        ("a.txt", b"\xe9t\xe9\n", "it is not UTF-8 (line 1: byte 0xe9)"),
        ("a.conll", "Ada\nran\n", "a single column"),
        ("a.conll", "Ada\tPER\n", "'PER' is none of"),
        ("a.jsonl", '{"text": "Ada ran"}\n', "lacks the column tokens"),
        ("a.jsonl", '{"tokens": ["Ada"], "tags": ["O", "O"]}\n', "1 token and 2 tags"),
        ("a.wav", "", "another kind"),
    ],
)
def test_what_is_no_sentence_is_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorpusError) as caught:
        read_sentences([str(path)])
    assert message in f"{caught.value.message} {caught.value.fix}"
