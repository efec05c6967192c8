"""Which layers are retrained on, and how the results are summed up."""

from __future__ import annotations

import pytest

from daamctl.analysis.ablation import (
    PRESETS,
    alone_tests,
    choose_groups,
    contradiction,
    cut_ties,
    difference,
    over_runs,
    paired_differences,
)
from daamctl.artifacts.ablation import AloneTest, GroupAccuracy, OverRuns, RunAccuracy, RunDifference
from daamctl.errors import ConfigError

LAYERS = tuple(range(1, 7))
RANKING = (4, 2, 6, 1, 3, 5)


def test_highest_lowest_and_given_layers() -> None:
    groups = choose_groups(RANKING, (1, 3, 1), ((5, 2),), LAYERS)
    assert [(group.name, group.layers) for group in groups] == [
        ("highest-1", (4,)),
        ("lowest-1", (5,)),
        ("highest-3", (2, 4, 6)),
        ("lowest-3", (1, 3, 5)),
        ("layers-2-5", (2, 5)),
    ]


def test_without_a_ranking_only_given_layers_are_left() -> None:
    assert [group.name for group in choose_groups((), (1, 3), ((5,),), LAYERS)] == ["layers-5"]


@pytest.mark.parametrize(
    ("ks", "given", "message"),
    [
        ((4,), (), r"ablate.k: the 4 highest and 4 lowest of 6 layers overlap; at most 3"),
        ((1,), ((2, 9),), r"ablate.layers: \[9\] is not among the layers 1 to 6"),
        ((1,), ((),), r"ablate.layers: an empty group is not among"),
    ],
)
def test_groups_that_do_not_fit(ks: tuple[int, ...], given: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_groups(RANKING, ks, given, LAYERS)


def test_summary_and_pairs() -> None:
    found = over_runs([0.5, 0.7])
    assert (found.mean, found.sample_std, found.n) == (0.6, pytest.approx(0.02**0.5), 2)
    assert over_runs([0.5]).sample_std is None
    assert over_runs([]) == OverRuns(mean=None, sample_std=None, n=0)
    high = [RunAccuracy(1, 1, 0.7), RunAccuracy(2, 1, 0.5)]
    low = [RunAccuracy(2, 1, 0.6), RunAccuracy(3, 1, 0.9)]
    pairs = paired_differences(high, low)
    assert [(pair.fold, pair.seed, pair.difference) for pair in pairs] == [(2, 1, pytest.approx(-0.1))]
    assert difference([RunDifference(1, 0.2, 1), RunDifference(2, 0.4, 1)]).mean == pytest.approx(0.3)


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
    found, probe = OverRuns(mean=mean, sample_std=std, n=5), OverRuns(mean=0.1, sample_std=0.04, n=5)
    noisy = OverRuns(mean=0.1, sample_std=0.3, n=5)
    assert contradiction("", found, noisy) is None
    expected = (
        f"high minus low: the ablation finds {100 * mean:+.1f} points, the closed-form probe on the same layers "
        f"+10.0. They contradict each other by more than either varies over its runs ({100 * max(std or 0, 0.04):.1f} "
        "points), so the ablation's difference may be due to training rather than to the layers."
    )
    assert contradiction("high minus low", found, probe) == (expected if told else None)


def test_presets_are_the_layers_of_the_papers() -> None:
    groups = choose_groups((), (), ((9,),), range(1, 41), tuple(PRESETS))
    assert [(group.kind, group.layers) for group in groups] == [
        ("given", (9,)),  # named twice, trained once
        ("preset", (23,)),
        ("preset", (10, 11, 12)),
        ("preset", (22, 23, 24)),
        ("preset", (19, 20, 21)),
        ("preset", (37, 38, 39)),
    ]
    assert groups[2].name == "layers-10-11-12"


def test_preset_of_a_deeper_encoder() -> None:
    with pytest.raises(
        ConfigError, match=r"ablate.presets: text-19-21-37-39: \[37, 38, 39\] is not among the layers 1 to 24"
    ):
        choose_groups((), (), (), range(1, 25), ("text-19-21-37-39",))


def group(layers: tuple[int, ...], accuracies: list[float]) -> GroupAccuracy:
    """Results of a group, five folds with two seeds."""
    rows = [RunAccuracy(i // 2 + 1, i % 2, value) for i, value in enumerate(accuracies)]
    return GroupAccuracy(
        name="", kind="given", k=len(layers), layers=list(layers), per_fold=rows, mark="",
        probe=over_runs([]), **vars(over_runs(accuracies)),
    )  # fmt: skip


def test_layers_of_high_score_alone() -> None:
    high, middle, low = ([start + 0.01 * i for i in range(10)] for start in (0.7, 0.6, 0.5))
    groups = [group((9,), high), group((9,), high), group((5,), middle), group((23,), low), group((4, 5), high)]
    (found,) = alone_tests(groups, {9: 0.8, 5: 0.5, 23: 0.1, 4: 0.3})
    assert found == AloneTest(
        k=1, num_groups=3, spearman_rho=pytest.approx(1), p_groups=pytest.approx(1 / 6), high=[9], low=[23],
        difference=pytest.approx(0.2), p_folds=1 / 32, floor_folds=1 / 32,
    )  # fmt: skip
    (reversed_,) = alone_tests(groups, {9: 0.1, 5: 0.5, 23: 0.8, 4: 0.3})
    assert (reversed_.spearman_rho, reversed_.p_groups, reversed_.p_folds) == (pytest.approx(-1), 1, 1)


def test_what_cannot_be_tested_alone() -> None:
    groups = [group((9,), [0.5] * 10), group((23,), [0.5] * 10), group((30,), [0.9] * 10)]
    (found,) = alone_tests(groups, {9: 0.8, 23: 0.8, 24: 0.1})  # layer 30 has no score
    assert (found.num_groups, found.spearman_rho, found.difference) == (2, None, None)
    assert (found.high, found.low) == ([], [])  # neither is the higher
    assert alone_tests(groups, {9: 0.8, 23: 0.8, 30: 0.8}) == []  # the score ties all layers
    assert alone_tests(groups[:1], {9: 0.8}) == []
    (small,) = alone_tests([group((1, 2, 3), [0.8]), group((4, 5, 6), [0.6])], {layer: -layer for layer in range(1, 7)})
    assert (small.high, small.low, small.p_folds) == ([1, 2, 3], [4, 5, 6], 0.5)
