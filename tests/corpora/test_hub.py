"""Copies of data sets: what `save_to_disk` writes, Parquet files by part, and a clear word without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from daamctl.corpora import hub
from daamctl.corpora.fetch import is_whole
from daamctl.errors import CorpusError, DownloadError

COLUMNS = (("label",), ("text", "sentence"))


def frame(part: str, *, column: str = "text") -> pl.DataFrame:
    return pl.DataFrame({"label": [0, 1], column: [f"{part} a", f"{part} b"], "more": [1, 2]})


def found(folder: Path) -> dict[str, list[str]]:
    tables = hub.read_parts(folder, *COLUMNS)
    assert all(table.column_names == ["label", "text"] for table in tables.values())
    return {part: table["text"].to_pylist() for part, table in tables.items()}


BOTH = {"train": ["train a", "train b"], "test": ["test a", "test b"]}


@pytest.mark.parametrize(
    "names",
    [
        ("train.parquet", "test.parquet"),
        ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
        ("train/0000.parquet", "test/0000.parquet"),
    ],
)
def test_parquet_files(tmp_path: Path, names: tuple[str, str]) -> None:
    for part, name in zip(("train", "test"), names, strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        frame(part).write_parquet(tmp_path / name)
    frame("other").write_parquet(tmp_path / "training.parquet")
    assert found(tmp_path) == BOTH


def test_shards_come_in_order(tmp_path: Path) -> None:
    for number in (1, 0, 2):
        frame(str(number)).write_parquet(tmp_path / f"test-{number:05d}-of-00003.parquet")
    assert found(tmp_path) == {"test": ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b"]}


def test_saved_by_datasets(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict, NamedSplit

    parts = {part: Dataset.from_polars(frame(part, column="sentence")) for part in ("train", "test", "other")}
    DatasetDict(parts).save_to_disk(tmp_path / "both")
    assert found(tmp_path / "both") == BOTH
    Dataset.from_polars(frame("test"), split=NamedSplit("test")).save_to_disk(tmp_path / "one")
    assert found(tmp_path / "one") == {"test": BOTH["test"]}


def test_a_part_without_rows_is_left_out(tmp_path: Path) -> None:
    frame("train").write_parquet(tmp_path / "train.parquet")
    frame("test").clear().write_parquet(tmp_path / "test.parquet")
    assert found(tmp_path) == {"train": BOTH["train"]}


def test_no_copy(tmp_path: Path) -> None:
    assert found(tmp_path) == {}
    frame("test", column="title").write_parquet(tmp_path / "test.parquet")
    with pytest.raises(CorpusError, match="lacks the column text or sentence; it has label, title, more"):
        found(tmp_path)
    (tmp_path / "test.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(CorpusError, match="is not a complete copy of a data set"):
        found(tmp_path)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(CorpusError, match="is not a complete copy of a data set"):
        found(tmp_path)


def test_no_network(tmp_path: Path) -> None:
    """HF_HUB_OFFLINE is set for all tests."""
    with pytest.raises(DownloadError, match="cannot load 'fancyzhx/ag_news' from the Hugging Face hub: ") as caught:
        hub.obtain_dataset("fancyzhx/ag_news", tmp_path / "x", fix="daamctl download agnews --from DIR")
    assert "offline? daamctl download agnews --from DIR" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_obtained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    calls = []

    def load(name: str, *, split: str) -> Any:
        calls.append((name, split))
        return datasets.Dataset.from_polars(frame(split))

    monkeypatch.setattr(datasets, "load_dataset", load)
    for _ in range(2):
        assert hub.obtain_dataset("some/set", tmp_path / "x", fix="") == tmp_path / "x"
    assert calls == [("some/set", "train"), ("some/set", "test")]
    assert is_whole(tmp_path / "x")
    assert found(tmp_path / "x") == BOTH
