"""Which layers to retrain on, and what the results say (FACTS 14)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from daamctl.errors import ConfigError


@dataclass(frozen=True)
class LayerGroup:
    """Layers to train on.

    Args:
        name: e.g. `highest-3`; unique.
        kind: highest, lowest or given.
        k: number of layers.
        layers: ascending.
    """

    name: str
    kind: str
    k: int
    layers: tuple[int, ...]


def choose_groups(
    ranking: Sequence[int], ks: Sequence[int], given: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[LayerGroup]:
    """The k highest and k lowest layers for every k, then the given groups.

    Args:
        ranking: layers from most to least important; empty: no highest and lowest groups.
        ks: numbers of layers.
        given: further groups.
        layers: every layer there is.

    Raises:
        ConfigError: a k is more than half the layers (highest and lowest would overlap), or a given layer is not one
            of them.
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
    for group in given:
        absent = sorted(set(group) - set(layers))
        if absent or not group:
            raise ConfigError(
                f"ablate.layers: {absent or 'an empty group'} is not among the layers {min(layers)} to {max(layers)}"
            )
        chosen = tuple(sorted(set(group)))
        groups.append(LayerGroup("layers-" + "-".join(map(str, chosen)), "given", len(chosen), chosen))
    return groups


def summarize(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation (None for one value) and n."""
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "sample_std": std, "n": len(values)}


def paired_differences(high: Sequence[dict[str, Any]], low: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy on the highest minus the lowest layers, for each fold and seed that both have."""
    lows = {(row["fold"], row["seed"]): row["accuracy"] for row in low}
    return [
        {"fold": row["fold"], "seed": row["seed"], "difference": row["accuracy"] - lows[row["fold"], row["seed"]]}
        for row in high
        if (row["fold"], row["seed"]) in lows
    ]
