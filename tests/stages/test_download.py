"""The stage `download`: where a corpus is found, what is checked, and what the table holds."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf

from daamctl.artifacts.utterances import UtteranceTable, read_utterances
from daamctl.config import Config, DownloadConfig
from daamctl.corpora import demo, emodb
from daamctl.corpora.sources import audio_root, source_of
from daamctl.errors import ConfigError, CorpusError, UnknownNameError
from daamctl.layout import Layout
from daamctl.stages import download

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "emodb"


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
    assert audio_root(project, table.corpus) == collection.parent


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
    assert audio_root(project, "manifest:list") == tmp_path / "moved"


def test_source_in_the_settings_is_relative_to_the_project(project: Path, collection: Path) -> None:
    collection.parent.rename(project / "mine")
    table = make(project, corpus="manifest", source="mine/list.csv")
    assert table.rows.height == 6
    assert (project / "data/corpora/sources.yaml").read_text().count("mine/list.csv") == 2


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
    with pytest.raises(CorpusError, match=r"was registered at .*list\.csv, which is not there"):
        make(project, corpus="manifest")


def test_unknown_corpus(project: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown corpus 'emodv'\n.*did you mean 'emodb'"):
        make(project, corpus="emodv")


def test_classes(project: Path, collection: Path) -> None:
    table = make(project, collection, corpus="manifest", classes=["tense", "calm"])
    assert table.classes == ("tense", "calm")
    assert table.settings["classes"] == ["tense", "calm"]
    with pytest.raises(UnknownNameError, match=r"unknown class of corpus 'manifest' 'tens'\n.*did you mean 'tense'"):
        make(project, collection, corpus="manifest", classes=["tens", "calm"])
    with pytest.raises(ConfigError, match="at least two different classes are needed, met calm, calm"):
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
    assert "--set download.max_unreadable_fraction=0.334" in message
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
    assert "3 speakers give 3 groups, 5 were asked for" in caplog.text


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
    with pytest.raises(CorpusError, match="corpus 'emodb' is not the known one") as caught:
        make(project, small_emodb(tmp_path / "emodb"), corpus="emodb")
    for line in ("anger: 1 found, 127 expected", "total: 4 found, 339", "speaker 16: 0 found", "group group5: 0 found"):
        assert line in str(caught.value)
    assert "--set download.check_fingerprint=false" in str(caught.value)
    assert source_of(project, "emodb") is None


def test_unchecked_corpus_without_one_speaker(project: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="corpus 'emodb' has no utterances of speaker 11, 12, 13, 14, 15, 16"):
        make(project, small_emodb(tmp_path / "emodb"), corpus="emodb", check_fingerprint=False)


def test_known_class_without_utterances(tmp_path: Path) -> None:
    rows = emodb.prepare(small_emodb(tmp_path / "emodb"))
    with pytest.raises(CorpusError, match="corpus 'emodb' has no utterances of class boredom"):
        download.select_classes(emodb.CORPUS, rows, ("bored", "anger"))
    assert download.select_classes(emodb.CORPUS, rows, ("joy", "angry")) == ("happiness", "anger")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared copy of EmoDB is not at {SHARED}")
def test_shared_emodb(project: Path) -> None:
    table = make(project, SHARED, corpus="emodb")
    assert table.rows.height == 339
    assert table.classes == emodb.CORPUS.classes
    assert set(table.rows["duration_s"]) == {2.0}
    assert set(table.rows["sampling_rate"]) == {22050}
    every = make(project, corpus="emodb", classes=list(emodb.EMOTIONS.values()))
    assert every.rows.height == 535


def test_demo_is_made_registered_and_made_anew_only_by_force(project: Path) -> None:
    table = make(project, corpus="demo")
    assert (table.corpus, table.rows.height, table.rows["group"].n_unique()) == ("demo", 320, 5)
    assert table.classes == demo.CORPUS.classes
    root = audio_root(project, "demo")
    assert root == project / "data/corpora/demo"
    marker = root / "mine"
    marker.touch()
    make(project, corpus="demo")
    assert marker.exists()
    make(project, corpus="demo", force=True)
    assert not marker.exists()
    assert audio_root(project, "demo").is_dir()
