"""Which layers are retrained on, and how the results are summed up."""

from __future__ import annotations

import pytest

from daamctl.analysis.ablation import choose_groups, paired_differences, summarize
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
    assert summarize([0.5, 0.7]) == {"mean": 0.6, "sample_std": pytest.approx(0.02**0.5), "n": 2}
    assert summarize([0.5])["sample_std"] is None
    high = [{"fold": 1, "seed": 1, "accuracy": 0.7}, {"fold": 2, "seed": 1, "accuracy": 0.5}]
    low = [{"fold": 2, "seed": 1, "accuracy": 0.6}, {"fold": 3, "seed": 1, "accuracy": 0.9}]
    assert paired_differences(high, low) == [{"fold": 2, "seed": 1, "difference": pytest.approx(-0.1)}]
