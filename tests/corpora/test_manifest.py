"""Manifests: what is accepted, what is filled in, and one clear error for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daamctl.corpora.manifest import assign_groups, prepare
from daamctl.errors import CorpusError


def csv(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_smallest_manifest(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "\ufeffpath, label ,speaker\nwav/a.wav,joy,03\nwav/b.wav, anger,04\n"))
    assert rows.columns == ["utterance_id", "path", "label", "speaker", "group", "start_s", "duration_s"]
    assert rows.rows() == [
        ("a", "wav/a.wav", "joy", "03", None, 0.0, None),
        ("b", "wav/b.wav", "anger", "04", None, 0.0, None),
    ]
    assert rows.schema["group"] == pl.String
    assert rows.schema["duration_s"] == pl.Float64


def test_pieces_groups_and_further_columns(tmp_path: Path) -> None:
    text = "path,label,speaker,group,start_s,end_s,age\na.wav,x,s,g,,1.5,30\na.wav,y,s,g,1.5,,\nb.wav,x,s,g,,,7\n"
    rows = prepare(csv(tmp_path, text))
    assert rows["utterance_id"].to_list() == ["a@0ms", "a@1500ms", "b"]
    assert rows["start_s"].to_list() == [0.0, 1.5, 0.0]
    assert rows["duration_s"].to_list() == [1.5, None, None]
    assert rows["age"].to_list() == ["30", None, "7"]
    assert "end_s" not in rows.columns


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    columns = {"path": ["a.wav"], "label": ["x"], "speaker": [3], "start_s": [0.5], "end_s": [2.0], "age": [30]}
    pl.DataFrame(columns).write_parquet(path)
    assert prepare(path).rows() == [("a", "a.wav", "x", "3", None, 0.5, 1.5, 30)]


def test_equal_file_names_in_different_folders(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "path,label,speaker\nx/1.wav,a,s\ny/1.wav,b,s\ny/2.wav,b,s\n"))
    assert rows["utterance_id"].to_list() == ["x/1", "y/1", "2"]


def test_absolute_paths(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, f"path,label,speaker\n{tmp_path}/wav/a.wav,a,s\n/elsewhere/b.wav,b,s\n"))
    assert rows["path"].to_list() == ["wav/a.wav", "/elsewhere/b.wav"]


def test_given_ids_are_kept(tmp_path: Path) -> None:
    rows = prepare(csv(tmp_path, "utterance_id,path,label,speaker\nu1,a.wav,a,s\nu2,a.wav,b,s\n"))
    assert rows["utterance_id"].to_list() == ["u1", "u2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,emotion\na,b\n", "lacks the columns label, speaker; it has path, emotion"),
        ("path,label,speaker\n", "has no rows"),
        ("", "cannot be read as a CSV or Parquet table"),
        ("path,label,speaker\na,x,s\nb,,s\nc, ,s\n", r"empty label in line 3 \(b\), line 4 \(c\)"),
        ("path,label,speaker\na,x,\n", r"empty speaker in line 2 \(a\)"),
        ("path,label,speaker\n,x,s\n", "empty path in line 2"),
        ("path,label,speaker\na.wav,x,s\nb.wav,x,s\na.wav,y,s\n", r"more than once in line 2 \(a.wav\), line 4"),
        ("path,label,speaker,utterance_id\na,x,s,u\nb,x,s,u\n", "or utterance_id, more than once in line 2"),
        ("path,label,speaker,utterance_id\na,x,s,u\nb,x,s,\n", "empty utterance_id in line 3"),
        ("path,label,speaker,group\na,x,s,g\nb,x,s,\n", r"empty group \(give all or none\) in line 3"),
        ("path,label,speaker,start_s,end_s\na,x,s,2,2\n", "end_s is not after start_s in line 2"),
        ("path,label,speaker,end_s\na,x,s,0\n", "end_s is not after start_s in line 2"),
        ("path,label,speaker,start_s\na,x,s,-0.1\n", "negative start_s in line 2"),
        ("path,label,speaker,start_s\na,x,s,soon\n", "start_s is not a number in line 2"),
        ("path,label,speaker,end_s\na,x,s,nan\n", "end_s is not a number in line 2"),
        ("path,label,speaker,duration_s\na,x,s,1\n", "has the columns duration_s, which are measured"),
        ("path,label,speaker\na,x,s,too,many\n", "cannot be read as a CSV"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message) as caught:
        prepare(csv(tmp_path, text))
    assert "list.csv" in str(caught.value)


def test_many_mistakes_are_counted(tmp_path: Path) -> None:
    lines = "".join(f"{index},,s\n" for index in range(10))
    with pytest.raises(CorpusError, match=r"line 4 \(2\) and 7 more"):
        prepare(csv(tmp_path, "path,label,speaker\n" + lines))


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no manifest file"):
        prepare(tmp_path / "none.csv")
    (tmp_path / "bad.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(CorpusError, match="cannot be read as a CSV or Parquet table"):
        prepare(tmp_path / "bad.parquet")
    (tmp_path / "latin.csv").write_bytes("path,label,speaker\nü.wav,a,s\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin\.csv cannot be read"):
        prepare(tmp_path / "latin.csv")


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(1, 8))
def test_groups_are_speaker_disjoint_and_balanced(speakers: list[int], num_groups: int) -> None:
    rows = pl.DataFrame({"speaker": [f"s{number}" for number in speakers]})
    grouped = assign_groups(rows, num_groups)
    assert grouped.group_by("speaker").agg(pl.col("group").n_unique())["group"].max() == 1
    names = sorted(grouped["group"].unique())
    assert names == [f"group{number}" for number in range(1, min(num_groups, len(set(speakers))) + 1)]
    sizes = grouped.group_by("group").len()["len"].to_list()
    largest_speaker = max(speakers.count(number) for number in set(speakers))
    assert max(sizes) - min(sizes) <= largest_speaker
    shuffled = assign_groups(rows.sample(fraction=1.0, shuffle=True, seed=1), num_groups)
    assert dict(grouped.unique().rows()) == dict(shuffled.unique().rows())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"path;label;speaker\na.wav;x;s\n", "it has path;label;speaker; columns must be separated by commas"),
        (b"\x01\x02\x03\n\x04\n", "is not a text table"),
    ],
)
def test_what_is_not_a_comma_separated_table(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=re.escape(message)):
        prepare(path)
