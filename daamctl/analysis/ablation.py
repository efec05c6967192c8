"""The choice of layers to retrain on, and tests of the results (docs/sources.md#layer-ablation)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from daamctl.analysis.importance import ties, ties_all
from daamctl.analysis.rank_tests import rank_test
from daamctl.artifacts.ablation import AloneTest, Difference, GroupAccuracy, OverRuns, RunAccuracy, RunDifference
from daamctl.errors import ConfigError
from daamctl.methods import CLOSED_FORM, resolve_method
from daamctl.sign_flip import paired_sign_flip

PRESETS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "speech-9-23": ((9,), (23,)),
    "vision-10-12-22-24": ((10, 11, 12), (22, 23, 24)),
    "text-19-21-37-39": ((19, 20, 21), (37, 38, 39)),
}
"""Layers of high and of low Importance Factor that the papers name (docs/sources.md#layer-ablation)."""

RANK_FIRST, TRAIN_FIRST = "daam-v1", "none"
"""Preferred method to rank the layers, and preferred method to train on few layers."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers to train on.

    Args:
        name: e.g. `highest-3`; unique.
        kind: highest, lowest, given or preset.
        k: number of layers.
        layers: ascending.
    """

    name: str
    kind: str
    k: int
    layers: tuple[int, ...]


def candidates(methods: Sequence[str], first: str) -> list[str]:
    """Methods of a pipeline that an ablation may use, in order of preference. Closed-form methods are left out.

    Args:
        first: the preferred method, by its name in the table; it may have any decoder.
    """
    trained = [name for name in methods if name not in CLOSED_FORM]
    return sorted(trained, key=lambda name: resolve_method(name)[0] != first)


def first_fit(names: Iterable[str], against: Callable[[str], str | None]) -> tuple[str | None, dict[str, str]]:
    """The first name that qualifies (None if none does), and the reasons against those before it.

    Args:
        against: name -> reason why it does not qualify, or None.
    """
    reasons: dict[str, str] = {}
    for name in names:
        reason = against(name)
        if reason is None:
            return name, reasons
        reasons[name] = reason
    return None, reasons


def choose_groups(
    ranking: Sequence[int],
    ks: Sequence[int],
    given: Sequence[Sequence[int]],
    layers: Sequence[int],
    presets: Sequence[str] = (),
) -> list[LayerGroup]:
    """The k highest and k lowest layers for every k, then the given groups, then those of the papers; each once.

    Args:
        ranking: layers from most to least important; if empty, there are no highest and lowest groups.
        ks: numbers of layers.
        presets: names from `PRESETS`.

    Raises:
        ConfigError: a k is more than half the layers, so that highest and lowest would overlap, or a layer that is
            given or in a preset does not exist.
    """
    groups = []
    for k in dict.fromkeys(ks if ranking else ()):
        if 2 * k > len(ranking):
            raise ConfigError(
                f"ablate.k: the {k} highest and {k} lowest of {len(ranking)} layers overlap; "
                f"at most {len(ranking) // 2}"
            )
        groups.append(LayerGroup(f"highest-{k}", "highest", k, tuple(sorted(ranking[:k]))))
        groups.append(LayerGroup(f"lowest-{k}", "lowest", k, tuple(sorted(ranking[-k:]))))
    named = [("ablate.layers", "given", group) for group in given]
    named += [(f"ablate.presets: {name}", "preset", group) for name in presets for group in PRESETS[name]]
    for where, kind, group in named:
        absent = sorted(set(group) - set(layers))
        if absent or not group:
            raise ConfigError(
                f"{where}: {absent or 'an empty group'} is not among the layers {min(layers)} to {max(layers)}",
                fix="leave the preset out; it is meant for a deeper encoder" if kind == "preset" else None,
            )
        chosen = tuple(sorted(set(group)))
        if all(group_name(chosen) != other.name for other in groups):
            groups.append(LayerGroup(group_name(chosen), kind, len(chosen), chosen))
    return groups


def cut_ties(ranking: Sequence[int], ks: Sequence[int], score: Mapping[int, float]) -> dict[str, tuple[int, int]]:
    """Highest and lowest groups that contain only some of the layers with the same score.

    Args:
        ranking: layers by score, highest first, ties by layer number.
        ks: numbers of layers of the groups.
        score: layer -> score.

    Returns:
        Name of the group -> a layer in it, and one with the same score outside.
    """
    values = np.array(list(score.values()))
    borders = {f"highest-{k}": (ranking[k - 1], ranking[k]) for k in ks if ranking}
    borders |= {f"lowest-{k}": (ranking[-k], ranking[-k - 1]) for k in ks if ranking}
    return {name: pair for name, pair in borders.items() if ties(score[pair[0]], score[pair[1]], values)}


def group_name(layers: Sequence[int]) -> str:
    """Name of a group that is given by its layers, e.g. `layers-22-23-24`."""
    return "layers-" + "-".join(map(str, layers))


def alone_tests(groups: Sequence[GroupAccuracy], score: Mapping[int, float]) -> list[AloneTest]:
    """Whether layers with a high score do better when trained alone, for every size of group.

    The score of a group is the mean score of its layers. Both tests are one-sided. Over groups: rank correlation; with
    few groups, the smallest possible p is large. Over folds, with seeds averaged: sign flips between the groups with
    the highest and the lowest score; this shows that the two differ, not that the score predicts other groups.

    Args:
        groups: results of the groups of layers.
        score: layer -> score.

    Returns:
        One test per k with at least two groups; none if all layers have the same score.
    """
    if ties_all(np.array(list(score.values()))):
        return []
    unique = {tuple(group.layers): group for group in groups if set(group.layers) <= score.keys()}
    tests = []
    for k in sorted({group.k for group in unique.values()}):
        same = [group for group in unique.values() if group.k == k]
        if len(same) > 1:
            tests.append(_alone_test(k, same, score))
    return tests


def _alone_test(k: int, groups: Sequence[GroupAccuracy], score: Mapping[int, float]) -> AloneTest:
    scores = [statistics.fmean(score[layer] for layer in group.layers) for group in groups]
    values = [statistics.fmean(row.compared for row in group.per_fold) for group in groups]
    if ties_all(np.array(scores)):
        return AloneTest(k, len(groups), None, None, [], [], None, None, None)
    found = rank_test(scores, values)
    high, low = groups[scores.index(max(scores))], groups[scores.index(min(scores))]
    pairs = paired_differences(high.per_fold, low.per_fold)
    flips = paired_sign_flip(_by_fold(pairs), one_sided=True) if pairs else None
    return AloneTest(
        k=k,
        num_groups=len(groups),
        spearman_rho=found.rho if found else None,
        p_groups=found.p if found else None,
        high=list(high.layers),
        low=list(low.layers),
        difference=flips["mean"] if flips else None,
        p_folds=flips["p"] if flips else None,
        floor_folds=flips["floor"] if flips else None,
    )


def _by_fold(pairs: Sequence[RunDifference]) -> list[float]:
    """Differences with the seeds of each fold averaged."""
    folds = sorted({pair.fold for pair in pairs})
    return [statistics.fmean(pair.difference for pair in pairs if pair.fold == fold) for fold in folds]


def over_runs(values: Sequence[float]) -> OverRuns:
    """Mean and sample standard deviation over runs."""
    return OverRuns(
        mean=statistics.fmean(values) if values else None,
        sample_std=statistics.stdev(values) if len(values) > 1 else None,
        n=len(values),
    )


def difference(pairs: Sequence[RunDifference]) -> Difference:
    """Differences of several runs, with their mean."""
    return Difference(per_fold=list(pairs), **vars(over_runs([pair.difference for pair in pairs])))


def contradiction(what: str, found: OverRuns, probe: OverRuns) -> str | None:
    """Caution if an ablation and the closed-form probe contradict each other, else None.

    They do if their mean differences have opposite signs and differ by more than the sample standard deviation of
    either over its runs.

    Args:
        probe: the same difference for the probe.
    """
    if found.mean is None or probe.mean is None or found.sample_std is None or probe.sample_std is None:
        return None
    spread = max(found.sample_std, probe.sample_std)
    if found.mean * probe.mean >= 0 or abs(found.mean - probe.mean) <= spread:
        return None
    return (
        f"{what}: the ablation finds {100 * found.mean:+.1f} points, the closed-form probe on the same "
        f"layers {100 * probe.mean:+.1f}. They contradict each other by more than either varies over its runs "
        f"({100 * spread:.1f} points), so the ablation's difference may be due to training rather than to the layers."
    )


def paired_differences(high: Sequence[RunAccuracy], low: Sequence[RunAccuracy]) -> list[RunDifference]:
    """Difference between two groups of layers, for each run (fold and seed) that both have."""
    lows = {(row.fold, row.seed): row.compared for row in low}
    return [
        RunDifference(row.fold, row.compared - lows[row.fold, row.seed], row.seed)
        for row in high
        if (row.fold, row.seed) in lows
    ]
