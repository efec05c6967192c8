"""The stage `download`: where a corpus is found, what is checked, and what the table holds."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import polars as pl
import pytest
import soundfile as sf
from PIL import Image

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.utterances import UtteranceTable, read_utterances
from daamctl.config import Config, DownloadConfig
from daamctl.corpora import agnews, cifar100, demo, demo_text, digits, emodb, manifest
from daamctl.corpora.sources import files_root, register, root_of, source_of
from daamctl.errors import ArtifactError, ConfigError, CorpusError, DownloadError, UnknownNameError
from daamctl.stages import download
from tests.fixtures.reconstruction import write_images

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "emodb"
SHARED_TEXTS = SHARED.with_name("agnews")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Folder with six short recordings of three speakers and a manifest of them."""
    folder = tmp_path / "collection"
    (folder / "wav").mkdir(parents=True)
    lines = ["path,label,speaker,city"]
    for index in range(6):
        path = folder / "wav" / f"r{index}.wav"
        sf.write(path, np.full((8000 + index, 2), 0.1), 8000)
        lines.append(f"wav/{path.name},{('calm', 'tense')[index % 2]},s{index // 2},Bonn")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder / "list.csv"


def make(project: Path, place: Path | None = None, *, force: bool = False, **settings: object) -> UtteranceTable:
    config = Config(download=DownloadConfig.model_validate(settings))
    path = download.run(Layout.of(project, None, config), config, source=place, force=force)
    return read_utterances(path)


def test_manifest(project: Path, collection: Path) -> None:
    table = make(project, collection, corpus="manifest", num_groups=3)
    assert (table.corpus, table.classes) == ("manifest:list", ("calm", "tense"))
    assert table.rows.columns[-1] == "city"
    first = table.rows.row(0, named=True)
    assert (first["path"], first["duration_s"], first["sampling_rate"], first["n_channels"]) == (
        "wav/r0.wav",
        1.0,
        8000,
        2,
    )
    assert table.rows["duration_s"][5] == 8005 / 8000
    assert table.rows["group"].n_unique() == 3
    assert table.rows["group"].null_count() == 0
    assert "source" not in table.settings
    assert table.settings["num_groups"] == 3
    assert files_root(project, table.corpus) == collection.parent


def test_no_place_of_this_machine_in_the_table(project: Path, collection: Path, tmp_path: Path) -> None:
    make(project, collection, corpus="manifest")
    path = project / "data/download/manifest/utterances.parquet"
    first = path.read_bytes()
    assert str(tmp_path).encode() not in first
    make(project, corpus="manifest")  # the second time from the register
    assert path.read_bytes() == first
    collection.parent.rename(tmp_path / "moved")
    make(project, corpus="manifest", source=str(tmp_path / "moved" / "list.csv"))
    assert path.read_bytes() == first
    assert files_root(project, "manifest:list") == tmp_path / "moved"


def test_source_in_the_settings_is_relative_to_the_project(project: Path, collection: Path) -> None:
    collection.parent.rename(project / "mine")
    table = make(project, corpus="manifest", source="mine/list.csv")
    assert table.rows.height == 6
    assert (project / "data/corpora/sources.yaml").read_text().count("mine/list.csv") == 3


def layout_of(project: Path, name: str) -> Layout:
    return Layout(project, name, name, name)


def test_each_table_is_read_from_its_own_copy(project: Path, tmp_path: Path) -> None:
    places, tables = [], []
    for seed in (0, 1):  # the same names with other samples
        place = small_emodb(tmp_path / f"emodb{seed}")
        for path in (place / "wav").iterdir():
            sf.write(path, np.random.default_rng(seed).uniform(-0.5, 0.5, 1600), 16000)
        places.append(place)
        tables.append(make(project, place, corpus="emodb", classes=("anger", "happiness"), check_fingerprint=False))
    assert tables[0].rows.equals(tables[1].rows)
    assert [root_of(layout_of(project, "p"), table) for table in tables] == places
    places[0].rename(tmp_path / "moved")
    with pytest.raises(
        CorpusError, match=r"registered at .*emodb1, but the table of 'p' may be of another copy\n"
    ) as caught:
        root_of(layout_of(project, "p"), tables[0])
    assert caught.value.fix == "make the table again: daamctl download p, with --from DIR if it was another copy"
    make(project, tmp_path / "moved", corpus="emodb", classes=("anger", "happiness"), check_fingerprint=False)
    assert root_of(layout_of(project, "p"), tables[0]) == tmp_path / "moved"
    assert root_of(layout_of(project, "p"), tables[1]) == places[1]


def test_a_table_is_not_read_from_a_copy_that_replaced_its_own(project: Path, tmp_path: Path) -> None:
    given = small_cifar(tmp_path / "cifar")
    settings = {"corpus": "cifar100", "check_fingerprint": False}
    first = make(project, given, **settings)
    records = np.fromfile(given / "train.bin", np.uint8).reshape(-1, 3074)
    records[::-1].tofile(given / "train.bin")
    second = make(project, given, **settings)
    assert root_of(layout_of(project, "p"), second) == project / "data/corpora/cifar100"
    with pytest.raises(CorpusError, match="but the table of 'p' may be of another copy"):
        root_of(layout_of(project, "p"), first)


def make_from(project: Path, place: Path) -> UtteranceTable:
    return make(project, place, corpus="manifest")


def test_absent_manifest_and_folder(project: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no manifest file .*none\.csv"):
        make_from(project, tmp_path / "none.csv")
    with pytest.raises(CorpusError, match=r"no folder .*nowhere \(given for corpus 'iemocap'\)"):
        make(project, tmp_path / "nowhere", corpus="iemocap")
    assert source_of(project, "iemocap") is None


def test_corpus_not_on_this_machine(project: Path) -> None:
    with pytest.raises(CorpusError, match="corpus 'iemocap' is not on this machine") as caught:
        make(project, corpus="iemocap")
    assert "daamctl download iemocap --from DIR" in str(caught.value)


def test_registered_corpus_that_is_gone(project: Path, collection: Path) -> None:
    make_from(project, collection)
    collection.unlink()
    with pytest.raises(CorpusError, match=r"was registered at .*list\.csv, which does not exist"):
        make(project, corpus="manifest")


def test_a_registered_copy_that_is_gone_is_obtained_again_by_force(project: Path, tmp_path: Path) -> None:
    register(project, "demo-text", tmp_path / "gone")
    with pytest.raises(CorpusError, match=r"was registered at .*gone, which does not exist") as caught:
        make(project, corpus="demo-text")
    assert "obtain the corpus: daamctl download --corpus demo-text --force; a copy of your own: " in str(caught.value)
    assert make(project, corpus="demo-text", force=True).rows.height == 600
    assert source_of(project, "demo-text") == project / "data/corpora/demo-text"


def test_unknown_corpus(project: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown corpus 'emodv'\n.*did you mean 'emodb'"):
        make(project, corpus="emodv")


def test_classes(project: Path, collection: Path) -> None:
    table = make(project, collection, corpus="manifest", classes=["tense", "calm"])
    assert table.classes == ("tense", "calm")
    assert table.settings["classes"] == ["tense", "calm"]
    with pytest.raises(UnknownNameError, match=r"unknown class 'tens' of 'manifest'\n.*did you mean 'tense'"):
        make(project, collection, corpus="manifest", classes=["tens", "calm"])
    with pytest.raises(ConfigError, match="at least two different classes are needed, got calm, calm"):
        make(project, collection, corpus="manifest", classes=["calm", "calm"])
    with pytest.raises(ConfigError, match="at least two different classes"):
        make(project, collection, corpus="manifest", classes=["calm"])


def test_unreadable_recordings_are_named(project: Path, collection: Path, caplog: pytest.LogCaptureFixture) -> None:
    (collection.parent / "wav/r0.wav").unlink()
    (collection.parent / "wav/r3.wav").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"2 of 6 recordings are unreadable \(33\.33%\)") as caught:
        make_from(project, collection)
    message = str(caught.value)
    assert "no recording" in message
    assert "r0.wav" in message
    assert "r3.wav is empty (0 bytes)" in message
    command = f"daamctl download --corpus manifest --from {collection} --set download.max_unreadable_fraction=0.334"
    assert message.endswith(f"or leave them out: {command}")
    with caplog.at_level(logging.WARNING):
        table = make(project, collection, corpus="manifest", max_unreadable_fraction=0.334)
    assert table.rows["utterance_id"].to_list() == ["r1", "r2", "r4", "r5"]
    assert "r3.wav is empty" in caplog.text


def test_class_without_readable_recordings(project: Path, collection: Path) -> None:
    for index in (1, 3, 5):
        (collection.parent / f"wav/r{index}.wav").unlink()
    with pytest.raises(CorpusError, match="no readable recording of class tense is left"):
        make(project, collection, corpus="manifest", max_unreadable_fraction=1.0)


def pieces(collection: Path, *lines: str) -> Path:
    path = collection.with_name("pieces.csv")
    path.write_text("\n".join(["path,label,speaker,start_s,end_s", *lines]) + "\n")
    return path


def test_pieces(project: Path, collection: Path) -> None:
    path = pieces(collection, "wav/r0.wav,a,s,0.25,0.75", "wav/r0.wav,b,s,0.75,", "wav/r1.wav,b,t,0.5,1.005")
    rows = make_from(project, path).rows.select("utterance_id", "start_s", "duration_s").rows()
    assert rows[:2] == [("r0@250ms", 0.25, 0.5), ("r0@750ms", 0.75, 0.25)]
    assert rows[2][2] == pytest.approx(8001 / 8000 - 0.5)  # up to the end: the table had rounded it up


@pytest.mark.parametrize("line", ["wav/r0.wav,a,s,0.5,1.2", "wav/r0.wav,a,s,1.0,", "wav/r0.wav,a,s,7,8"])
def test_pieces_outside_their_file(project: Path, collection: Path, line: str) -> None:
    path = pieces(collection, line, "wav/r1.wav,b,s,,")
    with pytest.raises(CorpusError, match=r"wav/r0\.wav: the piece at \S+ s lies outside its 1\.0 s"):
        make_from(project, path)


def test_piece_shorter_than_a_sample(project: Path, collection: Path) -> None:
    path = pieces(collection, "wav/r0.wav,a,s,0.5,0.50001", "wav/r1.wav,b,s,,")
    with pytest.raises(CorpusError, match="is shorter than one sample"):
        make_from(project, path)


def test_fewer_speakers_than_groups(project: Path, collection: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        table = make(project, collection, corpus="manifest", num_groups=5)
    assert sorted(table.rows["group"].unique()) == ["group1", "group2", "group3"]
    assert "only 3 groups instead of 5: there are no more than 3 speakers" in caplog.text


def uneven(folder: Path, sizes: dict[str, int]) -> Path:
    """A manifest of texts by speakers, with labels in turn."""
    pairs = [(speaker, index) for speaker, size in sizes.items() for index in range(size)]
    lines = [f"text {index} of {speaker},{'ab'[index % 2]},{speaker}" for speaker, index in pairs]
    return write_texts(folder, "\n".join(["text,label,speaker", *lines]))


def test_uneven_folds_are_told_with_a_number_that_divides(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = uneven(tmp_path, {f"s{number}": 10 for number in range(6)})
    make(project, path, corpus="manifest", num_groups=5)
    assert [message.removesuffix(f" --from {path} --set download.num_groups=6") for message in caplog.messages] == [
        "6 authors do not divide evenly into 5 groups, which have 20, 10, 10, 10, 10 items; 6 groups (one author "
        "each) would be even: set download: {num_groups: 6}, or daamctl download --corpus manifest"
    ]
    caplog.clear()
    make(project, path, corpus="manifest", num_groups=6)
    assert not caplog.messages


def test_folds_that_one_large_speaker_makes_uneven(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(project, uneven(tmp_path, {"s1": 60, "s2": 6, "s3": 6, "s4": 6}), corpus="manifest", num_groups=3)
    assert "4 authors do not divide evenly into 3 groups, which have 60, 12, 6 items; no other number" in caplog.text


def test_groups_are_told_in_natural_order(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = uneven(tmp_path, {f"s{number}": 2 for number in range(10)})
    with caplog.at_level(logging.INFO):
        make(project, path, corpus="manifest", num_groups=10)
    assert "groups: group1 2, group2 2, " in caplog.text
    assert "group9 2, group10 2" in caplog.text


def test_classes_that_are_not_in_every_group_are_named_on_one_line(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = [*"ab" * 10, "once", "twice", "twice"]
    lines = [f"text number {index},{label}" for index, label in enumerate(labels)]
    path = write_texts(tmp_path, "\n".join(["text,label", *lines]))
    make(project, path, corpus="manifest", num_groups=4, classes=["a", "b"])
    assert not caplog.messages
    make(project, path, corpus="manifest", num_groups=4)
    assert caplog.messages == [
        "some folds train or test no item of class once (1 text in 1 of 4 groups), twice (2 texts in 2 of 4 groups); "
        "download.classes can leave it out"
    ]


def test_author_in_two_groups_is_warned_about(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(project, write_texts(tmp_path, "text,label,speaker,group\none,a,s,g1\ntwo,b,s,g2\n"), corpus="manifest")
    assert "authors in more than one group, so folds are not author-independent: s" in caplog.text


def test_speaker_in_two_groups_is_warned_about(
    project: Path, collection: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = collection.with_name("grouped.csv")
    path.write_text("path,label,speaker,group\nwav/r0.wav,a,s,g1\nwav/r1.wav,b,s,g2\n")
    with caplog.at_level(logging.WARNING):
        make_from(project, path)
    assert "folds are not speaker-independent: s" in caplog.text


def small_emodb(root: Path) -> Path:
    (root / "wav").mkdir(parents=True)
    for name in ("03a01Fa", "08a01Wa", "10a01Na", "09a01Ta"):
        sf.write(root / "wav" / f"{name}.wav", np.full(1600, 0.1), 16000)
    return root


def test_incomplete_corpus_is_refused_with_every_difference(project: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="corpus 'emodb' does not match its published counts") as caught:
        make(project, small_emodb(tmp_path / "emodb"), corpus="emodb")
    for line in ("anger: 1 found, 127 expected", "total: 4 found, 339", "speaker 16: 0 found", "group group5: 0 found"):
        assert line in str(caught.value)
    command = f"daamctl download --corpus emodb --from {tmp_path / 'emodb'} --set download.check_fingerprint=false"
    assert str(caught.value).endswith(f"accept it as it is: {command}")
    assert source_of(project, "emodb") is None


def test_unchecked_corpus_without_some_speakers(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"classes": ("anger", "happiness"), "check_fingerprint": False}
    assert make(project, small_emodb(tmp_path / "emodb"), corpus="emodb", **settings).rows.height == 2
    assert "does not match its published counts (accepted)" in caplog.text
    assert "speaker 16: 0 found" in caplog.text


def test_known_class_without_utterances(tmp_path: Path) -> None:
    rows = emodb.prepare(small_emodb(tmp_path / "emodb"))
    with pytest.raises(CorpusError, match="corpus 'emodb' has no item of class boredom"):
        download.select_classes(emodb.CORPUS, rows, ("bored", "anger"))
    assert download.select_classes(emodb.CORPUS, rows, ("joy", "angry")) == ("happiness", "anger")


def test_two_names_of_one_class_are_told(tmp_path: Path) -> None:
    rows = emodb.prepare(small_emodb(tmp_path / "emodb"))
    with pytest.raises(ConfigError, match=r"^'joy' and 'happiness' are one class, 'happiness'\n"):
        download.select_classes(emodb.CORPUS, rows, ("joy", "angry", "happiness"))


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared copy of EmoDB is not at {SHARED}")
def test_shared_emodb(project: Path) -> None:
    table = make(project, SHARED, corpus="emodb")
    assert table.rows.height == 339
    assert table.classes == emodb.CORPUS.classes
    assert set(table.rows["duration_s"]) == {2.0}
    assert set(table.rows["sampling_rate"]) == {22050}
    every = make(project, corpus="emodb", classes=list(emodb.EMOTIONS.values()))
    assert every.rows.height == 535


def test_demo_is_made_registered_and_made_anew_only_by_force(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = np.zeros(0)
    monkeypatch.setattr(demo, "speak", lambda *args: demo.Utterance(np.zeros(args[2], "<i2"), none, none, 0.0))
    table = make(project, corpus="demo")
    assert (table.corpus, table.rows.height, table.rows["group"].n_unique()) == ("demo", 320, 5)
    assert table.classes == demo.CORPUS.classes
    root = files_root(project, "demo")
    assert root == project / "data/corpora/demo"
    marker = root / "mine"
    marker.touch()
    make(project, corpus="demo")
    assert marker.exists()
    make(project, corpus="demo", force=True)
    assert not marker.exists()
    assert files_root(project, "demo").is_dir()
    assert not list(root.parent.glob(".demo-*"))

    def refuse(*_args: object) -> NoReturn:
        raise DownloadError("no network")

    marker.touch()
    monkeypatch.setattr(demo, "_write_session", refuse)
    with pytest.raises(DownloadError):
        make(project, corpus="demo", force=True)
    assert marker.exists()  # the old copy is kept until the new one is complete
    assert make(project, corpus="demo").rows.equals(table.rows)


def test_stratified_folds_of_speech_pool_the_groups_but_not_the_speakers(project: Path, collection: Path) -> None:
    path = collection.with_name("parts.csv")
    lines = [f"wav/r{i}.wav,{'ab'[i % 2]},s{i // 2},{'train' if i < 4 else 'test'}" for i in range(6)]
    path.write_text("\n".join(["path,label,speaker,group", *lines]) + "\n")
    assert set(make(project, path, corpus="manifest").rows["group"]) == {"train", "test"}
    rows = make(project, path, corpus="manifest", folds="stratified", num_groups=3).rows
    assert sorted(rows["group"].unique()) == ["group1", "group2", "group3"]
    assert rows.group_by("speaker").agg(pl.col("group").n_unique())["group"].to_list() == [1, 1, 1]


def write_texts(folder: Path, text: str) -> Path:
    path = folder / "texts.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_texts(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"text number {index},{'ab'[index % 2]}" for index in range(20)]
    with caplog.at_level(logging.INFO):
        table = make_from(project, write_texts(tmp_path, "\n".join(["text,label", *lines])))
    assert (table.modality, table.corpus, table.classes) == ("text", "manifest:texts", ("a", "b"))
    assert table.rows.columns == ["utterance_id", "text", "label", "speaker", "group"]
    assert set(table.rows.group_by("group", "label").len()["len"]) == {2}
    assert "corpus 'manifest:texts': 20 texts, 0.00 million characters" in caplog.text
    assert "speakers" not in caplog.text
    again = make_from(project, write_texts(tmp_path, "\n".join(["text,label", *reversed(lines)])))
    assert again.rows.equals(table.rows)


def test_texts_of_known_authors_stay_together(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"text number {index},{'ab'[index % 2]},author{index // 4}" for index in range(20)]
    with caplog.at_level(logging.INFO):
        path = write_texts(tmp_path, "\n".join(["text,label,speaker", *lines]))
        table = make(project, path, corpus="manifest", num_groups=2)
    assert table.rows.group_by("speaker").agg(pl.col("group").n_unique())["group"].to_list() == [1] * 5
    assert "20 texts, 0.00 million characters, 5 authors" in caplog.text


def test_tagged_words(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sentence = "Ann\tB-PER\nLee\tI-PER\nsings\tO\n\n"
    (tmp_path / "mine.conll").write_text(sentence * 10)
    with caplog.at_level(logging.INFO):
        table = make(project, tmp_path / "mine.conll", corpus="conll")
    assert (table.corpus, table.modality) == ("conll:mine", "tokens")
    assert table.classes == ("B-PER", "I-PER", "O")
    assert table.rows.group_by("sentence").agg(pl.col("group").n_unique())["group"].to_list() == [1] * 10
    assert table.rows["group"].n_unique() == 5
    assert "corpus 'conll:mine': 30 words, 10 sentences" in caplog.text
    with pytest.raises(ConfigError, match=r"download\.classes leaves out I-PER, so sentences would lack words"):
        make(project, tmp_path / "mine.conll", corpus="conll", classes=["B-PER", "O"])
    with pytest.raises(CorpusError, match=r"no file .*absent\.conll"):
        make(project, tmp_path / "absent.conll", corpus="conll")
    (tmp_path / "mine.conll").write_text(sentence * 2)
    make(project, tmp_path / "mine.conll", corpus="conll")
    assert "only 2 groups instead of 5: there are no more than 2 sentences" in caplog.text


def test_one_part_of_an_official_split(project: Path, tmp_path: Path) -> None:
    path = write_texts(tmp_path, "text,label,group\na,x,test\nb,y,test\nc,x,dev\nd,y,dev\n")
    message = r"lacks the part train of its official split \(found: dev, test\)"
    with pytest.raises(CorpusError, match=message) as caught:
        make_from(project, path)
    assert str(caught.value).endswith("--set download.folds=stratified")
    assert source_of(project, "manifest") is None
    assert set(make(project, path, corpus="manifest", folds="stratified", num_groups=2).rows["group"]) == {
        "group1",
        "group2",
    }


def small_agnews(root: Path, *parts: str) -> Path:
    root.mkdir()
    for part in parts:
        lines = [f'"{index % 4 + 1}","Title {index}","{part} text"' for index in range(40)]
        (root / f"{part}.csv").write_text("\n".join(lines) + "\n")
    return root


def test_agnews_with_its_test_part_alone(project: Path, tmp_path: Path) -> None:
    place = small_agnews(tmp_path / "agnews", "test")
    with pytest.raises(CorpusError, match="lacks the part train of its official split") as caught:
        make(project, place, corpus="agnews", check_fingerprint=False)
    assert "--set download.folds=stratified --set download.check_fingerprint=false" in str(caught.value)
    with pytest.raises(CorpusError, match="group test: 40 found, 7600 expected"):
        make(project, place, corpus="agnews", folds="stratified")
    table = make(project, place, corpus="agnews", folds="stratified", check_fingerprint=False)
    assert (table.modality, table.classes) == ("text", agnews.CLASSES)
    assert set(table.rows.group_by("group", "label").len()["len"]) == {2}


def test_agnews_keeps_its_parts(project: Path, tmp_path: Path) -> None:
    place = small_agnews(tmp_path / "agnews", "train", "test")
    rows = make(project, place, corpus="agnews", check_fingerprint=False).rows
    assert dict(rows.group_by("group").len().rows()) == {"train": 40, "test": 40}
    asked = {"classes": ["sports", "World"], "check_fingerprint": False}
    assert make(project, place, corpus="agnews", **asked).classes == ("Sports", "World")


@pytest.mark.skipif(not SHARED_TEXTS.is_dir(), reason=f"the shared test part of AG News is not at {SHARED_TEXTS}")
def test_shared_agnews(project: Path) -> None:
    table = make(project, SHARED_TEXTS, corpus="agnews", folds="stratified", check_fingerprint=False)
    assert table.rows.height == 7_600
    assert set(table.rows.group_by("group", "label").len()["len"]) == {380}


def test_empty_texts_of_a_reader_without_lines(project: Path, tmp_path: Path) -> None:
    place = small_agnews(tmp_path / "agnews", "test")
    with (place / "test.csv").open("a") as stream:
        stream.write('"1","",""\n')
    settings = {"corpus": "agnews", "folds": "stratified", "check_fingerprint": False}
    with pytest.raises(CorpusError, match=r"1 of 41 texts are unreadable \(2\.44%\):\s+test-000041 is empty"):
        make(project, place, **settings)
    assert make(project, place, **settings, max_unreadable_fraction=0.025).rows.height == 40


def test_agnews_where_there_is_no_network(project: Path) -> None:
    with pytest.raises(DownloadError, match="cannot load 'fancyzhx/ag_news'") as caught:
        make(project, corpus="agnews")
    assert "daamctl download agnews --from DIR" in str(caught.value)
    assert source_of(project, "agnews") is None


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of ten images of each of two classes."""
    for index in range(20):
        path = tmp_path / "pictures" / ("cat", "dog")[index % 2] / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (index, 0, 0)).save(path)
    return tmp_path / "pictures"


def test_folder_of_images(project: Path, pictures: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        table = make_from(project, pictures)
    assert (table.modality, table.corpus, table.classes) == ("image", "manifest:pictures", ("cat", "dog"))
    assert table.rows.row(0)[:4] == ("00", "cat/00.png", None, "cat")
    assert set(table.rows.group_by("group", "label").len()["len"]) == {2}
    assert files_root(project, table.corpus) == pictures
    assert "corpus 'manifest:pictures': 20 images" in caplog.text
    assert make(project, corpus="manifest").rows.equals(table.rows)  # from the register


def test_other_files_under_the_same_names_are_other_content(project: Path, pictures: Path) -> None:
    table = make_from(project, pictures)
    assert make_from(project, pictures).content == table.content != ""
    place = pictures / "cat/02.png"
    with Image.open(place) as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).point(lambda value: 255 - value).save(place)
    other = make_from(project, pictures)
    assert other.rows.equals(table.rows)
    assert other.content != table.content


def test_unreadable_images_are_named(project: Path, pictures: Path) -> None:
    (pictures / "cat/00.png").write_bytes(b"")
    (pictures / "dog/01.png").write_bytes(b"GIF89a?")
    with pytest.raises(CorpusError, match=r"2 of 20 images are unreadable \(10\.00%\)") as caught:
        make_from(project, pictures)
    assert "cat/00.png is empty (0 bytes)" in str(caught.value)
    assert "dog/01.png cannot be read as an image" in str(caught.value)
    rows = make(project, pictures, corpus="manifest", max_unreadable_fraction=0.1).rows
    assert rows.height == 18
    for path in (pictures / "cat").iterdir():
        path.write_bytes(b"")
    with pytest.raises(CorpusError, match="no readable image of class cat is left"):
        make(project, pictures, corpus="manifest", max_unreadable_fraction=1.0)


def small_cifar(root: Path) -> Path:
    root.mkdir()
    for part, count in (("train", 300), ("test", 100)):
        records = np.random.default_rng(0).integers(0, 256, (count, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(count) % 100
        records.tofile(root / f"{part}.bin")
    return root


def test_cifar100_is_converted_in_the_project_and_read_from_there(project: Path, tmp_path: Path) -> None:
    given = small_cifar(tmp_path / "cifar")
    with pytest.raises(CorpusError, match="does not match its published counts") as caught:
        make(project, given, corpus="cifar100")
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert "apple: 4 found, 600 expected" in lines
    assert "... and 73 more ..." in lines
    assert lines[-2:-1] == ["group test: 100 found, 10000 expected"]
    table = make(project, given, corpus="cifar100", check_fingerprint=False)
    own = project / "data/corpora/cifar100"
    assert (table.modality, table.corpus, table.classes) == ("image", "cifar100", cifar100.CLASSES)
    assert files_root(project, "cifar100") == own
    assert sorted(path.name for path in own.iterdir()) == [".completed", "test.parquet", "train.parquet"]
    given.rename(tmp_path / "gone")
    assert make(project, corpus="cifar100", check_fingerprint=False).rows.equals(table.rows)


def test_a_damaged_conversion_is_made_anew_by_force(project: Path, tmp_path: Path) -> None:
    given = small_cifar(tmp_path / "cifar")
    settings = {"corpus": "cifar100", "check_fingerprint": False}
    rows = make(project, given, **settings).rows
    own = project / "data/corpora/cifar100"
    (own / "test.parquet").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match=r"test\.parquet cannot be read as Parquet") as caught:
        make(project, given, **settings)
    assert "daamctl download cifar100 --force, with --from DIR" in str(caught.value)
    assert make(project, given, force=True, **settings).rows.equals(rows)
    assert make(project, own, force=True, **settings).rows.equals(rows)  # never takes away what it is to read


def test_a_copy_that_is_refused_takes_the_place_of_no_other(project: Path, tmp_path: Path, collection: Path) -> None:
    given = small_cifar(tmp_path / "cifar")
    settings = {"corpus": "cifar100", "check_fingerprint": False}
    rows = make(project, given, **settings).rows
    (given / "train.bin").unlink()
    for force in (False, True):
        with pytest.raises(CorpusError, match="lacks the part train of its official split"):
            make(project, given, force=force, **settings)
    assert make(project, **settings).rows.equals(rows)
    assert not list((project / "data/corpora").glob(".cifar100-*"))
    make_from(project, collection)
    broken = collection.with_name("broken.csv")
    broken.write_text("path,label,speaker\nwav/none.wav,a,s\nwav/r1.wav,b,t\n")
    with pytest.raises(CorpusError, match="1 of 2 recordings are unreadable"):
        make_from(project, broken)
    assert source_of(project, "manifest") == collection


def test_damaged_row_of_a_table_of_images(project: Path, tmp_path: Path) -> None:
    make(project, small_cifar(tmp_path / "cifar"), corpus="cifar100", check_fingerprint=False)
    path = project / "data/corpora/cifar100/test.parquet"
    frame = pl.read_parquet(path).with_row_index()
    broken = pl.when(pl.col("index") == 5).then(pl.lit(b"x")).otherwise(pl.col("image").struct.field("bytes"))
    image = pl.struct(bytes=broken, path=pl.lit(None, pl.String))
    frame.select(image=image, fine_label="fine_label").write_parquet(path)
    with pytest.raises(CorpusError, match=r"1 of 400 images .*\s+\S+test\.parquet, row 5, cannot be read"):
        make(project, corpus="cifar100", check_fingerprint=False)


def test_many_classes_are_told_in_a_few_words(project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        make(project, small_cifar(tmp_path / "cifar"), corpus="cifar100", check_fingerprint=False)
    assert "classes: 100 with 4 each" in caplog.text
    assert "groups: test 100, train 300" in caplog.text


def test_digits_and_texts_that_need_no_network(project: Path) -> None:
    images = make(project, corpus="digits")
    assert (images.modality, images.rows.height, images.classes) == ("image", 1797, digits.CLASSES)
    assert files_root(project, "digits") == project / "data/corpora/digits"
    texts = make(project, corpus="demo-text")
    assert (texts.modality, texts.rows.height, texts.classes) == ("text", 600, demo_text.CORPUS.classes)
    first = (project / "data/download/demo-text/utterances.parquet").read_bytes()
    make(project, corpus="demo-text", force=True)
    assert (project / "data/download/demo-text/utterances.parquet").read_bytes() == first


def test_a_corpus_whose_prepare_lacks_a_column_is_told(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "texts.csv").write_text("text,label\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(12)))
    rows = manifest.prepare(project / "texts.csv").drop("speaker", "group")
    corpus = replace(download.CORPORA.load("manifest"), prepare=lambda place: rows)
    monkeypatch.setattr(download, "CORPORA", SimpleNamespace(load=lambda name: corpus))
    with pytest.raises(CorpusError, match=r"^corpus 'manifest': its `prepare` gives no column speaker, group\n"):
        make(project, project / "texts.csv", corpus="manifest")


def test_photographs_without_classes_are_registered(project: Path, tmp_path: Path) -> None:
    photographs = write_images(tmp_path / "photographs")
    table = make(project, photographs, corpus="images")
    assert (table.classes, table.rows.height, table.modality) == (("image",), 10, "image")
    config = Config(download=DownloadConfig(corpus="images"))  # of a pipeline that classifies
    with pytest.raises(ConfigError, match=r"^at least two different classes are needed, got image"):
        download.run(Layout.of(project, "mine", config), config, source=photographs)


def test_speakers_that_may_be_roles_are_told(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    for index in range(4):
        sf.write(project / f"call{index}.wav", np.full(8000, 0.1), 8000)
    pieces = [
        f"call{at // 4}.wav,{'ab'[at // 2 % 2]},spk{at % 2},{at % 4 / 10},{at % 4 / 10 + 0.1:.1f}" for at in range(16)
    ]
    (project / "calls.csv").write_text("\n".join(["path,label,speaker,start_s,end_s", *pieces]))
    make(project, project / "calls.csv", corpus="manifest", num_groups=2)
    assert "the speakers spk0, spk1 are in most of 4 values of 'path'" in caplog.text
    assert "--columns 'speaker={path}-{speaker}'" in caplog.text
