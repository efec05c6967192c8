"""The demo corpus: complete by its own plan, read by the IEMOCAP reader, repeatable, and neither trivial nor noise."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import soundfile as sf

from daamctl.corpora import demo
from daamctl.corpora.fingerprint import validate
from daamctl.data import audio


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo.generate(tmp_path_factory.mktemp("corpora") / "demo")


@pytest.fixture(scope="module")
def rows(root: Path) -> pl.DataFrame:
    return demo.CORPUS.prepare(root)


def test_fingerprint_holds(rows: pl.DataFrame) -> None:
    assert validate(demo.CORPUS, rows) == []
    assert demo.CORPUS.fingerprint is not None
    assert sum(demo.CORPUS.fingerprint.per_class[name] for name in demo.CORPUS.classes) == 320


def test_a_missing_dialogue_breaks_the_fingerprint(rows: pl.DataFrame) -> None:
    rest = rows.filter(~pl.col("path").str.contains("Ses03F_impro01"))
    assert any(line.startswith("group Session3: ") for line in validate(demo.CORPUS, rest))


def test_it_has_what_the_real_release_has(root: Path, rows: pl.DataFrame) -> None:
    assert set(rows["annotation"]) == {"neu", "hap", "exc", "ang", "sad", "fru", "xxx"}
    assert set(rows["kind"]) == {"improvised", "scripted"}
    speakers = rows.with_columns(dialogue=pl.col("path").str.split("/").list.get(3)).group_by("dialogue")
    assert set(speakers.agg(pl.col("speaker").n_unique())["speaker"]) == {2}
    text = (root / "Session1/dialog/EmoEvaluation/Ses01F_impro01.txt").read_text()
    assert text.startswith("% [START_TIME - END_TIME] TURN_NAME EMOTION [V, A, D]\n\n[")
    assert "\nC-E2:\t" in text
    assert "\nA-E3:\tval " in text
    for column in ("valence", "activation", "dominance"):
        assert rows[column].is_between(1, 5).all()


def test_recordings(root: Path, rows: pl.DataFrame) -> None:
    infos = [audio.probe(root / path) for path in rows["path"]]
    assert {(info.sampling_rate, info.n_channels) for info in infos} == {(16000, 1)}
    samples = [info.num_samples for info in infos]
    assert samples.count(80_160) == samples.count(160_320) == 5
    assert np.mean([16000 <= n <= 64000 for n in samples]) > 0.7
    assert sum(n > 80_000 for n in samples) >= 40
    files = {str(path.relative_to(root)) for path in root.rglob("*.wav")}
    assert files == set(rows["path"])


def test_nothing_is_silent_or_clipped(root: Path, rows: pl.DataFrame) -> None:
    for path in rows["path"].sample(40, seed=0):
        assert audio.warnings_about(audio.load(root / path, sampling_rate=16000)) == set(), path


def digest(samples: np.ndarray) -> str:
    return hashlib.sha256(samples.tobytes()).hexdigest()


def some_turn(seed: int) -> np.ndarray:
    turn = demo.plan(2, seed)[5]
    speaker = demo.speaker_of(2, turn.letter, seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    return demo.speak(speaker, demo.STYLES[turn.emotion], 20_000, rng).samples


def test_repeatable(root: Path) -> None:
    assert demo.plan(1, 0) == demo.plan(1, 0) != demo.plan(1, 1)
    assert digest(some_turn(0)) == digest(some_turn(0)) != digest(some_turn(1))
    again = root.parent / "again"
    demo._write_session(again, demo.plan(4, 0), 0)
    for path in again.rglob("*.*"):
        assert path.read_bytes() == (root / "Session4" / path.relative_to(again)).read_bytes()


def test_made_only_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("generated again")

    monkeypatch.setattr(demo, "_write_session", fail)
    assert demo.generate(root) == root
    with pytest.raises(AssertionError, match="generated again"):
        demo.generate(root, seed=1)
    assert (root / "Session5").is_dir()  # the failed attempt left the old copy alone
    assert [path.name for path in root.parent.iterdir() if path.name.startswith(".demo")] == []


def features(path: Path) -> np.ndarray:
    """Means and spreads of log band energies, and of a pitch estimate over the louder frames."""
    samples, rate = sf.read(path)
    frames = np.lib.stride_tricks.sliding_window_view(samples, 400)[::160] * np.hanning(400)
    power = np.abs(np.fft.rfft(frames, 512)) ** 2 + 1e-10
    frequency = np.fft.rfftfreq(512, 1 / rate)
    edges = np.geomspace(60, 8000, 17)
    inside = [(frequency >= low) & (frequency < high) for low, high in itertools.pairwise(edges)]
    bands = np.log(np.stack([power[:, mask].sum(axis=1) for mask in inside if mask.any()], axis=1))
    loud = power.sum(axis=1) > np.median(power.sum(axis=1))
    pitch = -np.log2(np.fft.irfft(power)[loud, 40:220].argmax(axis=1) + 40.0)
    return np.concatenate([bands.mean(axis=0), bands.std(axis=0), [np.median(pitch), pitch.std()]])


def test_learnable_across_speakers_but_not_trivial(root: Path, rows: pl.DataFrame) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    chosen = rows.filter(pl.col("label").is_in(list(demo.CORPUS.classes)))
    inputs = np.stack([features(root / path) for path in chosen["path"]])
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=2000))
    scores = cross_val_score(model, inputs, chosen["label"], groups=chosen["group"], cv=LeaveOneGroupOut())
    assert 0.60 < scores.mean() < 0.92  # majority class: 0.28
