"""Data sets of the Hugging Face hub, made with the datasets library: files, classes, parts, and what is wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from datasets import Audio, ClassLabel, Dataset, DatasetDict, Features, Image, List, Value
from PIL import Image as Pillow

from daamctl.corpora import conll, manifest
from daamctl.corpora.dataset import is_dataset, unpack
from daamctl.corpora.files import filled
from daamctl.errors import CorpusError

MOODS = ["calm", "sad"]


def wav(number: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, 0.1 * np.random.default_rng(number).normal(size=1600), 16000, format="WAV")
    return file.getvalue()


def recordings(numbers: range, *, named: bool = True, **columns: list[Any]) -> Dataset:
    held = {"bytes": Value("binary"), "path": Value("string")}
    rows = {
        "audio": [{"bytes": wav(number), "path": f"{number}.wav" if named else None} for number in numbers],
        "emotion": [number % 2 for number in numbers],
        "speaker_id": [number // 3 for number in numbers],
        "sampling_rate": [8000] * len(numbers),
        **columns,
    }
    features = {"audio": held, "emotion": ClassLabel(names=MOODS), "speaker_id": Value("int32")}
    features |= {name: Value("int32") for name in rows.keys() - features.keys()}
    return Dataset.from_dict(rows, features=Features(features)).cast_column("audio", Audio(16000))


def shards(data: Dataset, folder: Path, part: str) -> None:
    for number in range(2):
        data.shard(2, number, contiguous=True).to_parquet(folder / "data" / f"{part}-{number:05d}-of-00002.parquet")


def saved(data: Dataset, folder: Path, part: str) -> None:
    DatasetDict({part: data}).save_to_disk(folder)


@pytest.mark.parametrize("write", [shards, saved])
def test_recordings_become_files_and_a_table(tmp_path: Path, write: Callable[[Dataset, Path, str], None]) -> None:
    (tmp_path / "hub" / "data").mkdir(parents=True)
    (tmp_path / "hub" / "README.md").write_text("about it")
    write(recordings(range(70)), tmp_path / "hub", "train")
    assert is_dataset(tmp_path / "hub")
    table, taken, doubts = unpack(tmp_path / "hub", tmp_path / "moods", {})
    assert (table, doubts) == (tmp_path / "moods" / "moods.csv", [])
    assert taken == {"path": "audio", "label": "emotion", "speaker": "speaker_id"}
    rows = manifest.prepare(table)
    assert rows["label"].to_list() == [MOODS[number % 2] for number in range(70)]
    assert rows["speaker"].to_list() == [str(number // 3) for number in range(70)]
    assert rows["group"].null_count() == 70
    assert [(table.parent / path).read_bytes() for path in rows["path"]] == [wav(number) for number in range(70)]


def test_parts_become_groups_and_unnamed_files_have_an_ending(tmp_path: Path) -> None:
    parts = {"train": range(4), "validation": range(4, 6), "test": range(6, 9)}
    data = {name: recordings(numbers, named=False) for name, numbers in parts.items()}
    DatasetDict(data).save_to_disk(tmp_path / "hub")
    rows = manifest.prepare(unpack(tmp_path / "hub", tmp_path / "moods", {})[0])
    assert sorted(rows["group"].to_list()) == ["dev"] * 2 + ["test"] * 3 + ["train"] * 4
    assert set(rows["path"].str.slice(-4)) == {".wav"}


def test_a_group_that_is_named_comes_before_the_parts(tmp_path: Path) -> None:
    data = {part: recordings(range(4), room=[1, 1, 2, 2]) for part in ("train", "test")}
    DatasetDict(data).save_to_disk(tmp_path / "hub")
    rows = manifest.prepare(unpack(tmp_path / "hub", tmp_path / "rooms", {"group": "room"})[0])
    assert rows["group"].to_list() == ["1", "1", "2", "2"] * 2


def test_a_label_that_is_nan_is_none(tmp_path: Path) -> None:
    labels = [1.0, float("nan"), 2.0, 1.0]
    recordings(range(4)).remove_columns("emotion").add_column("label", labels).to_parquet(tmp_path / "a.parquet")
    table, _, doubts = unpack(tmp_path / "a.parquet", tmp_path / "a", {})
    assert manifest.prepare(table)["label"].to_list() == ["1.0", "2.0", "1.0"]
    assert doubts == ["1 item without a label left out"]


def test_columns_are_named_and_others_kept(tmp_path: Path) -> None:
    ages = [20, 30, 40, 50]
    recordings(range(4), age=ages, room=[1, 1, 2, 2]).rename_column("emotion", "mood").to_parquet(
        tmp_path / "a.parquet"
    )
    with pytest.raises(CorpusError, match="has no column label; its columns are audio, mood, speaker_id") as caught:
        unpack(tmp_path / "a.parquet", tmp_path / "a", {})
    assert caught.value.fix == "name it: --columns label=NAME"
    assert not (tmp_path / "a").exists()
    columns = {"label": "mood", "speaker": "room"}
    table, taken, _ = unpack(tmp_path / "a.parquet", tmp_path / "a", columns)
    assert taken == {"label": "mood", "speaker": "room", "path": "audio"}
    rows = pl.read_csv(table)
    assert (rows["speaker"].to_list(), rows["age"].to_list()) == ([1, 1, 2, 2], ages)
    with pytest.raises(CorpusError, match=r"--columns has label=moods; .* has the columns audio, mood"):
        unpack(tmp_path / "a.parquet", tmp_path / "a", {"label": "moods"})
    assert table.is_file()


def test_a_part_without_labels_is_replaced_by_the_validation_part(tmp_path: Path) -> None:
    features = Features({"sentence": Value("string"), "label": ClassLabel(names=MOODS), "idx": Value("int32")})
    folder = tmp_path / "sst2"
    folder.mkdir()
    for part, labels in {"train": [0, 1, 0, 1], "validation": [1, 0], "test": [-1, -1, -1]}.items():
        texts = [f"{part} {number}" for number in range(len(labels))]
        rows = {"sentence": texts, "label": labels, "idx": list(range(len(labels)))}
        Dataset.from_dict(rows, features=features).to_parquet(folder / f"{part}-00000-of-00001.parquet")
    table, taken, doubts = unpack(folder, tmp_path / "mine", {})
    assert taken == {"text": "sentence", "label": "label"}
    assert doubts == [
        "3 items without a label left out", "no test part with labels, so the validation part is the test part"
    ]  # fmt: skip
    rows = manifest.prepare(table)
    assert dict(rows["group"].value_counts().iter_rows()) == {"train": 4, "test": 2}
    assert rows.filter(group="test")["label"].to_list() == ["sad", "calm"]


def test_tagged_words_get_the_names_of_their_tags(tmp_path: Path) -> None:
    tags = ClassLabel(names=["O", "B-PER", "B-LOC"])
    features = Features({"id": Value("string"), "tokens": List(Value("string")), "ner_tags": List(tags)})
    rows = {"id": ["0", "1"], "tokens": [["Ada", "saw", "Rome"], ["no"]], "ner_tags": [[1, 0, 2], [0]]}
    folder = tmp_path / "ner"
    folder.mkdir()
    for part in ("train", "test"):
        Dataset.from_dict(rows, features=features).to_parquet(folder / f"{part}.parquet")
    words = conll.prepare(unpack(folder, tmp_path / "mine", {})[0])
    assert words["label"].to_list() == ["B-PER", "O", "B-LOC", "O"] * 2
    assert words["group"].unique(maintain_order=True).to_list() == ["test", "train"]


def test_images_may_lie_beside_the_data_set(tmp_path: Path) -> None:
    places = [tmp_path / "a.png", tmp_path / "b.png"]
    for place in places:
        Pillow.new("RGB", (4, 4)).save(place)
    held = {"bytes": Value("binary"), "path": Value("string")}
    rows = {"img": [{"bytes": None, "path": str(place)} for place in places], "label": [0, 1]}
    features = Features({"img": held, "label": ClassLabel(names=MOODS)})
    Dataset.from_dict(rows, features=features).cast_column("img", Image()).to_parquet(tmp_path / "hub.parquet")
    found = manifest.prepare(unpack(tmp_path / "hub.parquet", tmp_path / "mine", {})[0])
    assert found["path"].to_list() == ["hub-000001.png", "hub-000002.png"]
    places[1].unlink()
    with pytest.raises(CorpusError, match=r"item 2 of hub holds no file, and there is none at '.*b\.png'"):
        unpack(tmp_path / "hub.parquet", tmp_path / "mine", {})
    assert len(list((tmp_path / "mine").iterdir())) == 3  # as it was


def test_numbers_of_folds_are_groups(tmp_path: Path) -> None:
    """As of ESC-50; where they are not known of every item, they are left out. Dates are texts."""
    data = recordings(range(6), fold=[1, 1, 2, 2, 3, 3])
    data.to_parquet(tmp_path / "folds.parquet")
    written, taken, _ = unpack(tmp_path / "folds.parquet", tmp_path / "out", {})
    assert pl.read_csv(written)["group"].to_list() == [1, 1, 2, 2, 3, 3]
    assert taken["group"] == "fold"
    table = pl.read_parquet(tmp_path / "folds.parquet").with_columns(
        fold=pl.Series([1, None, 2, 2, 3, 3]), made=pl.lit("2026-01-05").str.to_date()
    )
    table.write_parquet(tmp_path / "some.parquet")
    written, _, _ = unpack(tmp_path / "some.parquet", tmp_path / "other", {})
    rows = pl.read_csv(written, infer_schema=False)
    assert "group" not in rows.columns
    assert set(rows["made"]) == {"2026-01-05"}


@pytest.mark.parametrize("name", ["wav", "audio_bytes", "bytes"])
def test_files_as_bytes_in_a_plain_column(tmp_path: Path, name: str) -> None:
    table = pl.DataFrame({name: [wav(number) for number in range(4)], "emotion": ["calm", "sad"] * 2})
    table.write_parquet(tmp_path / "clips.parquet")
    assert is_dataset(tmp_path / "clips.parquet")
    written, _, _ = unpack(tmp_path / "clips.parquet", tmp_path / "out", {})
    rows = pl.read_csv(written)
    assert rows["label"].to_list() == ["calm", "sad", "calm", "sad"]
    assert [(tmp_path / "out" / path).read_bytes() for path in rows["path"]] == [wav(number) for number in range(4)]
    table.rename({name: "blob"}).write_parquet(tmp_path / "blobs.parquet")
    assert not is_dataset(tmp_path / "blobs.parquet")
    with pytest.raises(CorpusError, match=r"lacks the columns path \(or text\), label, speaker; it has blob, emotion"):
        manifest.prepare(tmp_path / "blobs.parquet")


@pytest.mark.parametrize("suffix", [".webp", ".png", ".jpg", ".gif"])
def test_the_ending_of_a_file_follows_from_its_content(tmp_path: Path, suffix: str) -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (4, 4)).save(file, format=suffix[1:].replace("jpg", "jpeg"))
    held = {"bytes": Value("binary"), "path": Value("string")}
    rows = {"image": [{"bytes": file.getvalue(), "path": None}] * 2, "label": ["a", "b"]}
    data = Dataset.from_dict(rows, features=Features({"image": held, "label": Value("string")}))
    data.to_parquet(tmp_path / "x.parquet")
    found = manifest.prepare(unpack(tmp_path / "x.parquet", tmp_path / "mine", {})[0])
    assert found["path"].to_list() == [f"x-000001{suffix}", f"x-000002{suffix}"]


def test_a_template_writes_whole_numbers_without_a_fraction() -> None:
    """As pandas writes them where one of a column is missing."""
    values = {"a": 3.0, "b": 2.5, "c": None, "d": " x "}
    assert filled("{a}_{b}_{c}_{d}", values) == "3_2.5__ x"


def test_items_of_several_classes_are_left_out(tmp_path: Path) -> None:
    """As of GoEmotions, whose labels are lists."""
    features = Features({"text": Value("string"), "labels": List(ClassLabel(names=MOODS)), "id": Value("string")})
    labels = [[0], [1], [0, 1], [], [1]]
    rows = {"text": [f"text {number}" for number in range(5)], "labels": labels, "id": list("abcde")}
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "go.parquet")
    table, taken, doubts = unpack(tmp_path / "go.parquet", tmp_path / "mine", {})
    assert taken["label"] == "labels"
    assert doubts == [
        "1 item without a label left out", "1 item with several labels left out: an item has one here"
    ]  # fmt: skip
    read = pl.read_csv(table)
    assert read.select("text", "label").rows() == [("text 0", MOODS[0]), ("text 1", MOODS[1]), ("text 4", MOODS[1])]


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "hub" / name).mkdir(parents=True)
        recordings(range(2)).to_parquet(tmp_path / "hub" / name / "train.parquet")
    with pytest.raises(CorpusError, match="holds several data sets with a part 'train'"):
        unpack(tmp_path / "hub", tmp_path / "mine", {})
    damaged = tmp_path / "hub" / "one" / "train.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    with pytest.raises(CorpusError, match="one is not a complete copy of a data set"):
        unpack(tmp_path / "hub" / "one", tmp_path / "mine", {})
    Dataset.from_dict({"number": [1, 2], "label": ["a", "b"]}).to_parquet(tmp_path / "n.parquet")
    with pytest.raises(CorpusError, match="has no recordings, images, texts or words; its columns are number, label"):
        unpack(tmp_path / "n.parquet", tmp_path / "mine", {})
    Dataset.from_dict({"text": ["x"], "label": [["a", "b"]]}).to_parquet(tmp_path / "n.parquet")
    with pytest.raises(CorpusError, match=r"no item of .* has one label alone"):
        unpack(tmp_path / "n.parquet", tmp_path / "mine", {})
    assert not list(tmp_path.glob("*mine*"))


def test_metadata_are_not_trusted(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": [0, 1]})
    for metadata in (b"{", b"[]", b'{"info": 3}', b'{"info": {"features": {"label": [[]]}}}'):
        pq.write_table(table.replace_schema_metadata({b"huggingface": metadata}), tmp_path / "a.parquet")
        assert not is_dataset(tmp_path / "a.parquet")
    secret = tmp_path / "secret"
    secret.write_text("of this machine")
    held = {"bytes": Value("binary"), "path": Value("string")}
    rows = {"audio": [{"bytes": None, "path": str(secret)}], "label": ["a"]}
    Dataset.from_dict(rows, features=Features({"audio": held, "label": Value("string")})).to_parquet(
        tmp_path / "b.parquet"
    )
    with pytest.raises(CorpusError, match="item 1 of b holds no file"):
        unpack(tmp_path / "b.parquet", tmp_path / "mine", {})
    with pytest.raises(CorpusError, match="'label' holds no files; those that do: audio"):
        unpack(tmp_path / "b.parquet", tmp_path / "mine", {"path": "label"})


def test_tables_of_paths_texts_or_vectors_are_none(tmp_path: Path) -> None:
    named = Features({"path": Value("string"), "label": ClassLabel(names=MOODS)})
    Dataset.from_dict({"path": ["a.wav"], "label": [0]}, features=named).to_parquet(tmp_path / "named.parquet")
    pl.DataFrame({"path": ["a.wav"], "label": ["x"]}).write_parquet(tmp_path / "a.parquet")
    pl.DataFrame({"vectors": [[[0.5]]], "label": ["x"]}).write_parquet(tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("path,label\n")
    pl.DataFrame({"text": [10**25]}, {"text": pl.Int128}).write_parquet(tmp_path / "whole.parquet")  # pyarrow: not yet
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    assert not any(is_dataset(path) for path in (*tmp_path.iterdir(), tmp_path / "absent.parquet"))
    (tmp_path / "d.wav").touch()
    assert not is_dataset(tmp_path)
