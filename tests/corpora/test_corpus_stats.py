"""What is known of the items: from tables, and before there are any."""

from __future__ import annotations

import polars as pl
import pytest

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.splits import split_of
from daamctl.artifacts.utterances import UtteranceTable
from daamctl.config import Config, TrainConfig
from daamctl.corpora.corpus_stats import corpus_stats_of
from daamctl.extraction.cutting import cut

GROUPS = {"label": ["a", "b"], "group": ["x", "y"]}


def config(**download: object) -> Config:
    return Config.model_validate({"download": download})


def test_known_counts_of_a_speech_corpus() -> None:
    found = corpus_stats_of(config(corpus="iemocap"), None, None)
    assert found.rows is not None
    assert found.lengths is not None
    assert (found.modality, found.classes, found.at_least, found.about) == ("speech", 4, False, True)
    # the release: 7,757 clips of at most 5 s, of 6.99 h; by session 1547, 1478, 1560, 1418 and 1754
    assert len(found.rows) == len(found.lengths) == pytest.approx(7757, rel=0.01)
    assert found.lengths.sum() / 3600 == pytest.approx(6.99, rel=0.01)
    assert found.lengths.max() == 5.0
    counts = dict(found.rows.group_by("group").len().iter_rows())
    assert counts == pytest.approx(
        {"Session1": 1547, "Session2": 1478, "Session3": 1560, "Session4": 1418, "Session5": 1754}, rel=0.06
    )


def test_clips_of_a_whole_corpus_are_about_those_of_its_release() -> None:
    every = ["anger", "boredom", "disgust", "fear", "happiness", "sadness", "neutral"]
    found = corpus_stats_of(config(corpus="emodb", classes=every), None, None)
    assert found.rows is not None
    assert found.lengths is not None
    assert found.about
    assert len(found.rows) == pytest.approx(560, rel=0.01)  # 535 recordings, 25 of them over 5 s
    assert found.lengths.sum() / 60 == pytest.approx(24.8, rel=0.01)


def test_longest_clip_decides_how_many_there_are() -> None:
    whole = Config.model_validate({"download": {"corpus": "iemocap"}, "segment": {"max_duration_s": 60}})
    found = corpus_stats_of(whole, None, None)
    assert found.rows is not None
    assert dict(found.rows.group_by("group").len().iter_rows()) == {
        "Session1": 1085, "Session2": 1023, "Session3": 1151, "Session4": 1031, "Session5": 1241,
    }  # fmt: skip


def test_classes_and_groups_that_are_asked_for() -> None:
    asked = config(corpus="iemocap", classes=["sad", "neutral"], folds="stratified", num_groups=4)
    found = corpus_stats_of(asked, None, None)
    assert found.rows is not None
    assert found.classes == 2
    assert len(found.rows) == pytest.approx(1.41 * (1084 + 1708), rel=0.01)  # clips of a recording, of all classes
    assert sorted(count for _, count in found.rows.group_by("group").len().iter_rows()) == pytest.approx(
        [len(found.rows) / 4] * 4, rel=0.04
    )


@pytest.mark.parametrize(("corpus", "modality", "lengths"), [("agnews", "text", False), ("cifar100", "image", True)])
def test_official_parts(corpus: str, modality: str, lengths: bool) -> None:
    found = corpus_stats_of(config(corpus=corpus), None, None)
    assert found.rows is not None
    assert set(found.rows["group"]) == {"train", "test"}
    assert (found.modality, found.at_least, found.lengths is not None) == (modality, False, lengths)


@pytest.mark.parametrize("read", [False, True])
def test_few_shot_trials_can_be_planned_before_and_after_a_corpus_is_read(read: bool) -> None:
    settings = config(corpus="wnut17")
    known = corpus_stats_of(settings, None, None)
    assert known.rows is not None
    if read:
        rows = known.rows.with_columns(text=pl.lit("word"), sentence=pl.lit("s"), position=0, speaker=pl.lit("s"))
        table = UtteranceTable("wnut17", tuple(rows["label"].unique()), rows, {}, modality="tokens")
        known = corpus_stats_of(settings, table, None)
        assert known.rows is not None
    split = split_of(known.rows, 1, TrainConfig(shots=8, dev_fraction=0.25))
    assert (len(split.train), len(split.dev)) == (36 * 15, 12 * 15)


def test_of_a_manifest_nothing_is_known() -> None:
    found = corpus_stats_of(config(corpus="manifest"), None, None)
    assert (found.modality, found.classes, found.rows, found.lengths) == (None, None, None, None)


@pytest.mark.parametrize(
    ("modality", "columns", "lengths"),
    [
        ("speech", {"duration_s": [1.5, 3.0]}, [1.5, 3.0]),
        ("text", {"text": ["äb", "c"]}, [2, 1]),
        ("image", {}, [1, 1]),
    ],
)
def test_clips_tell_their_lengths(modality: str, columns: dict[str, list[object]], lengths: list[float]) -> None:
    rows = pl.DataFrame({**GROUPS, "utterance_id": ["u", "v"], **columns})
    table = ClipTable("any", ("a", "b", "c"), rows, {}, modality)  # type: ignore[arg-type]
    found = corpus_stats_of(Config(), None, table)
    assert found.rows is not None
    assert found.lengths is not None
    assert (found.classes, found.lengths.tolist(), found.at_least) == (3, lengths, False)
    assert found.rows.equals(rows.select("group", "label", "utterance_id"))


def test_utterances_are_cut_as_segment_cuts_them() -> None:
    """Up to what `segment.tail` does with short rest pieces, which is not foreseen."""
    rows = pl.DataFrame(
        {
            "utterance_id": list("abcd"), "path": list("abcd"), "label": list("xyxy"), "speaker": list("abcd"),
            "group": list("ppqq"), "start_s": [0.0] * 4, "duration_s": [5.0, 12.25, 0.5, 10.0],
            "sampling_rate": [16000] * 4, "n_channels": [1] * 4,
        }
    )  # fmt: skip
    found = corpus_stats_of(Config(), UtteranceTable("any", ("x", "y"), rows, {}), None)
    clips = cut(rows, Config().segment)
    assert found.rows is not None
    assert found.lengths is not None
    assert found.lengths.tolist() == clips["duration_s"].to_list() == [5.0, 5.0, 5.0, 2.25, 0.5, 5.0, 5.0]
    assert found.rows["group"].to_list() == clips["group"].to_list()
