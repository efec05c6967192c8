"""The sets of layers that an ablation trains on, and tests of the results (docs/sources.md#layer-ablation)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from daamctl.artifacts.audit import LayerTest
from daamctl.artifacts.layer_sets import MeanOverRuns, Runs, layers_list, minus
from daamctl.data.sign_flip import paired_sign_flip
from daamctl.errors import ConfigError
from daamctl.evaluation.importance import ties, ties_all
from daamctl.evaluation.rank_tests import rank_test

PRESETS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "speech-9-23": ((9,), (23,)),
    "vision-10-12-22-24": ((10, 11, 12), (22, 23, 24)),
    "text-19-21-37-39": ((19, 20, 21), (37, 38, 39)),
}
"""Layers of high and of low Importance Factor that the papers name (docs/sources.md#layer-ablation)."""


def choose_sets(
    ranking: Sequence[int],
    ks: Sequence[int],
    given: Sequence[Sequence[int]],
    layers: Sequence[int],
    presets: Sequence[str] = (),
) -> dict[str, tuple[int, ...]]:
    """The k highest and k lowest layers for every k, then the given sets, then those of the papers; each once.

    A k above half the number of layers has no sets, because highest and lowest would overlap.

    Args:
        ranking: layers from most to least important; if empty, there are no highest and lowest sets.

    Returns:
        Name, e.g. `highest-3`, -> layers, ascending.

    Raises:
        ConfigError: a layer that is given or in a preset does not exist.
    """
    found: dict[str, tuple[int, ...]] = {}
    for k in dict.fromkeys(ks if ranking else ()):
        if 2 * k <= len(ranking):
            found |= {f"highest-{k}": tuple(sorted(ranking[:k])), f"lowest-{k}": tuple(sorted(ranking[-k:]))}
    named = [("ablate.layers", group) for group in given]
    named += [(f"ablate.presets: {name}", group) for name in presets for group in PRESETS[name]]
    for where, group in named:
        absent = sorted(set(group) - set(layers))
        if absent or not group:
            deeper = "it is meant for a deeper encoder; leave it out: --set 'ablate.presets=[]'"
            raise ConfigError(
                f"{where}: {absent or 'an empty group'} is not among the layers {min(layers)} to {max(layers)}",
                fix=deeper if "presets" in where else None,
            )
        chosen = tuple(sorted(set(group)))
        # the same set may be given and in a preset
        found.setdefault(set_name(chosen), chosen)
    return found


def set_name(layers: Sequence[int]) -> str:
    """Name of a set that is given by its layers, e.g. `layers-22-23-24`."""
    return "layers-" + "-".join(map(str, layers))


def cut_ties(ranking: Sequence[int], ks: Sequence[int], score: Mapping[int, float]) -> dict[str, tuple[int, int]]:
    """Highest and lowest sets of a ranking, with ties by layer number, that contain only some layers of the same score.

    Name of the set -> a layer in it, and one with the same score outside.
    """
    values = np.array(list(score.values()))
    borders = {f"highest-{k}": (ranking[k - 1], ranking[k]) for k in ks if ranking}
    borders |= {f"lowest-{k}": (ranking[-k], ranking[-k - 1]) for k in ks if ranking}
    return {name: pair for name, pair in borders.items() if ties(score[pair[0]], score[pair[1]], values)}


def alone_tests(method: str, score: Mapping[int, float], trained: Mapping[tuple[int, ...], Runs]) -> list[LayerTest]:
    """Whether layers with a high score do better when trained alone, for every size of set.

    The score of a set is the mean score of its layers. Both tests are one-sided. Over sets: rank correlation; with few
    sets, the smallest possible p is large. Over folds, with seeds averaged: sign flips between the sets with the
    highest and the lowest score; this shows that the two differ, not that the score predicts other sets.

    Returns:
        `alone` and `alone-folds` for each k with at least two sets; none if all layers have the same score.
    """
    if ties_all(np.array(list(score.values()))):
        return []
    known = {layers: runs for layers, runs in trained.items() if set(layers) <= score.keys()}
    tests = []
    for k in sorted({len(layers) for layers in known}):
        same = [layers for layers in known if len(layers) == k]
        if len(same) < 2:
            continue
        scores = [statistics.fmean(score[layer] for layer in layers) for layers in same]
        rank = LayerTest(method, "trained", "alone", number=len(same), k=k)
        flips = LayerTest(method, "trained", "alone-folds", k=k)
        if not ties_all(np.array(scores)):
            high, low = same[scores.index(max(scores))], same[scores.index(min(scores))]
            # sets with equal scores have no highest and lowest, so their tests stay empty
            rank, flips = (one._replace(high=layers_list(high), low=layers_list(low)) for one in (rank, flips))
            if found := rank_test(scores, [statistics.fmean(known[layers].values()) for layers in same]):
                rank = rank._replace(value=found.rho, p=found.p)
            by_fold: dict[int, list[float]] = {}
            for (fold, _), gap in sorted(minus(known[high], known[low]).items()):
                by_fold.setdefault(fold, []).append(gap)
            if by_fold:
                test = paired_sign_flip(list(map(statistics.fmean, by_fold.values())), one_sided=True)
                flips = flips._replace(value=test["mean"], p=test["p"], floor=test["floor"], number=len(by_fold))
        tests += [rank, flips]
    return tests


def contradiction(what: str, found: MeanOverRuns, probe: MeanOverRuns) -> str | None:
    """Caution if an ablation and the closed-form probe contradict each other, else None.

    They do if their mean differences have opposite signs and differ by more than the sample standard deviation of
    either over its runs.
    """
    if found.mean is None or probe.mean is None or found.std is None or probe.std is None:
        return None
    spread = max(found.std, probe.std)
    # the same sign, or no further apart than runs are
    if found.mean * probe.mean >= 0 or abs(found.mean - probe.mean) <= spread:
        return None
    return (
        f"{what}: the ablation finds {100 * found.mean:+z.1f} points, the closed-form probe on the same "
        f"layers {100 * probe.mean:+z.1f}. They contradict each other by more than either varies over its runs "
        f"({100 * spread:.1f} points), so the ablation's difference may be due to training rather than to the layers."
    )
