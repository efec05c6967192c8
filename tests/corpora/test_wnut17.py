"""WNUT-17: the shared copy, and what is missing from another."""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl
import pytest

from daamctl.corpora import wnut17
from daamctl.corpora.fingerprint import validate
from daamctl.errors import CorpusError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "wnut17"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the shared copy of WNUT-17 is not at {SHARED}")


@shared
def test_shared_copy(caplog: pytest.LogCaptureFixture) -> None:
    rows = wnut17.prepare(SHARED)
    assert validate(wnut17.CORPUS, rows) == []
    assert dict(rows.group_by("group").agg(pl.col("sentence").n_unique()).iter_rows()) == {
        "train": 3_394,
        "dev": 1_009,
        "test": 1_287,
    }
    assert rows.filter(sentence="train-000001")["text"].str.join(" ")[0].startswith("@paulwalk It 's the view from")
    assert rows.filter(sentence="train-000001", text="Empire").row(0, named=True) == {
        "utterance_id": "train-000001-0014",
        "sentence": "train-000001",
        "position": 14,
        "text": "Empire",
        "label": "B-location",
        "speaker": "train-000001",
        "group": "train",
    }
    assert caplog.text == ""  # its tags are BIO throughout


@shared
def test_shared_copy_is_what_is_downloaded() -> None:
    for name, sha256 in wnut17.FILES.values():
        assert hashlib.sha256((SHARED / name).read_bytes()).hexdigest() == sha256


def test_every_file_is_fetched_with_its_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def fetch(url: str, target: Path, *, sha256: str, fix: str) -> None:
        assert "daamctl download wnut17 --from DIR" in fix
        target.write_text(sha256)
        fetched.append(url)

    monkeypatch.setattr(wnut17, "fetch", fetch)
    for _ in range(2):
        assert wnut17.obtain(tmp_path / "wnut17") == tmp_path / "wnut17"
    assert fetched == [f"{wnut17.URL}/{name}" for name, _ in wnut17.FILES.values()]
    for name, sha256 in wnut17.FILES.values():
        assert (tmp_path / "wnut17" / name).read_text() == sha256


def test_incomplete_copy(tmp_path: Path) -> None:
    (tmp_path / "wnut17train.conll").write_text("a\tO\n")
    with pytest.raises(CorpusError, match=r"no emerging\.dev\.conll, emerging\.test\.annotated") as caught:
        wnut17.prepare(tmp_path)
    assert "daamctl download wnut17 --from DIR" in str(caught.value)
