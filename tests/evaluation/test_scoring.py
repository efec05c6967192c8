"""Clips and utterances from one set of logits."""

import numpy as np
import pytest

from daamctl.errors import ArtifactError
from daamctl.evaluation.scoring import items_of, join, score_items
from tests.fixtures.folds import predictions_frame


def frame():
    """Utterance b: its first clip is wrong by little, its second right by much."""
    logits = [[0, 0, 0, 3], [2, 0, 1, 0], [0, 0, 4, 0], [1, 0, 0, 0]]
    return predictions_frame(["a", "b", "b", "c"], [3, 2, 2, 1], logits)


def test_clips_are_scored_by_themselves():
    items = items_of(frame(), "clip")
    assert items.ids == ["a-c0", "b-c1", "b-c2", "c-c3"]
    assert items.predictions.tolist() == [3, 0, 2, 0]
    assert score_items(items, 4)["accuracy"] == pytest.approx(2 / 4)
    assert score_items(items, 4)["n"] == 4


def test_utterances_take_the_mean_of_logits():
    items = items_of(frame(), "utterance")
    assert items.ids == ["a", "b", "c"]
    assert items.targets.tolist() == [3, 2, 1]
    assert items.predictions.tolist() == [3, 2, 0]
    assert score_items(items, 4)["accuracy"] == pytest.approx(2 / 3)


def test_pooling_equals_a_loop():
    rng = np.random.default_rng(3)
    names = [f"u{index}" for index in rng.integers(0, 9, 50)]
    target = {name: int(rng.integers(4)) for name in names}
    logits = rng.normal(size=(50, 4)).astype(np.float32)
    items = items_of(predictions_frame(names, [target[name] for name in names], logits), "utterance")
    for name, predicted in zip(items.ids, items.predictions, strict=True):
        own = np.mean([row for owner, row in zip(names, logits, strict=True) if owner == name], axis=0)
        assert predicted == own.argmax()


def test_order_of_clips_does_not_matter():
    rows = frame()
    turned = items_of(rows.reverse(), "utterance")
    assert turned.predictions.tolist() == items_of(rows, "utterance").predictions.tolist()


def test_join():
    both = join([items_of(frame(), "clip"), items_of(frame(), "clip")])
    assert len(both) == len(both.targets) == 8


def test_errors_say_what_is_wrong():
    with pytest.raises(ArtifactError, match="1 clips have logits that are not finite, first 'b-c1'"):
        items_of(predictions_frame(["a", "b"], [0, 1], [[0, 1], [np.nan, 0]]), "clip")
    with pytest.raises(ArtifactError, match="clips of utterance 'a' have different targets"):
        items_of(predictions_frame(["a", "a"], [0, 1], [[0, 1], [1, 0]]), "utterance")
    with pytest.raises(ArtifactError, match="no test clip"):
        items_of(frame().clear(), "clip")
    with pytest.raises(ValueError, match="unknown unit 'word'; known: utterance, clip"):
        items_of(frame(), "word")
