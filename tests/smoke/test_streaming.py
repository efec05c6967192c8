"""The benchmark of training from disk: its set can be learned, and both ways of training on it are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import streaming
from daamctl.artifacts.embeddings import open_embeddings


def test_both_ways_are_measured_on_what_it_makes(tmp_path: Path) -> None:
    stored = streaming.make(tmp_path, 1200, 3, 16)
    streaming.make(tmp_path / "few", streaming.FEW_CLIPS, 3, 16)
    clips, vectors = open_embeddings(streaming.layout_of(tmp_path).embeddings)
    assert vectors.shape == (1200, 3, 16)
    assert len(vectors.paths) == 3
    assert stored > vectors.nbytes / 2
    assert dict(clips["group"].value_counts().iter_rows()) == {"test": 60, "train": 1140}
    settings = {"batch_size": 16, "device": "cpu", "selection": "last", "steps": None, "epochs": 2, "lr": 0.01}
    for way in streaming.WAYS:
        found = streaming.measure(tmp_path, "weighted-sum", {**settings, "features": way})
        assert found["accuracy"] > 0.6  # chance is 0.25
        assert found["clips_per_s"] == pytest.approx(1140 / found["epoch_s"])
        assert 0 <= found["added_bytes"] < found["peak_bytes"]


def test_bare_reading_reads_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = streaming.make(tmp_path, 600, 2, 16)
    seen: list[int] = []
    opened = Path.open

    def counted(path: Path, *args: object, **named: object) -> object:
        seen.append(path.stat().st_size)
        return opened(path, *args, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", counted)
    assert streaming.read(tmp_path, 600)["clips_per_s"] > 0
    head = streaming.layout_of(tmp_path).embeddings / "embeddings.json"
    assert sum(seen) == stored - head.stat().st_size
