"""AG News: the release's CSV files, the hub's copy, and the shared test part."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora import agnews, hub
from daamctl.corpora.fingerprint import validate
from daamctl.errors import CorpusError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "agnews"
LINES = [
    '"3","Fears for T N pension","Unions at Turner   Newall say ""enough"" again."',
    '"4","A second\\team, $10","one\\nTwo \\\\$5 end\\"',
    '"1","Ö","x"',
    '"2","",""',
]
TEXTS = [
    'Fears for T N pension Unions at Turner   Newall say "enough" again.',
    "A second\\team, $10 one\\nTwo \\\\$5 end\\",
    "Ö x",
    " ",
]


def write(folder: Path, part: str, lines: list[str]) -> Path:
    (folder / f"{part}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_csv(tmp_path: Path) -> None:
    rows = agnews.prepare(write(write(tmp_path, "train", LINES), "test", LINES[:1]))
    assert rows.columns == ["utterance_id", "text", "label", "speaker", "group"]
    assert rows["text"].to_list() == [*TEXTS, TEXTS[0]]
    assert rows["label"].to_list() == ["Business", "Sci/Tech", "World", "Sports", "Business"]
    assert rows["group"].to_list() == ["train"] * 4 + ["test"]
    assert rows["utterance_id"].to_list() == rows["speaker"].to_list()
    assert rows["utterance_id"][3:].to_list() == ["train-000004", "test-000001"]


def test_the_copy_of_the_hub_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "data").mkdir()
    for part in hub.PARTS:
        write(tmp_path / "csv", part, LINES)
        frame = pl.DataFrame({"text": TEXTS, "label": [2, 3, 0, 1]})
        frame.write_parquet(tmp_path / "data" / f"{part}-00000-of-00001.parquet")
    assert agnews.prepare(tmp_path / "data").equals(agnews.prepare(tmp_path / "csv"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*LINES, '"5","a","b"', '"x","a","b"'], "no class of World, Sports, Business, Sci/Tech in row 5, 6 of test"),
        (['"1","a"'], "has 2 columns; class, title and description are expected"),
        (['"1","a","b"', '"1","a","b","c"'], "cannot be read as CSV"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(CorpusError, match=message) as caught:
        agnews.prepare(write(tmp_path, "test", lines))
    assert "test.csv" in str(caught.value)


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not look like AG News") as caught:
        agnews.prepare(tmp_path)
    assert "daamctl download agnews --from DIR" in str(caught.value)


def test_counts_within_the_parts_are_checked() -> None:
    counts = {("train", name): 30_000 for name in agnews.CLASSES} | {("test", name): 1_900 for name in agnews.CLASSES}

    def rows() -> pl.DataFrame:
        frame = pl.DataFrame([(*key, n) for key, n in counts.items()], schema=["group", "label", "n"], orient="row")
        return frame.select(pl.col("group", "label").repeat_by("n").explode()).with_columns(speaker=pl.lit("s"))

    assert validate(agnews.CORPUS, rows()) == []
    counts |= {
        ("train", "World"): 29_999, ("test", "World"): 1_901, ("train", "Sports"): 30_001, ("test", "Sports"): 1_899,
    }  # fmt: skip
    assert validate(agnews.CORPUS, rows()) == [
        "World in group train: 29999 found, 30000 expected",
        "Sports in group train: 30001 found, 30000 expected",
        "World in group test: 1901 found, 1900 expected",
        "Sports in group test: 1899 found, 1900 expected",
    ]


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared test part of AG News is not at {SHARED}")
def test_shared_test_part() -> None:
    rows = agnews.prepare(SHARED)
    assert rows.height == 7_600
    assert set(rows.group_by("label").len().rows()) == {(name, 1_900) for name in agnews.CLASSES}
    assert rows["text"][0].startswith("Fears for T N pension after talks Unions representing workers at Turner")
    assert rows["label"][0] == "Business"
    assert validate(agnews.CORPUS, rows)[-1] == "group train: 0 found, 120000 expected"
