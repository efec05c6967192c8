"""The clip table: round trip, refusals, and a key that follows the content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from daamctl.artifacts.clips import SCHEMAS, ClipTable, clips_key, inputs_key, read_clips, write_clips
from daamctl.errors import ArtifactError
from daamctl.store.tables import read_frame, write_frame


@pytest.fixture
def table() -> ClipTable:
    rows = pl.DataFrame(
        [
            ("u#000", "u", "a.wav", "x", "s", "g", 0.0, 5.0, None, 16000),
            ("u#001", "u", "a.wav", "x", "s", "g", 5.0, 1.0 / 3.0, 5.0, 16000),
        ],
        schema=SCHEMAS["speech"],
        orient="row",
    )
    return ClipTable("toy", ("x", "y"), rows, {"download": {"corpus": "toy"}, "segment": {"tail": "pad"}})


def test_round_trip(tmp_path: Path, table: ClipTable) -> None:
    path = tmp_path / "deep" / "clips.parquet"
    write_clips(path, table)
    again = read_clips(path)
    assert again.rows.equals(table.rows)
    assert again.rows.schema == table.rows.schema
    assert (again.corpus, again.classes, again.settings) == (table.corpus, table.classes, table.settings)
    assert clips_key(again) == clips_key(table)
    first = path.read_bytes()
    write_clips(path, again)
    assert path.read_bytes() == first


def test_further_columns_are_left_out(tmp_path: Path, table: ClipTable) -> None:
    write_clips(tmp_path / "a.parquet", replace(table, rows=table.rows.with_columns(extra=pl.lit(1))))
    assert read_clips(tmp_path / "a.parquet").rows.columns == list(SCHEMAS["speech"])


def test_missing_column(tmp_path: Path, table: ClipTable) -> None:
    with pytest.raises(ArtifactError, match="'toy' lacks the columns label, pad_to_s"):
        write_clips(tmp_path / "a.parquet", replace(table, rows=table.rows.drop("label", "pad_to_s")))
    assert not (tmp_path / "a.parquet").exists()


def test_unreadable_tables(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no file") as caught:
        read_clips(tmp_path / "none.parquet")
    assert caught.value.path == tmp_path / "none.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "foreign.parquet")
    with pytest.raises(ArtifactError, match="was not written by daamctl"):
        read_clips(tmp_path / "foreign.parquet")
    write_frame(tmp_path / "other.parquet", pl.DataFrame({"a": [1]}), {})
    with pytest.raises(ArtifactError, match="is not a clip table"):
        read_clips(tmp_path / "other.parquet")


def test_key_follows_rows_classes_and_files_only(table: ClipTable) -> None:
    key = clips_key(table)
    assert clips_key(replace(table, corpus="other", settings={})) == key
    assert clips_key(replace(table, classes=("y", "x"))) != key
    assert clips_key(replace(table, content="other files")) != key
    assert clips_key(replace(table, rows=table.rows.reverse())) != key
    assert clips_key(replace(table, rows=table.rows.with_columns(label=pl.lit("y")))) != key


def test_key_of_the_inputs_leaves_out_labels_and_folds(table: ClipTable) -> None:
    key = inputs_key(table)
    for name in ("label", "speaker", "group"):
        assert inputs_key(replace(table, rows=table.rows.with_columns(pl.lit("y").alias(name)))) == key
    assert inputs_key(replace(table, classes=("y", "x"))) == key
    assert inputs_key(replace(table, content="other files")) != key
    assert inputs_key(replace(table, rows=table.rows.reverse())) != key
    assert inputs_key(replace(table, rows=table.rows.with_columns(start_s=pl.lit(1.0)))) != key


def test_table_that_was_changed_is_refused(tmp_path: Path, table: ClipTable) -> None:
    path = tmp_path / "clips.parquet"
    write_clips(path, table)
    rows, head = read_frame(path)
    swapped = {**head, "classes": head["classes"][::-1]}
    for values, facts in ((rows, swapped), (rows.with_columns(label=pl.lit("y")), head), (rows[:1], head)):
        write_frame(path, values, facts)
        with pytest.raises(ArtifactError, match=rf"^{path} was changed after it was written: "):
            read_clips(path)
    write_frame(path, rows, {name: value for name, value in head.items() if name != "sha256"})
    with pytest.raises(ArtifactError, match=rf"^{path} was changed"):
        read_clips(path)


def test_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path, table: ClipTable) -> None:
    path = tmp_path / "clips.parquet"
    write_clips(path, table)
    whole, expected = path.read_bytes(), read_clips(path)
    noticed = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            found = read_clips(path)
        except ArtifactError:
            noticed += 1
        else:
            assert found.rows.equals(expected.rows)
            assert {**vars(found), "rows": None} == {**vars(expected), "rows": None}
    assert noticed > 10
