"""Which layers are retrained on, and how the results are summed up."""

from __future__ import annotations

import pytest

from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.layer_sets import MeanOverRuns, Runs, minus, over_runs
from daamctl.errors import ConfigError
from daamctl.evaluation.layer_sets import PRESETS, alone_tests, choose_sets, contradiction, cut_ties

LAYERS = tuple(range(1, 7))
RANKING = (4, 2, 6, 1, 3, 5)


def test_highest_lowest_and_given_layers() -> None:
    assert choose_sets(RANKING, (1, 3, 1), ((5, 2),), LAYERS) == {
        "highest-1": (4,),
        "lowest-1": (5,),
        "highest-3": (2, 4, 6),
        "lowest-3": (1, 3, 5),
        "layers-2-5": (2, 5),
    }


def test_numbers_above_half_the_layers_have_no_sets() -> None:
    assert choose_sets(RANKING, (2, 4), (), LAYERS) == {"highest-2": (2, 4), "lowest-2": (3, 5)}


def test_without_a_ranking_only_given_layers_are_left() -> None:
    assert choose_sets((), (1, 3), ((5,),), LAYERS) == {"layers-5": (5,)}


@pytest.mark.parametrize(
    ("ks", "given", "message"),
    [
        ((1,), ((2, 9),), r"ablate.layers: \[9\] is not among the layers 1 to 6"),
        ((1,), ((),), r"ablate.layers: an empty group is not among"),
    ],
)
def test_groups_that_do_not_fit(ks: tuple[int, ...], given: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_sets(RANKING, ks, given, LAYERS)


def test_summary_and_pairs() -> None:
    found = over_runs([0.5, 0.7])
    assert (found.mean, found.std, found.n) == (0.6, pytest.approx(0.02**0.5), 2)
    assert over_runs([0.5]).std is None
    assert over_runs([]) == MeanOverRuns(mean=None, std=None, n=0)
    assert minus({(1, 1): 0.7, (2, 1): 0.5}, {(2, 1): 0.6, (3, 1): 0.9}) == {(2, 1): pytest.approx(-0.1)}


def test_groups_whose_border_cuts_through_a_tie() -> None:
    score = {4: 0.9, 2: 0.5, 6: 0.5 + 1e-9, 1: 0.3, 3: 0.2, 5: 0.1}
    assert cut_ties((4, 2, 6, 1, 3, 5), (1, 2, 3), score) == {"highest-2": (2, 6)}
    assert cut_ties((4, 2, 6, 1, 3, 5), (1, 3), score) == {}
    assert cut_ties((1, 2, 3, 4), (1,), {1: 0.9, 2: 0.5, 3: 0.4, 4: 0.4}) == {"lowest-1": (4, 3)}
    assert cut_ties((), (1,), {}) == {}


@pytest.mark.parametrize(
    ("mean", "std", "told"),
    [
        (-0.03, 0.1, True),
        (-0.01, 0.001, True),
        (-0.03, 0.14, False),  # within its spread
        (0.03, 0.01, False),  # the same sign
        (-0.03, None, False),  # one run has no spread
        (0.0, 0.01, False),
    ],
)
def test_a_difference_that_contradicts_the_probes(mean: float, std: float | None, told: bool) -> None:
    found, probe = MeanOverRuns(mean=mean, std=std, n=5), MeanOverRuns(mean=0.1, std=0.04, n=5)
    noisy = MeanOverRuns(mean=0.1, std=0.3, n=5)
    assert contradiction("", found, noisy) is None
    expected = (
        f"high minus low: the ablation finds {100 * mean:+.1f} points, the closed-form probe on the same layers "
        f"+10.0. They contradict each other by more than either varies over its runs ({100 * max(std or 0, 0.04):.1f} "
        "points), so the ablation's difference may be due to training rather than to the layers."
    )
    assert contradiction("high minus low", found, probe) == (expected if told else None)


def test_presets_are_the_layers_of_the_papers() -> None:
    sets = choose_sets((), (), ((9,),), range(1, 41), tuple(PRESETS))
    presets = [layers for pair in PRESETS.values() for layers in pair]
    assert list(sets.values()) == presets  # layer 9 is named twice and trained once
    assert list(sets)[2] == "layers-10-11-12"


def test_preset_of_a_deeper_encoder() -> None:
    with pytest.raises(
        ConfigError, match=r"ablate.presets: text-19-21-37-39: \[37, 38, 39\] is not among the layers 1 to 24"
    ):
        choose_sets((), (), (), range(1, 25), ("text-19-21-37-39",))


def runs(accuracies: list[float]) -> Runs:
    """Figures of five folds with two seeds."""
    return {(i // 2 + 1, i % 2): value for i, value in enumerate(accuracies)}


def test_layers_of_high_score_alone() -> None:
    high, middle, low = (runs([start + 0.01 * i for i in range(10)]) for start in (0.7, 0.6, 0.5))
    trained = {(9,): high, (5,): middle, (23,): low, (4, 5): high}
    assert alone_tests("daam-v1", {9: 0.8, 5: 0.5, 23: 0.1, 4: 0.3}, trained) == [
        LayerTest("daam-v1", "trained", "alone", pytest.approx(1), pytest.approx(1 / 6), number=3, k=1, high="9",
                  low="23"),
        LayerTest("daam-v1", "trained", "alone-folds", pytest.approx(0.2), 1 / 32, 1 / 32, number=5, k=1, high="9",
                  low="23"),
    ]  # fmt: skip
    over_sets, over_folds = alone_tests("mha", {9: 0.1, 5: 0.5, 23: 0.8, 4: 0.3}, trained)
    assert (over_sets.value, over_sets.p, over_folds.p) == (pytest.approx(-1), 1, 1)


def test_what_cannot_be_tested_alone() -> None:
    same = runs([0.5] * 10)
    trained = {(9,): same, (23,): same, (30,): runs([0.9] * 10)}
    found = alone_tests("mha", {9: 0.8, 23: 0.8, 24: 0.1}, trained)  # layer 30 has no score
    assert [(one.value, one.p, one.high, one.low) for one in found] == [(None, None, None, None)] * 2
    assert found[0].number == 2
    assert alone_tests("mha", {9: 0.8, 23: 0.8, 30: 0.8}, trained) == []  # the score ties all layers
    assert alone_tests("mha", {9: 0.8}, {(9,): same}) == []
    halves = {(1, 2, 3): runs([0.8]), (4, 5, 6): runs([0.6])}
    _, over_folds = alone_tests("mha", {layer: -layer for layer in range(1, 7)}, halves)
    assert (over_folds.high, over_folds.low, over_folds.p) == ("1,2,3", "4,5,6", 0.5)
