"""Labels beside recordings, cuts of Lhotse, and times of pieces of recordings, in lists that `daamctl new` reads."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from daamctl.corpora.beside import read_beside, read_cuts
from daamctl.corpora.lists import ItemTable, corpus_of, table_of
from daamctl.errors import CorpusError

LABELS = ["joy", "anger", "joy"]


def items(folder: Path) -> list[Path]:
    """Files that stand for recordings."""
    (folder / "train").mkdir(parents=True)
    paths = [folder / "train" / f"{number}.wav" for number in range(3)]
    for path in paths:
        path.write_bytes(b"RIFF")
    return paths


def listed(source: Path, columns: dict[str, str] | None = None) -> ItemTable:
    found = table_of(source, corpus_of(source), columns or {})
    assert found is not None
    return found


def test_json_beside_recordings(tmp_path: Path) -> None:
    for path, label in zip(items(tmp_path), LABELS, strict=True):
        path.with_suffix(".json").write_text(json.dumps({"emotion": label, "tags": ["a"], "spk": 7}))
    found = listed(tmp_path)
    assert found.columns == {"label": "emotion", "speaker": "spk"}  # one part is no split
    assert found.table["emotion"].to_list() == LABELS
    assert found.table["path"].to_list() == [f"train/{number}.wav" for number in range(3)]
    assert "tags" not in found.table.columns
    (tmp_path / "train" / "1.json").write_text("[1]")
    with pytest.raises(CorpusError, match=r"1\.json is no JSON object with the values of 1\.wav"):
        read_beside(tmp_path)
    (tmp_path / "train" / "1.json").write_text("{")
    with pytest.raises(CorpusError, match=r"1\.json cannot be read as JSON"):
        read_beside(tmp_path)
    (tmp_path / "train" / "1.json").unlink()
    assert read_beside(tmp_path) is None


def test_labels_beside_recordings(tmp_path: Path) -> None:
    for path, label in zip(items(tmp_path), LABELS, strict=True):
        path.with_suffix(".cls").write_text(f"{label}\n")
    assert listed(tmp_path).table["label"].to_list() == LABELS
    (tmp_path / "train" / "2.cls").write_text("0 100 a\n100 200 b\n")  # times of phones
    assert read_beside(tmp_path) is None


def test_values_without_a_label_leave_it_to_the_names(tmp_path: Path) -> None:
    for path in items(tmp_path):
        path.with_suffix(".json").write_text(json.dumps({"duration": 1.5}))
    assert table_of(tmp_path, None, {}) is None
    assert corpus_of(tmp_path) is None


def cut(number: int, **custom: Any) -> dict[str, Any]:
    told = {"id": "s", "recording_id": "r", "start": 0.25, "duration": 0.5, "speaker": "ann", "custom": custom}
    sources = [{"type": "file", "channels": [0], "source": "clips/r.wav"}]
    return {
        "id": f"c{number}",
        "start": float(number),
        "duration": 1.0,
        "supervisions": [told],
        "recording": {"id": "r", "sources": sources},
        "type": "MonoCut",
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_cuts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cuts{suffix}"
    text = "\n".join(json.dumps(cut(number, emotion=label)) for number, label in enumerate(LABELS))
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    found = listed(path)
    assert found.table["start_s"].to_list() == [0.25, 1.25, 2.25]
    assert found.table["end_s"].to_list() == [0.75, 1.75, 2.75]
    assert found.table["path"].unique().to_list() == ["clips/r.wav"]
    assert (found.columns, found.table["speaker"][0]) == ({"label": "emotion"}, "ann")


def test_a_cut_with_half_of_an_emoji(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_text("\n".join(json.dumps(cut(number, emotion="calm \ud83d")) for number in range(2)))
    found = read_cuts(path)
    assert found is not None
    assert found["emotion"].to_list() == ["calm \ufffd"] * 2


def test_cuts_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cuts.jsonl"
    path.write_text(json.dumps(cut(0)))
    with pytest.raises(CorpusError, match="has no column label; it has utterance_id, path, speaker"):
        table_of(path, corpus_of(path), {})
    double = cut(0)
    double["supervisions"] *= 2
    path.write_text(json.dumps(double))
    with pytest.raises(CorpusError, match=r"cuts\.jsonl:1: a cut with 2 supervisions and 1 files"):
        read_cuts(path)
    path.write_text(f"{json.dumps(cut(0, emotion='joy'))}\n{{}}")
    with pytest.raises(CorpusError, match=r"cuts\.jsonl:2: no cut of Lhotse"):
        read_cuts(path)
    for text in (json.dumps({"path": "a.wav", "label": "x"}), "{", "", "[1]"):
        path.write_text(text)
        assert read_cuts(path) is None
    assert read_cuts(tmp_path / "absent.jsonl") is None


FILES = ["a.wav", "a.wav", "b.wav"]


@pytest.mark.parametrize(
    ("columns", "ends"),
    [
        ({"start": ["0", "1.5", ""], "end": ["1.5", "2", ""]}, [1.5, 2.0, None]),
        (
            {
                "start": ["0 days", "0 days 00:00:01.5", "NaT"],
                "end": ["0 days 00:00:01.500000", "1 days 00:00:02", "NaT"],
            },
            None,
        ),
        (
            {"start": ["0 days 00:00:00", "0 days 00:00:01.5", "NaT"], "end": ["00:00:01.5", "00:00:02", ""]},
            [1.5, 2, None],
        ),
        ({"offset": ["0", "1.5", ""], "duration": ["1.5", "0.5", ""]}, [1.5, 2.0, None]),  # NeMo
        ({"onset": ["0", "1.5", ""], "offset": ["1.5", "2", ""]}, [1.5, 2.0, None]),
        ({"Offset": ["1.5", "2", ""], "Onset": ["0", "1.5", ""]}, [1.5, 2.0, None]),
        ({"start_time": ["0", "1.5", ""]}, "none"),
    ],
)
def test_times_of_pieces(tmp_path: Path, columns: dict[str, list[str]], ends: Any) -> None:
    path = tmp_path / "list.csv"
    pl.DataFrame({"file": FILES, "emotion": LABELS, **columns}).write_csv(path)
    found = listed(path)
    if ends is None:  # audformat never writes the first of these
        assert found.doubts == ["the times in the column 'start' are neither seconds nor 0 days 00:00:01.5"]
        return
    assert found.table[found.columns["start_s"]].to_list() == [0.0, 1.5, None]
    assert ("end_s" in found.columns) == (ends != "none")
    if ends != "none":
        assert found.table[found.columns["end_s"]].to_list() == ends


def test_times_of_whole_files_are_not_used(tmp_path: Path) -> None:
    """They may be those within the recording that a file was cut from."""
    path = tmp_path / "list.csv"
    table = pl.DataFrame({"file": ["a.wav", "b.wav", "c.wav"], "emotion": LABELS, "start": ["0", "9", "12"]})
    table.write_csv(path)
    found = listed(path)
    assert "start_s" not in found.columns
    assert found.doubts == ["the column 'start' is not used, since each file occurs once; else --columns start_s=start"]
    assert listed(path, {"start_s": "start"}).table["start"].to_list() == [0.0, 9.0, 12.0]
    table.with_columns(start=pl.lit("0")).write_csv(path)
    assert listed(path).doubts == []
