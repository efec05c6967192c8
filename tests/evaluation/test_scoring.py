"""Clips and utterances from one set of logits."""

import numpy as np
import polars as pl
import pytest

from daamctl.data.task import task_of
from daamctl.errors import ArtifactError
from daamctl.evaluation.scoring import items_of, join
from tests.fixtures.folds import CLASSES, predictions_frame

TASK = task_of("speech", CLASSES)


def frame():
    """Utterance b: its first clip is wrong by little, its second right by much."""
    logits = [[0, 0, 0, 3], [2, 0, 1, 0], [0, 0, 4, 0], [1, 0, 0, 0]]
    return predictions_frame(["a", "b", "b", "c"], [3, 2, 2, 1], logits)


def spoken_by(*names):
    return frame().with_columns(pl.Series("speaker", names, dtype=pl.String))


def test_clips_are_scored_by_themselves():
    items = items_of(frame(), "clip")
    assert items.ids == ["a-c0", "b-c1", "b-c2", "c-c3"]
    assert items.predictions.tolist() == [3, 0, 2, 0]
    assert TASK.score(items)["accuracy"] == pytest.approx(2 / 4)
    assert len(items) == 4


def test_utterances_take_the_mean_of_logits():
    items = items_of(frame(), "utterance")
    assert items.ids == ["a", "b", "c"]
    assert items.targets.tolist() == [3, 2, 1]
    assert items.predictions.tolist() == [3, 2, 0]
    assert TASK.score(items)["accuracy"] == pytest.approx(2 / 3)


def test_probabilities_are_the_softmax_of_the_mean_logits():
    exps = np.exp([[0, 0, 0, 3], [1, 0, 2.5, 0], [1, 0, 0, 0]])
    items = items_of(frame(), "utterance")
    assert items.probabilities == pytest.approx(exps / exps.sum(axis=1, keepdims=True))
    clips = items_of(frame(), "clip").probabilities[1:3]
    assert abs(items.probabilities[1] - clips.mean(axis=0)).max() > 0.05  # not the mean of the clips' probabilities
    assert TASK.score(items)["log_loss"] == pytest.approx(-np.log(items.probabilities[range(3), [3, 2, 1]]).mean())


def lasting(*seconds):
    return frame().with_columns(pl.Series("duration_s", seconds, dtype=pl.Float64))


def test_clips_of_an_utterance_count_by_their_duration():
    """Clips of 5 s and 5 ms: the short one, which is right by much, no longer decides."""
    items = items_of(lasting(1.0, 5.0, 0.005, 2.0), "utterance")
    expected = np.exp((5.0 * np.array([2, 0, 1, 0]) + 0.005 * np.array([0, 0, 4, 0])) / 5.005)
    assert items.probabilities[1] == pytest.approx(expected / expected.sum(), abs=1e-12)
    assert items.predictions.tolist() == [3, 0, 0]
    alone = items_of(frame(), "utterance").probabilities  # one clip is its utterance, bit by bit
    assert np.array_equal(items.probabilities[[0, 2]], alone[[0, 2]])
    clips = items_of(lasting(1.0, 5.0, 0.005, 2.0), "clip").probabilities
    assert np.array_equal(clips, items_of(frame(), "clip").probabilities)


@pytest.mark.parametrize("seconds", [(3.3, 0.7, 0.7, 5.0), (None, None, None, None)])
def test_clips_of_equal_or_unknown_duration_have_equal_weights(seconds):
    equal = items_of(frame(), "utterance").probabilities
    assert np.array_equal(items_of(lasting(*seconds), "utterance").probabilities, equal)


def test_weighted_pooling_equals_a_loop():
    rng = np.random.default_rng(3)
    names = [f"u{index}" for index in rng.integers(0, 9, 50)]
    logits, seconds = rng.normal(size=(50, 4)), rng.uniform(0.01, 5.0, 50)
    rows = predictions_frame(names, [0] * 50, logits).with_columns(duration_s=seconds)
    items = items_of(rows, "utterance")
    for name, probabilities in zip(items.ids, items.probabilities, strict=True):
        own = [index for index, owner in enumerate(names) if owner == name]
        mean = np.average(np.float32(logits[own]), axis=0, weights=seconds[own])
        assert probabilities == pytest.approx(np.exp(mean) / np.exp(mean).sum(), abs=1e-6)


def test_large_logits_do_not_overflow():
    items = items_of(predictions_frame(["a"], [1], [[1e4, 1e4 + 1]]), "clip")
    assert items.probabilities[0] == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e)])


def test_speakers_stay_with_their_items():
    rows = spoken_by("F", "M", "M", None)
    assert items_of(rows, "clip").speakers == ["F", "M", "M", None]
    assert items_of(rows, "utterance").speakers == ["F", "M", None]
    assert items_of(spoken_by("F", "", "", "M"), "utterance").speakers == ["F", None, "M"]


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
    assert len(both) == len(both.targets) == len(both.speakers) == len(both.predictions) == 8
    assert both.probabilities.shape == (8, 4)
    assert TASK.score(both) == TASK.score(items_of(frame(), "clip"))
    assert tuple(TASK.score(both)) == TASK.metrics


def test_errors_say_what_is_wrong():
    with pytest.raises(ArtifactError, match="1 clips have logits that are not finite, first 'b-c1'"):
        items_of(predictions_frame(["a", "b"], [0, 1], [[0, 1], [np.nan, 0]]), "clip")
    with pytest.raises(ArtifactError, match="clips of utterance 'a' have different targets"):
        items_of(predictions_frame(["a", "a"], [0, 1], [[0, 1], [1, 0]]), "utterance")
    with pytest.raises(ArtifactError, match="clips of utterance 'b' have different speakers"):
        items_of(spoken_by("F", "M", None, "F"), "utterance")
    with pytest.raises(ArtifactError, match="no test clip"):
        items_of(frame().clear(), "clip")
    with pytest.raises(ValueError, match="unknown unit 'word'; known: utterance, clip"):
        items_of(frame(), "word")
    with pytest.raises(ValueError, match=r"probabilities have shape \(4, 4\); need \(4, 3\)"):
        task_of("speech", "abc").score(items_of(frame(), "clip"))
