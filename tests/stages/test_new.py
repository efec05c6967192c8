"""A folder becomes a pipeline that runs; what is doubtful about the data is told."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import soundfile as sf
from datasets import ClassLabel, Dataset, Features, Value
from PIL import Image

from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.layout import Layout
from daamctl.config import load_config, pipeline_names
from daamctl.config.load import read_yaml
from daamctl.corpora import manifest
from daamctl.corpora.file_names import LIST_THEM
from daamctl.errors import ConfigError, CorpusError
from daamctl.evaluation.data_checks import check_shared
from daamctl.methods import METHODS, resolve_method
from daamctl.models.inputs import files_of, read_inputs
from daamctl.stages import check, download, new, segment
from tests.fixtures.given import items, write_items

RATE = 8000


def write_wav(path: Path, seed: int, *, seconds: float = 0.2, loud: float = 0.1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = loud * np.random.default_rng(seed).standard_normal(int(seconds * RATE))
    sf.write(path, samples.astype(np.float32), RATE, subtype="FLOAT")


@pytest.fixture
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six speakers with two recordings of each of two moods."""
    folder = tmp_path_factory.mktemp("voices")
    for seed, (speaker, mood, take) in enumerate(
        (s, m, t) for s in range(6) for m in ("calm", "sad") for t in range(2)
    ):
        write_wav(folder / mood / f"s{speaker}_{take}.wav", seed)
    return folder


def manifest_of(made: new.NewPipeline) -> pl.DataFrame:
    return pl.read_csv(made.manifest, infer_schema=False)


def test_recordings_become_a_pipeline(project: Path, voices: Path) -> None:
    before = (project / "params.yaml").read_text()
    made = new.run(project, "voices", voices, encoder="wavlm-micro")
    assert made.pattern == "{label}/{speaker}_{_}"
    rows = manifest_of(made)
    assert rows.columns == ["path", "label", "speaker"]
    assert rows.row(0) == (f"{voices}/calm/s0_0.wav", "calm", "s0")
    assert made.facts == {
        "sound": "0.1 min; 0.2 s each",
        "format": "8000 Hz, 1 channel (24)",
        "items": "24",
        "classes": "calm 12, sad 12",
        "speakers": "6, with 4 items each",
    }
    assert made.doubts == ["6 speakers: with so few hardly any difference of methods can be shown"]
    line = "  - voices\n"
    after = (project / "params.yaml").read_text()
    assert after.replace(line, "") == before
    assert after.index(line) > after.index("  - agnews-as-published\n")
    assert "voices" in check.run(project, write=True)
    config = load_config(project, "voices")
    assert (config.extract.encoder, config.download.num_groups) == ("wavlm-micro", 6)  # five folds would be uneven
    download.run(Layout.of(project, "voices", config), config)


NOTICES = pl.DataFrame(
    {"sentence": [f"notice {number}" for number in range(12)], "class": ["x", "y"] * 6, "author": list("abc") * 4}
)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl"])
def test_tables_of_an_official_split(project: Path, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    write = {".csv": pl.DataFrame.write_csv, ".json": pl.DataFrame.write_json, ".jsonl": pl.DataFrame.write_ndjson}
    for start, stop, name in ((0, 6, "train"), (6, 8, "validation"), (8, 12, "test")):
        part = NOTICES[start:stop]
        if suffix == ".tsv":
            part.write_csv(folder / f"{name}.tsv", separator="\t")
        else:
            write[suffix](part, folder / f"{name}{suffix}")
    made = new.run(project, "parts", folder, encoder="llama-micro")
    assert made.facts["columns"] == "text = sentence, label = class, speaker = author"
    assert made.facts["groups"] == "dev, test, train, an official split"
    rows = manifest_of(made)
    assert rows["text"].to_list() == NOTICES["sentence"].to_list()
    assert rows["group"].to_list() == ["train"] * 6 + ["dev"] * 2 + ["test"] * 4
    config = load_config(project, "parts")
    download.run(Layout.of(project, "parts", config), config)
    other = new.run(project, "authors", folder, columns={"label": "author"}, encoder="llama-micro")
    assert set(manifest_of(other)["label"]) == set("abc")


def test_each_part_may_count_its_items_anew(project: Path, tmp_path: Path) -> None:
    for name, part in (("train", NOTICES[:8]), ("test", NOTICES[8:])):
        part.with_row_index("utterance_id").write_csv(tmp_path / f"{name}.csv")
    made = new.run(project, "anew", tmp_path, encoder="llama-micro")
    assert manifest_of(made)["utterance_id"].to_list() == [f"train-{one}" for one in range(8)] + [
        f"test-{one}" for one in range(4)
    ]


def test_parts_without_labels_are_left_out(project: Path, tmp_path: Path) -> None:
    NOTICES[:8].write_csv(tmp_path / "train.csv")
    NOTICES[8:].drop("class").write_csv(tmp_path / "test.csv")
    made = new.run(project, "train-alone", tmp_path, encoder="llama-micro")
    assert "4 items without a label left out" in made.doubts
    assert "group" not in manifest_of(made).columns
    NOTICES[4:8].write_csv(tmp_path / "dev.csv")
    made = new.run(project, "with-dev", tmp_path, encoder="llama-micro")
    assert "no test part with labels, so the validation part is the test part" in made.doubts
    assert manifest_of(made)["group"].to_list() == ["train"] * 8 + ["test"] * 4


def test_tables_of_an_official_split_without_labels(project: Path, tmp_path: Path) -> None:
    for name in ("train", "test"):
        NOTICES.drop("class").write_csv(tmp_path / f"{name}.csv")
    with pytest.raises(CorpusError, match="have no label; they have sentence, author, group") as caught:
        new.run(project, "parts", tmp_path, encoder="llama-micro")
    assert caught.value.fix == "name it: --columns label=NAME"
    assert not (project / "manifests").exists()


def test_parts_whose_columns_differ(project: Path, tmp_path: Path) -> None:
    """As GLUE publishes them: the test part has other columns, and no labels."""
    table = NOTICES.select("sentence", label="class")
    table[:6].write_csv(tmp_path / "train.tsv", separator="\t")
    table[6:10].write_csv(tmp_path / "dev.tsv", separator="\t")
    table[10:].select("sentence").with_row_index().write_csv(tmp_path / "test.tsv", separator="\t")
    made = new.run(project, "glue", tmp_path, encoder="llama-micro")
    assert "2 items without a label left out" in made.doubts
    assert manifest_of(made)["group"].to_list() == ["train"] * 6 + ["test"] * 4


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.ft.txt", "test.ft.txt"),  # of fastText
        ("r8-train-all-terms.txt", "r8-test-all-terms.txt"),  # of Reuters
        ("snli_1.0_train.tsv", "snli_1.0_dev.tsv"),
    ],
)
def test_a_part_is_a_word_in_the_name_of_a_file(project: Path, tmp_path: Path, train: str, test: str) -> None:
    for file in (train, test):
        items = [f"{('earn', 'acq')[number % 2]}\tchampion product {number} {file}\n" for number in range(8)]
        (tmp_path / file).write_text("".join(items))
    made = new.run(project, "stocks", tmp_path, encoder="llama-micro")
    assert dict(manifest_of(made)["group"].value_counts().iter_rows()) == {"train": 8, "test": 8}


def test_lists_without_names_of_columns(project: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("Company\nVillage\n")
    for part in ("train", "test"):
        lines = [f'{number % 2 + 1},"Title","Text {number}, {part}"' for number in range(8)]
        (tmp_path / f"{part}.csv").write_text("\n".join(lines))
    made = new.run(project, "topics", tmp_path, encoder="llama-micro")
    rows = manifest_of(made)
    assert rows.row(0) == ("Company", "Title Text 0, train", "train")
    assert made.facts["classes"] == "Company 8, Village 8"
    first = "without names; the first item: label = Company, text = Title Text 0, train"
    assert made.facts["columns"] == first
    config = load_config(project, "topics")
    download.run(Layout.of(project, "topics", config), config)
    made = new.run(project, "alone", tmp_path / "train.csv", encoder="llama-micro")
    assert manifest_of(made).height == 8
    (tmp_path / "train.csv").write_text("\n".join(f'{number % 2 + 1},"A text","A text"' for number in range(8)))
    made = new.run(project, "equal", tmp_path / "train.csv", encoder="llama-micro")  # as names, they would be refused
    assert manifest_of(made).height == 8


def test_a_table_with_usual_names_of_columns(project: Path, voices: Path, tmp_path: Path) -> None:
    """As ESC-50 and the reviews of Kaggle have them; a label in words is better than its number."""
    reviews = {"review": [f"text {number}" for number in range(6)], "sentiment": ["positive", "negative"] * 3}
    pl.DataFrame(reviews).write_csv(tmp_path / "reviews.csv")
    made = new.run(project, "reviews", tmp_path / "reviews.csv", encoder="llama-micro")
    assert made.facts["columns"] == "text = review, label = sentiment"
    assert made.facts["classes"] == "positive 3, negative 3"
    paths = sorted(path.relative_to(voices).as_posix() for path in voices.glob("*/*.wav"))
    numbers = [number % 2 for number in range(24)]
    sounds = {
        "filename": paths, "fold": [number % 3 for number in range(24)], "target": numbers,
        "category": [("dog", "rain")[number] for number in numbers],
    }  # fmt: skip
    pl.DataFrame(sounds).write_csv(voices / "sounds.csv")
    made = new.run(project, "sounds", voices / "sounds.csv", encoder="wavlm-micro")
    assert made.facts["columns"] == "path = filename, label = category, group = fold"
    assert made.facts["groups"] == "0, 1, 2, a fold each"
    assert any(doubt.startswith("no speaker found") for doubt in made.doubts)
    config = load_config(project, "sounds")
    download.run(Layout.of(project, "sounds", config), config)


@pytest.mark.parametrize(
    ("split", "told", "groups"),
    [
        (["train"] * 8 + ["validation"] * 4, True, ["train"] * 8 + ["test"] * 4),
        (["train"] * 8 + ["test"] * 4, True, ["train"] * 8 + ["test"] * 4),
        (["train"] * 12, False, None),
        (["train"] * 11 + [None], False, None),
    ],
)
def test_a_split_under_another_name(
    split: list[str | None], told: bool, groups: list[str] | None, project: Path, tmp_path: Path
) -> None:
    NOTICES.with_columns(split=pl.Series(split)).write_csv(tmp_path / "notices.csv")
    made = new.run(project, "notices", tmp_path / "notices.csv", encoder="llama-micro")
    assert ("group = split" in made.facts["columns"]) == told
    rows = manifest_of(made)
    assert (rows["group"].to_list() if "group" in rows.columns else None) == groups
    assert any("the validation part is the test part" in doubt for doubt in made.doubts) == ("validation" in split)


def test_columns_of_lists(project: Path, tmp_path: Path) -> None:
    rows = [{"text": f"notice {number}", "labels": [number % 2, 3], "topic": "xy"[number % 2]} for number in range(8)]
    pl.DataFrame(rows).write_ndjson(tmp_path / "several.jsonl")
    made = new.run(project, "topics", tmp_path / "several.jsonl", encoder="llama-micro")
    assert made.facts["columns"] == "label = topic"
    assert manifest_of(made).columns == ["label", "text"]
    with pytest.raises(CorpusError, match="the column 'labels' has several values in a row; it must have one"):
        new.run(project, "several", tmp_path / "several.jsonl", columns={"label": "labels"}, encoder="llama-micro")


def test_what_looks_like_another_kind_of_list(project: Path, tmp_path: Path) -> None:
    """A number of words beside a text, and tagged words with many columns."""
    counts = NOTICES.select(text="sentence", label="class").with_columns(words=2)
    counts.write_ndjson(tmp_path / "counts.jsonl")
    assert new.run(project, "counts", tmp_path / "counts.jsonl", encoder="llama-micro").facts["items"] == "12"
    lines = "Ann NNP a b c B-PER\nran VBD a b c O\n\n"
    (tmp_path / "wide.txt").write_text(lines * 8)
    made = new.run(project, "wide", tmp_path / "wide.txt", encoder="llama-micro")
    assert made.facts["classes"] == "B-PER 8, O 8"


def test_a_failure_leaves_nothing_in_the_way(project: Path, tmp_path: Path) -> None:
    NOTICES.write_csv(tmp_path / "notices.csv")
    given = {"text": "sentence", "speaker": "author"}
    NOTICES.with_columns(kind=pl.lit("same")).write_csv(tmp_path / "same.csv")
    with pytest.raises(CorpusError, match="all items have one label"):
        new.run(project, "notices", tmp_path / "same.csv", columns={**given, "label": "kind"}, encoder="llama-micro")
    assert not list((project / "manifests").iterdir())
    new.run(project, "notices", tmp_path / "notices.csv", columns={**given, "label": "class"}, encoder="llama-micro")
    before = (project / "manifests/notices.csv").read_text()
    with pytest.raises(ConfigError, match="exist already"):
        new.run(project, "notices", tmp_path / "notices.csv", columns={**given, "label": "class"})
    assert (project / "manifests/notices.csv").read_text() == before


def test_paths_without_endings(project: Path, tmp_path: Path) -> None:
    """As tables of Kaggle name images, which may be in several folders."""
    folder = tmp_path / "skin"
    for number in range(12):
        (folder / f"part_{number % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * number, 0, 0)).save(folder / f"part_{number % 2}" / f"S_{number}.png")
    rows = {"image_id": [f"S_{number}" for number in range(12)], "dx": list("abc") * 4}
    pl.DataFrame(rows).write_csv(folder / "list.csv")
    columns = {"path": "image_id", "label": "dx"}
    made = new.run(project, "skin", folder / "list.csv", columns=columns, encoder="beit-micro")
    paths = manifest_of(made)["path"].to_list()
    assert paths[:2] == ["../skin/part_0/S_0.png", "../skin/part_1/S_1.png"]
    Image.new("RGB", (32, 32)).save(folder / "part_1" / "S_0.png")  # which of the two?
    with pytest.raises(CorpusError):
        new.run(project, "twice", folder / "list.csv", columns=columns, encoder="beit-micro")


def test_a_data_folder_of_kaldi(project: Path, voices: Path) -> None:
    paths = sorted(path.relative_to(voices).as_posix() for path in voices.glob("*/*.wav"))
    names = [path.replace("/", "-").removesuffix(".wav") for path in paths]
    (voices / "data").mkdir()
    for file, values in (
        ("wav.scp", paths), ("utt2mood", [path[:4] for path in paths]), ("utt2spk", [Path(p).name[:2] for p in paths])
    ):  # fmt: skip
        lines = [f"{name} {value}\n" for name, value in zip(names, values, strict=True)]
        (voices / "data" / file).write_text("".join(lines))
    made = new.run(project, "kaldi", voices / "data", encoder="wavlm-micro")
    assert manifest_of(made)["path"].to_list() == [f"{voices}/{path}" for path in paths]
    assert made.facts["speakers"].startswith("6, with")


def test_lists_of_the_files_of_a_part(project: Path, tmp_path: Path) -> None:
    """As Speech Commands has them, with speakers that are hashes, and noises that are no class."""
    folder = tmp_path / "words"
    speakers = ["0a7c2a8d", "deadbee1", "3cb74144", "11f9e3f1"]
    for seed, (word, speaker) in enumerate((word, speaker) for word in ("yes", "no") for speaker in speakers):
        write_wav(folder / word / f"{speaker}_nohash_0.wav", seed)
    write_wav(folder / "_background_noise_" / "doing_the_dishes.wav", 99)
    for name, speaker in (("validation", speakers[2]), ("testing", speakers[3])):
        lines = [f"{word}/{speaker}_nohash_0.wav\n" for word in ("yes", "no")]
        (folder / f"{name}_list.txt").write_text("".join(lines))
    made = new.run(project, "words", folder, encoder="wavlm-micro")
    rows = manifest_of(made)
    assert set(rows["label"]) == {"yes", "no"}
    assert dict(rows["group"].value_counts().iter_rows()) == {"train": 4, "dev": 2, "test": 2}
    assert set(rows["speaker"]) == set(speakers)
    left_out = "1 file without a label left out, e.g. _background_noise_/doing_the_dishes.wav"
    assert left_out in made.doubts
    assert not any("another kind" in doubt for doubt in made.doubts)


def write_image(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)


def test_a_disk_that_does_not_give_an_image_back(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number, label in enumerate(("food", "pets") * 6):
        write_image(tmp_path / "stamps" / label / f"{number}.png", number)
    read = Path.read_bytes

    def damaged(path: Path) -> bytes:
        if path.name == "3.png":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", damaged)
    made = new.run(project, "stamps", tmp_path / "stamps", encoder="beit-micro")
    assert made.doubts == ["1 file is unreadable and left out: pets/3.png"]
    assert "pets/3.png cannot be read: Input/output error" in caplog.text


def test_files_that_are_no_images_or_texts(project: Path, tmp_path: Path) -> None:
    for number, label in enumerate(("food", "pets") * 6):
        write_image(tmp_path / "stamps" / label / f"{number}.png", number)
        (tmp_path / "words" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "words" / label / f"{number}.txt").write_bytes(f"Größe {number}".encode("latin-1"))
    (tmp_path / "stamps" / "food" / "0.png").write_text("no image")
    made = new.run(project, "stamps", tmp_path / "stamps", encoder="beit-micro")
    assert made.doubts == ["1 file is unreadable and left out: food/0.png"]
    assert len(manifest_of(made)) == 11
    for file in (tmp_path / "stamps").rglob("*.png"):
        file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(CorpusError, match=r"none of the images can be read\n  correct the path"):
        new.run(project, "stamps", tmp_path / "stamps", encoder="beit-micro", force=True)
    with pytest.raises(CorpusError, match=r"all texts are empty, not UTF-8, or over .*\n  for UTF-8: iconv"):
        new.run(project, "words", tmp_path / "words", encoder="beit-micro")


@pytest.mark.parametrize(("pattern", "items"), [("{label}/{_}.png", 6), ("{label}/{_}", 12), ("{label}/{_}.mp3", None)])
def test_the_suffix_of_a_pattern_chooses_among_kinds_of_files(
    project: Path, tmp_path: Path, pattern: str, items: int | None
) -> None:
    """As of Tux Paint's stamps: pictures, and what they show in words."""
    for number in range(6):
        picture = tmp_path / "stamps" / ("food", "pets")[number % 2] / f"{number}.png"
        write_image(picture, number)
        for language in ("de", "en"):
            picture.with_name(f"{number}_{language}.txt").write_text(f"{number} in {language}")
    if items is None:
        with pytest.raises(CorpusError, match=r"no file in .* fits the pattern '\{label\}/\{_\}.mp3'"):
            new.run(project, "stamps", tmp_path / "stamps", pattern=pattern)
        return
    made = new.run(project, "stamps", tmp_path / "stamps", pattern=pattern, encoder="beit-micro")
    column = "path" if items == 6 else "text"
    assert manifest_of(made)[column].n_unique() == items


def test_lists_without_endings_in_a_folder_in_a_folder(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As Food-101 is unpacked."""
    tmp_path = tmp_path_factory.mktemp("archives")
    folder = tmp_path / "food" / "food-101"
    names = [f"{dish}/{number}" for dish in ("pie", "soup") for number in range(10, 16)]
    for seed, name in enumerate(names):
        write_image(folder / "images" / f"{name}.jpg", seed)
    (tmp_path / "food" / "README.txt").write_text("Cite us.")
    (folder / "meta").mkdir()
    (folder / "meta" / "train.txt").write_text("\n".join(names[::2]))
    (folder / "meta" / "test.txt").write_text("\n".join(names[1::2]))
    (folder / "meta" / "classes.txt").write_text("pie\nsoup\n")
    made = new.run(project, "food", tmp_path / "food", encoder="beit-micro")
    rows = manifest_of(made)
    assert dict(rows.select("path", "group").iter_rows()) == {
        f"{folder}/images/{name}.jpg": ("train", "test")[at % 2] for at, name in enumerate(names)
    }
    assert "speaker" not in rows.columns or rows["speaker"].n_unique() == len(rows)  # 10 of pie and of soup are two
    assert made.doubts == ["left out, of another kind: .txt (1)"]
    (folder / "meta" / "test_2.txt").write_text("\n".join(names[::2]))  # which of the two?
    made = new.run(project, "food", tmp_path / "food", encoder="beit-micro", force=True)
    assert "group" not in manifest_of(made).columns
    assert made.doubts == ["left out, of another kind: .txt (4)"]


def test_folders_of_parts_are_no_classes(project: Path, tmp_path: Path) -> None:
    """As Tiny ImageNet has its images: classes in train alone."""
    for seed in range(8):
        name = ("n01443537", "n01629819")[seed % 2]
        write_image(tmp_path / "train" / name / "images" / f"{name}_{seed}.png", seed)
        write_image(tmp_path / "val" / "images" / f"val_{seed}.png", 10 + seed)
    made = new.run(project, "tiny", tmp_path, encoder="beit-micro")
    assert dict(manifest_of(made)["label"].value_counts().iter_rows()) == {"n01443537": 4, "n01629819": 4}
    assert "8 files without a class of the training part left out, e.g. val/images/val_0.png" in made.doubts
    assert "left out as a whole: val" in made.doubts


TRAIN = ("train/cat/cat.{}.png", "train/dog/dog.{}.png")


@pytest.mark.parametrize(
    ("kept", "left_out"),
    [
        pytest.param(("train/A/A{}.jpg", "train/B/B{}.jpg"), ("test/{}_test.jpg",), id="ASL Alphabet"),
        pytest.param(
            ("asl_train/asl_train/A/A{}.jpg", "asl_train/asl_train/B/B{}.jpg"),
            ("asl_test/asl_test/{}_test.jpg",),
            id="ASL Alphabet, unpacked into folders of the same name",
        ),
        pytest.param(
            ("Final_Training/Images/00/00_0{}.ppm", "Final_Training/Images/01/01_0{}.ppm"),
            ("Final_Test/Images/0{}.ppm",),
            id="GTSRB",
        ),
        pytest.param(
            ("train/n01440764/n01440764_{}.JPEG", "train/n01443537/n01443537_{}.JPEG"),
            ("val/ILSVRC2012_val_{}.JPEG", "test/ILSVRC2012_test_{}.JPEG"),
            id="ImageNet",
        ),
        pytest.param(("train/A/{}.png", "train/B/{}.png"), ("test/unknown/{}.png",), id="a class of its own"),
        pytest.param(
            ("train/good/00{}.png", "test/good/00{}.png", "test/hole/00{}.png", "test/cut/00{}.png"),
            ("ground_truth/hole/00{}_mask.png", "ground_truth/cut/00{}_mask.png"),
            id="MVTec",
        ),
        pytest.param(TRAIN, ("train/cat.{}.png", "test/{}.png"), id="cats and dogs, some beside the folders"),
        pytest.param((*TRAIN, "validation/cat/cat.1{}.png", "validation/dog/dog.1{}.png"), (), id="cats and dogs"),
        pytest.param((*TRAIN, "test/Cat/{}.png", "test/Dog/{}.png"), (), id="spelled otherwise"),
        pytest.param((*TRAIN, "test/cat/{}.png", "test/dog/{}.png", "extra/cat/{}.png"), (), id="beside the parts"),
        pytest.param(
            ("train/cat.{}.png", "train/dog.{}.png", "validation/cat.1{}.png", "validation/dog.1{}.png"),
            (),
            id="cats and dogs in one folder",
        ),
        pytest.param(
            ("train/all/cat_{}.png", "train/all/dog_{}.png", "test/cat_1{}.png", "test/dog_1{}.png"),
            (),
            id="classes in names",
        ),
        pytest.param(("bus/{}.png", "car/{}.png", "train/{}.png"), (), id="vehicles"),
        pytest.param(
            ("train/bus/{}.png", "train/train/{}.png", "test/bus/{}.png", "test/train/{}.png"),
            (),
            id="vehicles, in parts",
        ),
        pytest.param(("bus/coach/{}.png", "train/ice/{}.png", "train/tgv/{}.png"), (), id="kinds of vehicles"),
        pytest.param(("crash-test/{}.png", "driving-test/{}.png", "road/{}.png"), (), id="tests"),
        pytest.param(
            ("train/1_cat/{}.png", "train/2_dog/{}.png", "test/01_cat/{}.png", "test/02_dog/{}.png"),
            (),
            id="numbered",
        ),
        pytest.param(
            tuple(
                f"breast/{kind}/SOB_{code}_14-2254{{0}}AB/{times}X/SOB_{code}-14-2254{{0}}AB-{times}-001.png"
                for kind, code in (("benign/SOB/adenosis", "B_A"), ("malignant/SOB/ductal_carcinoma", "M_DC"))
                for times in (40, 100)
            ),
            (),
            id="BreakHis",
        ),
    ],
)
def test_items_with_a_class_of_the_training_part_are_kept(
    project: Path, tmp_path: Path, kept: Sequence[str], left_out: Sequence[str]
) -> None:
    for seed, (number, file) in enumerate(product(range(6), (*kept, *left_out))):
        write_image(tmp_path / file.format(number), seed)
    made = new.run(project, "signs", tmp_path, encoder="beit-micro")
    told = f"{6 * len(left_out)} files without a class of the training part left out, e.g. {min(left_out, default='')}"
    assert [doubt for doubt in made.doubts if "left out, e.g." in doubt] == [told.format(0)] * bool(left_out)
    assert made.facts["items"] == str(6 * len(kept))


def test_known_names_without_parts_are_kept(project: Path, tmp_path: Path) -> None:
    """As of KDEF, whose class is a code."""
    for seed, (person, code) in enumerate(product(range(6), ("AF", "AN"))):
        write_image(tmp_path / f"AF0{person}" / f"AF0{person}{code}S.png", seed)
    made = new.run(project, "faces", tmp_path, pattern="{_:1}{speaker:3}{label:2}{_}", encoder="beit-micro")
    assert made.facts["classes"] == "AF 6, AN 6"


def test_classes_that_the_training_part_lacks_are_told(project: Path, tmp_path: Path) -> None:
    """As the defects of MVTec, and classes with other numbers."""
    for seed, (label, part) in enumerate(product(("good", "1_cut", "hole"), ("train", "test"))):
        for number in range(3 * (part == "test" or label != "hole")):
            name = f"0{label}" if part == "test" and label == "1_cut" else label
            write_image(tmp_path / part / name / f"{number}.png", 10 * seed + number)
    made = new.run(project, "defects", tmp_path, encoder="beit-micro")
    assert "classes that the training part lacks, and no method can learn: 01_cut, hole" in made.doubts
    assert "the labels '01_cut' and '1_cut' may be one class, spelled differently" in made.doubts


@pytest.mark.parametrize(
    ("folders", "factor", "doubted"),
    [(("color", "grayscale"), 1, True), (("north", "south"), 1000, True), (("north", "south"), 1, False)],
)
def test_the_same_pictures_in_several_folders_are_told(
    project: Path, tmp_path: Path, folders: tuple[str, str], factor: int, doubted: bool
) -> None:
    """As PlantVillage has them; numbers that begin anew in every folder are no names."""
    for seed, (at, folder) in product(range(8), enumerate(folders)):
        leaf = tmp_path / folder / ("rust", "healthy")[seed % 2] / f"{seed * factor}.png"
        write_image(leaf, seed + 10 * at)
    made = new.run(project, "plants", tmp_path, encoder="beit-micro")
    told = f"the same names in {', '.join(folders)}, so 8 items may be there more than once; to read one folder"
    pattern = f"{folders[0]}/{{label}}/{{_}}"
    assert (f"{told}: --pattern '{pattern}'" in made.doubts) is doubted
    assert doubted or "the same names" not in str(made.doubts)
    made = new.run(project, "plants", tmp_path, encoder="beit-micro", pattern=pattern, force=True)
    assert made.facts["items"] == "8"


def test_parts_without_a_class_of_the_training_part_are_named(project: Path, tmp_path: Path) -> None:
    for seed, (part, name) in enumerate(product(("train", "test_seen", "test_unseen", "val_unseen"), range(6))):
        write_image(tmp_path / part / f"{'ox' if 'un' in part else 'cat'}{name % 2}" / f"{name}.png", seed)
    made = new.run(project, "beasts", tmp_path, encoder="beit-micro")
    assert "left out as a whole: test_unseen, val_unseen" in made.doubts
    assert made.facts["groups"] == "test, train, an official split"


def test_folders_read_as_parts_are_told_and_known_names_without_a_class_are_refused(
    project: Path, voices: Path, tmp_path: Path
) -> None:
    for part in ("train-clean", "train-other", "test-clean"):
        shutil.copytree(voices, tmp_path / "moods" / part)
        for seed in range(4):
            write_wav(tmp_path / "read" / part / f"10{seed % 2}-1240-000{seed}.wav", seed)
    made = new.run(project, "moods", tmp_path / "moods", encoder="wavlm-micro")
    assert made.facts["groups"] == "test, train, an official split"
    told = "read as parts of an official split: test-clean = test, train-clean = train, train-other = train"
    assert told in made.doubts
    with pytest.raises(CorpusError, match="the names of LibriSpeech tell the speaker, but no class") as caught:
        new.run(project, "read", tmp_path / "read")
    assert caught.value.fix == LIST_THEM


def test_a_table_that_names_the_files(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As ESC-50 has the names of its classes, and UrbanSound8K its files, in folders that the table does not name."""
    tmp_path = tmp_path_factory.mktemp("sounds")
    names = [f"{at % 3}-{at}-A.wav" for at in range(12)]
    for at, name in enumerate(names):
        write_wav(tmp_path / "audio" / f"fold{at % 2}" / name, at)
    table = tmp_path / "meta" / "sounds.csv"
    table.parent.mkdir()
    table.with_name("other.csv").write_text("name,size\nx,1\n")
    rows = pl.DataFrame({"clip": names, "class": ["rain", "dog", "sea"] * 4})
    rows.write_csv(table)
    with pytest.raises(
        CorpusError, match=f"looks like a label, .*; but {table} names 12 of the files in 'clip'"
    ) as told:
        new.run(project, "sounds", tmp_path, encoder="wavlm-micro")
    assert told.value.fix == f"read that: --from {table} --columns path=clip"
    made = new.run(project, "sounds", table, columns={"path": "clip"}, encoder="wavlm-micro")
    found = manifest_of(made)
    assert found["label"].to_list() == rows["class"].to_list()
    assert found["path"].to_list() == [f"{tmp_path}/audio/fold{at % 2}/{name}" for at, name in enumerate(names)]
    rows[:10].with_columns(pl.Series("class", [None, *rows["class"][1:10]])).write_csv(table)
    made = new.run(project, "sounds", table, columns={"path": "clip"}, encoder="wavlm-micro", force=True)
    assert len(manifest_of(made)) == 9
    assert "1 item without a label left out" in made.doubts
    rows.with_columns(pl.col("clip").replace("0-0-A.wav", "gone.wav")).write_csv(table)
    with pytest.raises(CorpusError, match=f"^{table} lists 12 files that cannot be read"):
        new.run(project, "others", table, columns={"path": "clip"}, encoder="wavlm-micro")


def test_a_table_that_names_files_has_labels_and_tells_which_of_several_folders(project: Path, tmp_path: Path) -> None:
    """As Kaggle has CIFAR-10, and CREMA-D its names of files."""
    for seed in range(12):
        write_image(tmp_path / "train" / f"{seed}.png", seed)
        if seed < 4:
            write_image(tmp_path / "test" / f"{seed}.png", 20 + seed)
    rows = pl.DataFrame({"id": [str(seed) for seed in range(12)], "label": ["a", "b"] * 6})
    pl.DataFrame({"number": range(12), "file": [f"{seed}.png" for seed in range(12)]}).write_csv(tmp_path / "a.csv")
    rows.write_csv(tmp_path / "labels.csv")
    with pytest.raises(CorpusError, match=f"but {tmp_path}/labels.csv names 12 of the files in 'id'") as told:
        new.run(project, "many", tmp_path)
    assert told.value.fix == f"read that: --from {tmp_path}/labels.csv --columns 'path=train/{{id}}.png'"
    columns = {"path": "train/{id}.png"}
    made = new.run(project, "many", tmp_path / "labels.csv", columns=columns, encoder="beit-micro")
    assert manifest_of(made)["path"].str.contains("/?train/").all()


def test_a_table_named_as_a_part_or_without_a_heading(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As Kaggle has the images of cassava, and Stanford's cars; items of one lesion_id or the like are told."""
    tmp_path = tmp_path_factory.mktemp("leaves")
    for seed in range(12):
        write_image(tmp_path / "train_images" / f"{seed}.png", seed)
    names = [f"{seed}.png" for seed in range(12)]
    rows = pl.DataFrame({"image_id": names, "label": ["a", "b"] * 6, "lot_id": [seed // 2 for seed in range(12)]})
    rows.write_csv(tmp_path / "train.csv")
    with pytest.raises(CorpusError) as told:
        new.run(project, "leaves", tmp_path)
    assert told.value.fix == f"read that: --from {tmp_path}/train.csv --columns path=image_id"
    made = new.run(project, "leaves", tmp_path / "train.csv", columns={"path": "image_id"}, encoder="beit-micro")
    assert any(one.startswith("items share the values of 'lot_id'; ") for one in made.doubts)
    assert not any("'lot_id'" in one for one in new.run(
        project, "leaves", tmp_path / "train.csv", columns={"path": "image_id", "speaker": "lot_id"}, force=True,
        encoder="beit-micro").doubts)  # fmt: skip
    rows.write_csv(tmp_path / "train.csv", include_header=False)
    with pytest.raises(CorpusError) as told:
        new.run(project, "cars", tmp_path)
    assert told.value.fix is not None
    assert told.value.fix.endswith(f"into the first line; then --from {tmp_path}/train.csv")


def test_of_several_tables_one_of_texts_is_named(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As Yelp's reviews are published."""
    tmp_path = tmp_path_factory.mktemp("yelp")
    (tmp_path / "business.json").write_text('{"business_id": "a", "name": "x"}\n' * 9)
    (tmp_path / "reviews.json").write_text('{"review_id": "a", "stars": 5, "text": "Good food"}\n')
    with pytest.raises(CorpusError) as told:
        new.run(project, "reviews", tmp_path)
    assert told.value.fix == f"give a table of items: --from {tmp_path}/reviews.json (others: business.json)"


@pytest.mark.parametrize("form", ["C:\\voices\\{}.wav", "/home/me/voices/{}.wav", "{}", "voices/{}"])
@pytest.mark.parametrize("named", [True, False])
def test_paths_of_another_machine(
    form: str, named: bool, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The files are found by their names, also by a table that has our columns."""
    folder = tmp_path_factory.mktemp("elsewhere")
    names = [f"{mood}/s{speaker}" for speaker in range(6) for mood in ("calm", "sad")]
    for seed, name in enumerate(names):
        write_wav(folder / "audio" / f"{name}.wav", seed)
    rows = {"path": [form.format(name.replace("/", "\\" if "\\" in form else "/")) for name in names],
            "label": ["calm", "sad"] * 6, "speaker": [name[-2:] for name in names]}  # fmt: skip
    table = pl.DataFrame(rows) if named else pl.DataFrame(rows).rename({"path": "file"})
    table.write_csv(folder / "list.csv")
    found = manifest_of(new.run(project, "voices", folder / "list.csv", encoder="wavlm-micro"))
    assert found["path"].to_list() == [f"{folder}/audio/{name}.wav" for name in names]


@pytest.mark.parametrize("cell", ["{0} {1}", "{1} {0}"])
def test_a_list_with_spaces_between_its_columns_is_told(project: Path, tmp_path: Path, cell: str) -> None:
    """As RAF-DB has labels behind the files, and CUB numbers before them."""
    for number in range(8):
        write_image(tmp_path / "images" / f"train_{number:05}.png", number)
    lines = [cell.format(f"train_{number:05}.png", number % 2) for number in range(8)]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    told = r"but .*list\.txt names 8 of the files, and spaces separate its columns"
    with pytest.raises(CorpusError, match=told) as caught:
        new.run(project, "faces", tmp_path)
    assert caught.value.fix == f"read that: {LIST_THEM}"


def test_a_table_beside_names_with_labels_is_told(project: Path, voices: Path) -> None:
    """As Fluent Speech Commands is unpacked: the folders are named after speakers."""
    (voices / "lists").mkdir()
    found = sorted(path.relative_to(voices).as_posix() for path in voices.rglob("*.wav"))
    for part, some in (("train", found[::2]), ("test", found[1::2])):
        rows = pl.DataFrame({"path": some, "speakerId": [one[-8:-6] for one in some], "action": ["on", "off"] * 6})
        rows.write_csv(voices / "lists" / f"{part}_data.csv")
    made = new.run(project, "voices", voices, encoder="wavlm-micro")
    where = f"{voices}/lists"
    assert any(
        one.startswith(f"{where}/test_data.csv names 12 of the files in 'path'")
        and one.endswith(f"--from {where} --columns label=NAME")
        for one in made.doubts
    )
    with pytest.raises(CorpusError) as told:
        new.run(project, "actions", Path(where))
    assert told.value.fix is not None
    assert told.value.fix.endswith(f"or name the labels of all parts: --from {where} --columns label=NAME")
    made = new.run(project, "actions", Path(where), columns={"label": "action"}, encoder="wavlm-micro")
    rows = manifest_of(made)
    assert rows["label"].unique().sort().to_list() == ["off", "on"]
    assert rows["speaker"].n_unique() == 6
    assert set(rows["group"]) == {"train", "test"}


def test_initials_may_be_speakers(project: Path, tmp_path: Path) -> None:
    """As SAVEE names its folders."""
    for seed in range(24):
        write_wav(tmp_path / ("DC", "JE", "JK")[seed % 3] / f"{('a', 'sa')[seed // 3 % 2]}{seed // 6:02}.wav", seed)
    made = new.run(project, "savee", tmp_path, encoder="wavlm-micro")
    fix = "--pattern '{speaker}/{label}{_:#}'"
    assert f"DC, JE, JK may be speakers, and a, sa the classes; if so: {fix}" in made.doubts
    rows = manifest_of(new.run(project, "moods", tmp_path, pattern="{speaker}/{label}{_:#}", encoder="wavlm-micro"))
    assert dict(rows["label"].value_counts().iter_rows()) == {"a": 12, "sa": 12}
    assert rows["speaker"].unique().sort().to_list() == ["DC", "JE", "JK"]
    flat = tmp_path / "ALL"
    flat.mkdir()
    for path in sorted(tmp_path.glob("*/*.wav")):
        path.rename(flat / f"{path.parent.name}_{path.name}")
    fix = "--pattern '{speaker}_{label}{_:#}'"
    doubts = new.run(project, "flat", flat, encoder="wavlm-micro").doubts
    assert f"DC, JE, JK may be speakers, and a, sa the classes; if so: {fix}" in doubts


def test_what_the_names_may_mean_instead_is_told(project: Path, tmp_path: Path) -> None:
    for seed in range(24):
        write_wav(tmp_path / f"{'01'[seed % 2]}_{('anna', 'bert', 'carl')[seed // 2 % 3]}_{seed // 6}.wav", seed)
    doubts = new.run(project, "digits-of-mine", tmp_path, encoder="wavlm-micro").doubts
    assert any(doubt.startswith("the classes are taken to be anna, bert, carl, e.g. anna of ") for doubt in doubts)


def test_files_of_many_texts_are_doubted(project: Path, tmp_path: Path) -> None:
    """As DailyDialog has them."""
    for part, kind in ((part, kind) for part in ("train", "test") for kind in ("act", "emotion")):
        (tmp_path / part).mkdir(exist_ok=True)
        (tmp_path / part / f"dialogues_{kind}_{part}.txt").write_text(f"1 2 {part}\n0 1 {kind}\n")
    doubts = new.run(project, "talk", tmp_path, encoder="llama-micro").doubts
    assert "each class has one file in each group; if a file has many texts, write a table: text,label" in doubts


def test_numbers_that_begin_anew_in_every_class_are_those_of_images(project: Path, tmp_path: Path) -> None:
    """As Dogs vs. Cats names its files."""
    for seed in range(12):
        write_image(tmp_path / f"{('cat', 'dog', 'fox')[seed % 3]}.{seed // 3}.jpg", seed)
    assert new.run(project, "pets", tmp_path, encoder="beit-micro").pattern == "{label}.{_}"


def test_texts_without_a_suffix_in_named_parts(project: Path, tmp_path: Path) -> None:
    """As 20 Newsgroups and IMDB are unpacked."""
    for number in range(16):
        part, topic = ("news-train", "news-test")[number % 4 == 3], ("sci.med", "rec.autos")[number % 2]
        path = tmp_path / part / topic / str(10_000 + number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"notice {number}")
    unlabelled = tmp_path / "news-train" / "unsup" / "1"
    unlabelled.parent.mkdir()
    unlabelled.write_text("nobody said what this is")
    made = new.run(project, "news", tmp_path, encoder="llama-micro")
    assert made.pattern == "{group}/{label}/{_}"
    assert made.facts["classes"] == "rec.autos 8, sci.med 8"
    assert dict(manifest_of(made)["group"].value_counts().iter_rows()) == {"train": 12, "test": 4}


def test_files_in_a_folder_beside_their_tables(project: Path, tmp_path: Path) -> None:
    """As Common Voice has them."""
    for part, numbers in (("train", range(8)), ("test", range(8, 12))):
        for number in numbers:
            write_wav(tmp_path / "clips" / f"{number}.wav", number)
        sexes = list("mf") * (len(numbers) // 2)
        rows = {"client_id": [f"c{n // 2}" for n in numbers], "path": [f"{n}.wav" for n in numbers], "sex": sexes}
        pl.DataFrame(rows).write_csv(tmp_path / f"{part}.tsv", separator="\t")
    made = new.run(project, "clips", tmp_path, columns={"label": "sex"}, encoder="wavlm-micro")
    assert manifest_of(made)["path"].to_list()[0] == "../clips/0.wav"
    assert made.facts["speakers"] == "6, with 2 items each"


def test_paths_from_a_folder_above(project: Path, voices: Path) -> None:
    """As EmoBox has them: lists of folds below, paths from where the recipe runs."""
    found = sorted(path.relative_to(voices).as_posix() for path in voices.rglob("*.wav"))
    lists = voices / "data" / "fold_1"
    lists.mkdir(parents=True)
    for part, some in (("train", found[::2]), ("test", found[1::2])):
        rows = [{"key": path, "wav": path, "emo": path.partition("/")[0]} for path in some]
        pl.DataFrame(rows).write_ndjson(lists / f"{part}.jsonl")
    rows = manifest_of(new.run(project, "voices", voices / "data", encoder="wavlm-micro"))
    assert sorted(rows["path"]) == [str(voices / path) for path in found]
    assert set(rows["group"]) == {"train", "test"}
    shutil.copytree(lists, lists.with_name("fold_2"))
    with pytest.raises(CorpusError) as caught:
        new.run(project, "others", voices / "data")
    assert caught.value.fix == f"give the folder of one split, e.g. {lists}"


@pytest.mark.parametrize("path", ["audio/{}.wav", "{}.wav", "{}"])
def test_recordings_of_another_data_set_beside_that_of_the_table_are_not_read(
    project: Path, tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    top = tmp_path_factory.mktemp("sets")
    for seed in range(12):
        write_wav(top / "other" / "audio" / f"{seed:04}.wav", seed)
    rows = pl.DataFrame({"path": [path.format(f"{seed:04}") for seed in range(12)], "label": ["a", "b"] * 6})
    for name in ("mine", "labels"):
        (top / name).mkdir()
        rows.write_csv(top / name / "items.csv")
    with pytest.raises(CorpusError, match=f"^{top}/mine/items.csv lists 12 files that cannot be read"):
        new.run(project, "mine", top / "mine" / "items.csv", encoder="wavlm-micro")
    made = new.run(project, "mine", top / "labels" / "items.csv", encoder="wavlm-micro")
    assert f"the files are not below {top}/labels: the first is {top}/other/audio/0000.wav" in made.doubts


def test_of_several_folders_with_a_name_that_of_all_names_is_read(project: Path, tmp_path: Path) -> None:
    """As Kaggle has the training and the test pictures of a competition, both counted from 1 on."""
    for seed in range(12):
        write_image(tmp_path / "train" / f"{seed}.png", seed)
        if seed < 4:
            write_image(tmp_path / "test" / f"{seed}.png", 20 + seed)
    rows = pl.DataFrame({"image": [f"{seed}.png" for seed in range(12)], "label": ["a", "b"] * 6})
    rows.write_csv(tmp_path / "labels.csv")
    made = new.run(project, "many", tmp_path / "labels.csv", encoder="beit-micro")
    assert manifest_of(made)["path"].str.contains("/?train/").all()
    for seed in range(4, 12):
        write_image(tmp_path / "test" / f"{seed}.png", 20 + seed)
    with pytest.raises(CorpusError, match=f"'0.png' is in {tmp_path}/test, {tmp_path}/train") as caught:
        new.run(project, "both", tmp_path / "labels.csv")
    assert caught.value.fix == "name the folder: --columns 'path=test/{image}'"
    columns = {"path": "train/{image}"}
    made = new.run(project, "both", tmp_path / "labels.csv", columns=columns, encoder="beit-micro")
    assert manifest_of(made)["path"].str.contains("/?train/").all()


def test_several_test_parts_are_doubted(project: Path, voices: Path) -> None:
    """As MSP-Podcast has them."""
    found = sorted(path.relative_to(voices).as_posix() for path in voices.rglob("*.wav"))
    rows = [
        {
            "FileName": path,
            "emotion": path.partition("/")[0],
            "split": ("Train", "Development", "Test1", "Test2")[at % 4],
        }
        for at, path in enumerate(found)
    ]
    pl.DataFrame(rows).write_csv(voices / "labels.csv")
    made = new.run(project, "podcast", voices / "labels.csv", encoder="wavlm-micro")
    assert made.doubts[0].startswith("the groups Development, Test1, Test2, Train are folds of a cross-validation")
    pl.DataFrame(rows).filter(pl.col("split") != "Test2").with_columns(
        pl.col("split").replace("Test1", "Testing")
    ).write_csv(voices / "labels.csv")
    made = new.run(project, "podcast", voices / "labels.csv", encoder="wavlm-micro", force=True)
    assert made.facts["groups"] == "dev, test, train, an official split"
    assert not made.doubts[0].startswith("the groups")


def test_speakers_in_several_groups_are_doubted(project: Path, tmp_path: Path) -> None:
    parts = ["train", "train", "train", "test"] * 3
    NOTICES.with_columns(pl.Series("split", parts)).write_csv(tmp_path / "list.csv")
    made = new.run(project, "notices", tmp_path / "list.csv", encoder="llama-micro")
    shared = "3 authors in more than one group, so folds are not author-independent: a, b, c; for folds that share none"
    assert f"{shared}: download: {{folds: stratified}}" in made.doubts
    NOTICES.with_columns(split=pl.col("author").replace("c", "test")).write_csv(tmp_path / "list.csv")
    made = new.run(project, "notices", tmp_path / "list.csv", encoder="llama-micro", force=True)
    assert not [doubt for doubt in made.doubts if "more than one group" in doubt]


def test_pieces_of_recordings(project: Path, voices: Path) -> None:
    """As audformat has them."""
    found = [path.relative_to(voices).as_posix() for path in sorted(voices.rglob("*.wav"))]
    rows = [
        {"file": path, "start": f"0 days 00:00:00.{at}00", "end": f"0 days 00:00:00.{at + 1}00", "emotion": "ab"[at]}
        for path in found
        for at in range(2)
    ]
    pl.DataFrame(rows).write_csv(voices / "db.csv")
    made = new.run(project, "pieces", voices / "db.csv", encoder="wavlm-micro")
    assert made.facts["columns"] == "path = file, label = emotion, start_s = start, end_s = end"
    rows = manifest_of(made)
    assert rows["start_s"].to_list()[:2] == ["0.0", "0.1"]
    assert rows["end_s"].to_list()[:2] == ["0.1", "0.2"]


def test_pieces_of_recordings_in_tables_of_an_official_split(project: Path, voices: Path) -> None:
    paths = sorted(path.relative_to(voices).as_posix() for path in voices.glob("*/*.wav"))
    for part, own in (("train", paths[::2]), ("test", paths[1::2])):
        rows = [{"file": path, "start": at / 10, "dur": 0.1, "emotion": "ab"[at]} for path in own for at in range(2)]
        pl.DataFrame(rows).write_csv(voices / f"{part}.csv")
    made = new.run(project, "pieces", voices, encoder="wavlm-micro")
    assert made.facts["columns"] == "path = file, label = emotion, start_s = start, end_s = dur"
    assert manifest_of(made).select("start_s", "end_s").unique(maintain_order=True).rows() == [
        ("0.0", "0.1"),
        ("0.1", "0.2"),
    ]


SPOKEN = [f"{speaker:02d}a{text:02d}{code}a.wav" for speaker in (3, 8, 9, 10) for text in (1, 2) for code in "WL"]
"""Names of EmoDB."""


@pytest.mark.parametrize("head", ["path,label", "filename,emotion"])
def test_a_table_without_speakers_has_those_of_known_names(project: Path, tmp_path: Path, head: str) -> None:
    for number, name in enumerate(SPOKEN):
        write_wav(tmp_path / "wav" / name, number)
    lines = [f"wav/{name},{'anger' if name[5] == 'W' else 'boredom'}" for name in SPOKEN]
    (tmp_path / "t.csv").write_text("\n".join([head, *lines]))
    made = new.run(project, "moods", tmp_path / "t.csv", encoder="wavlm-micro")
    assert manifest_of(made)["speaker"].to_list() == [name[:2] for name in SPOKEN]
    assert made.facts["columns"].endswith("speaker = the names of EmoDB")
    assert made.facts["speakers"] == "4, with 4 items each"
    (tmp_path / "t.csv").write_text("\n".join(["filename,what", *lines]))
    with pytest.raises(CorpusError, match="lacks the column label"):
        new.run(project, "moods", tmp_path / "t.csv", columns={"path": "filename"}, encoder="wavlm-micro", force=True)
    # names that tell nothing: everybody may be another one, which is a doubt
    for number, line in enumerate(lines):
        (tmp_path / line.split(",")[0]).rename(tmp_path / "wav" / f"take{number}.wav")
    others = [f"wav/take{number}.wav,{line.split(',')[1]}" for number, line in enumerate(lines)]
    (tmp_path / "t.csv").write_text("\n".join([head, *others]))
    made = new.run(project, "moods", tmp_path / "t.csv", encoder="wavlm-micro", force=True)
    assert made.manifest is not None
    read = manifest.prepare(made.manifest)
    assert (read["speaker"] == read["utterance_id"]).all()  # so that no check takes them for known
    (doubt,) = (doubt for doubt in made.doubts if doubt.startswith("no speaker found in the names"))
    assert doubt.endswith("; name it with --columns speaker=NAME")  # a table takes no pattern
    with pytest.raises(ConfigError, match=r"gives the labels itself\n  leave out --pattern$"):
        new.run(project, "moods", tmp_path / "t.csv", pattern="wav/take{speaker}.wav", force=True)


def test_a_folder_without_speakers_has_those_of_known_names(project: Path, tmp_path: Path) -> None:
    for number, name in enumerate(SPOKEN):
        write_wav(tmp_path / ("anger" if name[5] == "W" else "boredom") / name, number)
    made = new.run(project, "moods", tmp_path, encoder="wavlm-micro")
    rows = manifest_of(made)
    assert rows["speaker"].to_list() == rows["path"].str.slice(-11, 2).to_list()
    assert (made.pattern, made.facts["columns"]) == ("{label}/{_}", "speaker = the names of EmoDB")
    assert made.facts["speakers"] == "4, with 4 items each"


def test_speakers_that_a_folder_does_not_name_are_not_known_to_the_checks(project: Path, tmp_path: Path) -> None:
    for number in range(12):
        write_wav(tmp_path / ("calm", "sad")[number % 2] / f"clip{number}.wav", number)
    new.run(project, "anon", tmp_path, encoder="wavlm-micro")
    config = load_config(project, "anon")
    layout = Layout.of(project, "anon", config)
    download.run(layout, config)
    segment.run(layout, config)
    found = check_shared(read_clips(layout.clips).rows, "speaker")
    assert found.text.startswith("Who speaks is not known: whether two groups share a speaker cannot be checked")


@pytest.mark.parametrize("known", [True, False])
def test_a_data_set_without_speakers(project: Path, tmp_path: Path, known: bool) -> None:
    rows = []
    for number, name in enumerate(SPOKEN):
        write_wav(tmp_path / "one.wav", number)
        held = {"bytes": (tmp_path / "one.wav").read_bytes(), "path": name if known else None}
        rows.append({"audio": held, "emotion": "anger" if name[5] == "W" else "boredom"})
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "moods"))
    made = new.run(project, "moods", tmp_path / "moods", encoder="wavlm-micro")
    assert made.manifest is not None
    speakers = manifest_of(made)["speaker"]
    assert ("speaker = the names of EmoDB" in made.facts["columns"]) == known
    assert any(doubt.startswith("no speaker found in the names") for doubt in made.doubts) == (not known)
    assert speakers.to_list() == [f"{name[:2]}" for name in SPOKEN] if known else speakers.n_unique() == len(SPOKEN)


def test_a_validation_part_takes_the_place_of_a_test_part(project: Path, tmp_path: Path) -> None:
    for number in range(12):
        write_wav(tmp_path / ("train", "val")[number > 7] / "ab"[number % 2] / f"x{number}.wav", number)
    made = new.run(project, "voices", tmp_path, pattern="{group}/{label}/{_}", encoder="wavlm-micro")
    assert dict(manifest_of(made)["group"].value_counts().iter_rows()) == {"train": 8, "test": 4}
    assert "no test part with labels, so the validation part is the test part" in made.doubts


def test_tables_of_an_official_split_name_files_beside_them(project: Path, voices: Path) -> None:
    paths = sorted(path.relative_to(voices).as_posix() for path in voices.glob("*/*.wav"))
    for name, speakers in (("train", "0123"), ("test", "45")):
        own = [path for path in paths if Path(path).name[1] in speakers]
        rows = {"wav": own, "emotion": [path[:4] for path in own], "spk": [Path(path).name[:2] for path in own]}
        pl.DataFrame(rows).write_csv(voices / f"{name}.csv")
    made = new.run(project, "listed", voices, encoder="wavlm-micro")
    rows = manifest_of(made)
    assert rows["path"].to_list()[0] == f"{voices}/calm/s0_0.wav"
    assert dict(rows["group"].value_counts().iter_rows()) == {"train": 16, "test": 8}
    assert new.run(project, "named", voices, pattern="{label}/{speaker}_{_}", encoder="wavlm-micro").pattern


def test_a_folder_with_a_list_of_its_files(project: Path, voices: Path) -> None:
    """As the library `datasets` reads recordings and images."""
    paths = sorted(path.relative_to(voices).as_posix() for path in voices.glob("*/*.wav"))
    table = pl.DataFrame({"file_name": paths, "label": ["odd", "even"] * 12, "speaker": [path[5:8] for path in paths]})
    table.write_csv(voices / "metadata.csv")
    made = new.run(project, "listed", voices, encoder="wavlm-micro")
    assert made.facts["columns"] == "path = file_name"
    assert manifest_of(made)["label"].to_list() == table["label"].to_list()
    table.rename({"file_name": "recorded_as", "label": "kind"}).write_csv(voices / "other.csv")
    with pytest.raises(CorpusError) as caught:
        new.run(project, "unusual", voices / "other.csv", encoder="wavlm-micro")
    assert caught.value.fix is not None
    assert f"daamctl new NAME --from {voices}/other.csv --columns path=recorded_as,label=kind" in caught.value.fix
    found = {"path": "recorded_as", "label": "kind"}
    made = new.run(project, "unusual", voices / "other.csv", columns=found, encoder="wavlm-micro")
    assert manifest_of(made)["label"].to_list() == table["label"].to_list()
    new.run(project, "named", voices, pattern="{label}/{speaker}_{_}", encoder="wavlm-micro")  # not by the list
    (voices / "metadata.csv").write_bytes("s0_0|was er erzählt\n".encode("latin-1"))  # another kind of list
    assert new.run(project, "other", voices, encoder="wavlm-micro").pattern == "{label}/{speaker}_{_}"


def test_types_that_a_csv_file_has_not(project: Path, voices: Path) -> None:
    """Times, dates, categories and bytes of a Parquet file, as pandas and audformat write them."""
    paths = sorted(path.relative_to(voices).as_posix() for path in voices.glob("*/*.wav"))
    rows = pl.DataFrame({"file": paths * 2, "start": [0.0] * 24 + [0.1] * 24, "end": [0.1] * 24 + [0.2] * 24})
    seconds = [(pl.col(name) * 1e6).cast(pl.Int64).cast(pl.Duration("us")) for name in ("start", "end")]
    rows = rows.with_columns(
        *seconds,
        emotion=pl.Series(["odd", "even"] * 24, dtype=pl.Categorical),
        recorded=pl.lit("2026-01-05").str.to_date(),
        thumbnail=pl.lit(b"\xff\x00"),
    )
    rows.write_parquet(voices / "pieces.parquet")
    made = new.run(project, "pieces", voices / "pieces.parquet", encoder="wavlm-micro")
    written = manifest_of(made)
    assert written["label"].to_list() == ["odd", "even"] * 24
    assert written["start_s"].cast(pl.Float64).to_list() == [0.0] * 24 + [0.1] * 24
    assert written["end_s"].cast(pl.Float64).to_list() == [0.1] * 24 + [0.2] * 24
    assert set(written["recorded"]) == {"2026-01-05"}
    assert written["thumbnail"].null_count() == 48


def test_a_column_of_texts_is_no_path(project: Path, tmp_path: Path) -> None:
    rows = [{"file": "a word " * 60, "label": "ab"[n % 2], "speaker": f"s{n}"} for n in range(4)]
    pl.DataFrame(rows).write_csv(tmp_path / "long.csv")
    with pytest.raises(CorpusError, match="no such file"):
        new.run(project, "long", tmp_path / "long.csv", encoder="wavlm-micro")


def test_a_text_in_several_columns(project: Path, tmp_path: Path) -> None:
    rows = [{"title": f"T{n}", "text": None if n == 3 else f"body {n}", "kind": "ab"[n % 2]} for n in range(12)]
    pl.DataFrame(rows).write_csv(tmp_path / "news.csv")
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "news"))
    columns = {"text": "{title} {text}", "label": "kind"}
    expected = [row["title"] if row["text"] is None else f"{row['title']} {row['text']}" for row in rows]
    for name, source in (("table", tmp_path / "news.csv"), ("dataset", tmp_path / "news")):
        made = new.run(project, name, source, columns=columns, encoder="bert-micro")
        assert manifest_of(made)["text"].to_list() == expected
        assert load_config(project, name).download.text == "{title} {text}"
        assert made.manifest is not None
        written = [str(one) for one in files_of(str(made.manifest), (".csv", ".parquet"))]
        assert read_inputs(written, "text", "{title} {text}")["text"].to_list() == expected  # not filled in again
        with pytest.raises(CorpusError, match=r"text=\{title\} \{no\}; .* has the columns title, text, kind"):
            new.run(project, "no", source, columns={**columns, "text": "{title} {no}"}, encoder="bert-micro")
    pl.DataFrame({"a": ["x", "y"], "b": [["p"], ["q"]], "kind": ["c", "d"]}).write_parquet(tmp_path / "lists.parquet")
    with pytest.raises(CorpusError, match="the column 'b' has several values in a row"):
        new.run(project, "no", tmp_path / "lists.parquet", columns={"text": "{a} {b}", "label": "kind"})
    columns = {"path": "a", "start_s": "b", "label": "kind"}
    with pytest.raises(CorpusError, match="the column 'b' has several values in a row"):
        new.run(project, "no", tmp_path / "lists.parquet", columns=columns)


@pytest.mark.parametrize("name", ["{}_sent_emo.csv", "mine.{}.csv"])
def test_tables_of_a_split_with_longer_names(project: Path, voices: Path, name: str) -> None:
    """As of MELD, where files of several parts have the same name; other lists beside them are no part."""
    rows: dict[str, list[dict[str, int | str]]] = {"train": [], "dev": [], "test": []}
    for number, path in enumerate(sorted(voices.glob("*/*.wav"))):
        part = ("train", "train", "dev", "test")[number % 4]
        (voices / part).mkdir(exist_ok=True)
        path.rename(voices / part / f"dia{len(rows[part])}.wav")
        rows[part].append({"Dialogue": len(rows[part]), "Emotion": "ab"[number // 4 % 2]})
    for part, table in rows.items():
        pl.DataFrame(table).write_csv(voices / name.format(part))
    (voices / "train_files.txt").write_text("a.wav 1\n")
    (voices / "test_files.txt").write_text("a.wav 1\n")
    with pytest.raises(CorpusError, match=r"the tables in .* have neither a path nor a text; they have Dialogue, E"):
        new.run(project, "meld", voices, encoder="wavlm-micro")
    columns = {"path": "{group}/dia{Dialogue}.wav", "label": "Emotion"}
    made = new.run(project, "meld", voices, columns=columns, encoder="wavlm-micro")
    written = manifest_of(made)
    assert dict(written["group"].value_counts().iter_rows()) == {"train": 12, "dev": 6, "test": 6}
    assert all(f"/{group}/dia" in path for path, group in written.select("path", "group").iter_rows())


def test_recordings_below_tables_of_texts_are_told(project: Path, voices: Path) -> None:
    """As MELD is unpacked."""
    for part, rows in (("train", NOTICES[:8]), ("test", NOTICES[8:])):
        rows.write_csv(voices / f"{part}.csv")
    made = new.run(project, "notices", voices, encoder="llama-micro")
    told = f"24 recordings below {voices} not read; if the tables name them: --columns 'path=FOLDER/{{COLUMN}}.wav'"
    assert told in made.doubts


def test_a_table_with_tabs_is_not_taken_for_tagged_words(project: Path, tmp_path: Path) -> None:
    """As of MRPC, whose names of columns begin with #."""
    lines = [f'{n % 2}\tThe {n} \t"So {n}.' for n in range(12)]
    (tmp_path / "msr_train.txt").write_text("Quality\t#1 String\t#2 String\n" + "\n".join(lines) + "\n")
    columns = {"text": "{#1 String} [SEP] {#2 String}", "label": "Quality"}
    made = new.run(project, "mrpc", tmp_path / "msr_train.txt", columns=columns, encoder="bert-micro")
    assert manifest_of(made)["text"].to_list() == [f'The {n}  [SEP] "So {n}.' for n in range(12)]
    with pytest.raises(CorpusError, match=r"lacks the columns path \(or text\), label, speaker"):
        new.run(project, "other", tmp_path / "msr_train.txt", encoder="bert-micro")


def test_tables_about_other_things_are_no_list(project: Path, voices: Path) -> None:
    for part in ("train", "test"):
        pl.DataFrame({"speaker": ["a", "b"], "minutes": [3, 4]}).write_csv(voices / f"{part}_minutes.csv")
    made = new.run(project, "voices", voices, encoder="wavlm-micro")
    assert made.facts["items"] == "24"
    assert manifest_of(made)["label"].n_unique() == 2


def test_of_two_texts_one_alone_is_doubted(project: Path, tmp_path: Path) -> None:
    rows = [{"question": f"Is it {n}?", "sentence": f"It is {n}.", "label": "ab"[n % 2]} for n in range(12)]
    pl.DataFrame(rows).write_csv(tmp_path / "qnli.csv")
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "qnli"))
    titled = [{"title": one["question"], "text": one["sentence"], "label": one["label"]} for one in rows]
    pl.DataFrame(titled).write_csv(tmp_path / "titled.csv")
    for name, other, read in (("qnli.csv", "question", "sentence"), ("qnli", "question", "sentence"),
                              ("titled.csv", "title", "text")):  # fmt: skip
        doubts = new.run(project, "pair", tmp_path / name, encoder="bert-micro", force=True).doubts
        assert f"of the texts only '{read}' is read; both: --columns 'text={{{other}}} {{{read}}}'" in doubts
        columns = {"text": f"{{{other}}} {{{read}}}"}
        made = new.run(project, "pair", tmp_path / name, columns=columns, encoder="bert-micro", force=True)
        assert not [doubt for doubt in made.doubts if "only" in doubt]
        assert manifest_of(made)["text"][0] == "Is it 0? It is 0."
    pairs = [{"premise": f"It is {n % 3}.", "hypothesis": f"Is it {n % 3}?", "gold": "ab"[n % 2]} for n in range(12)]
    pl.DataFrame(pairs).write_csv(tmp_path / "nli.csv")
    with pytest.raises(CorpusError) as caught:
        new.run(project, "nli", tmp_path / "nli.csv", encoder="bert-micro")
    assert "--columns 'text={premise} {hypothesis},label=gold'" in str(caught.value.fix)


def test_a_path_in_several_columns(project: Path, voices: Path) -> None:
    """As MELD names its files."""
    rows = []
    for number, path in enumerate(sorted(voices.glob("*/*.wav"))):
        path.rename(voices / f"dia{number // 4}_utt{number % 4}.wav")
        rows.append({"Dialogue_ID": number // 4, "Utterance_ID": number % 4, "Emotion": "ab"[number % 2]})
    pl.DataFrame(rows).write_csv(voices / "dev_sent_emo.csv")
    columns = {"path": "dia{Dialogue_ID}_utt{Utterance_ID}.wav", "label": "Emotion", "speaker": "s{Dialogue_ID}"}
    made = new.run(project, "meld", voices / "dev_sent_emo.csv", columns=columns, encoder="wavlm-micro")
    written = manifest_of(made)
    assert [path.rpartition("/")[2] for path in written["path"]][:5] == [
        "dia0_utt0.wav", "dia0_utt1.wav", "dia0_utt2.wav", "dia0_utt3.wav", "dia1_utt0.wav",
    ]  # fmt: skip
    assert written["speaker"].to_list() == [f"s{number // 4}" for number in range(24)]


def test_many_groups_may_be_what_belongs_together(project: Path, tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": "ab"[n % 2], "group": f"page{n // 2}"} for n in range(80)]
    pl.DataFrame(rows).write_csv(tmp_path / "pages.csv")
    doubts = new.run(project, "pages", tmp_path / "pages.csv", encoder="bert-micro").doubts
    assert any(doubt.startswith("40 groups are as many folds") and "name it speaker" in doubt for doubt in doubts)
    kept = {"speaker": "group"}
    assert not new.run(project, "kept", tmp_path / "pages.csv", columns=kept, encoder="bert-micro").doubts
    own = pl.DataFrame({**row, "group": f"page{number}"} for number, row in enumerate(rows))
    own.write_csv(tmp_path / "own.csv")  # nobody with one text alone can have two classes
    assert not new.run(project, "own", tmp_path / "own.csv", columns=kept, encoder="bert-micro").doubts


@pytest.mark.parametrize("name", ["off", "2024", "1.5", "null"])
def test_a_name_that_yaml_reads_otherwise(project: Path, voices: Path, name: str) -> None:
    new.run(project, name, voices, encoder="wavlm-micro")
    assert read_yaml(project / "params.yaml")["pipelines"][-1] == name
    assert name in check.run(project, write=True)
    assert load_config(project, name).extract.encoder == "wavlm-micro"
    params = project / "params.yaml"
    params.write_text(params.read_text().replace(f"'{name}'", name))  # as a user may write it
    with pytest.raises(ConfigError, match=r"params.yaml: pipelines: YAML reads \S+; put the name in quotes"):
        check.run(project)


def test_data_within_the_project_are_named_relative_to_it(project: Path, voices: Path) -> None:
    inside = project / "recordings"
    for path in voices.rglob("*.wav"):
        target = inside / path.relative_to(voices)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    made = new.run(project, "near", inside)
    assert manifest_of(made)["path"][0] == "../recordings/calm/s0_0.wav"


def test_what_is_wrong_with_recordings_is_told(project: Path, voices: Path) -> None:
    (voices / "calm/s0_7.wav").write_bytes((voices / "sad/s0_0.wav").read_bytes())
    write_wav(voices / "calm/s0_8.wav", 99, loud=0.0)
    write_wav(voices / "calm/s0_9.wav", 98, seconds=0.05)
    (voices / "calm/s1_9.wav").write_bytes(b"RIFF")
    (voices / "calm/notes.txt").write_text("x")
    write_wav(voices / "odd.wav", 97)
    made = new.run(project, "voices", voices)
    assert made.doubts[:6] == [
        "left out, of another kind: .txt (1)",
        "1 file left out, which the pattern does not fit: odd.wav",
        "1 file is silent: calm/s0_8.wav",
        "1 file is shorter than 0.1 s: calm/s0_9.wav",
        "1 file is unreadable and left out: calm/s1_9.wav",
        "equal files: calm/s0_7.wav = sad/s0_0.wav",
    ]
    assert made.doubts[6] == "equal files with different labels: calm/s0_7.wav = sad/s0_0.wav"
    assert len(manifest_of(made)) == 27


def test_recordings_in_two_formats_are_told(project: Path, voices: Path) -> None:
    """As CREMA-D has them."""
    for path in list(voices.rglob("*.wav")):
        sf.write(path.with_suffix(".flac"), *sf.read(path))
    made = new.run(project, "voices", voices)
    assert len(manifest_of(made)) == 48
    command = "--pattern '{label}/{speaker}_{_}.wav'"
    assert made.doubts[0] == (
        f"the same names as .flac and .wav, so 24 items may be there more than once; to read one format: {command}"
    )
    made = new.run(project, "voices", voices, pattern="{label}/{speaker}_{_}.wav", force=True)
    assert len(manifest_of(made)) == 24
    assert not any("same names" in doubt for doubt in made.doubts)


def test_pictures_and_their_masks_are_told_apart(project: Path, tmp_path: Path) -> None:
    """As Oxford Pets is unpacked, with lists of its parts."""
    names = [f"{('pug', 'manx')[seed % 2]}_{seed}" for seed in range(12)]
    for seed, name in enumerate(names):
        write_image(tmp_path / "images" / f"{name}.jpg", seed)
        write_image(tmp_path / "annotations" / "trimaps" / f"{name}.png", 20 + seed)
    (tmp_path / "annotations" / "test.txt").write_text("".join(f"{name} 1 1\n" for name in names[8:]))
    made = new.run(project, "pets", tmp_path, encoder="beit-micro")
    told = "--pattern '{label+}_{_}.jpg' (as in images) or --pattern '{label+}_{_}.png' (as in annotations/trimaps)"
    assert made.doubts[1].endswith(f"so 12 items may be there more than once; to read one format: {told}")
    made = new.run(project, "pets", tmp_path, encoder="beit-micro", pattern="{label}_{_}.jpg", force=True)
    assert dict(manifest_of(made)["group"].value_counts().iter_rows()) == {"train": 8, "test": 4}


def test_pairs_of_recordings_are_no_part_and_videos_no_classes(project: Path, tmp_path: Path) -> None:
    """As VoxCeleb lists its trials."""
    names = [f"id1000{who}/video{who}_{number:04}/0000{take}.wav"
             for who in range(4) for number in range(2) for take in range(2)]  # fmt: skip
    for seed, name in enumerate(names):
        write_wav(tmp_path / name, seed)
    (tmp_path / "veri_test.txt").write_text("".join(f"1 {names[at]} {names[at + 1]}\n" for at in range(12)))
    with pytest.raises(CorpusError, match="the names of VoxCeleb tell the speaker, but no class") as told:
        new.run(project, "voices", tmp_path)
    pattern = "{label}/{_}/{_}"
    assert told.value.fix is not None
    assert f"--pattern '{pattern}'" in told.value.fix
    rows = manifest_of(new.run(project, "voices", tmp_path, pattern=pattern, encoder="wavlm-micro"))
    assert rows["label"].n_unique() == 4
    assert "group" not in rows.columns


def test_recordings_that_no_stage_would_read_are_left_out(project: Path, voices: Path) -> None:
    whole = (voices / "sad/s0_0.wav").read_bytes()
    (voices / "calm/s0_7.wav").write_bytes(whole[: len(whole) // 2])
    sf.write(voices / "calm/s0_8.wav", np.array([0.1, np.nan] * RATE), RATE, subtype="FLOAT")
    made = new.run(project, "voices", voices)
    assert made.doubts[0] == "2 files are unreadable and left out: calm/s0_7.wav, calm/s0_8.wav"
    assert len(manifest_of(made)) == 24


def test_formats_that_are_not_named_are_counted(project: Path, voices: Path) -> None:
    for path, rate in zip(sorted(voices.rglob("*.wav")), range(RATE, RATE + 7), strict=False):
        sf.write(path, sf.read(path)[0], rate)
    assert new.run(project, "voices", voices).facts["format"].endswith("8004 Hz, 1 channel (1) and 2 more")


def test_recordings_that_must_be_converted_are_told(project: Path, voices: Path) -> None:
    for name in ("b.m4a", "a.mp4", "README"):
        (voices / "calm" / name).write_bytes(b"x")
    doubts = new.run(project, "voices", voices).doubts
    convert = "convert recordings, e.g. ffmpeg -i a.mp4 a.wav"
    assert f"left out, of another kind: README (1), .mp4 (1), .m4a (1); {convert}" in doubts
    for path in voices.rglob("*.wav"):
        path.unlink()
    with pytest.raises(CorpusError, match=r"; it holds README \(1\), \.mp4 \(1\), \.m4a \(1\)") as caught:
        new.run(project, "other", voices)
    assert caught.value.fix == convert


def test_codes_get_names(project: Path, voices: Path) -> None:
    made = new.run(project, "voices", voices, labels={"calm": "ruhig"})
    assert made.facts["classes"] == "ruhig 12, sad 12"
    with pytest.raises(ConfigError, match="--labels names angry, but the labels are calm, sad"):
        new.run(project, "more", voices, labels={"angry": "x"})


def test_codes_of_a_table_get_names(project: Path, tmp_path: Path) -> None:
    """Also of a table with our names of columns, of which nothing else would be written."""
    rows = [{"text": f"notice {number}", "label": number % 2} for number in range(12)]
    for name, columns in (("ours", {}), ("theirs", {"label": "class"})):
        pl.DataFrame(rows).rename(columns).write_csv(tmp_path / "table.csv")
        made = new.run(project, name, tmp_path / "table.csv", labels={"0": "calm"}, encoder="llama-micro")
        assert set(manifest_of(made)["label"]) == {"calm", "1"}
    with pytest.raises(ConfigError, match="--labels names 7, but the labels are 0, 1"):
        new.run(project, "wrong", tmp_path / "table.csv", labels={"7": "calm"}, encoder="llama-micro")


def test_without_speakers_the_danger_is_told(project: Path, voices: Path) -> None:
    made = new.run(project, "voices", voices, pattern="{label}/{_}.wav")
    (doubt,) = (doubt for doubt in made.doubts if doubt.startswith("no speaker found in the names: the same voice may"))
    assert doubt.endswith("; name it with {speaker} in --pattern")
    assert manifest_of(made)["speaker"].n_unique() == 24
    assert load_config(project, "voices").download.corpus == "manifest"


def test_images_and_texts(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    for kind in ("cat", "dog"):
        (folder / "pictures" / kind).mkdir(parents=True)
        (folder / "texts" / kind).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (number, 0, len(kind) + ord(kind[0]))).save(
                folder / "pictures" / kind / f"{number}.png"
            )
            (folder / "texts" / kind / f"{number}.txt").write_text(f"A {kind}, number {number}\n")
    (folder / "texts/cat/none.txt").write_text(" \n")
    for name, encoder in (("pictures", "beit-micro"), ("texts", "llama-micro")):
        made = new.run(project, name, folder / name, encoder=encoder)
        config = load_config(project, name)
        download.run(Layout.of(project, name, config), config)
        assert made.facts["classes"] in ("cat 6, dog 6", "dog 6, cat 6")
        assert len(manifest_of(made)) == 12
    assert made.doubts == ["1 text left out: empty, not UTF-8, or over a megabyte: cat/none.txt"]
    assert "A cat, number 0" in set(manifest_of(made)["text"])


def test_folders_of_texts_that_are_not_read_name_a_way_on(project: Path, tmp_path: Path) -> None:
    """As TREC and SMS Spam are published."""
    (tmp_path / "spam").mkdir()
    (tmp_path / "spam" / "readme").write_text("Cite us.\n")
    items = "".join(f"{('ham', 'spam')[at % 2]}\tA message, number {at}\n" for at in range(8))
    (tmp_path / "spam" / "SMSSpamCollection").write_text(items)
    with pytest.raises(CorpusError) as refused:
        new.run(project, "spam", tmp_path / "spam")
    assert refused.value.fix == f"give a table of items: --from {tmp_path}/spam/SMSSpamCollection"
    assert len(manifest_of(new.run(project, "spam", tmp_path / "spam" / "SMSSpamCollection"))) == 8
    (tmp_path / "trec").mkdir()
    for name in ("train.label", "TREC_10.label"):
        (tmp_path / "trec" / name).write_text("NUM:date When did it end ?\n" * 4)
    with pytest.raises(CorpusError) as refused:
        new.run(project, "trec", tmp_path / "trec")
    assert refused.value.fix == f"for texts, {new.LIST_TEXTS}"
    (tmp_path / "trec" / "train.label").unlink()
    for name in ("train", "test"):
        (tmp_path / "trec" / f"{name}.txt").write_text(f"NUM:date When did the {name} end ?\n" * 4)
    with pytest.raises(CorpusError, match=r"have no label; they have .*, which look like items") as refused:
        new.run(project, "trec", tmp_path / "trec")
    assert refused.value.fix is not None
    assert "a CSV file begins with a line such as" in refused.value.fix


def test_words_with_their_language_in_front_are_doubted(project: Path, tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        (tmp_path / part).write_text("en:Ann\tB-PER\nen:ran\tO\n\nen::\tO\nen:Rio\tB-LOC\n\n" * 4)
    made = new.run(project, "words", tmp_path, encoder="llama-micro")
    assert f"words begin with 'en:'; without it: daamctl download wikiann --from {tmp_path}" in made.doubts


def test_nothing_is_overwritten(project: Path, voices: Path) -> None:
    made = new.run(project, "voices", voices)
    made.pipeline.write_text(made.pipeline.read_text() + "train: {epochs: 3}\n")
    text = made.pipeline.read_text()
    with pytest.raises(ConfigError, match="exist") as caught:
        new.run(project, "voices", voices)
    assert caught.value.message.endswith("exist already")
    assert caught.value.fix == "take another name, or replace them with --force"
    assert made.pipeline.read_text() == text
    new.run(project, "voices", voices, force=True)
    assert made.pipeline.read_text() != text
    assert (project / "params.yaml").read_text().count("- voices\n") == 1


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a/b", "x" * 65, "emodb"])
def test_names_that_cannot_be(project: Path, voices: Path, name: str) -> None:
    known = pipeline_names(project)
    with pytest.raises(ConfigError):
        new.run(project, name, voices)
    assert pipeline_names(project) == known


def test_links_in_a_circle_and_pipes_are_passed_over(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for label in ("bad", "good"):
        (folder / label).mkdir(parents=True)
        for number in range(6):
            (folder / label / f"{number}.txt").write_text(f"{label} text {number}")
        (folder / label / "all").symlink_to(folder)
        os.mkfifo(folder / label / "pipe.txt")  # a reader would wait for ever
    made = new.run(project, "x", folder, pattern="{label}/{_}", encoder="llama-micro")
    assert made.facts["classes"] == "bad 6, good 6"


def test_folders_without_data(project: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CorpusError, match="holds no recordings, images or texts"):
        new.run(project, "x", empty)
    (empty / "emerging.dev.conll").write_text("a O\n", encoding="utf-8")
    with pytest.raises(CorpusError, match="holds no recordings, images or texts") as refused:
        new.run(project, "x", empty)
    assert refused.value.fix == "name the files of tagged words train, dev and test; it has emerging.dev.conll"
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (empty / name).write_text("-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n", encoding="utf-8")
    with pytest.raises(CorpusError) as refused:
        new.run(project, "x", empty)
    assert refused.value.fix == f"these are of CoNLL-2003: daamctl download conll2003 --from {empty}"
    with pytest.raises(CorpusError) as refused:
        new.run(project, "x", empty / "eng.train")
    assert refused.value.fix == "name the file of tagged words eng.train.conll, and give that"
    (empty / "a.npy").write_bytes(b"x")
    with pytest.raises(CorpusError, match="holds no recordings, images or texts") as refused:
        new.run(project, "x", empty)
    assert refused.value.fix == f"of vectors, write a file first: daamctl import-vectors {empty}"
    (empty / "task_metadata.json").write_text("{}")
    with pytest.raises(CorpusError, match="holds vectors of HEAR's evaluation kit") as refused:
        new.run(project, "x", empty)
    assert refused.value.fix == f"of vectors, write a file first: daamctl import-vectors {empty}"
    with pytest.raises(CorpusError, match="no file or folder"):
        new.run(project, "x", tmp_path / "nowhere")
    with pytest.raises(CorpusError, match="is a file, but no list of items"):
        new.run(project, "x", project / "params.yaml")
    assert not (project / "manifests").exists()


@pytest.mark.parametrize(
    ("source", "fix"),
    [
        ("a.zip", "unpack it, and give the folder: python -m zipfile -e {source} FOLDER"),
        ("a.tar.gz", "unpack it, and give the folder: python -m tarfile -e {source} FOLDER"),
        ("a.xlsx", "save it as CSV, and give that"),
        ("a.csv.gz", "unpack it, and give a.csv: python -m gzip -d {source}"),
        ("a.npy", "of vectors, write a file first: daamctl import-vectors {source}"),
        ("https://huggingface.co/datasets/me/moods", "hf download me/moods --repo-type dataset --local-dir FOLDER"),
        ("hf://datasets/me/moods", "hf download me/moods --repo-type dataset --local-dir FOLDER"),
        ("me/moods", "hf download me/moods --repo-type dataset --local-dir FOLDER"),
        ("me/moods.csv", "correct the path after --from"),
        ("me/moods.jsonl", "correct the path after --from"),
        ("me/moods.npz", "correct the path after --from"),
    ],
)
def test_what_to_do_with_other_sources(project: Path, source: str, fix: str) -> None:
    if source.startswith("a."):
        (project / source).write_bytes(b"packed")
    with pytest.raises(CorpusError) as caught:
        new.run(project, "x", Path(source))
    assert caught.value.fix is not None
    assert fix.format(source=source) in caught.value.fix


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl", ".json"])
def test_a_table_becomes_a_pipeline(project: Path, voices: Path, suffix: str) -> None:
    rows = pl.DataFrame(
        [(str(path.relative_to(voices)), path.parent.name, path.stem[:2]) for path in sorted(voices.rglob("*.wav"))],
        schema=["path", "label", "speaker"],
        orient="row",
    )
    table = voices / f"mine{suffix}"
    {".csv": rows.write_csv, ".parquet": rows.write_parquet, ".jsonl": rows.write_ndjson, ".json": rows.write_json}[
        suffix
    ](table)
    made = new.run(project, "listed", table, encoder="wavlm-micro")
    assert (made.manifest, made.pattern) == (None, "")
    assert made.facts["classes"] == "calm 12, sad 12"
    assert made.facts["speakers"] == "6, with 4 items each"
    assert made.facts["format"] == "8000 Hz, 1 channel (24)"
    config = load_config(project, "listed")
    assert (config.download.corpus, config.download.source) == ("manifest", str(table))
    assert config.download.num_groups == 6
    assert not (project / "manifests").exists()
    download.run(Layout.of(project, "listed", config), config)
    with pytest.raises(ConfigError, match="gives the labels itself"):
        new.run(project, "other", table, pattern="{label}/{_}")
    rows = pl.concat([rows, pl.DataFrame({"path": ["gone.wav"], "label": ["sad"], "speaker": ["s9"]})])
    {".csv": rows.write_csv, ".parquet": rows.write_parquet, ".jsonl": rows.write_ndjson, ".json": rows.write_json}[
        suffix
    ](table)
    with pytest.raises(CorpusError, match=r"lists 1 file that cannot be read: gone\.wav"):
        new.run(project, "other", table)
    table.unlink()


def test_tables_of_texts_and_images(project: Path, tmp_path: Path) -> None:
    texts = pl.DataFrame({"text": [f"text {n}" for n in range(12)], "label": ["a", "b"] * 6})
    texts.write_csv(project / "texts.csv")
    made = new.run(project, "texts", project / "texts.csv")
    config = load_config(project, "texts")
    assert (config.download.source, config.extract.encoder) == ("texts.csv", "roberta-large")  # within the project
    assert "speakers" not in made.facts
    (project / "sheet.txt").write_bytes(texts.write_csv(separator="\t").encode("utf-16"))  # as spreadsheets write it
    assert new.run(project, "sheet", project / "sheet.txt").facts["classes"] == made.facts["classes"]
    for number in range(4):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    pictures = pl.DataFrame({"path": [f"{n}.png" for n in (0, 1, 2, 3, 9)], "label": ["a", "b", "a", "b", "a"]})
    pictures.write_csv(tmp_path / "pictures.csv")
    with pytest.raises(CorpusError, match=r"cannot be read: 9\.png"):
        new.run(project, "pictures", tmp_path / "pictures.csv")
    pictures[:4].write_csv(tmp_path / "pictures.csv")
    assert new.run(project, "pictures", tmp_path / "pictures.csv").facts["items"] == "4"
    (tmp_path / "bad.csv").write_text("file,mood\nx.wav,sad\n")
    with pytest.raises(CorpusError, match="lacks the columns path"):
        new.run(project, "bad", tmp_path / "bad.csv")
    (tmp_path / "clips.tsv").write_text("client_id\tpath\tsentence\nab\tx.wav\thello\n")  # as Common Voice has
    with pytest.raises(CorpusError, match="lacks the columns label, speaker") as caught:
        new.run(project, "bad", tmp_path / "clips.tsv")
    assert "rename the column 'client_id' to speaker" in str(caught.value.fix)


@pytest.mark.parametrize("place", ["news.conll", "news.txt", "news.tsv", "news", "news.parquet", "news.jsonl"])
def test_tagged_words_become_a_pipeline(project: Path, place: str) -> None:
    columns = "".join(f"Ada\tB-PER\nsaw\tO\nRome{n}\tB-LOC\n\n" for n in range(6))
    source = project / place
    if place == "news":
        source.mkdir()
        for part in ("train", "dev", "test"):
            (source / f"{part}.txt").write_text(columns)
    elif source.suffix in (".conll", ".txt", ".tsv"):
        source.write_text(columns)
    else:
        rows = pl.DataFrame({"tokens": [["Ada", f"s{n}"] for n in range(6)], "tags": [["B-PER", "O"]] * 6})
        (rows.write_parquet if place.endswith("parquet") else rows.write_ndjson)(source)
    made = new.run(project, "news", source, encoder="llama-micro")
    assert made.doubts == []
    config = load_config(project, "news")
    assert (config.download.corpus, config.download.source) == ("conll", place)
    assert {"last-layer", "ridge-concat"} <= set(config.methods)
    assert config.train.batch_size == 256
    assert check.problems_of(config) == []
    download.run(Layout.of(project, "news", config), config)
    assert ("groups" in made.facts) == (place == "news")


def test_folds_have_several_classes_where_a_speaker_has_one(project: Path) -> None:
    folder = project / "clinic"
    folder.mkdir()
    for number in range(18):
        name = f"{'ill' if number < 9 else 'well'}_p{number // 3}_{number}.wav"
        sf.write(folder / name, 0.1 * np.random.default_rng(number).normal(size=RATE), RATE)
    made = new.run(project, "patients", folder, pattern="{label}_{speaker}_{_}.wav", encoder="wavlm-micro")
    doubt = "6 of 6 speakers with several items have one class only: a method may learn the speaker instead"
    assert doubt in made.doubts
    config = load_config(project, "patients")
    assert (config.download.folds, config.download.num_groups) == ("stratified", 3)
    download.run(Layout.of(project, "patients", config), config)


def test_a_data_set_of_the_hub_becomes_a_pipeline(project: Path) -> None:
    rows = {"review": [f"text {n}" for n in range(12)], "label": [n % 2 for n in range(12)]}
    features = Features({"review": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    Dataset.from_dict(rows, features=features).to_parquet(project / "train.parquet")
    made = new.run(project, "reviews", project / "train.parquet", encoder="llama-micro")
    assert made.manifest == project / "manifests/reviews/reviews.csv"
    assert made.facts == {"columns": "text = review", "items": "12", "classes": "bad 6, good 6"}
    config = load_config(project, "reviews")
    assert config.download.source == "manifests/reviews/reviews.csv"
    download.run(Layout.of(project, "reviews", config), config)
    with pytest.raises(ConfigError, match=r"pipelines/reviews\.yaml, .*manifests/reviews exist already"):
        new.run(project, "reviews", project / "train.parquet")
    with pytest.raises(ConfigError, match="--labels names a, but the labels are bad, good"):
        new.run(project, "other", project / "train.parquet", labels={"a": "b"})
    made = new.run(project, "other", project / "train.parquet", labels={"bad": "poor"}, encoder="llama-micro")
    assert made.facts["classes"] == "poor 6, good 6"


@pytest.mark.parametrize("inside", [True, False])
def test_columns_of_a_table_can_be_named(project: Path, tmp_path_factory: pytest.TempPathFactory, inside: bool) -> None:
    folder = project / "data" if inside else tmp_path_factory.mktemp("elsewhere")
    folder.mkdir(exist_ok=True)
    lines = ["file_name,mood,label,who"]
    for number in range(4):
        Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]},{number},p{number // 2}")
    (folder / "metadata.csv").write_text("\n".join(lines))
    columns = {"path": "file_name", "label": "mood", "speaker": "who"}
    made = new.run(project, "pictures", folder / "metadata.csv", columns=columns, encoder="beit-micro")
    assert made.manifest == project / "manifests/pictures.csv"
    written = pl.read_csv(made.manifest)
    assert written.columns == ["path", "label", "speaker"]
    start = "../data/" if inside else f"{folder}/"
    assert written["path"].to_list() == [f"{start}{number}.png" for number in range(4)]
    config = load_config(project, "pictures")
    download.run(Layout.of(project, "pictures", config), config)
    with pytest.raises(CorpusError, match=r"--columns has label=mud; .*metadata\.csv has the columns file_name, mood"):
        new.run(project, "other", folder / "metadata.csv", columns={"label": "mud"})
    (folder / "metadata.csv").rename(folder / "list.csv")
    with pytest.raises(ConfigError, match="is neither a table of items nor a data set"):
        new.run(project, "other", folder, columns=columns)


@pytest.mark.parametrize("names", [("A", "B"), ("Ann", "Ben")])
def test_speakers_that_may_be_roles_are_doubted(project: Path, names: tuple[str, str]) -> None:
    lines = [f"{at // 4},{names[at % 2]},text {at},{'ab'[at // 2 % 2]}" for at in range(48)]
    (project / "talk.csv").write_text("\n".join(["Dialogue_ID,Speaker_ID,text,mood", *lines]))
    made = new.run(project, "talk", project / "talk.csv", columns={"label": "mood"}, encoder="llama-micro")
    told = [one for one in made.doubts if "are in most of 12 values of 'Dialogue_ID'" in one]
    assert len(told) == (names == ("A", "B"))
    for one in told:
        columns = {"label": "mood", "speaker": "{Dialogue_ID}-{Speaker_ID}"}
        words = ",".join(f"{role}={name}" for role, name in columns.items())
        assert one.endswith(f"--from {project / 'talk.csv'} --columns '{words}'")
        made = new.run(project, "distinct", project / "talk.csv", columns=columns, encoder="llama-micro")
        assert made.facts["authors"] == "24, with 2 items each"
        assert not any("values of" in one for one in made.doubts)


def test_columns_are_refused_where_none_has_a_name(project: Path, tmp_path: Path) -> None:
    annotated = [f'{{"text": "text {number}", "label": ["{"ab"[number % 2]}"], "who": "p"}}\n' for number in range(8)]
    (tmp_path / "annotated.jsonl").write_text("".join(annotated))
    (tmp_path / "classes").mkdir()
    for name in ("pos", "neg"):
        (tmp_path / "classes" / f"{name}.txt").write_text("".join(f"{name} text {number}\n" for number in range(30)))
    for source in ("annotated.jsonl", "classes"):
        with pytest.raises(ConfigError, match="is neither a table of items nor a data set") as caught:
            new.run(project, "other", tmp_path / source, columns={"speaker": "who"}, encoder="llama-micro")
        assert caught.value.fix == "leave out --columns"
        new.run(project, source[:7], tmp_path / source, encoder="llama-micro")


def test_words_have_documents_where_the_file_tells_them(project: Path) -> None:
    text = "-DOCSTART- O\n\nAda B-PER\n\nsaw O\n\n-DOCSTART- O\n\nRome B-LOC\n\nis O\n\n"
    (project / "news.conll").write_text(text)
    made = new.run(project, "news", project / "news.conll", encoder="llama-micro")
    assert made.facts["documents"] == "2, with 2 items each"
    assert made.doubts[0].startswith("2 documents: with so few")


def test_a_new_pipeline_trains_what_is_quick_and_its_report_answers_both_questions(project: Path) -> None:
    (project / "texts.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(12)))
    new.run(project, "mine", project / "texts.csv", encoder="llama-micro")
    config = load_config(project, "mine")
    decoders = {}
    for name in config.methods:
        base, preset = resolve_method(name)
        decoders[name] = {**METHODS.defaults(base), **preset}.get("decoder")
    assert "conv" not in decoders.values()
    assert decoders["daam-v1-mlp"] == "mlp"
    assert (check.problems_of(config), list(check.unanswered(config))) == ([], [])


@pytest.mark.parametrize(("column", "doubted"), [("", True), (",group", False)])
def test_a_class_that_not_every_fold_can_have_is_doubted(project: Path, column: str, doubted: bool) -> None:
    label = ["rare", *("ab"[n % 2] for n in range(11))]
    part = [f",{'train' if n % 3 else 'test'}" if column else "" for n in range(12)]
    rows = "".join(f"text {n},{label[n]}{part[n]}\n" for n in range(12))
    (project / "texts.csv").write_text(f"text,label{column}\n{rows}")
    made = new.run(project, "mine", project / "texts.csv", encoder="llama-micro")
    assert ("fewer than three items have rare: some folds cannot train or test it" in made.doubts) is doubted


@pytest.mark.parametrize(("speakers", "selection"), [(1, "dev-group"), (2, "last"), (3, "dev-group")])
def test_few_speakers(project: Path, speakers: int, selection: str) -> None:
    rows = "".join(f"text {n},{'ab'[n // 3 % 2]},s{n % speakers}\n" for n in range(12))
    (project / "texts.csv").write_text(f"text,label,speaker\n{rows}")
    made = new.run(project, "mine", project / "texts.csv", encoder="llama-micro")
    config = load_config(project, "mine")
    assert config.train.selection == selection
    alone = "1 author: none is left to train on; without the speaker, every item counts alone"
    assert (alone in made.doubts) == (speakers == 1)
    if speakers > 1:
        download.run(Layout.of(project, "mine", config), config)  # the folds can be formed


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".safetensors"])
@pytest.mark.parametrize("speaker", [True, False])
def test_embeddings_become_a_pipeline(project: Path, suffix: str, speaker: bool) -> None:
    changes = {} if speaker else {"speaker": None}
    source = write_items(project / f"vectors{suffix}", items(group=None, **changes))
    made = new.run(project, "mine", source)
    assert made.facts["classes"] == "low 12, high 12"
    assert made.facts.get("speakers") == ("6, with 4 items each" if speaker else None)
    config = load_config(project, "mine")
    assert (config.download.corpus, config.download.source) == ("embeddings", source.name)
    assert not config.has_encoder
    assert check.problems_of(config) == []
    download.run(Layout.of(project, "mine", config), config)
    with pytest.raises(ConfigError, match=r"has embeddings, which no encoder makes again\n  leave out --encoder"):
        new.run(project, "other", source, encoder="llama-micro")


def test_a_damaged_table_of_embeddings(project: Path) -> None:
    (project / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(CorpusError, match=r"broken\.parquet"):
        new.run(project, "mine", project / "broken.parquet")


@pytest.mark.parametrize(
    ("labels", "doubt"),
    [
        (("Happy", "happy", "sad"), "the labels 'Happy' and 'happy' may be one class, spelled differently"),
        (("no_go", "no go", "sad"), "the labels 'no go' and 'no_go' may be one class, spelled differently"),
        (("nan", "happy", "sad"), "the label 'nan' may stand for items whose class is not known"),
        (
            ("a;b", "b ; c", "a"),
            "the label 'a;b' (and 1 more) may be several, and is a class of its own; give each item one",
        ),
        (
            ("rock, pop", "jazz", "rock"),
            "the label 'rock, pop' may be several, and is a class of its own; give each item one",
        ),
        (("calm, at ease", "sad, in tears", "angry"), None),
        (("C", "C++", "C#"), None),
        ((":)", ":(", "?!"), None),
        (("+", "-", "0"), None),
        (("-", "x", "x"), "the label '-' may stand for items whose class is not known"),
        (("-1", "0", "1"), None),
    ],
)
def test_labels_that_may_be_one_class_or_none_are_doubted(
    project: Path, labels: tuple[str, ...], doubt: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"text": f"text {number}", "label": labels[number % 3]} for number in range(60)]
    table = project / "texts.csv"
    pl.DataFrame(rows).write_csv(table)
    made = new.run(project, "mine", table)
    assert [told for told in made.doubts if "label" in told] == ([doubt] if doubt else [])
    config = load_config(project, "mine")
    download.run(Layout.of(project, "mine", config), config)
    assert [told for told in caplog.messages if "the label" in told] == ([doubt] if doubt else [])


@pytest.mark.parametrize("values", [[None] * 12, [float("nan")] * 12])
def test_a_column_of_labels_that_is_empty_is_named(project: Path, values: list[float | None]) -> None:
    NOTICES.with_columns(pl.Series("class", values, pl.Float64)).write_parquet(project / "a.parquet")
    with pytest.raises(CorpusError, match=r"a\.parquet: 'class' is empty in all 12 rows"):
        new.run(project, "empty", project / "a.parquet", encoder="llama-micro", columns={"label": "class"})


@pytest.mark.parametrize("columns", [("text", "label", "speaker"), ("text", "class", "speaker")])
def test_rows_without_a_label_are_left_out_and_lines_are_those_of_the_file(
    project: Path, tmp_path: Path, columns: tuple[str, ...]
) -> None:
    rows = [[f"text {number}", "ab"[number % 2], f"s{number % 4}"] for number in range(12)]
    rows[2][1], rows[3][1], rows[5][0] = "", " ", "two\nlines"
    table = pl.DataFrame(rows, columns, orient="row")
    table.write_csv(tmp_path / "list.csv")
    made = new.run(project, "mine", tmp_path / "list.csv", encoder="llama-micro")
    assert made.doubts[0] == "2 items without a label left out"
    assert manifest_of(made).height == 10
    rows[8][2] = ""
    for suffix, place in ((".csv", "line 11"), (".json", "item 9")):
        table = pl.DataFrame(rows, columns, orient="row")
        (table.write_csv if suffix == ".csv" else table.write_json)(tmp_path / f"list{suffix}")
        with pytest.raises(CorpusError, match=rf"list\{suffix}: empty speaker in {place} \(text 8\)"):
            new.run(project, "other", tmp_path / f"list{suffix}", encoder="llama-micro")


@pytest.mark.parametrize(
    ("groups", "found", "told"),
    [
        (("dev-clean", "dev-other", "test-clean"), "dev-clean, dev-other, test-clean, a fold each", []),
        (
            ("dev", "test", "dev"),
            "dev, test, a fold each",
            [
                "the groups dev, test are folds of a cross-validation; if they are an official split, name them train, "
                "test and perhaps dev, and leave out the others"
            ],
        ),
        (
            ("train", "test_seen", "test_unseen"),
            "test, train, an official split",
            ["read as parts of an official split: test_seen = test, test_unseen = test"],
        ),
    ],
)
def test_a_column_of_parts(project: Path, tmp_path: Path, groups: tuple[str, ...], found: str, told: list[str]) -> None:
    rows = [{"text": f"text {number}", "label": "ab"[number % 2], "split": groups[number % 3]} for number in range(24)]
    pl.DataFrame(rows).write_csv(tmp_path / "list.csv")
    made = new.run(project, "mine", tmp_path / "list.csv", encoder="llama-micro")
    assert (made.facts["groups"], made.doubts) == (found, told)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("label", ["label", "gold_label"])
def test_a_dash_is_no_label(project: Path, tmp_path: Path, suffix: str, label: str) -> None:
    """As of SNLI, where it says that annotators do not agree."""
    rows = [{"text": f"text {number}", label: ("neutral", "entailment", "-", "")[number % 4]} for number in range(12)]
    table = pl.DataFrame(rows)
    if suffix == ".parquet":  # of the hub
        features = Features(dict.fromkeys(table.columns, Value("string")))
        (tmp_path / "list.parquet").mkdir()
        Dataset.from_list(rows, features=features).to_parquet(tmp_path / "list.parquet" / "train.parquet")
    else:
        (table.write_csv if suffix == ".csv" else table.write_ndjson)(tmp_path / f"list{suffix}")
    made = new.run(project, "mine", tmp_path / f"list{suffix}", encoder="llama-micro")
    assert made.doubts[0] == "6 items without a label or with '-' left out"
    assert dict(manifest_of(made)["label"].value_counts().iter_rows()) == {"neutral": 3, "entailment": 3}
    made = new.run(project, "own", tmp_path / f"list{suffix}", encoder="llama-micro", labels={"-": "unclear"})
    counts = dict(manifest_of(made)["label"].value_counts().iter_rows())
    assert counts == {"neutral": 3, "entailment": 3, "unclear": 3}


@pytest.mark.parametrize("kind", ["table", "folder", "embeddings"])
def test_one_label_alone_is_refused_with_advice_that_can_be_followed(
    project: Path, voices: Path, tmp_path: Path, kind: str
) -> None:
    source, pattern, fix = tmp_path / "list.csv", None, "say where the class is: --columns label=NAME"
    pl.DataFrame({"text": [f"text {n}" for n in range(9)], "label": ["a"] * 9, "other": list("xyz") * 3}).write_csv(
        source
    )
    if kind == "folder":
        shutil.rmtree(voices / "sad")
        source, pattern, fix = voices, "{label}/{_}", "say where the class is: --pattern"
    if kind == "embeddings":
        source = write_items(tmp_path / "items.npz", items() | {"label": ["a"] * len(items()["label"])})
        fix = f"correct the labels in {source}"
    with pytest.raises(CorpusError, match="all items have one label: ") as refused:
        new.run(project, "mine", source, pattern=pattern)
    assert refused.value.fix == fix
    if kind == "table":
        new.run(project, "mine", source, columns={"label": "other"})


def test_a_slip_in_columns_is_named(project: Path) -> None:
    NOTICES.write_csv(project / "a.csv")
    for columns, message, fix in (
        ({"label": "clas"}, "there is no 'clas': .* has the columns sentence, class, author", "did you mean 'class'?"),
        (
            {"labels": "class"},
            "--columns has labels=class; 'labels' is no column that it can name",
            "did you mean 'label'?",
        ),
    ):
        with pytest.raises(CorpusError, match=message) as refused:
            new.run(project, "mine", project / "a.csv", columns=columns)
        assert (refused.value.fix or "").startswith(fix)


@pytest.mark.parametrize(("name", "content"), [("a.csv", ""), ("a.jsonl", "{}\nno\n")])
def test_a_file_that_is_no_table_is_told_what_one_is(project: Path, name: str, content: str) -> None:
    (project / name).write_text(content)
    with pytest.raises(CorpusError, match="cannot be read as a CSV, Parquet or JSON table") as refused:
        new.run(project, "mine", project / name)
    assert (refused.value.fix or "").startswith("correct it; a CSV file begins with a line such as path,label,speaker")


def test_labels_that_are_no_classes_are_refused(project: Path) -> None:
    table = project / "texts.csv"
    rows = pl.DataFrame({"text": [f"text {n}" for n in range(9)], "label": [n / 7 for n in range(5)] + [0.0] * 4})
    rows.write_csv(table)
    message = r"9 items have 5 different labels \(0.0, 0.142857.*, 0.285714.* and 2 more\); a class needs several items"
    with pytest.raises(CorpusError, match=message) as refused:
        new.run(project, "mine", table)
    assert refused.value.fix == (
        "say where the class is: --columns label=NAME; numbers to predict become classes in a column of your own, e.g. "
        "low, middle and high"
    )
    (project / "pipelines/mine.yaml").write_text("download: {corpus: manifest, source: texts.csv}\n", encoding="utf-8")
    config = load_config(project, "mine")
    with pytest.raises(CorpusError, match=message):
        download.run(Layout.of(project, "mine", config), config)


@pytest.mark.parametrize(("items", "batch"), [(60, 32), (80, 256)])
def test_many_items_are_trained_in_larger_batches(
    project: Path, items: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new, "MANY_ITEMS", 70)
    table = project / "texts.csv"
    pl.DataFrame({"text": [f"text {n}" for n in range(items)], "label": ["ab"[n % 2] for n in range(items)]}).write_csv(
        table
    )
    new.run(project, "mine", table)
    assert load_config(project, "mine").train.batch_size == batch


def test_what_is_wrong_with_a_table_names_the_table_that_was_given(project: Path, tmp_path: Path) -> None:
    rows = [(f"text {number} of many", "good" if number % 2 else "bad", f"u{number % 8}") for number in range(40)]
    rows[7] = ("  ", *rows[7][1:])
    table = pl.DataFrame(rows, schema=["review", "sentiment", "author_id"], orient="row")
    table.write_csv(tmp_path / "given.csv")
    with pytest.raises(CorpusError, match=r"given\.csv: empty text in line 9\n  correct .*given\.csv and run it again"):
        new.run(project, "reviews", tmp_path / "given.csv")
    table.write_parquet(tmp_path / "given.parquet")
    with pytest.raises(CorpusError, match=r"given\.parquet: empty text in item 8\n"):
        new.run(project, "reviews", tmp_path / "given.parquet")
    assert not (project / "manifests/reviews.csv").exists()
