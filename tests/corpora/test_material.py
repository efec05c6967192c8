"""What is known of the items: from tables, and before there are any."""

from __future__ import annotations

import polars as pl
import pytest

from daamctl.artifacts.clips import ClipTable
from daamctl.artifacts.utterances import UtteranceTable
from daamctl.config import Config
from daamctl.corpora.material import material_of
from daamctl.stages.segment import cut

GROUPS = {"label": ["a", "b"], "group": ["x", "y"]}


def config(**download: object) -> Config:
    return Config.model_validate({"download": download})


def test_known_counts_of_a_speech_corpus() -> None:
    found = material_of(config(corpus="iemocap"), None, None)
    assert found.rows is not None
    assert (found.modality, found.classes, len(found.rows), found.at_least) == ("speech", 4, 5531, True)
    assert dict(found.rows.group_by("group").len().iter_rows()) == {
        "Session1": 1085, "Session2": 1023, "Session3": 1151, "Session4": 1031, "Session5": 1241,
    }  # fmt: skip
    assert found.lengths is None


def test_classes_and_groups_that_are_asked_for() -> None:
    asked = config(corpus="iemocap", classes=["sad", "neutral"], folds="stratified", num_groups=4)
    found = material_of(asked, None, None)
    assert found.rows is not None
    assert (found.classes, len(found.rows)) == (2, 1084 + 1708)
    assert sorted(count for _, count in found.rows.group_by("group").len().iter_rows()) == [698] * 4


@pytest.mark.parametrize(("corpus", "modality", "lengths"), [("agnews", "text", False), ("cifar100", "image", True)])
def test_official_parts(corpus: str, modality: str, lengths: bool) -> None:
    found = material_of(config(corpus=corpus), None, None)
    assert found.rows is not None
    assert set(found.rows["group"]) == {"train", "test"}
    assert (found.modality, found.at_least, found.lengths is not None) == (modality, False, lengths)


def test_of_a_manifest_nothing_is_known() -> None:
    found = material_of(config(corpus="manifest"), None, None)
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
    rows = pl.DataFrame({**GROUPS, **columns})
    table = ClipTable("any", ("a", "b", "c"), rows, {}, modality)  # type: ignore[arg-type]
    found = material_of(Config(), None, table)
    assert found.rows is not None
    assert found.lengths is not None
    assert (found.classes, found.lengths.tolist(), found.at_least) == (3, lengths, False)
    assert found.rows.equals(rows.select("group", "label"))


def test_utterances_are_cut_as_segment_cuts_them() -> None:
    """Up to what `segment.tail` does with short rest pieces, which is not foreseen."""
    rows = pl.DataFrame(
        {
            "utterance_id": list("abcd"), "path": list("abcd"), "label": list("xyxy"), "speaker": list("abcd"),
            "group": list("ppqq"), "start_s": [0.0] * 4, "duration_s": [5.0, 12.25, 0.5, 10.0],
            "sampling_rate": [16000] * 4, "n_channels": [1] * 4,
        }
    )  # fmt: skip
    found = material_of(Config(), UtteranceTable("any", ("x", "y"), rows, {}), None)
    clips = cut(rows, Config().segment)
    assert found.rows is not None
    assert found.lengths is not None
    assert found.lengths.tolist() == clips["duration_s"].to_list() == [5.0, 5.0, 5.0, 2.25, 0.5, 5.0, 5.0]
    assert found.rows["group"].to_list() == clips["group"].to_list()
