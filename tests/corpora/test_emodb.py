"""EmoDB: names to labels, speakers and groups; the shared copy agrees with the fingerprint."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from daamctl.corpora import emodb
from daamctl.corpora import fetch as fetch_module
from daamctl.corpora.fingerprint import validate
from daamctl.errors import CorpusError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "emodb"


def make(root: Path, *names: str) -> Path:
    (root / "wav").mkdir(parents=True)
    for name in names:
        (root / "wav" / name).touch()
    return root


def test_names_are_read(tmp_path: Path) -> None:
    make(tmp_path, "03a01Fa.wav", "16b10Lb.wav", "08a02Tc.wav", "._03a01Fa.wav", "readme.txt")
    rows = emodb.prepare(tmp_path).select("utterance_id", "path", "label", "speaker", "group", "sentence").rows()
    assert rows == [
        ("03a01Fa", "wav/03a01Fa.wav", "happiness", "03", "group1", "a01"),
        ("08a02Tc", "wav/08a02Tc.wav", "sadness", "08", "group1", "a02"),
        ("16b10Lb", "wav/16b10Lb.wav", "boredom", "16", "group5", "b10"),
    ]


def test_the_wav_folder_itself_is_accepted(tmp_path: Path) -> None:
    make(tmp_path, "03a01Fa.wav")
    assert emodb.prepare(tmp_path / "wav")["path"].to_list() == ["03a01Fa.wav"]


def test_groups_are_pairs_of_a_man_and_a_woman() -> None:
    members: dict[str, list[str]] = {}
    for speaker, group in emodb.GROUPS.items():
        members.setdefault(group, []).append(speaker)
    assert len(members) == 5
    for pair in members.values():
        assert {speaker in emodb.MEN for speaker in pair} == {True, False}


def test_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"does not look like EmoDB: no \.wav files") as caught:
        emodb.prepare(tmp_path)
    assert "daamctl download emodb --from DIR" in str(caught.value)


@pytest.mark.parametrize("name", ["hello.wav", "03a01Xa.wav", "99a01Fa.wav"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorpusError, match=f"{name} is not an EmoDB recording"):
        emodb.prepare(make(tmp_path, name))


def test_obtain_unpacks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fake(url: str, target: Path, **_: object) -> Path:
        calls.append(url)
        with zipfile.ZipFile(target, "w") as file:
            file.writestr("wav/03a01Fa.wav", b"")
        return target

    monkeypatch.setattr(fetch_module, "fetch", fake)
    for _ in range(2):
        root = emodb.obtain(tmp_path / "emodb")
    assert emodb.prepare(root).height == 1
    assert calls == [emodb.URL]
    assert [path.name for path in tmp_path.iterdir()] == ["emodb"]


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared copy of EmoDB is not at {SHARED}")
def test_shared_copy_agrees_with_the_fingerprint() -> None:
    rows = emodb.prepare(SHARED)
    assert rows.height == 535
    assert validate(emodb.CORPUS, rows) == []
    assert rows["sentence"].n_unique() == 10
    without = validate(emodb.CORPUS, rows.filter(~rows["path"].str.contains("03a01Fa")))
    assert without == [
        "happiness: 70 found, 71 expected",
        "total: 338 found, 339 expected",
        "speaker 03: 38 found, 39 expected",
        "group group1: 80 found, 81 expected",
    ]
