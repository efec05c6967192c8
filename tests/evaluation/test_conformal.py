"""Prediction sets hold the true class as often as they say, also for items of new speakers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from daamctl.evaluation.conformal import in_set, smallest_probabilities


def corpus(rng, speakers, classes=4):
    """Class, speaker and probabilities of items of speakers with 10 to 50 of them, some much harder than others."""
    sizes = rng.integers(10, 51, speakers)
    speaker = np.repeat(np.arange(speakers), sizes)
    target = rng.integers(classes, size=len(speaker))
    skill = rng.normal(1.5, 1.0, speakers)[speaker]
    logits = rng.normal(size=(len(speaker), classes))
    logits[np.arange(len(speaker)), target] += skill
    return target, speaker, softmax(1.5 * logits, axis=1)


def test_smallest_probabilities_by_hand():
    """Two speakers weigh a third each: one with two items, one with one."""
    found = smallest_probabilities([0.9, 0.3, 0.6], ["a", "a", "b"])  # held: 1/6 at .9, 1/2 at .6, 2/3 at .3
    assert found[0.5] == 0.6
    assert found[0.51] == found[0.66] == 0.3
    assert max(found) == 0.66  # at most K / (K + 1)


def test_the_highest_coverage_follows_from_the_number_of_speakers():
    for number, highest in ((1, 0.5), (9, 0.9), (10, 0.9), (19, 0.95), (99, 0.99), (1000, 0.99)):
        assert max(smallest_probabilities(np.linspace(0, 1, number), np.arange(number))) == highest


@pytest.mark.parametrize("level", [0.6, 0.8, 0.9])
def test_items_of_new_speakers_are_covered(level):
    """Over many corpora: at least the level, and not far above the level plus 1 / (K + 1)."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        target, speaker, probabilities = corpus(rng, 11)
        known = speaker < 10
        of_true = probabilities[np.arange(len(target)), target]
        smallest = smallest_probabilities(of_true[known], speaker[known])[level]
        chosen = in_set(probabilities[~known], smallest)
        hits.append(chosen[np.arange(len(chosen)), target[~known]].mean())
    error = np.std(hits) / np.sqrt(len(hits))
    assert np.mean(hits) > level - 3 * error
    assert np.mean(hits) < level + 1 / 11 + 3 * error


def test_no_set_is_empty():
    probabilities = np.array([[0.4, 0.35, 0.25], [0.1, 0.2, 0.7]])
    assert in_set(probabilities, 0.5).tolist() == [[True, False, False], [False, False, True]]
    for smallest in (0.3, 0.35):  # a class of just that probability is in it
        assert in_set(probabilities, smallest).tolist() == [[True, True, False], [False, False, True]]
    assert in_set(probabilities, 0.0).all()
