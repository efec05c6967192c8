"""Segmenting: exact numbers of clips, the four tails, exports, and refusal of a table made otherwise."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import soundfile as sf
from hypothesis import given
from hypothesis import strategies as st

from daamctl.artifacts import clips
from daamctl.artifacts.clips import read_clips
from daamctl.artifacts.layout import Layout
from daamctl.artifacts.utterances import SCHEMAS, Modality, UtteranceTable, write_utterances
from daamctl.config import Config, DownloadConfig, SegmentConfig
from daamctl.corpora.sources import register
from daamctl.errors import ArtifactError, AudioError, ConfigError, CorpusError
from daamctl.planning.repair import repair_of
from daamctl.stages import segment

RATES = (8000, 11025, 16000, 22050, 44100, 48000)


def utterances(*pieces: tuple[int, int], start: int = 0) -> pl.DataFrame:
    """Rows of the utterance table from (num_samples, sampling_rate)."""
    rows = [
        (f"u{index}", f"u{index}.wav", "x", "s", "g", start / rate, samples / rate, rate, 1)
        for index, (samples, rate) in enumerate(pieces)
    ]
    return pl.DataFrame(rows, schema=SCHEMAS["speech"], orient="row")


def lengths(clips: pl.DataFrame) -> list[int]:
    return (clips["duration_s"] * clips["sampling_rate"]).round().cast(pl.Int64).to_list()


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(
    ("extra", "count"), [(-1, 1), (0, 1), (1, 2)], ids=["one sample less", "exactly 5 s", "one sample more"]
)
def test_five_seconds_is_one_clip(rate: int, extra: int, count: int) -> None:
    assert segment.cut(utterances((5 * rate + extra, rate)), SegmentConfig(tail="keep")).height == count


def test_a_short_rest_piece_joins_the_clip_before_it_by_default() -> None:
    """5.005 s used to give a clip of 5 ms, which counted as much as the other one."""
    pieces = [(80_080, 16000), (80_000 + 7_999, 16000), (80_000 + 8_000, 16000), (80, 16000)]
    assert lengths(segment.cut(utterances(*pieces), SegmentConfig())) == [80_080, 87_999, 80_000, 8_000, 80]


@pytest.mark.parametrize(
    ("tail", "expected", "pad_to"),
    [
        ("keep", [80000, 80000, 320], [None, None, None]),
        ("pad", [80000, 80000, 320], [None, None, 5.0]),
        ("merge", [80000, 80320], [None, None]),
        ("drop", [80000, 80000], [None, None]),
    ],
)
def test_tails(tail: str, expected: list[int], pad_to: list[float | None]) -> None:
    config = SegmentConfig.model_validate({"tail": tail, "tail_below_s": None})
    clips = segment.cut(utterances((160_320, 16000)), config)
    assert lengths(clips) == expected
    assert clips["pad_to_s"].to_list() == pad_to
    assert clips["clip_id"].to_list() == [f"u0#{index:03d}" for index in range(len(expected))]


@pytest.mark.parametrize(
    ("tail", "short", "pad_to"),
    [("keep", [80000, 7999], None), ("pad", [80000, 7999], 5.0), ("merge", [87999], None), ("drop", [80000], None)],
)
def test_tails_below_a_threshold(tail: str, short: list[int], pad_to: float | None) -> None:
    """Half a second is 8000 samples: 7999 are below, exactly 8000 and more are kept whatever `tail` says."""
    config = SegmentConfig.model_validate({"tail": tail, "tail_below_s": 0.5})
    rows = utterances((87_999, 16000), (88_000, 16000), (159_999, 16000), (80_000, 16000), (5, 16000))
    clips = segment.cut(rows, config)
    assert lengths(clips) == [*short, 80000, 8000, 80000, 79999, 80000, 5]
    padded = clips.filter(pl.col("pad_to_s").is_not_null())
    assert padded["clip_id"].to_list() == ([] if pad_to is None else ["u0#001", "u4#000"])
    assert padded["pad_to_s"].unique().to_list() == ([] if pad_to is None else [pad_to])


@pytest.mark.parametrize(
    ("rate", "below_s", "shortest_kept"),
    [(16000, 1.1, 17600), (11025, 0.5, 5513), (44100, 0.7, 30870), (22050, 1e-9, 1), (8000, 9.0, 40_000)],
)
def test_threshold_in_samples(rate: int, below_s: float, shortest_kept: int) -> None:
    """Products that a float misses by a hair, a rate that halves unevenly, and thresholds beyond both ends."""
    config = SegmentConfig(tail="drop", tail_below_s=below_s)
    rows = utterances(*((5 * rate + rest, rate) for rest in (shortest_kept - 1, shortest_kept)))
    assert lengths(segment.cut(rows, config)) == [5 * rate, 5 * rate, shortest_kept]


@pytest.mark.parametrize("tail", ["keep", "pad", "merge", "drop"])
def test_the_only_clip_of_an_utterance_always_stays(tail: str) -> None:
    clips = segment.cut(utterances((1, 16000), (80_000, 16000)), SegmentConfig.model_validate({"tail": tail}))
    assert lengths(clips) == [1, 80_000]
    assert clips["pad_to_s"].to_list() == ([5.0, None] if tail == "pad" else [None, None])


PIECES = st.lists(st.tuples(st.integers(1, 400_000), st.sampled_from(RATES)), min_size=1, max_size=12)


@given(
    st.lists(st.tuples(st.integers(1, 200_000), st.sampled_from([8000, 16000])), min_size=1, max_size=8),
    st.sampled_from(["keep", "pad", "merge", "drop"]),
    st.integers(1, 30_000),
)
def test_rest_pieces_by_arithmetic(pieces: list[tuple[int, int]], tail: str, below_ms: int) -> None:
    """Clip lengths from whole-number arithmetic: at these rates a millisecond is 8 or 16 samples."""
    config = SegmentConfig.model_validate({"tail": tail, "tail_below_s": below_ms / 1000})
    clips = segment.cut(utterances(*pieces), config)
    for index, (samples, rate) in enumerate(pieces):
        whole, rest = divmod(samples, 5 * rate)
        expected = [5 * rate] * whole + [rest] * (rest > 0)
        if tail in ("merge", "drop") and whole and 0 < rest < below_ms * rate // 1000:
            expected = [5 * rate] * (whole - 1) + [5 * rate + rest * (tail == "merge")]
        own = clips.filter(pl.col("utterance_id") == f"u{index}")
        assert lengths(own) == expected
        is_padded = tail == "pad" and 0 < rest < below_ms * rate // 1000
        assert own["pad_to_s"].to_list() == [None] * (len(expected) - is_padded) + [5.0] * is_padded


@given(PIECES, st.sampled_from(["keep", "pad", "merge", "drop"]), st.floats(0.3, 7.0), st.integers(0, 100_000))
def test_clips_follow_each_other_and_lose_nothing(
    pieces: list[tuple[int, int]], tail: str, max_duration_s: float, start: int
) -> None:
    config = SegmentConfig.model_validate({"tail": tail, "max_duration_s": max_duration_s, "tail_below_s": None})
    clips = segment.cut(utterances(*pieces, start=start), config)
    for index, (samples, rate) in enumerate(pieces):
        own = clips.filter(pl.col("utterance_id") == f"u{index}")
        sizes, longest = lengths(own), round(max_duration_s * rate)
        starts = [round(value * rate) for value in own["start_s"]]
        assert starts == [start + sum(sizes[:place]) for place in range(len(sizes))]
        if tail == "drop":
            assert sum(sizes) == (samples if samples < longest else samples // longest * longest)
        else:
            assert sum(sizes) == samples
        if tail == "merge":
            assert len(sizes) == max(1, samples // longest)
            assert sizes[-1] < 2 * longest
        else:
            assert max(sizes) <= longest
        if tail in ("keep", "pad"):
            assert len(sizes) == -(-samples // longest)
        assert all(size == longest for size in sizes[:-1])


def test_no_piece_ends_behind_its_file() -> None:
    """Starts in whole milliseconds are between two samples at 44.1 kHz, also halfway."""
    rate, samples = 44100, 3 * 44100
    rows = [(f"{ms:04d}", "a.wav", "x", "s", "g", ms / 1000, samples / rate - ms / 1000, rate, 1) for ms in range(2900)]
    found = segment.cut(pl.DataFrame(rows, schema=SCHEMAS["speech"], orient="row"), SegmentConfig())
    ends = ((found["start_s"] + found["duration_s"]) * rate).round()
    assert ends.max() == samples
    assert ends.min() >= samples - 1
    for start in (16000.5, 16000.7, 20000.4999999):  # five seconds stay one clip, wherever they begin
        rows = [("u", "a.wav", "x", "s", "g", start / 16000, 5.0, 16000, 1)]
        assert len(segment.cut(pl.DataFrame(rows, schema=SCHEMAS["speech"], orient="row"), SegmentConfig())) == 1


def test_more_than_a_thousand_clips_stay_in_order() -> None:
    clips = segment.cut(utterances((16_000 * 1100, 16000)), SegmentConfig(max_duration_s=1.0))
    assert clips["clip_id"].n_unique() == 1100
    assert clips["start_s"].is_sorted()
    assert clips["clip_id"][-1] == "u0#1099"


def test_impossible_inputs() -> None:
    with pytest.raises(ConfigError, match=r"segment\.max_duration_s: 1e-06 s is less than one sample"):
        segment.cut(utterances((10, 16000)), SegmentConfig(max_duration_s=1e-6))
    with pytest.raises(ArtifactError, match="utterance 'u0' has no samples"):
        segment.cut(utterances((0, 16000)), SegmentConfig())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the utterance table of two recordings, 11 s and 2 s, 22.05 kHz stereo."""
    audio = tmp_path / "elsewhere"
    audio.mkdir()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, (11 * 22050, 2))
    sf.write(audio / "u0.wav", noise, 22050)
    sf.write(audio / "u1.wav", noise[: 2 * 22050], 22050)
    root = tmp_path / "project"
    register(root, "emodb", audio)
    settings = {key: value for key, value in config().section("download").items() if key != "source"}
    rows = utterances((11 * 22050, 22050), (2 * 22050, 22050))
    write_utterances(layout(root).utterances, UtteranceTable("emodb", ("x", "y"), rows, settings))
    return root


def config(**settings: object) -> Config:
    return Config(download=DownloadConfig(corpus="emodb"), segment=SegmentConfig.model_validate(settings))


def layout(root: Path, pipeline: str | None = None) -> Layout:
    return Layout.of(root, pipeline, config())


def test_run(project: Path) -> None:
    path = segment.run(layout(project), config())
    first = path.read_bytes()
    table = read_clips(path)
    assert path == project / "data/segment/emodb/clips.parquet"
    assert table.rows["clip_id"].to_list() == ["u0#000", "u0#001", "u0#002", "u1#000"]
    assert (table.corpus, table.classes) == ("emodb", ("x", "y"))
    assert table.settings["segment"] == config().section("segment")
    assert table.settings["download"]["corpus"] == "emodb"
    assert segment.run(layout(project), config()).read_bytes() == first
    assert not (path.parent / "audio").exists()


def test_export(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = segment.run(layout(project), config(write_audio=True, tail="pad", tail_below_s=None))
    names = sorted(file.name for file in (path.parent / "audio").iterdir())
    assert names == ["u0#000.flac", "u0#001.flac", "u0#002.flac", "u1#000.flac"]
    whole, _ = sf.read(project.parent / "elsewhere" / "u0.wav", dtype="int16")
    piece, rate = sf.read(path.parent / "audio" / "u0#002.flac", dtype="int16")
    assert rate == 22050
    assert piece.shape == (5 * 22050, 2)
    assert np.array_equal(piece[:22050], whole[10 * 22050 :])
    assert not piece[22050:].any()
    caplog.set_level("INFO", "daamctl")
    segment.run(layout(project), config())
    assert not (path.parent / "audio").exists()
    assert "removed the exported clips" in caplog.text


def test_export_without_the_audio(project: Path) -> None:
    (project.parent / "elsewhere" / "u1.wav").unlink()
    with pytest.raises(AudioError, match=r"no recording .*u1\.wav"):
        segment.run(layout(project), config(write_audio=True))
    assert [file.name for file in layout(project).clips.parent.iterdir()] == []
    (project.parent / "elsewhere").rename(project.parent / "gone")
    with pytest.raises(CorpusError, match="daamctl download --corpus emodb --from DIR"):
        segment.run(layout(project), config(write_audio=True))
    assert segment.run(layout(project), config()).is_file()  # without export no audio is needed


def test_audio_names_are_safe_and_different() -> None:
    assert segment.audio_name("Ses01F_impro01_F000#002") == "Ses01F_impro01_F000#002.flac"
    names = {segment.audio_name(name) for name in ("a/b#000", "a_b#000", "a:b#000", "../../b#000")}
    assert len(names) == 4
    assert all("/" not in name and not name.startswith("/") for name in names)
    assert len(segment.audio_name("x" * 500)) < 200


def test_missing_table_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no file") as caught:
        segment.run(layout(tmp_path), config())
    assert repair_of(caught.value.path, layout(tmp_path)) == "make it: daamctl download --corpus emodb"
    with pytest.raises(ArtifactError, match="no file") as caught:
        segment.run(layout(tmp_path, "mine"), config())
    assert repair_of(caught.value.path, layout(tmp_path, "mine")) == "make it: daamctl download mine"


def test_table_made_with_other_settings(project: Path) -> None:
    asked = config().model_copy(update={"download": DownloadConfig(corpus="emodb", classes=("anger", "sadness"))})
    with pytest.raises(ArtifactError) as caught:
        segment.run(layout(project), asked)
    assert "download.classes: made with None, asked for ['anger', 'sadness']" in str(caught.value)
    assert repair_of(caught.value.path, layout(project)) == "make it again: daamctl download --corpus emodb"


def test_where_the_corpus_lies_is_no_difference(project: Path) -> None:
    moved = config().model_copy(update={"download": DownloadConfig(corpus="emodb", source="/mnt/elsewhere")})
    assert segment.run(layout(project), moved).is_file()


def test_another_manifest_is_a_difference(tmp_path: Path) -> None:
    asked = Config(download=DownloadConfig(corpus="manifest", source="lists/new.csv"))
    settings = {key: value for key, value in asked.section("download").items() if key != "source"}
    place = Layout.of(tmp_path, None, asked)
    write_utterances(place.utterances, UtteranceTable("manifest:old", ("x", "y"), utterances((9, 8000)), settings))
    with pytest.raises(
        ArtifactError, match="the utterances are of 'manifest:old', but the settings ask for 'manifest:new'"
    ):
        segment.run(place, asked)


@pytest.mark.parametrize("modality", ["text", "image"])
def test_texts_and_images_are_one_clip_each(
    tmp_path: Path, modality: Modality, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"text": {"text": ["b?", "a!"]}, "image": {"path": ["b.png", "a.parquet"], "index": [None, 7]}}[modality]
    own = {"label": ["y", "x"], "speaker": ["t", "s"], "group": ["g2", "g1"], "year": [1, 2]}
    rows = pl.DataFrame({"utterance_id": ["u2", "u1"], **columns, **own})
    asked = Config(download=DownloadConfig(corpus="demo-text"), segment=SegmentConfig(max_duration_s=1.0, tail="drop"))
    place = Layout.of(tmp_path, None, asked)
    settings = {key: value for key, value in asked.section("download").items() if key != "source"}
    write_utterances(place.utterances, UtteranceTable("some", ("x", "y"), rows, settings, modality))
    with caplog.at_level(logging.DEBUG, logger="daamctl"):
        path = segment.run(place, asked)
    table = read_clips(path)
    assert (table.modality, table.corpus, table.classes) == (modality, "some", ("x", "y"))
    assert table.rows.columns == list(clips.SCHEMAS[modality])
    assert table.rows["clip_id"].to_list() == ["u1#000", "u2#000"]
    assert table.rows.drop("clip_id").rows() == rows.drop("year").sort("utterance_id").rows()
    assert f"2 {modality}s, not cut: x 1, y 1" in caplog.text
    assert [record.levelname for record in caplog.records if "apply to recordings" in record.message] == ["DEBUG"]
    exporting = asked.model_copy(update={"segment": SegmentConfig(write_audio=True)})
    with pytest.raises(
        ConfigError, match=f"write_audio exports audio, but corpus 'some' consists of {modality}s"
    ) as caught:
        segment.run(place, exporting)
    assert "--set segment.write_audio=false" in str(caught.value)
