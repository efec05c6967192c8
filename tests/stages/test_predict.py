"""Predicting new recordings with an exported model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import soundfile
from polars.testing import assert_frame_equal

from daamctl.artifacts.results import read_fold
from daamctl.errors import ArtifactError, ConfigError, CorpusError
from daamctl.evaluation.scoring import items_of
from daamctl.models import predict as engine
from daamctl.models.folder import read_model
from daamctl.stages import predict
from daamctl.store.files import kept_path
from tests.fixtures.exported import export_model, shared_project
from tests.fixtures.recordings import wav_bytes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_project(tmp_path_factory)


@pytest.fixture(scope="module")
def model(trained: Path) -> Path:
    return export_model(trained, "for-predict")


def run(model: Path, *inputs: Path | str, **options: Any) -> pl.DataFrame:
    return predict.run(model, [str(one) for one in inputs], device="cpu", **options).rows


def items(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("unit") == "item")


def probabilities(rows: pl.DataFrame) -> np.ndarray:
    return rows.select("^p_.*$").to_numpy()


def test_a_fold_predicts_its_test_group_as_training_stored(trained: Path) -> None:
    folder = export_model(trained, "fold-2", folds="2")
    stored = read_fold(trained / "data/train/tiny/weighted-sum/fold2-seed1").predictions()
    scored = items_of(stored, "utterance")
    paths = [trained / "tones" / f"{name}.wav" for name in scored.ids]
    rows = items(run(folder, *paths))
    np.testing.assert_allclose(probabilities(rows), scored.probabilities, atol=1e-5)
    assert rows["class"].to_list() == [["high", "low"][index] for index in scored.predictions]
    assert rows["disagreement"].is_null().all()  # of a single training


def test_rows_of_items_are_followed_by_those_of_their_clips(trained: Path, model: Path) -> None:
    rows = run(model, trained / "tones")
    assert len(items(rows)) == 48
    expected: list[tuple[str, str]] = []
    for path in sorted((trained / "tones").glob("*.wav")):
        pieces = -(-soundfile.info(path).frames // 4000)  # clips of 0.25 s
        expected += [(str(path), "item"), *[(str(path), "clip")] * pieces]
    assert list(rows.select("item", "unit").iter_rows()) == expected
    clips = rows.filter(pl.col("unit") == "clip")
    assert clips["duration_s"].max() == 0.25
    assert set(clips["clip"]) == {0, 1}
    assert np.allclose(probabilities(rows).sum(axis=1), 1)
    p = probabilities(rows)
    assert np.allclose(rows["entropy"], -(p * np.log(p)).sum(axis=1))
    weights = rows.select("^weight_.*$")
    assert weights.columns == [f"weight_{layer:02d}" for layer in range(1, 25)]
    assert np.allclose(weights.to_numpy().sum(axis=1), 1)
    assert set(rows["disagreement"]) <= {0.0, 1 / 3}  # three trainings, two classes
    assert "label" not in rows.columns


def test_a_prediction_depends_neither_on_neighbours_nor_on_the_batch(trained: Path, model: Path) -> None:
    together = run(model, trained / "tones" / "s3-*.wav")
    one_by_one = run(model, trained / "tones" / "s3-*.wav", batch_size=1)
    np.testing.assert_allclose(probabilities(together), probabilities(one_by_one), atol=1e-5)
    alone = run(model, trained / "tones" / "s3-4.wav")
    among = together.filter(pl.col("item").str.ends_with("s3-4.wav"))
    np.testing.assert_allclose(probabilities(alone), probabilities(among), atol=1e-5)


@pytest.fixture
def mixed(tmp_path: Path, trained: Path) -> Path:
    """A table with recordings that can and cannot be read."""
    shutil.copy(trained / "tones" / "s0-0.wav", tmp_path / "good.wav")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no audio")
    soundfile.write(tmp_path / "nan.wav", np.full(8000, np.nan, np.float32), 16000, subtype="FLOAT")
    soundfile.write(tmp_path / "silent.wav", np.zeros(4000), 16000)
    names = ["good.wav", "empty.wav", "text.wav", "gone.wav", "nan.wav", "silent.wav", ""]
    path = tmp_path / "mixed.csv"
    path.write_text("path,label\n" + "".join(f"{name},low\n" for name in names))
    return path


def test_what_cannot_be_read_is_a_row_with_a_reason(mixed: Path, model: Path) -> None:
    rows = items(run(model, mixed))
    assert rows["item"].to_list()[:3] == ["good.wav", "empty.wav", "text.wav"]
    assert rows["class"].is_null().to_list() == [False, True, True, True, True, False, True]
    reasons = rows["error"].to_list()
    for reason, words in zip(
        reasons, [None, "0 bytes", "not audio", "no recording", "NaN", None, "no file"], strict=True
    ):
        assert (reason is None) == (words is None)
        assert words is None or words in reason
    assert rows["warning"].to_list()[5] == "silent"
    assert probabilities(rows)[1].tolist() == [None, None] or np.isnan(probabilities(rows)[1]).all()


def test_no_single_file_ends_the_batch(tmp_path: Path, trained: Path, model: Path) -> None:
    """Each of these used to end it, or the machine: one row each, and the good one is predicted."""
    shutil.copy(trained / "tones" / "s0-0.wav", tmp_path / "good.wav")
    (tmp_path / "rate.wav").write_bytes(wav_bytes(2_147_483_647))
    (tmp_path / "zero.wav").write_bytes(wav_bytes(0))
    (tmp_path / "channels.wav").write_bytes(wav_bytes(16_000, channels=65_535))
    (tmp_path / "odd.wav").write_bytes(wav_bytes(15_991, 15_991))
    soundfile.write(tmp_path / "loud.wav", np.tile(np.float32([-3e38, 3e38]), 4000), 16000, subtype="FLOAT")
    os.mkfifo(tmp_path / "pipe.wav")
    lines = [
        "path,start_s,end_s",
        "good.wav,,",
        "rate.wav,,",
        "zero.wav,,",
        "channels.wav,,",
        "odd.wav,,",
        "loud.wav,,",
    ]
    lines += ["pipe.wav,,", "good.wav,0,1e9", "good.wav,1e300,2e300", "good.wav,nan,1"]
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    rows = items(run(model, tmp_path / "all.csv", out=tmp_path / "found.csv"))
    assert rows["class"].is_null().to_list() == [False, True, True, True, False, True, True, True, True, True]
    assert (rows["error"].is_null() == rows["class"].is_not_null()).all()
    words = (
        "2147483647 Hz",
        "not audio",
        "not audio",
        "values that are not finite",
        "not a file",
        *["lies outside"] * 3,
    )
    for reason, part in zip(rows["error"].drop_nulls(), words, strict=True):
        assert part in reason
        assert "\n" not in reason


def test_labels_give_metrics(trained: Path, model: Path, tmp_path: Path) -> None:
    found = predict.run(model, [str(trained / "tones" / "tones.csv")], device="cpu")
    rows = items(found.rows)
    assert found.scores is not None
    assert found.scores["n"] == 48
    assert found.scores["accuracy"] == (rows["class"] == rows["label"]).mean()
    table = pl.read_csv(trained / "tones" / "tones.csv").with_columns(
        path=str(trained / "tones") + "/" + pl.col("path"), label=pl.lit("middle")
    )
    table.write_csv(tmp_path / "middle.csv")
    found = predict.run(model, [str(tmp_path / "middle.csv")], device="cpu")
    assert (found.scores, found.unknown) == (None, {"middle": 48})


def test_sets_of_classes(trained: Path, model: Path, tmp_path: Path) -> None:
    sets = read_model(model).sets
    assert sets is not None
    tones = str(trained / "tones" / "tones.csv")
    sizes = []
    for coverage in (0.5, float(max(sets.smallest))):
        found = predict.run(model, [tones], device="cpu", coverage=coverage)
        rows, smallest = items(found.rows), sets.smallest[f"{coverage:.2f}"]
        for row in rows.iter_rows(named=True):
            held = [name for name in ("high", "low") if row[f"p_{name}"] >= smallest]
            assert row["set"] == (held or [row["class"]])
        assert found.held == pytest.approx(np.mean([row["label"] in row["set"] for row in rows.iter_rows(named=True)]))
        assert found.size == pytest.approx(rows["set"].list.len().mean())
        sizes.append(found.size)
        clips = found.rows.filter(pl.col("unit") == "clip")
        assert len(clips)
        assert clips["set"].is_null().all()
    assert sizes[0] <= sizes[1]
    predict.run(model, [tones], device="cpu", coverage=0.5, out=tmp_path / "out.csv")
    written = pl.read_csv(tmp_path / "out.csv").filter(pl.col("unit") == "item")["set"].to_list()
    assert set(written) <= {"high", "low", "high; low"}
    with pytest.raises(ConfigError, match=r"--coverage 0.999 is not available; with \d+ \w+ to calibrate on: 0.50 to"):
        predict.run(model, [tones], device="cpu", coverage=0.999)


def test_pieces_of_a_file_are_items(trained: Path, model: Path, tmp_path: Path) -> None:
    wave, rate = soundfile.read(trained / "tones" / "s0-0.wav")
    soundfile.write(tmp_path / "long.wav", np.concatenate([np.zeros(rate), wave]), rate)
    end = 1 + len(wave) / rate
    (tmp_path / "pieces.csv").write_text(f"path,start_s,end_s\nlong.wav,1,{end}\nlong.wav,1,9\n")
    rows = items(run(model, tmp_path / "pieces.csv"))
    whole = items(run(model, trained / "tones" / "s0-0.wav"))
    np.testing.assert_allclose(probabilities(rows)[:1], probabilities(whole), atol=1e-4)  # written with 16 bits again
    assert "lies outside" in rows["error"][1]


def test_an_end_that_was_rounded_up_is_that_of_the_file(trained: Path, model: Path, tmp_path: Path) -> None:
    """As in the stage `download`: a hundredth more is rounding, half a second is another file."""
    wave = trained / "tones" / "s0-0.wav"
    end = soundfile.info(wave).duration
    (tmp_path / "ends.csv").write_text(f"path,start_s,end_s\n{wave},0,{end + 0.009}\n{wave},0,{end + 0.4}\n")
    rows = items(run(model, tmp_path / "ends.csv"))
    assert rows["error"][0] is None
    np.testing.assert_array_equal(probabilities(rows)[:1], probabilities(items(run(model, wave))))
    assert "lies outside" in rows["error"][1]


def test_a_recording_shorter_than_a_syllable_is_doubtful(model: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 16_000)
    sizes = {"a": 10, "b": 1599, "c": 1600, "d": 4010}  # the second clip of the last one has 10 samples
    for name, size in sizes.items():
        soundfile.write(tmp_path / f"{name}.wav", noise[:size], 16_000)
    rows = run(model, tmp_path)
    assert items(rows)["warning"].to_list() == ["short", "short", None, None]
    assert rows.filter(pl.col("unit") == "clip")["warning"].to_list() == ["short", "short", None, None, None]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_the_suffix_chooses_the_format(trained: Path, model: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"found{suffix}"
    rows = run(model, trained / "tones" / "s0-0.wav", out=out)
    read = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}[suffix]
    back = read(out)
    assert sorted(back.columns) == sorted(rows.columns)
    np.testing.assert_allclose(probabilities(back.select(rows.columns)), probabilities(rows), atol=1e-12)
    assert list(tmp_path.iterdir()) == [out]
    run(model, trained / "tones" / "s0-0.wav", out=out)  # its own table is replaced
    out.write_text("keep me\n")
    with pytest.raises(ArtifactError, match="exists and is not a table of predictions") as error:
        run(model, trained / "tones" / "s0-0.wav", out=out)
    assert error.value.fix == "choose another file with --out"
    assert out.read_text() == "keep me\n"


def kill(monkeypatch: pytest.MonkeyPatch, chunk: int, *words: Any, out: Path) -> None:
    """End a prediction while it makes a chunk, counted from 1."""
    frame, calls = engine._frame, []

    def dies(*args: Any) -> pl.DataFrame:
        calls.append(1)
        if len(calls) == chunk:
            raise KeyboardInterrupt
        return frame(*args)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_frame", dies)
        with pytest.raises(KeyboardInterrupt):
            run(*words, out=out)


def test_a_killed_prediction_resumes_with_the_same_table(
    trained: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CHUNK", 3)
    some = trained / "tones" / "s[01]-*[0-6].wav"
    out, whole = tmp_path / "found.parquet", tmp_path / "whole.parquet"
    run(model, some, out=whole)
    kill(monkeypatch, 3, model, some, out=out)
    assert not out.exists()
    (damaged, _) = sorted((tmp_path / ".found.parquet.parts").glob("part-*"))
    damaged.write_bytes(damaged.read_bytes()[:-20])
    frame, calls = engine._frame, []
    monkeypatch.setattr(engine, "_frame", lambda *args: (calls.append(1), frame(*args))[1])
    run(model, some, out=out)
    assert len(calls) == 4  # of five, one was kept
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.parquet", "whole.parquet"]


def test_a_part_of_a_file_that_has_changed_since_is_not_used(
    trained: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CHUNK", 1)
    sounds, out = tmp_path / "sounds", tmp_path / "found.parquet"
    sounds.mkdir()
    for number in range(2):
        shutil.copy(trained / "tones" / f"s0-{number}.wav", sounds / f"{number}.wav")
    kill(monkeypatch, 2, model, sounds, out=out)
    shutil.copy(trained / "tones" / "s1-3.wav", sounds / "0.wav")
    run(model, sounds, out=out)
    found = items(pl.read_parquet(out))
    assert_frame_equal(found, items(run(model, sounds)).select(found.columns))


def test_parts_of_other_inputs_are_not_used(trained: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.parquet"
    work = tmp_path / ".found.parquet.parts"
    run(model, trained / "tones" / "s0-0.wav", out=out)
    other = run(model, trained / "tones" / "s0-1.wav")
    with kept_path(work / "part-000000.arrow", "another key") as temporary:
        other.write_ipc_stream(temporary)
    assert_frame_equal(run(model, trained / "tones" / "s0-0.wav", out=out), pl.read_parquet(out))
    assert items(pl.read_parquet(out))["item"].to_list() == [str(trained / "tones" / "s0-0.wav")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "gone.wav", "no file or folder"),
        (lambda folder: folder / "*.wav", "no file matches"),
        (lambda folder: folder, "holds no file that the model reads"),
        (
            lambda folder: (folder / "a.png", (folder / "a.png").touch())[0],
            "looks like images, the model reads recordings",
        ),
        (lambda folder: (folder / "a.csv", (folder / "a.csv").write_text("text\nhello\n"))[0], "no column 'path'"),
        (lambda folder: (folder / "a.csv", (folder / "a.csv").write_text("path\n"))[0], "no utterance to predict"),
    ],
)
def test_wrong_inputs_are_refused(model: Path, tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        run(model, make(tmp_path))


def test_a_command_without_inputs_says_what_to_give(model: Path) -> None:
    with pytest.raises(CorpusError, match="there is no utterance to predict") as error:
        run(model)
    assert str(error.value.fix).startswith("give recordings (.wav, .flac, ")


def test_wrong_words_are_refused(trained: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out must end in .parquet, .csv, .jsonl, .ndjson, got"):
        run(model, trained / "tones", out=tmp_path / "found.xlsx")
    with pytest.raises(ConfigError, match="standard input holds texts, the model reads recordings"):
        run(model, lines=["a text"])
    with pytest.raises(ArtifactError, match="is not an exported model"):
        run(trained / "tones", trained / "tones")
